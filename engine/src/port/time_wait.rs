//! Connections in TIME-WAIT: a port keeps records of them, answers for them and removes them. The
//! application was notified of their end. [`TimeWait`](crate::tcp::TimeWait) decides on their
//! answers.

use tracing::debug;

use crate::port::connections::connection::route_between;
use crate::port::connections::is_in_time_wait;
use crate::port::interface::emit::Emitter;
use crate::port::interface::outlet::Outlet;
use crate::port::{ConnectionId, Port, TRACE};
use crate::stream::carrier::SegmentSink;
use crate::tcp::{Flags, Header, TimeWaitOutcome};
use crate::time::Instant;

impl Port {
    /// Reduces a closed connection to its TIME-WAIT record. If there are too many, the oldest ends.
    pub(super) fn keep_time_wait(&mut self, slot: u32) {
        let Some((rest, until)) = self.connections[slot].carrier.time_wait() else { return };
        let max = self.config.time_wait_max;
        if max == 0 {
            // Otherwise the peer would retransmit its FIN and get a RST.
            if !rest.owes() {
                self.connections.remove(slot);
            }
            return;
        }
        while self.connections.time_wait_count() >= max
            && let Some(oldest) = self.connections.oldest_in_time_wait()
        {
            self.recycle_time_wait(oldest);
        }
        self.connections.keep_time_wait(slot, rest, until);
    }

    pub(super) fn recycle_time_wait(&mut self, number: u32) {
        self.counters.time_wait_recycled += 1;
        let recycled = self.counters.time_wait_recycled;
        if recycled.is_power_of_two() {
            debug!(target: TRACE, recycled, "connection in TIME-WAIT over early");
        }
        self.connections.end_time_wait(number);
    }

    /// Returns true if a connection in TIME-WAIT was removed for the one that a SYN opens (RFC 9293
    /// §3.6.1, RFC 6191). It may still have its slot.
    #[inline]
    pub(super) fn gives_way(&mut self, number: u32, header: &Header) -> bool {
        header.flags.contains(Flags::SYN) && self.is_replaced(number, header)
    }

    #[inline(never)]
    fn is_replaced(&mut self, number: u32, syn: &Header) -> bool {
        if is_in_time_wait(number) {
            let record = self.connections.time_wait(number);
            let replaced = record.is_some_and(|record| record.tcp.may_be_replaced_by(syn));
            if replaced {
                self.connections.end_time_wait(number);
            }
            return replaced;
        }
        let connection = &self.connections[number];
        let (generation, tuple) = (connection.generation, connection.tuple());
        let replaced = connection.carrier.tcp.may_be_replaced_by(syn);
        if replaced {
            self.process_active();
            match self.connections.find(&tuple) {
                Some(kept) if is_in_time_wait(kept) => self.connections.end_time_wait(kept),
                Some(slot) => self.remove(ConnectionId { slot, generation }),
                None => {}
            }
        }
        replaced
    }

    #[inline(never)]
    pub(super) fn handle_in_time_wait(
        &mut self,
        now: Instant,
        number: u32,
        header: &Header,
        payload_len: usize,
    ) {
        let Some(record) = self.connections.time_wait_mut(number) else { return };
        match record.tcp.handle_segment(now, header, payload_len) {
            TimeWaitOutcome::Lasts => {}
            TimeWaitOutcome::Restarts => {
                let until = now + self.config.tcp.time_wait;
                self.connections.restart_time_wait(number, until);
            }
            TimeWaitOutcome::Ends => return self.connections.end_time_wait(number),
        }
        self.connections.wake(number);
    }

    /// Sends the acknowledgments that a connection in TIME-WAIT owes; returns the bytes sent.
    pub(super) fn answer_in_time_wait(
        &mut self,
        now: Instant,
        number: u32,
        room: usize,
        outlet: &mut Outlet<'_>,
    ) -> usize {
        let Some(record) = self.connections.time_wait_mut(number) else { return 0 };
        if !record.tcp.owes() {
            return 0;
        }
        let (tuple, framing) = (record.tuple(), self.interface.framing);
        let (config, neighbours) = (&self.config, &mut self.interface.neighbours);
        let Some(route) = route_between(&tuple, config, neighbours, framing) else {
            let next_hop = config.next_hop(tuple.remote().ip());
            let waiting = (!record.awaits_neighbour).then_some(number);
            let asked = neighbours.solicit(now, config, framing, next_hop, waiting, outlet);
            record.awaits_neighbour |= asked;
            return 0;
        };
        let mut emitter = Emitter::new(&route, &self.interface.capabilities, outlet);
        let (local_port, remote_port) = (tuple.local_port(), tuple.remote().port());
        while emitter.may_continue(room, usize::MAX)
            && let Some(header) = record.tcp.poll_ack(now, local_port, remote_port)
        {
            emitter.emit(&header, &[], &[], None);
        }
        let owes = record.tcp.owes();
        if owes {
            self.connections.wake(number);
        }
        emitter.turn().bytes
    }

