//! Frames out: connections take turns, after the host stack and SYN-ACKs with cookies.

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

/// Bytes after which [`Port::poll_transmit`] returns, so that what was sent is still in the cache
/// when the device, or the other end, looks at it.
pub(super) const BURST_BYTES: usize = 256 << 10;

/// Queue pairs with new work that are looked at together.
const BELLS_AT_ONCE: usize = 16;

/// Frames one connection may send before the next has its turn.
const TURN_FRAMES: usize = 32;

/// Bytes that one connection may send before the next has its turn: two large super-frames.
const TURN_BYTES: usize = 128 << 10;

/// Bytes that all connections may send before one has its turn again, a frame each at least: turns are
/// shorter when more than 16 have something to send. So each has many turns in a second, none gets less
/// than half of its share for having one less, and acknowledgments do not wait long. Of a thousand that
/// share 200 Mbit/s each has ten; if all sent 32 frames, a turn would come every two seconds.
const ROUND_BYTES: usize = 2 << 20;

/// Bytes that one connection may send while so many, with itself, have something to send.
const fn turn_bytes(ready: usize) -> usize {
    if ready <= ROUND_BYTES / TURN_BYTES { TURN_BYTES } else { ROUND_BYTES / ready }
}

impl Port {
    /// Hands frames that are due to `transmit`: at most `room`, and not many more bytes than
    /// `BURST_BYTES`. Returns how many were taken; 0 means that nothing is due.
    ///
    /// A frame that the device has no room for ([`TransmitError::Full`]) ends the call and is the
    /// first of the next, with the rest of its run behind it; one that is refused for another reason is
    /// lost as on a wire, and TCP brings its bytes again. It is no use to call while the device is full.
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
        // Half the room is for connections, however talkative the host stack is.
        self.host.poll_transmit(now, room.div_ceil(2), outlet);
        self.take_lease_news();
        self.watch_lease(now);
        self.send_cookie_answers(room, outlet);
        self.answer_bells();
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

    /// Queue pairs with new work have their connections woken, some at a time, so that what is changed of
    /// them comes from memory at the same time. Their bells are released when they have their turn.
    #[inline(never)]
    fn answer_bells(&mut self) {
        while self.doorbell.has_rung() {
            let rung = std::iter::from_fn(|| self.doorbell.next());
            let rung: ArrayVec<u32, BELLS_AT_ONCE> = rung.take(BELLS_AT_ONCE).collect();
            if rung.is_empty() {
                break;
            }
            self.connections.prefetch_rung(&rung);
            rung.into_iter().for_each(|slot| self.connections.bell_rang(slot));
        }
    }

    /// Sends SYN-ACKs with cookies, which belong to no connection.
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

    /// Lets a connection send; returns how many bytes that were.
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
            // Before the look at what was posted: what is posted behind that has to ring again.
            connection.release_bell();
        }
        if connection.path.is_doubted() {
            connection.judge_path(now, &mut self.interface.paths);
        }
        let Some(route) =
            connection.resolve(&self.config, &self.interface.neighbours, self.interface.framing)
        else {
            let next_hop = connection.next_hop(&self.config);
            // Once is enough, however often it is woken meanwhile.
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
            // The peer has not answered for long: its link address may be another by now.
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
        /// The queue pairs at one end, and at the other.
        qps: [Vec<Qp>; 2],
    }

    /// `count` connections of a port whose doorbell has room for so many queue pairs.
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

    /// As by queue pairs whose connections are over.
    #[test]
    fn work_that_found_no_place_at_the_doorbell_is_done() {
        let Connected { mut link, pd, cq, qps: [open, _peers] } =
            connected(3, Doorbell::with_places(1));
        let memory = pd.reg_mr(8, Access::REMOTE_WRITE).unwrap();
        // The second time no bell may have stayed pressed.
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

    /// Its bell is heard, and pressed until then.
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

    /// However often a connection is woken by other things while its neighbour has not answered, as
    /// by a peer that repeats its SYN.
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
