//! Resources taken from connections for others: TCP ports in TIME-WAIT, and room far beyond a gap.

use std::net::{IpAddr, SocketAddr};

use tracing::debug;

use crate::limits::{PIECES_IDLE_NS, PIECES_LOOK_NS};
use crate::port::connections::is_in_time_wait;
use crate::port::tuple::Tuple;
use crate::port::{Port, PortError, TRACE};
use crate::tcp::SeqNum;
use crate::time::Instant;

impl Port {
    /// A connection that has just entered TIME-WAIT releases its slot for one more connection.
    pub(super) fn make_room(&mut self) -> Result<(), PortError> {
        if self.connections.len() >= self.config.connections_max {
            self.process_active();
        }
        let has_room = self.connections.len() < self.config.connections_max;
        has_room.then_some(()).ok_or(PortError::Exhausted)
    }

    /// Ends the connection between `local` and `remote` that has been in TIME-WAIT longest, because
    /// all TCP ports are in use. Returns its TCP port, and the lowest initial sequence number for
    /// the new connection (RFC 9293 §3.6.1: larger than any the old one used). The only loss is a
    /// part of the time for old duplicates to leave the network (RFC 9293 §3.4.3).
    pub(super) fn recycle_port(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
    ) -> Result<(u16, SeqNum), PortError> {
        self.process_active();
        let connections = &mut self.connections;
        let waiting = self.source_ports.range().filter_map(|port| {
            let tuple = Tuple::new(local, port, remote.ip(), remote.port());
            let number = connections.find(&tuple).filter(|number| is_in_time_wait(*number))?;
            let record = connections.time_wait(number)?;
            Some((record.until(), number, port, record.tcp.snd_end_seq()))
        });
        let oldest = waiting.min_by_key(|(until, ..)| *until);
        let (_, number, port, used_to) = oldest.ok_or(PortError::Exhausted)?;
        self.recycle_time_wait(number);
        Ok((port, used_to.plus(1)))
    }