    pub(super) fn expire_time_wait(&mut self, now: Instant) {
        while self.connections.next_time_wait_over().is_some_and(|at| at <= now)
            && let Some(oldest) = self.connections.oldest_in_time_wait()
        {
            self.connections.end_time_wait(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use urnic_netdev::Device;
    use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};

    use crate::poll::{Lockstep, Poller};
    use crate::port::interface::neighbour::Neighbours;
    use crate::port::{ConnectionCounters, ListenParams, LowerLayer, Port, PortConfig, PortEvent};
    use crate::stream::StreamEvent;
    use crate::verbs::{Rnic, RnicConfig};

    /// Has `a` close a connection to `b`, and `b` after it; returns the counters of `b`. The ports
    /// keep `time_wait_max` connections in TIME-WAIT. The port of `a` loses its neighbour entries
    /// before it receives the FIN of `b`.
    fn close(
        time_wait_max: usize,
    ) -> (Lockstep<MemoryDevice, MemoryDevice>, Box<ConnectionCounters>) {
        let (device_a, device_b) = memory::pair(LinkConfig::default());
        let poller = |last, device: MemoryDevice| {
            let rnic = Rnic::new(RnicConfig { seed: 1.into() });
            let config = PortConfig::for_ipv4(Ipv4Addr::new(10, 0, 0, last));
            let config = PortConfig { time_wait_max, ..config };
            Poller::new(Port::new(&rnic, config, device.capabilities()), device)
        };
        let mut link = Lockstep::new(poller(1, device_a), poller(2, device_b));
        let params = ListenParams { delayed: true, ..ListenParams::default() };
        link.b.port.listen(7, params).unwrap();
        let remote = SocketAddr::from(([10, 0, 0, 2], 7));
        let id = link.a.port.open(link.now(), remote, LowerLayer::Optimized).unwrap();
        link.a.port.send_streaming(id, b"x").unwrap();
        let mut peer_counters = None;
        while peer_counters.is_none() {
            assert!(link.step());
            while let Some(event) = link.b.port.poll_event() {
                match event {
                    PortEvent::Stream { event: StreamEvent::StreamingBytes, .. } => {
                        link.a.port.disconnect(id).unwrap();
                    }
                    PortEvent::Stream { connection, event: StreamEvent::PeerClosed } => {
                        link.b.port.disconnect(connection).unwrap();
                        // Other neighbours have evicted all entries.
                        link.a.port.interface.neighbours = Neighbours::new((1, 2));
                    }
                    PortEvent::Closed { counters, .. } => peer_counters = Some(counters),
                    _ => {}
                }
            }
        }
        (link, peer_counters.unwrap())
    }

    /// The acknowledgment of the peer's FIN is sent when the peer's link address is known, and the
    /// peer need not retransmit its FIN.
    #[test]
    fn an_answer_waits_for_its_neighbour() {
        // With 0, the connection itself stays until it has answered.
        for kept in [1, 0] {
            let (mut link, counters) = close(kept);
            while link.a.port.poll_event().is_some() {}
            let port = &link.a.port;
            assert_eq!((port.time_wait_count(), port.connection_count()), (kept, kept));
            assert!(kept == 0 || port.interface.neighbours.lookup([10, 0, 0, 2].into()).is_some());
            assert_eq!((counters.tcp.retransmissions, counters.tcp.loss_probes), (0, 0), "{kept}");
        }
    }

    /// RFC 2131 §4.4.5.
    #[test]
    fn a_lost_address_is_not_used_in_time_wait_either() {
        let (mut link, _) = close(1);
        link.a.port.abandon_address([10, 0, 0, 2].into());
        assert_eq!(link.a.port.time_wait_count(), 1, "that is the peer's");
        link.a.port.abandon_address([10, 0, 0, 1].into());
        assert_eq!((link.a.port.time_wait_count(), link.a.port.connection_count()), (0, 0));
    }
}
