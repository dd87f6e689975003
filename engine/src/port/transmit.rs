//! Transmitted frames: first the host stack, then SYN-ACKs with cookies, then connections in turn.

use std::num::NonZeroUsize;

use arrayvec::ArrayVec;
use urnic_netdev::{TransmitError, TxFrame};

use crate::limits::FRAGMENTS_MAX;
use crate::port::Port;
use crate::port::connections::is_in_time_wait;
use crate::port::interface::emit::Emitter;
use crate::port::interface::outlet::Outlet;
use crate::stream::carrier::{SegmentSink, TxLimits};
use crate::time::Instant;

/// Bytes after which [`Port::poll_transmit`] returns: they are still in the cache when read.
pub(super) const BURST_BYTES: usize = 256 << 10;

/// Queue pairs with new work that are processed together.
const DOORBELLS_AT_ONCE: usize = 16;

/// Most frames that one connection sends before the next one does.
const TURN_FRAMES: usize = 32;

/// Most bytes that one connection sends before the next one does: two large super-frames.
const TURN_BYTES: usize = 128 << 10;

/// Bytes that all connections send in one round, at least one frame each: if more than 16 have
/// something to send, each sends less at a time, so that one turn less costs at most half of its
/// share, and acknowledgments do not wait long. Of a thousand connections that share 200 Mbit/s,
/// each sends ten times a second; with 32 frames at a time, it would be every two seconds.
const ROUND_BYTES: usize = 2 << 20;

const fn turn_bytes(ready: usize) -> usize {
    if ready <= ROUND_BYTES / TURN_BYTES { TURN_BYTES } else { ROUND_BYTES / ready }
}

impl Port {
    /// Passes due frames to `transmit`: at most `room`, and not many more bytes than `BURST_BYTES`.
    /// Returns the number of frames taken; 0 means that nothing is due. A frame that the device has
    /// no room for ([`TransmitError::Full`]) ends the call and is the first of the next call, with
    /// the rest of its super-frame. A frame refused for another reason is dropped; TCP retransmits
    /// its bytes.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        room: usize,
        transmit: &mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> usize {
        self.reopen(now);
        let mut refused = std::mem::take(&mut self.interface.refused);
        let mut outlet = Outlet::new(&mut refused, room, transmit);
        self.fill(now, room, &mut outlet);
        let taken = outlet.taken();
        self.interface.refused = refused;
        taken
    }

    fn fill(&mut self, now: Instant, room: usize, outlet: &mut Outlet<'_>) {
        // Half the room is for connections, no matter how much the host stack sends.
        self.host.poll_transmit(now, room.div_ceil(2), outlet);
        self.apply_lease_change();
        self.watch_lease(now);
        self.send_cookie_answers(room, outlet);
        self.answer_doorbells();
        if self.doorbell.take_missed() {
            self.connections.wake_all();
        }
        self.connections.prefetch_first_ready();
        let mut bytes = 0;
        while outlet.taken() < room && bytes < BURST_BYTES && !outlet.is_full() {
            let Some(slot) = self.connections.next_ready() else { break };
            self.connections.prefetch_ready();
            let room = (room - outlet.taken()).min(TURN_FRAMES);
            bytes += if is_in_time_wait(slot) {
                self.answer_in_time_wait(now, slot, room, outlet)
            } else {
                self.transmit_turn(now, slot, room, outlet)
            };
        }
    }

    /// Wakes the connections of queue pairs with new work, several at a time: their state is
    /// fetched in parallel. Each `DoorbellButton` is released just before its connection sends.
    #[inline(never)]
    fn answer_doorbells(&mut self) {
        while self.doorbell.has_rung() {
            let rung = std::iter::from_fn(|| self.doorbell.next());
            let rung: ArrayVec<u32, DOORBELLS_AT_ONCE> = rung.take(DOORBELLS_AT_ONCE).collect();
            if rung.is_empty() {
                break;
            }
            self.connections.prefetch_rung(&rung);
            rung.into_iter().for_each(|slot| self.connections.doorbell_rang(slot));
        }
    }

    fn send_cookie_answers(&mut self, room: usize, outlet: &mut Outlet<'_>) {
        while outlet.taken() < room
            && !outlet.is_full()
            && let Some((route, header)) = self.listeners.next_answer()
        {
            Emitter::new(&route, &self.interface.capabilities, outlet).emit(
                &header,
                &[],
                &[],
                None,
            );
        }
    }

