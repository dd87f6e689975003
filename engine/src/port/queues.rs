//! Several ports that are the queues of one interface, with one identity. Each connection belongs
//! to one port, its owner; a segment that arrives at another queue is handed over to the owner.
//! Frames from which one queue learns a neighbour are handed over to all queues. The ports share
//! one table of owners, which is consulted only for segments of no connection in the port. The
//! caller moves what [`Port::poll_handover`] returns to [`Port::handle_handover`] of the recipient.

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;

use urnic_netdev::{RxChecksum, RxFrame};

use crate::limits::{HANDOVER_FRAMES_MAX, PORTS_MAX};
use crate::mem::TableLease;
use crate::port::connections::Connections;
use crate::port::drops::FrameDrop;
use crate::port::interface::framing::Opened;
use crate::port::tuple::Tuple;
use crate::port::{EPHEMERAL_FIRST, Port, PortError};
use crate::time::Instant;
use crate::verbs::calls::HeldCalls;

/// A frame that arrived at one queue of an interface and is for other queues, without VLAN tag.
#[derive(Clone, Debug)]
pub struct Handover {
    to: Recipient,
    frame: Vec<u8>,
    checksum: RxChecksum,
    segment_size: Option<NonZeroU16>,
}

/// The queues that a [`Handover`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// The port with this index, the owner of the connection that the segment is for.
    One(usize),
    /// All queues except the sender: the frame carries neighbour information.
    Others,
}

impl Handover {
    /// The queues that the frame is for.
    #[must_use]
    pub const fn to(&self) -> Recipient {
        self.to
    }
}

#[derive(Debug, Default)]
pub(super) struct Handovers {
    outbox: VecDeque<Handover>,
    handed_over: bool,
}

impl Handovers {
    fn push(
        &mut self,
        to: Recipient,
        opened: &Opened<'_>,
        checksum: RxChecksum,
        segment_size: Option<NonZeroU16>,
    ) -> bool {
        if self.outbox.len() >= HANDOVER_FRAMES_MAX {
            return false;
        }
        let mut frame = Vec::new();
        opened.write(&mut frame);
        self.outbox.push_back(Handover { to, frame, checksum, segment_size });
        true
    }
}

/// No two queues of `count` can open the same connection.
fn ephemeral_ports(index: usize, count: usize) -> RangeInclusive<u16> {
    let each = (u16::MAX - EPHEMERAL_FIRST) / u16::try_from(count).unwrap_or(u16::MAX).max(1);
    let first = EPHEMERAL_FIRST + each * u16::try_from(index).unwrap_or(0);
    first..=first + (each - 1)
}

const _: () = assert!(PORTS_MAX <= 1024, "each queue has some dozens of TCP ports");

impl Port {
    /// Makes ports without connections the queues of one interface, in this order. They must belong
    /// to one [`Rnic`](crate::verbs::Rnic) and have the same addresses. Errors:
    /// [`PortError::NotOneInterface`] if they do not fit together, if there are more than
    /// [`PORTS_MAX`], or if one gets its address by DHCP.
    pub fn join(ports: &mut [&mut Self]) -> Result<(), PortError> {
        let count = ports.len();
        if count < 2 {
            return Ok(());
        }
        let fits = ports.iter().all(|port| port.resembles(ports[0]));
        if !fits || count > PORTS_MAX {
            return Err(PortError::NotOneInterface);
        }
        let key = ports[0].rnic.seed.port_keys().tables;
        Connections::join(key, ports.iter_mut().map(|port| &mut port.connections));
        for (index, port) in ports.iter_mut().enumerate() {
            port.source_ports.set_range(ephemeral_ports(index, count));
            port.rnic.blocks().divide_among(count);
            port.handovers = Some(Handovers::default());
        }
        Ok(())
    }

    fn resembles(&self, other: &Self) -> bool {
        let (a, b) = (&self.config, &other.config);
        let unused = self.connections.is_empty() && self.handovers.is_none();
        let same_link = (a.mac, a.vlan, self.interface.capabilities.medium)
            == (b.mac, b.vlan, other.interface.capabilities.medium);
        let same_addresses = (a.ipv4, a.ipv6, a.gateway_v4, a.gateway_v6)
            == (b.ipv4, b.ipv6, b.gateway_v4, b.gateway_v6);
        let same_rnic = self.rnic.is_same(&other.rnic);
        unused && same_link && same_addresses && same_rnic && !a.dhcp
    }

    /// Returns the next frame for other queues of the interface.
    pub fn poll_handover(&mut self) -> Option<Handover> {
        self.handovers.as_mut()?.outbox.pop_front()
    }

