//! What connections give up when others need it: their slot and TCP port in TIME-WAIT, and octets
//! far beyond a gap that never closes.

use std::net::{IpAddr, SocketAddr};

use tracing::debug;

use crate::limits::{PIECES_IDLE_NS, PIECES_LOOK_NS};
use crate::port::{ConnectionId, Port, PortError, TRACE};
use crate::tcp::SeqNum;
use crate::time::Instant;

impl Port {
    /// Makes sure that there is a slot for one more connection. When there is none, the connection
    /// that has been in TIME-WAIT longest gives up its own: everything was delivered both ways, and
    /// all that is lost is a part of the time that old duplicates have to die out (RFC 9293 §3.4.3).
    ///
    /// # Errors
    /// [`PortError::Exhausted`] when no connection is in TIME-WAIT.
    pub(super) fn make_room(&mut self) -> Result<(), PortError> {
        while self.connections.len() >= self.config.connections_max {
            let oldest = self.connections.next_in_time_wait().ok_or(PortError::Exhausted)?;
            self.end_time_wait(oldest);
        }
        Ok(())
    }

    /// A TCP port for a connection from `local` to `remote` when all are in use: that of the connection
    /// between the two that has been in TIME-WAIT longest, which is over then; and the least initial
    /// sequence number that the new one may have (RFC 9293 §3.6.1: larger than any the old one used).
    ///
    /// # Errors
    /// [`PortError::Exhausted`] when none of them is in TIME-WAIT.
    pub(super) fn recycle_port(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
    ) -> Result<(u16, SeqNum), PortError> {
        let found = self.connections.take_in_time_wait(local, remote);
        let (id, port, used_to) = found.ok_or(PortError::Exhausted)?;
        self.end_time_wait(id);
        Ok((port, used_to.plus(1)))
    }

    fn end_time_wait(&mut self, id: ConnectionId) {
        if self.connections.is_in_time_wait(id) {
            self.settle();
            if self.connections.is_in_time_wait(id) {
                self.remove(id);
            }
        }
    }

    /// Some connection was refused room for octets far beyond a gap: of those that have some and have
    /// made no progress, the one for which that is longest gives them up. Looked for at most once
    /// in [`PIECES_LOOK_NS`], for all connections are looked at.
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
            debug!(target: TRACE, %tuple, "octets far beyond a gap given up for another connection");
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
    use crate::port::{ListenParams, LowerLayer, PortConfig};
    use crate::tcp::State;
    use crate::time::Duration;
    use crate::verbs::{Rnic, RnicConfig};

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    type Link = Lockstep<memory::MemoryDevice, memory::MemoryDevice>;

    /// `a`, which has two TCP ports of its own, and `b`, which listens at 7174 and 7175.
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

    fn state(link: &Link, id: ConnectionId) -> State {
        link.a.port.connections[id.slot].carrier.tcp.state()
    }

    /// Opens a connection and closes it, from `a` first: its state there is TIME-WAIT.
    fn open_and_close(link: &mut Link, tcp_port: u16) -> ConnectionId {
        let id = open(link, tcp_port).unwrap();
        close(link, id);
        id
    }

    fn close(link: &mut Link, id: ConnectionId) {
        let deadline = link.now() + Duration::from_secs(1);
        while state(link, id) != State::Established {
            assert!(link.now() < deadline && link.step());
        }
        link.a.port.disconnect(id).unwrap();
        while state(link, id) != State::TimeWait {
            assert!(link.now() < deadline && link.step());
            for slot in link.b.port.connections.slots() {
                let of_b = &link.b.port.connections[slot];
                if of_b.carrier.tcp.state() == State::CloseWait {
                    let generation = of_b.generation;
                    link.b.port.disconnect(ConnectionId { slot, generation }).unwrap();
                }
            }
        }
        while link.a.port.poll_event().is_some() || link.b.port.poll_event().is_some() {}
    }

    #[test]
    fn a_tcp_port_in_time_wait_is_used_again_when_no_other_is_left() {
        let mut link = link();
        let first = open_and_close(&mut link, 7174);
        let port_of =
            |link: &Link, id: ConnectionId| link.a.port.connections[id.slot].tuple().local_port();
        let used = port_of(&link, first);
        let used_to = link.a.port.connections[first.slot].carrier.tcp.snd_end_seq();
        let second = open_and_close(&mut link, 7174);
        assert_ne!(port_of(&link, second), used, "there was another");
        let (port, isn_min) = link.a.port.recycle_port(A.into(), (B, 7174).into()).unwrap();
        assert_eq!((port, isn_min), (used, used_to.plus(1)), "the one that waited longest");
        assert_eq!(link.a.port.connection(first).err(), Some(PortError::NoConnection));
        assert_eq!(state(&link, second), State::TimeWait);
        // Both ports again: the free one, then the one in TIME-WAIT, each once.
        for _ in 0..5 {
            open_and_close(&mut link, 7174);
            assert_eq!(link.a.port.connections.len(), 2);
        }
    }

    #[test]
    fn ports_of_connections_that_stand_or_go_elsewhere_are_left_alone() {
        let mut link = link();
        open_and_close(&mut link, 7175);
        open_and_close(&mut link, 7175);
        open(&mut link, 7174).unwrap();
        open(&mut link, 7174).unwrap();
        assert_eq!(open(&mut link, 7174), Err(PortError::Exhausted));
        assert_eq!(link.a.port.connections.len(), 4);
    }

    #[test]
    fn the_list_of_those_in_time_wait_does_not_grow_without_end() {
        let mut link = link();
        for _ in 0..40 {
            open_and_close(&mut link, 7174);
        }
        assert!(link.a.port.connections.time_wait_len() <= 2 * link.a.port.connections.len() + 1);
    }

    #[test]
    fn the_first_number_of_a_port_used_again_is_beyond_the_last_one_used() {
        let mut link = link();
        // So much in so short a time that the clock of initial numbers is behind.
        let first = open(&mut link, 7174).unwrap();
        link.a.port.send_streaming(first, &[7; 60_000]).unwrap();
        close(&mut link, first);
        let used_to = link.a.port.connections[first.slot].carrier.tcp.snd_end_seq();
        open_and_close(&mut link, 7174);
        let again = open(&mut link, 7174).unwrap();
        let again = &link.a.port.connections[again.slot];
        let local = again.tuple().local();
        let by_clock = link.a.port.isn.isn(link.now(), local, again.tuple().remote());
        assert!(!by_clock.is_after(used_to), "or this shows nothing");
        assert!(again.carrier.tcp.snd_end_seq().is_after(used_to));
    }
}