    fn transmit_turn(
        &mut self,
        now: Instant,
        slot: u32,
        room: usize,
        outlet: &mut Outlet<'_>,
    ) -> usize {
        let ready = 1 + self.connections.ready_count();
        let connection = &mut self.connections[slot];
        if std::mem::take(&mut connection.rung) {
            // Released before posted work is read: later work must ring again.
            connection.release_button();
        }
        if connection.path.is_doubted() {
            connection.judge_path(now, &mut self.interface.paths);
        }
        let Some(route) =
            connection.resolve(&self.config, &self.interface.neighbours, self.interface.framing)
        else {
            let next_hop = connection.next_hop(&self.config);
            // One query is enough, however often the connection is woken meanwhile.
            let waiting = (!connection.awaits_neighbour).then_some(slot);
            let neighbours = &mut self.interface.neighbours;
            connection.awaits_neighbour |= neighbours.solicit(
                now,
                &self.config,
                self.interface.framing,
                next_hop,
                waiting,
                outlet,
            );
            connection.carrier.while_unreachable(now);
            self.connections.touch(slot);
            return 0;
        };
        if std::mem::take(&mut connection.confirm_neighbour)
            && self.interface.framing.has_link_layer()
        {
            // Verifies the link address: any host can have sent the frame that it was learned from,
            // or the peer has not answered for a long time.
            let next_hop = connection.next_hop(&self.config);
            let neighbours = &mut self.interface.neighbours;
            neighbours.solicit(now, &self.config, self.interface.framing, next_hop, None, outlet);
        }
        let mut limits = TxLimits {
            super_frame_len_max: self
                .interface
                .capabilities
                .segmentation_len_max
                .map_or(0, NonZeroUsize::get),
            frames_max: room,
            bytes_max: turn_bytes(ready),
            fragments_max: self.interface.capabilities.fragments_max.min(FRAGMENTS_MAX),
        };
        let mut emitter = Emitter::new(&route, &self.interface.capabilities, outlet);
        let mut more = true;
        while more && emitter.may_continue(room, turn_bytes(ready)) {
            limits.frames_max = room - emitter.turn().frames;
            limits.bytes_max = turn_bytes(ready) - emitter.turn().bytes;
            more = connection.carrier.poll_transmit(now, &limits, &mut self.scratch, &mut emitter);
        }
        let turn = emitter.turn();
        connection.frames_sent += turn.frames as u64;
        if more {
            self.connections.wake(slot);
        }
        self.connections.touch(slot);
        turn.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use urnic_netdev::memory::{self, LinkConfig};
    use urnic_netdev::{Capabilities, Device, Medium};

    use super::*;
    use crate::mem::Access;
    use crate::mpa::startup::Offer;
    use crate::poll::{Lockstep, Poller};
    use crate::port::{ConnectParams, ListenParams, LowerLayer, PortConfig, PortEvent};
    use crate::stream::StreamEvent;
    use crate::types::WrId;
    use crate::verbs::{Cq, Doorbell, Pd, Qp, QpConfig, Rnic, RnicConfig, SendWr, WcStatus};

    const CAPABILITIES: Capabilities = Capabilities {
        medium: Medium::Ethernet,
        mtu: 1500,
        segmentation_len_max: None,
        tx_checksum: false,
        fragments_max: usize::MAX,
        gather_len_min: 0,
        tx_digest: false,
    };

    const SECOND_NS: u64 = 1_000_000_000;

    /// Two ports with connections between them.
    struct Connected {
        link: Lockstep<memory::MemoryDevice, memory::MemoryDevice>,
        pd: Pd,
        cq: Cq,
        /// The queue pairs at both ends.
        qps: [Vec<Qp>; 2],
    }

    /// Opens `count` connections of a port with this doorbell.
    fn connected(count: usize, doorbell: Arc<Doorbell>) -> Connected {
        let (a, b) = memory::pair(LinkConfig::default());
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(64).unwrap());
        let address = |last| Ipv4Addr::new(10, 0, 0, last);
        let poller = |last, device: memory::MemoryDevice| {
            let config = PortConfig::for_ipv4(address(last));
            Poller::new(Port::new(&rnic, config, device.capabilities()), device)
        };
        let mut link = Lockstep::new(poller(1, a), poller(2, b));
        link.a.port.doorbell = doorbell;
        link.b.port.listen(7, ListenParams::default()).unwrap();
        let qp = || {
            let (send_cq, recv_cq) = (cq.clone(), cq.clone());
            let config = QpConfig::with_cqs(send_cq, recv_cq);
            pd.create_qp(QpConfig { send_depth: 4, recv_depth: 4, ..config }).unwrap()
        };
        let [open, peers]: [Vec<Qp>; 2] =
            std::array::from_fn(|_| std::iter::repeat_with(qp).take(count).collect());
        for qp in &open {
            let remote = (address(2), 7).into();
            link.a.port.connect(Instant::ZERO, remote, qp, &ConnectParams::default()).unwrap();
        }
        let (mut accepted, mut established) = (0, 0);
        let all = link.run_until(Instant::from_nanos(SECOND_NS), |link| {
            while let Some(event) = link.b.port.poll_event() {
                if let PortEvent::Stream { connection, event: StreamEvent::Request(_) } = event {
                    link.b.port.accept(connection, &peers[accepted], &Offer::default()).unwrap();
                    accepted += 1;
                }
            }
            let of_a = std::iter::from_fn(|| link.a.port.poll_event());
            established += of_a
                .filter(|event| {
                    matches!(event, PortEvent::Stream { event: StreamEvent::Established(_), .. })
                })
                .count();
            established == count
        });
        assert!(all);
        Connected { link, pd, cq, qps: [open, peers] }
    }