    /// Processes a frame that another queue of the interface has handed over.
    pub fn handle_handover(&mut self, now: Instant, handover: &Handover) {
        let Handover { to, frame, checksum, segment_size } = handover;
        let (checksum, segment_size) = (*checksum, *segment_size);
        let framing = self.interface.framing.without_tag();
        if *to == Recipient::Others {
            if let Ok(opened) = framing.open(frame) {
                self.learn_from_other_queue(now, &opened, checksum);
            }
            return;
        }
        self.set_handed_over(true);
        let rnic = self.rnic.clone();
        let _until_the_lease_is_closed = HeldCalls::new();
        let mut lease = TableLease::new(&rnic.table);
        let whole = RxFrame::whole(frame, checksum, segment_size);
        self.take_frame(now, framing, &whole, &mut lease);
        self.set_handed_over(false);
    }

    fn set_handed_over(&mut self, handed_over: bool) {
        if let Some(handovers) = &mut self.handovers {
            handovers.handed_over = handed_over;
        }
    }

    /// If the frame was a query, the queue that received it answers.
    fn learn_from_other_queue(&mut self, now: Instant, opened: &Opened<'_>, checksum: RxChecksum) {
        if self.interface.neighbours.learn_from(now, &self.config, opened) {
            self.host.overhear(now, opened, checksum);
        }
        self.wake_for_neighbours();
    }

    pub(super) fn tell_other_queues(&mut self, opened: &Opened<'_>, checksum: RxChecksum) {
        let Some(handovers) = &mut self.handovers else { return };
        if !handovers.push(Recipient::Others, opened, checksum, None) {
            self.drop_frame(FrameDrop::Handover);
        }
    }

    /// To the queue that owns the connection. Returns false if no other queue does.
    pub(super) fn hand_over(
        &mut self,
        tuple: &Tuple,
        opened: &Opened<'_>,
        checksum: RxChecksum,
        segment_size: Option<NonZeroU16>,
    ) -> bool {
        let Some(handovers) = &mut self.handovers else { return false };
        // A frame that was handed over to this queue is not handed over again.
        if handovers.handed_over {
            return false;
        }
        let Some(owner) = self.connections.other_owner(tuple) else { return false };
        if handovers.push(Recipient::One(owner), opened, checksum, segment_size) {
            self.counters.handed_over += 1;
        } else {
            self.drop_frame(FrameDrop::Handover);
        }
        true
    }
}

