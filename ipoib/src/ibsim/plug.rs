//! Cable between a port and the switch: one packet per datagram of a Unix socket.
//!
//! 1. The port connects its socket to the switch's name, and sends an empty datagram, the greeting.
//! 2. The switch answers with an empty datagram, by which the port learns the switch's user: any
//!    process may have taken the name.
//! 3. The port sends packets after a trusted switch has answered.
//! 4. The port repeats the greeting periodically, to notice that the switch has closed. A new
//!    switch learns of the port by it, and cannot send to a socket that is connected to the former
//!    one.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;

use tracing::warn;
use urnic_netdev::local_peer::{ForeignUser, UserDatagram};

use super::{IbsimError, TRACE, address, port_name, switch_name};
use crate::wire::address::Guid;

/// Packets that wait for the switch's answer or for room; further ones are lost.
const WAITING_MAX: usize = 256;
/// Interval while the switch's queue is full.
const RETRY_NS: u64 = 100_000;
/// Interval while there is no switch.
const REPLUG_NS: u64 = 100_000_000;
const GREET_EVERY_NS: u64 = 200_000_000;
/// 4096 bytes of payload, and its headers.
pub(super) const PACKET_LEN_MAX: usize = 4096 + 128;

#[derive(Debug)]
pub(super) struct Plug {
    socket: UserDatagram,
    switch: Vec<u8>,
    link: Link,
    waiting: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    retry_ns: Option<u64>,
    greet_ns: u64,
    buffer: Box<[u8; PACKET_LEN_MAX]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Loose,
    /// A switch that has not answered since the socket was connected to it.
    Greeted,
    /// A switch of a user that is not trusted. No packets are exchanged with it.
    Foreign,
    /// A trusted switch.
    Plugged,
}

impl Plug {
    /// A switch of the user `also` is trusted, too.
    pub(super) fn new(simulator: &str, guid: Guid, also: Option<u32>) -> Result<Self, IbsimError> {
        let io = |action| move |cause| IbsimError::Io { action, cause };
        let own = address(&port_name(simulator, guid)).map_err(io("naming a port"))?;
        let socket = UnixDatagram::bind_addr(&own)
            .map_err(io("plugging the port in (has another process this node?)"))?;
        socket.set_nonblocking(true).map_err(io("setting up a socket"))?;
        let socket = UserDatagram::new(socket, also).map_err(io("setting up a socket"))?;
        Ok(Self {
            socket,
            switch: switch_name(simulator),
            link: Link::Loose,
            waiting: VecDeque::new(),
            spare: Vec::new(),
            retry_ns: None,
            greet_ns: 0,
            buffer: Box::new([0; PACKET_LEN_MAX]),
        })
    }

    pub(super) fn send(&mut self, now_ns: u64, packet: &[u8]) {
        self.turn(now_ns);
        if self.waiting.is_empty() && self.try_send(now_ns, packet) {
            return;
        }
        if self.waiting.len() < WAITING_MAX {
            let mut octets = self.spare.pop().unwrap_or_default();
            octets.clear();
            octets.extend_from_slice(packet);
            self.waiting.push_back(octets);
        }
    }