    /// Queue pairs whose connections are over can fill the doorbell.
    #[test]
    fn work_beyond_the_doorbell_capacity_is_done() {
        let Connected { mut link, pd, cq, qps: [open, _peers] } =
            connected(3, Doorbell::with_places(1));
        let memory = pd.reg_mr(8, Access::REMOTE_WRITE).unwrap();
        // No `DoorbellButton` may have stayed pressed the second time.
        for round in 1..3 {
            for qp in &open {
                let write = SendWr::write(WrId(round), memory.remote(0), [memory.sge(0..8)]);
                qp.post_send(write).unwrap();
            }
            let deadline = Instant::from_nanos((1 + round) * SECOND_NS);
            assert!(link.run_until(deadline, |_| cq.len() == open.len()), "{} of 3", cq.len());
            assert!(std::iter::from_fn(|| cq.poll()).all(|wc| wc.status == WcStatus::Success));
        }
    }

    /// Its `DoorbellButton` stays pressed until the connection has its turn.
    #[test]
    fn work_that_is_posted_before_a_connection_has_its_turn_is_done_in_it() {
        let Connected { mut link, pd, cq, qps: [open, _peers] } = connected(3, Doorbell::new());
        let memory = pd.reg_mr(8, Access::REMOTE_WRITE).unwrap();
        for round in 1..3 {
            for id in 0..2 {
                for qp in &open {
                    let write = SendWr::write(WrId(id), memory.remote(0), [memory.sge(0..8)]);
                    qp.post_send(write).unwrap();
                }
                let taken = link.a.port.poll_transmit(link.now(), 0, &mut |_| Ok(()));
                assert_eq!((taken, link.a.port.doorbell.has_rung()), (0, false));
            }
            let deadline = Instant::from_nanos((1 + round) * SECOND_NS);
            assert!(link.run_until(deadline, |_| cq.len() == 2 * open.len()), "{} of 6", cq.len());
            assert!(std::iter::from_fn(|| cq.poll()).all(|wc| wc.status == WcStatus::Success));
        }
    }

    /// A connection waits once, however often other events wake it while its neighbour has not
    /// answered, such as a peer that repeats its SYN.
    #[test]
    fn a_connection_waits_for_its_neighbour_once() {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let config = PortConfig::for_ipv4([10, 0, 0, 1].into());
        let mut port = Port::new(&rnic, config, CAPABILITIES);
        let mut asked = 0;
        for round in 1..=3 {
            let now = Instant::from_nanos(round * 1_000_000_000);
            port.handle_timeout(now);
            for last in [7, 8] {
                if round == 1 {
                    let remote = ([10, 0, 0, last], 7174).into();
                    port.open(now, remote, LowerLayer::Optimized).unwrap();
                }
            }
            for _ in 0..100 {
                port.connections.wake(0);
                port.connections.wake(1);
                asked += port.poll_transmit(now, 64, &mut |_| Ok(()));
                assert_eq!(port.interface.neighbours.waiting(), 2, "round {round}");
            }
        }
        assert!(asked >= 6, "each is asked for again: {asked}");
    }
}