    /// After a connection was refused room far beyond a gap, the connection stalled longest gives
    /// up its bytes there. Examines all connections, therefore at most once in [`PIECES_LOOK_NS`].
    pub(super) fn reclaim_pieces(&mut self) {
        let now = self.pieces.time();
        if now < self.reclaim_at || !self.pieces.take_refused() {
            return;
        }
        self.reclaim_at = now.plus_nanos(PIECES_LOOK_NS);
        let stalled = |slot: u32, since: Option<Instant>| {
            let since = since?;
            (now.nanos_since(since) >= PIECES_IDLE_NS).then_some((since, slot))
        };
        let oldest = self
            .connections
            .iter()
            .filter_map(|(slot, one)| stalled(slot, one.carrier.stream.stalled_since()))
            .min();
        if let Some((_, slot)) = oldest {
            self.counters.pieces_reclaimed += 1;
            let tuple = self.connections[slot].tuple();
            debug!(target: TRACE, %tuple, "bytes far beyond a gap discarded for another connection");
            self.connections[slot].carrier.give_up_far(&mut self.pieces);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use urnic_netdev::memory::{self, LinkConfig};

    use super::*;
    use crate::poll::{Lockstep, Poller};
    use crate::port::{ConnectionId, ListenParams, LowerLayer, PortConfig};
    use crate::tcp::State;
    use crate::time::Duration;
    use crate::verbs::{Rnic, RnicConfig};

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    type Link = Lockstep<memory::MemoryDevice, memory::MemoryDevice>;

    /// `a`, which has two source ports, and `b`, which listens at 7174 and 7175.
    fn link() -> Link {
        let (device_a, device_b) = memory::pair(LinkConfig::default());
        let poller = |address, device| {
            let rnic = Rnic::new(RnicConfig { seed: 1.into() });
            let capabilities = urnic_netdev::Device::capabilities(&device);
            Poller::new(Port::new(&rnic, PortConfig::for_ipv4(address), capabilities), device)
        };
        let mut link = Lockstep::new(poller(A, device_a), poller(B, device_b));
        let first = super::super::EPHEMERAL_FIRST;
        link.a.port.source_ports.set_range(first..=first + 1);
        for tcp_port in [7174, 7175] {
            let params = ListenParams { delayed: true, ..ListenParams::default() };
            link.b.port.listen(tcp_port, params).unwrap();
        }
        link
    }

    fn open(link: &mut Link, tcp_port: u16) -> Result<ConnectionId, PortError> {
        let now = link.now();
        link.a.port.open(now, SocketAddr::from((B, tcp_port)), LowerLayer::Optimized)
    }

    fn tuple(link: &Link, id: ConnectionId) -> Tuple {
        link.a.port.connections[id.slot].tuple()
    }

    /// Returns the sequence number after the last one that `a` has used on a connection in
    /// TIME-WAIT.
    fn used_to(link: &mut Link, tuple: Tuple) -> Option<SeqNum> {
        let connections = &mut link.a.port.connections;
        let number = connections.find(&tuple).filter(|number| is_in_time_wait(*number))?;
        connections.time_wait(number).map(|record| record.tcp.snd_end_seq())
    }

    /// Opens a connection and closes it, from `a` first: it is in TIME-WAIT there.
    fn open_and_close(link: &mut Link, tcp_port: u16) -> Tuple {
        let id = open(link, tcp_port).unwrap();
        close(link, id)
    }

    fn close(link: &mut Link, id: ConnectionId) -> Tuple {
        let deadline = link.now() + Duration::from_secs(1);
        while link.a.port.connections[id.slot].carrier.tcp.state() != State::Established {
            assert!(link.now() < deadline && link.step());
        }
        let tuple = tuple(link, id);
        link.a.port.disconnect(id).unwrap();
        while used_to(link, tuple).is_none() {
            assert!(link.now() < deadline && link.step());
            for slot in link.b.port.connections.slots() {
                let of_b = &link.b.port.connections[slot];
                if of_b.carrier.tcp.state() == State::CloseWait {
                    let generation = of_b.generation;
                    link.b.port.disconnect(ConnectionId { slot, generation }).unwrap();
                }
            }
        }
        assert_eq!(link.a.port.connection(id).err(), Some(PortError::NoConnection));
        while link.a.port.poll_event().is_some() || link.b.port.poll_event().is_some() {}
        tuple
    }

    #[test]
    fn a_tcp_port_in_time_wait_is_used_again_when_no_other_is_left() {
        let mut link = link();
        let first = open_and_close(&mut link, 7174);
        let first_used_to = used_to(&mut link, first).unwrap();
        let second = open_and_close(&mut link, 7174);
        assert_ne!(second.local_port(), first.local_port(), "there was another");
        let (port, isn_min) = link.a.port.recycle_port(A.into(), (B, 7174).into()).unwrap();
        let expected = (first.local_port(), first_used_to.plus(1));
        assert_eq!((port, isn_min), expected, "the one that waited longest");
        assert_eq!(link.a.port.counters.time_wait_recycled, 1);
        assert_eq!(used_to(&mut link, first), None);
        assert!(used_to(&mut link, second).is_some());
        // Both ports again: the free one, then the one in TIME-WAIT, each once.
        for _ in 0..5 {
            open_and_close(&mut link, 7174);
            assert_eq!((link.a.port.connections.len(), link.a.port.time_wait_count()), (0, 2));
        }
        assert_eq!(link.a.port.counters.time_wait_recycled, 5);
    }

    #[test]
    fn ports_of_open_connections_and_other_peers_are_not_recycled() {
        let mut link = link();
        open_and_close(&mut link, 7175);
        open_and_close(&mut link, 7175);
        open(&mut link, 7174).unwrap();
        open(&mut link, 7174).unwrap();
        assert_eq!(open(&mut link, 7174), Err(PortError::Exhausted));
        assert_eq!((link.a.port.connections.len(), link.a.port.time_wait_count()), (2, 2));
    }

    #[test]
    fn the_first_number_of_a_port_used_again_is_beyond_the_last_one_used() {
        let mut link = link();
        // Sends so much in so short a time that the clock of initial numbers is behind.
        let first = open(&mut link, 7174).unwrap();
        link.a.port.send_streaming(first, &[7; 60_000]).unwrap();
        let first = close(&mut link, first);
        let used_to = used_to(&mut link, first).unwrap();
        open_and_close(&mut link, 7174);
        let again = open(&mut link, 7174).unwrap();
        let again = &link.a.port.connections[again.slot];
        assert_eq!(again.tuple(), first);
        let by_clock = link.a.port.isn.isn(link.now(), first.local(), first.remote());
        assert!(!by_clock.is_after(used_to), "or this shows nothing");
        assert!(again.carrier.tcp.snd_end_seq().is_after(used_to));
    }
}