    fn try_send(&mut self, now_ns: u64, packet: &[u8]) -> bool {
        match self.link {
            Link::Loose | Link::Foreign => return true,
            Link::Greeted => return false,
            Link::Plugged => {}
        }
        match self.socket.socket().send(packet) {
            Ok(_) => self.retry_ns = None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.retry_ns = Some(now_ns.saturating_add(RETRY_NS));
                return false;
            }
            // There is no switch, or another one.
            Err(_) => {
                self.unplug();
                self.greet(now_ns);
            }
        }
        true
    }

    pub(super) fn turn(&mut self, now_ns: u64) {
        if now_ns >= self.greet_ns {
            self.greet(now_ns);
        }
        self.push_waiting(now_ns);
    }

    fn push_waiting(&mut self, now_ns: u64) {
        while let Some(packet) = self.waiting.pop_front() {
            if !self.try_send(now_ns, &packet) {
                self.waiting.push_front(packet);
                return;
            }
            self.spare.push(packet);
        }
    }

    fn greet(&mut self, now_ns: u64) {
        self.greet_ns = now_ns.saturating_add(GREET_EVERY_NS);
        let is_gone = |sent: io::Result<usize>| {
            sent.is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock)
        };
        if self.link != Link::Loose && is_gone(self.socket.socket().send(&[])) {
            self.unplug();
        }
        if self.link == Link::Loose {
            let found = address(&self.switch).and_then(|at| self.socket.socket().connect_addr(&at));
            if found.is_err() || is_gone(self.socket.socket().send(&[])) {
                self.greet_ns = now_ns.saturating_add(REPLUG_NS);
                return;
            }
            self.link = Link::Greeted;
        }
    }

    fn unplug(&mut self) {
        self.link = Link::Loose;
        self.retry_ns = None;
        self.waiting.clear();
    }

    /// Receives from at most `burst` datagrams, and returns their number. Drops those of a switch
    /// that is not trusted.
    pub(super) fn receive(
        &mut self,
        now_ns: u64,
        burst: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> usize {
        let (mut received, mut taken) = (0, 0);
        while taken < burst
            && let Ok(datagram) = self.socket.receive(&mut self.buffer[..])
        {
            taken += 1;
            // A connected socket delivers other senders' datagrams if they arrived before.
            if datagram.abstract_name() != Some(&self.switch[..]) {
                continue;
            }
            match datagram.user {
                Err(foreign) => self.meet_foreign(foreign),
                Ok(()) if datagram.len > 0 => {
                    received += 1;
                    sink(self.buffer.get(..datagram.len).unwrap_or_default());
                }
                Ok(()) if self.link == Link::Greeted => {
                    self.link = Link::Plugged;
                    self.push_waiting(now_ns);
                }
                Ok(()) => {}
            }
        }
        received
    }

    fn meet_foreign(&mut self, foreign: ForeignUser) {
        if self.link == Link::Greeted {
            let name = String::from_utf8_lossy(&self.switch);
            warn!(target: TRACE, %name, %foreign, "no switch is used; peer=UID allows a user");
            self.unplug();
            self.link = Link::Foreign;
        }
    }

    pub(super) fn room(&self) -> usize {
        WAITING_MAX - self.waiting.len()
    }

    pub(super) fn due_ns(&self) -> u64 {
        let retry_ns = self.retry_ns.filter(|_| !self.waiting.is_empty());
        retry_ns.map_or(self.greet_ns, |retry_ns| retry_ns.min(self.greet_ns))
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use urnic_testkit::users::{OTHER, as_other_user};

    use super::*;

    /// Returns fabric names that no other test uses.
    fn simulator(test: &str) -> String {
        format!("urnic-{test}-{}", std::process::id())
    }

    fn switch(simulator: &str) -> UnixDatagram {
        let switch = UnixDatagram::bind_addr(&address(&switch_name(simulator)).unwrap()).unwrap();
        switch.set_nonblocking(true).unwrap();
        switch
    }

    /// Answers a greeting, as a switch does.
    fn answer(simulator: &str, switch: &UnixDatagram) {
        let port = address(&port_name(simulator, Guid(1))).unwrap();
        assert_eq!(switch.recv(&mut [0; 16]).unwrap(), 0, "a greeting");
        switch.send_to_addr(&[], &port).unwrap();
    }

    fn received(plug: &mut Plug, now_ns: u64) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        plug.turn(now_ns);
        plug.receive(now_ns, 64, &mut |packet| packets.push(packet.to_vec()));
        packets
    }

    /// Returns the datagrams that the switch received, without greetings.
    fn packets(switch: &UnixDatagram) -> Vec<Vec<u8>> {
        let mut octets = [0; 16];
        std::iter::from_fn(|| switch.recv(&mut octets).ok().map(|len| octets[..len].to_vec()))
            .filter(|packet| !packet.is_empty())
            .collect()
    }

    #[test]
    fn missing_switch_is_looked_for_periodically() {
        let simulator = simulator("plug");
        let mut plug = Plug::new(&simulator, Guid(1), None).unwrap();
        plug.send(0, b"lost");
        let switch = switch(&simulator);
        for now_ns in [1, 2, REPLUG_NS - 1] {
            plug.send(now_ns, b"early");
            assert!(switch.recv(&mut [0; 16]).is_err());
        }
        assert_eq!(plug.due_ns(), REPLUG_NS);
        plug.send(REPLUG_NS, b"waits");
        answer(&simulator, &switch);
        assert!(packets(&switch).is_empty(), "not before the switch has answered");
        assert!(received(&mut plug, REPLUG_NS).is_empty());
        plug.send(REPLUG_NS, b"goes");
        assert_eq!(packets(&switch), [&b"waits"[..], b"goes"]);
    }

    #[test]
    fn a_port_with_nothing_to_send_finds_a_new_switch() {
        let simulator = simulator("replug");
        let mut plug = Plug::new(&simulator, Guid(1), None).unwrap();
        let port = address(&port_name(&simulator, Guid(1))).unwrap();
        for round in 0..3 {
            let switch = switch(&simulator);
            let now_ns = plug.due_ns();
            assert!(received(&mut plug, now_ns).is_empty());
            answer(&simulator, &switch);
            switch.send_to_addr(b"packet", &port).unwrap();
            assert_eq!(received(&mut plug, now_ns), [b"packet"], "round {round}");
            assert_eq!(plug.due_ns(), now_ns + GREET_EVERY_NS);
        }
        // While the switch is there, only greetings are sent.
        let switch = switch(&simulator);
        for _ in 0..5 {
            let now_ns = plug.due_ns();
            received(&mut plug, now_ns);
        }
        assert_eq!(std::iter::from_fn(|| switch.recv(&mut [0; 16]).ok()).count(), 5);
    }

    /// Before the port has found its switch, any process can send to its name.
    #[test]
    fn packets_come_from_the_switch_alone() {
        let simulator = simulator("other");
        let mut plug = Plug::new(&simulator, Guid(1), None).unwrap();
        let port = address(&port_name(&simulator, Guid(1))).unwrap();
        let named = address(format!("{simulator}-other").as_bytes()).unwrap();
        for other in [UnixDatagram::bind_addr(&named).unwrap(), UnixDatagram::unbound().unwrap()] {
            other.send_to_addr(b"forged", &port).unwrap();
            other.send_to_addr(b"", &port).unwrap();
        }
        assert!(received(&mut plug, 0).is_empty());
        assert_eq!(plug.link, Link::Loose);
    }

    #[test]
    fn packets_waiting_for_their_answer_are_limited() {
        let simulator = simulator("unanswered");
        let _switch = switch(&simulator);
        let mut plug = Plug::new(&simulator, Guid(1), None).unwrap();
        for _ in 0..2 * WAITING_MAX {
            plug.send(0, b"packet");
        }
        assert_eq!((plug.waiting.len(), plug.room()), (WAITING_MAX, 0));
    }

    #[test]
    fn a_switch_of_another_user_gets_no_packet_and_none_of_its_packets_is_taken() {
        let simulator = simulator("squatted");
        let port = address(&port_name(&simulator, Guid(1))).unwrap();
        for (also, is_trusted) in [(None, false), (Some(OTHER), true)] {
            let switch = switch(&simulator);
            let mut plug = Plug::new(&simulator, Guid(1), also).unwrap();
            plug.send(0, b"packet");
            let (switch, port) = (switch.try_clone().unwrap(), port.clone());
            let name = "a_switch_of_another_user_gets_no_packet_and_none_of_its_packets_is_taken";
            let answering = as_other_user(name, move || {
                for octets in [&b""[..], b"forged"] {
                    switch.send_to_addr(octets, &port).unwrap();
                }
                switch
            });
            let Some(switch) = answering else { return };
            assert_eq!(received(&mut plug, 1).len(), usize::from(is_trusted));
            plug.send(2, b"packet");
            assert_eq!(packets(&switch).len(), if is_trusted { 2 } else { 0 });
        }
    }
}