// The bench `queues` counts the cache lines that queues share while frames pass.
#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
    use urnic_netdev::{Capabilities, Device, Medium};

    use super::*;
    use crate::mem::Access;
    use crate::mpa::startup::Offer;
    use crate::poll::{Lockstep, Poller};
    use crate::port::{ConnectParams, ListenParams, LowerLayer, PortConfig, PortEvent, VlanId};
    use crate::stream::StreamEvent;
    use crate::types::WrId;
    use crate::verbs::{Cq, Mr, Pd, Qp, QpConfig, Rnic, RnicConfig, SendWr, WcStatus};

    const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
    /// Bytes of a message: more than one block for Read Responses.
    const LEN: usize = 40_000;

    /// Both ends of a queue, all of one RNIC, with an open connection.
    struct Queue {
        link: Lockstep<MemoryDevice, MemoryDevice>,
        cq: Cq,
        qps: [Qp; 2],
        memory: Mr,
    }

    impl Queue {
        fn new(rnic: &Rnic, pd: &Pd) -> Self {
            let cq = rnic.create_cq(64).unwrap();
            let qp = || {
                let depths = QpConfig { send_depth: 16, recv_depth: 16, ..QpConfig::new(&cq) };
                pd.create_qp(depths).unwrap()
            };
            let (a, b) = memory::pair(LinkConfig::default());
            let poller = |address, device: MemoryDevice| {
                let config = PortConfig::for_ipv4(address);
                Poller::new(Port::new(rnic, config, device.capabilities()), device)
            };
            let [near, far] = ADDRESSES;
            let link = Lockstep::new(poller(near, a), poller(far, b));
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
            let memory = pd.reg_mr(2 * LEN, access).unwrap();
            Self { link, qps: [qp(), qp()], cq, memory }
        }

        fn connect(&mut self) {
            let Self { link, qps: [near, far], .. } = self;
            link.b.port.listen(7, ListenParams::default()).unwrap();
            let offer = Offer { ird: 8, ord: 8, ..Offer::default() };
            let params = ConnectParams { offer, ..ConnectParams::default() };
            let remote = (ADDRESSES[1], 7).into();
            link.a.port.connect(Instant::ZERO, remote, near, &params).unwrap();
            let connected = link.run_until(Instant::from_nanos(1_000_000_000), |link| {
                while let Some(event) = link.b.port.poll_event() {
                    if let PortEvent::Stream { connection, event: StreamEvent::Request(_) } = event
                    {
                        link.b.port.accept(connection, far, &offer).unwrap();
                    }
                }
                let mut of_a = std::iter::from_fn(|| link.a.port.poll_event());
                of_a.any(|event| {
                    matches!(event, PortEvent::Stream { event: StreamEvent::Established(_), .. })
                })
            });
            assert!(connected);
        }

        /// Moves `messages` messages, Writes and Reads alternating; calls `look` while each frame
        /// is handled.
        fn advance(&mut self, messages: u64, look: &dyn Fn()) {
            let (mut posted, mut completed) = (0, 0);
            while completed < messages {
                while posted < messages && posted < completed + 8 {
                    let (id, remote) = (WrId(posted), self.memory.remote(LEN as u64));
                    let local = self.memory.sge(0..LEN);
                    let wr = if posted % 2 == 0 {
                        SendWr::write(id, remote, [local])
                    } else {
                        SendWr::read(id, remote, local)
                    };
                    self.qps[0].post_send(wr).unwrap();
                    posted += 1;
                }
                let now = self.link.now();
                let mut moved = 0;
                for Poller { port, device } in [&mut self.link.a, &mut self.link.b] {
                    let now_ns = now.as_nanos();
                    moved += port.handle_burst(now, |sink| {
                        device.receive(now_ns, 64, &mut |frame| {
                            sink(&frame);
                            look();
                        })
                    });
                    moved += port.poll_transmit(now, 64, &mut |frame| {
                        look();
                        device.transmit(now_ns, frame)
                    });
                    device.flush(now_ns);
                }
                assert!(moved > 0 || self.link.step());
                while let Some(wc) = self.cq.poll() {
                    assert_eq!(wc.status, WcStatus::Success);
                    completed += 1;
                }
            }
        }
    }

    /// Two queues of one interface at both ends, connected.
    fn two_queues(rnic: &Rnic) -> [Queue; 2] {
        let pd = rnic.alloc_pd();
        let mut queues = [(); 2].map(|()| Queue::new(rnic, &pd));
        let [first, second] = &mut queues;
        Port::join(&mut [&mut first.link.a.port, &mut second.link.a.port]).unwrap();
        Port::join(&mut [&mut first.link.b.port, &mut second.link.b.port]).unwrap();
        queues.iter_mut().for_each(Queue::connect);
        queues
    }

    #[test]
    fn no_frame_writes_the_counters_shared_by_queues() {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let mut queues = two_queues(&rnic);
        let of_other = {
            let port = &queues[1].link.a.port;
            let (held, blocks) = (port.rnic.clone(), Arc::clone(port.rnic.blocks()));
            move || (held.count(), Arc::strong_count(&blocks), blocks.taken())
        };
        let count = || {
            let shared = &rnic.shared;
            let blocks = shared.blocks();
            (Arc::strong_count(shared), Arc::strong_count(blocks), blocks.taken(), of_other())
        };
        let before = count();
        let own = Arc::clone(queues[0].link.b.port.rnic.blocks());
        let blocks_seen = std::cell::Cell::new(0);
        queues[0].advance(100, &|| {
            assert_eq!(count(), before);
            blocks_seen.set(blocks_seen.get().max(own.taken()));
        });
        assert!(blocks_seen.get() > 0, "Read Responses were kept, by the queue's own pool");
    }

    /// Otherwise two queues could exchange a frame for ever if its connection ends meanwhile.
    #[test]
    fn a_frame_is_handed_over_once() {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let [mut owner, mut other] = two_queues(&rnic);
        // The responder sends nothing before the first FPDU of its peer.
        owner.advance(1, &|| {});
        let (now, far) = (owner.link.now(), &owner.qps[1]);
        let write = SendWr::write(WrId(1), owner.memory.remote(0), [owner.memory.sge(0..8)]);
        far.post_send(write).unwrap();
        let mut frame = Vec::new();
        owner.link.b.port.poll_transmit(now, 64, &mut |sent| {
            frame.resize(sent.len(), 0);
            sent.gather(&mut frame);
            Ok(())
        });
        let port = &mut other.link.a.port;
        port.handle_frame(now, &RxFrame::whole(&frame, RxChecksum::Valid, None));
        // An ARP reply of the startup is for all queues.
        let handed = std::iter::from_fn(|| port.poll_handover())
            .find(|handed| handed.to != Recipient::Others)
            .unwrap();
        assert_eq!((handed.to, &handed.frame), (Recipient::One(0), &frame));
        port.handle_handover(now, &Handover { to: Recipient::One(1), ..handed });
        assert!(port.poll_handover().is_none());
        assert_eq!(port.port_counters().handed_over, 1);
    }

    #[test]
    fn private_state_of_queues_shares_no_cache_line() {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let queues = two_queues(&rnic);
        let ports = queues.each_ref().map(|queue| [&queue.link.a.port, &queue.link.b.port]);
        let ports: Vec<_> = ports.into_iter().flatten().collect();
        let mut places: Vec<_> = ports
            .iter()
            .flat_map(|port| [port.rnic.addr(), Arc::as_ptr(port.rnic.blocks()).addr()])
            .collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 128), "{places:x?}");
    }

    /// Two queues of an interface without connections.
    fn queues(vlan: Option<VlanId>, medium: Medium) -> [Port; 2] {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let (device, _peer) = memory::pair(LinkConfig::default());
        let capabilities = Capabilities { medium, ..device.capabilities() };
        let config = PortConfig { vlan, ..PortConfig::for_ipv4(ADDRESSES[0]) };
        let mut ports = [(); 2].map(|()| Port::new(&rnic, config.clone(), capabilities));
        let [one, other] = &mut ports;
        Port::join(&mut [one, other]).unwrap();
        ports
    }

    /// Frames for a queue that does not keep up are dropped and counted.
    #[test]
    fn a_neighbour_that_one_queue_learns_is_known_to_the_other() {
        for vlan in [None, VlanId::new(7)] {
            let [mut one, mut other] = queues(vlan, Medium::Ethernet);
            let mac = [2, 0, 0, 0, 0, 9];
            let mut request = [[0xff; 6], mac].concat();
            request.extend(vlan.map(|_| [0x81, 0, 0, 7]).into_iter().flatten());
            request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1].into_iter().chain(mac));
            request.extend([10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
            let request = RxFrame::whole(&request, RxChecksum::Unverified, None);
            for _ in 0..HANDOVER_FRAMES_MAX + 3 {
                one.handle_frame(Instant::ZERO, &request);
            }
            let handed: Vec<_> = std::iter::from_fn(|| one.poll_handover()).collect();
            assert_eq!((handed.len(), one.drops().handover), (HANDOVER_FRAMES_MAX, 3));
            assert_eq!(other.interface.neighbours.lookup(ADDRESSES[1].into()), None);
            other.handle_handover(Instant::ZERO, &handed[0]);
            assert_eq!(other.interface.neighbours.lookup(ADDRESSES[1].into()), Some(mac));
            let answered = other.poll_transmit(Instant::ZERO, 64, &mut |_| Ok(()));
            assert_eq!(answered, 0, "the queue that was asked answers");
        }
    }

    #[test]
    fn segments_of_a_queue_that_does_not_keep_up_are_dropped_and_counted() {
        let [mut one, mut owner] = queues(None, Medium::Ip);
        let remote = (ADDRESSES[1], 7).into();
        owner.open(Instant::ZERO, remote, LowerLayer::Optimized).unwrap();
        let mut segment = Vec::new();
        owner.poll_transmit(Instant::ZERO, 64, &mut |frame| {
            segment.resize(frame.len(), 0);
            frame.gather(&mut segment);
            Ok(())
        });
        // As if the peer had sent it.
        let (source, destination) = segment[12..20].split_at_mut(4);
        source.swap_with_slice(destination);
        let (source, destination) = segment[20..24].split_at_mut(2);
        source.swap_with_slice(destination);
        let frame = RxFrame::whole(&segment, RxChecksum::Valid, None);
        for _ in 0..HANDOVER_FRAMES_MAX + 3 {
            one.handle_frame(Instant::ZERO, &frame);
        }
        let handed: Vec<_> = std::iter::from_fn(|| one.poll_handover()).collect();
        assert!(handed.iter().all(|handed| handed.to() == Recipient::One(1)));
        let max = HANDOVER_FRAMES_MAX as u64;
        assert_eq!((one.port_counters().handed_over, one.drops().handover), (max, 3));
        // A frame that was handed over stops there, and the next one does not.
        one.handle_handover(Instant::ZERO, &handed[0]);
        assert!(one.poll_handover().is_none());
        one.handle_frame(Instant::ZERO, &frame);
        assert!(one.poll_handover().is_some());
    }
}
