//! Switch for a fabric of ibsim: forwards packets as the subnet manager programmed its switches.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{SocketAddr, UnixDatagram};

use urnic_netdev::local_peer::UserDatagram;

use super::client::Client;
use super::plug::PACKET_LEN_MAX;
use super::{IbsimError, Survey, address, port_name, port_of, switch_name};
use crate::memory::{may_receive, may_send, payload_len};
use crate::wire::address::Guid;
use crate::wire::packet::PacketHeader;

const SURVEY_EVERY_NS: u64 = 100_000_000;
/// Interval while a packet finds no route.
const SURVEY_SOON_NS: u64 = 20_000_000;
/// A port that is silent for ten greetings counts as disconnected, since its thread may be busy.
/// Meanwhile another process that takes the name of a killed port gets its packets.
const PLUGGED_NS: u64 = 2_000_000_000;
/// Packets that wait for room at one port.
const WAITING_MAX: usize = 512;
const BURST: usize = 64;

/// Packet counters of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounters {
    /// Packets of ports.
    pub received: u64,
    /// Packets to ports, each copy counted.
    pub delivered: u64,
    /// Not a datagram of InfiniBand, or damaged.
    pub malformed: u64,
    /// Packets from a port that is not Active or has another LID, or to a LID without a route.
    pub unroutable: u64,
    /// Packets of a partition that one of the two ports is not in.
    pub p_key_violations: u64,
    /// Longer than a port's MTU.
    pub too_long: u64,
    /// From a process of a user that is not trusted.
    pub foreign: u64,
    /// For a port that is not connected, or whose queue is full.
    pub lost: u64,
}

/// All switches of a fabric, as one.
#[derive(Debug)]
pub struct Switch {
    client: Client,
    socket: UserDatagram,
    survey: Survey,
    surveyed_ns: u64,
    is_stale: bool,
    waiting: HashMap<Guid, VecDeque<Vec<u8>>>,
    /// Ports with the time of their last datagram.
    plugged: HashMap<Guid, u64>,
    counters: SwitchCounters,
    buffer: Box<[u8; PACKET_LEN_MAX]>,
}

impl Switch {
    /// Reads the fabric from `node` and forwards packets of ports of this user, root, and `also`.
    ///
    /// # Errors
    /// If there is no such simulator or node, or there is a switch already.
    pub fn open(simulator: &str, node: &str, also: Option<u32>) -> Result<Self, IbsimError> {
        let mut client = Client::connect(simulator, node, false, also)?;
        let survey = Survey::read(&mut client)?;
        let io = |action| move |cause| IbsimError::Io { action, cause };
        let own = address(&switch_name(simulator)).map_err(io("naming the switch"))?;
        let socket = UnixDatagram::bind_addr(&own)
            .map_err(io("naming the switch (is there one already?)"))?;
        socket.set_nonblocking(true).map_err(io("setting up a socket"))?;
        let socket = UserDatagram::new(socket, also).map_err(io("setting up a socket"))?;
        Ok(Self {
            client,
            socket,
            survey,
            surveyed_ns: 0,
            is_stale: false,
            waiting: HashMap::new(),
            plugged: HashMap::new(),
            counters: SwitchCounters::default(),
            buffer: Box::new([0; PACKET_LEN_MAX]),
        })
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &SwitchCounters {
        &self.counters
    }

    /// Returns the fabric as last read.
    #[must_use]
    pub const fn survey(&self) -> &Survey {
        &self.survey
    }

    /// Returns a descriptor that is readable when packets wait.
    #[must_use]
    pub fn readiness(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns true while descriptors of earlier datagrams must be closed first: sleep for a time.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.socket.is_held()
    }

    /// Returns true if packets wait for room at a port.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Forwards received packets, and shows each to `record`. Returns the number of datagrams.
    ///
    /// # Errors
    /// If ibsim has stopped answering.
    pub fn turn(
        &mut self,
        now_ns: u64,
        record: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, IbsimError> {
        let every_ns = if self.is_stale { SURVEY_SOON_NS } else { SURVEY_EVERY_NS };
        if now_ns >= self.surveyed_ns.saturating_add(every_ns) {
            self.survey = Survey::read(&mut self.client)?;
            self.surveyed_ns = now_ns;
            self.is_stale = false;
        }
        self.push_waiting();
        let mut taken = 0;
        while taken < BURST
            && let Ok(datagram) = self.socket.receive(&mut self.buffer[..])
        {
            taken += 1;
            let simulator = self.client.simulator();
            let name = datagram.abstract_name().unwrap_or_default();
            let from = port_of(simulator, name);
            if datagram.user.is_err() {
                self.counters.foreign += 1;
                if let Some(from) = from {
                    self.unplug(from);
                }
                continue;
            }
            let Some(from) = from else { continue };
            // Only ports of the fabric, so that the table is bounded.
            if self.survey.ports.contains_key(&from) {
                self.plugged.insert(from, now_ns);
            }
            if datagram.len == 0 {
                // A port without room for the answer repeats its greeting.
                let _unanswered = self.try_send(from, &[]);
                continue;
            }
            let packet = self.buffer.get(..datagram.len).unwrap_or_default().to_vec();
            self.counters.received += 1;
            record(&packet);
            self.carry(now_ns, from, &packet);
        }
        Ok(taken)
    }

    /// A process of another user has taken its name. Drops its waiting packets.
    fn unplug(&mut self, port: Guid) {
        self.plugged.remove(&port);
        let waiting = self.waiting.remove(&port);
        self.counters.lost += waiting.map_or(0, |packets| packets.len() as u64);
    }

    fn carry(&mut self, now_ns: u64, from: Guid, packet: &[u8]) {
        let Ok((header, _)) = PacketHeader::parse(packet) else {
            self.counters.malformed += 1;
            return;
        };
        let sender = self.survey.ports.get(&from);
        let Some(sender) =
            sender.filter(|port| port.setup.is_active && port.setup.lid == header.slid)
        else {
            self.is_stale = true;
            self.counters.unroutable += 1;
            return;
        };
        if !may_send(&sender.p_keys, header.p_key) {
            self.counters.p_key_violations += 1;
            return;
        }
        let len = payload_len(packet, &header);
        if len > sender.setup.mtu_octets {
            self.counters.too_long += 1;
            return;
        }
        let destinations = self.survey.destinations(from, header.dlid);
        if destinations.is_empty() {
            self.is_stale = true;
            self.counters.unroutable += 1;
        }
        for to in destinations {
            let Some(port) = self.survey.ports.get(&to).filter(|port| port.setup.is_active) else {
                self.counters.unroutable += 1;
                continue;
            };
            if !may_receive(&port.p_keys, header.p_key) {
                self.counters.p_key_violations += 1;
            } else if len > port.setup.mtu_octets {
                self.counters.too_long += 1;
            } else {
                self.deliver(now_ns, to, packet);
            }
        }
    }

    fn deliver(&mut self, now_ns: u64, to: Guid, packet: &[u8]) {
        // Any process may have the name of a port that is not connected.
        let heard_ns = self.plugged.get(&to);
        if heard_ns.is_none_or(|heard_ns| now_ns.saturating_sub(*heard_ns) > PLUGGED_NS) {
            self.counters.lost += 1;
            return;
        }
        if let Some(waiting) = self.waiting.get_mut(&to) {
            if waiting.len() < WAITING_MAX {
                waiting.push_back(packet.to_vec());
            } else {
                self.counters.lost += 1;
            }
            return;
        }
        match self.try_send(to, packet) {
            Ok(()) => self.counters.delivered += 1,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.waiting.insert(to, VecDeque::from([packet.to_vec()]));
            }
            Err(_) => {
                self.plugged.remove(&to);
                self.counters.lost += 1;
            }
        }
    }

    fn try_send(&self, to: Guid, packet: &[u8]) -> io::Result<()> {
        let to: SocketAddr = address(&port_name(self.client.simulator(), to))?;
        self.socket.socket().send_to_addr(packet, &to).map(|_| ())
    }

    fn push_waiting(&mut self) {
        for (to, mut packets) in std::mem::take(&mut self.waiting) {
            while let Some(packet) = packets.front() {
                match self.try_send(to, packet) {
                    Ok(()) => self.counters.delivered += 1,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => self.counters.lost += 1,
                }
                packets.pop_front();
            }
            if !packets.is_empty() {
                self.waiting.insert(to, packets);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use urnic_testkit::users::as_other_user;

    use super::*;
    use crate::ibsim::client::tests::client;
    use crate::ibsim::survey::tests::{A, B, survey};
    use crate::wire::address::{Lid, PKey, QKey, Qpn};

    fn switch(simulator: &str) -> (Switch, UnixDatagram) {
        let (client, far) = client(simulator);
        let own = UnixDatagram::bind_addr(&address(&switch_name(simulator)).unwrap()).unwrap();
        own.set_nonblocking(true).unwrap();
        let switch = Switch {
            client,
            socket: UserDatagram::new(own, None).unwrap(),
            survey: survey(),
            surveyed_ns: 0,
            is_stale: false,
            waiting: HashMap::new(),
            plugged: HashMap::new(),
            counters: SwitchCounters::default(),
            buffer: Box::new([0; PACKET_LEN_MAX]),
        };
        (switch, far)
    }

    #[test]
    fn a_port_gets_packets_until_it_is_silent_or_another_user_has_its_name() {
        let simulator = format!("urnic-switch-{}", std::process::id());
        let (mut switch, _simulator) = switch(&simulator);
        let port = UnixDatagram::bind_addr(&address(&port_name(&simulator, B)).unwrap()).unwrap();
        port.connect_addr(&address(&switch_name(&simulator)).unwrap()).unwrap();
        port.send(&[]).unwrap();
        assert_eq!(switch.turn(1, &mut |_| ()).unwrap(), 1);
        switch.deliver(1 + PLUGGED_NS, B, b"packet");
        assert_eq!((switch.counters.delivered, switch.counters.lost), (1, 0));
        switch.deliver(2 + PLUGGED_NS, B, b"packet");
        assert_eq!((switch.counters.delivered, switch.counters.lost), (1, 1));
        let name = "a_port_gets_packets_until_it_is_silent_or_another_user_has_its_name";
        let taking = as_other_user(name, move || {
            port.send(&[]).unwrap();
            port
        });
        let Some(_port) = taking else { return };
        assert_eq!(switch.turn(2, &mut |_| ()).unwrap(), 1);
        switch.deliver(3, B, b"packet");
        let SwitchCounters { delivered, lost, foreign, .. } = *switch.counters();
        assert_eq!((delivered, lost, foreign), (1, 2, 1));
    }

    /// Sends a packet with this header from A to B. Returns the counters: all 0 if B received it.
    fn carried(switch: &mut Switch, header: &PacketHeader, len: usize) -> SwitchCounters {
        let mut packet = Vec::new();
        header.emit(&vec![0; len], &mut packet);
        switch.counters = SwitchCounters::default();
        switch.carry(1, A, &packet);
        switch.counters
    }

    #[test]
    fn a_packet_needs_the_keys_the_lid_and_the_mtu_of_both_ports() {
        let simulator = format!("urnic-carry-{}", std::process::id());
        let (mut switch, _simulator) = switch(&simulator);
        let port = UnixDatagram::bind_addr(&address(&port_name(&simulator, B)).unwrap()).unwrap();
        switch.plugged.insert(B, 1);
        let good = PacketHeader {
            service_level: 0,
            dlid: Lid(2),
            slid: Lid(1),
            global: None,
            p_key: PKey(0xffff),
            destination_qp: Qpn::from_bits(0x50),
            psn: 0,
            q_key: QKey(7),
            source_qp: Qpn::from_bits(0x51),
        };
        let none = SwitchCounters::default();
        let delivered = SwitchCounters { delivered: 1, ..none };
        assert_eq!(carried(&mut switch, &good, 2048), delivered);
        assert!(port.recv(&mut [0; PACKET_LEN_MAX]).unwrap() > 2048);
        let foreign = PacketHeader { slid: Lid(9), ..good };
        let unroutable = SwitchCounters { unroutable: 1, ..none };
        assert_eq!(carried(&mut switch, &foreign, 100), unroutable, "with another's LID");
        let (too_long, violation) = (
            SwitchCounters { too_long: 1, ..none },
            SwitchCounters { p_key_violations: 1, ..none },
        );
        assert_eq!(carried(&mut switch, &good, 2052), too_long);
        for guid in [A, B] {
            let set = |switch: &mut Switch, mtu_octets, key: u16| {
                let of = switch.survey.ports.get_mut(&guid).unwrap();
                (of.setup.mtu_octets, of.p_keys) = (mtu_octets, vec![PKey(key)]);
            };
            set(&mut switch, 1024, 0xffff);
            assert_eq!(carried(&mut switch, &good, 1028), too_long, "{guid:?}");
            set(&mut switch, 2048, 0x8001);
            assert_eq!(carried(&mut switch, &good, 100), violation, "{guid:?}");
            // A limited member sends nothing with a full key.
            set(&mut switch, 2048, 0x7fff);
            let expected = if guid == A { violation } else { delivered };
            assert_eq!(carried(&mut switch, &good, 100), expected, "{guid:?}");
            set(&mut switch, 2048, 0xffff);
        }
        // Behind others that wait for room, up to the limit.
        switch.waiting.insert(B, VecDeque::from(vec![Vec::new(); WAITING_MAX - 1]));
        assert_eq!(carried(&mut switch, &good, 100), none);
        assert_eq!(carried(&mut switch, &good, 100), SwitchCounters { lost: 1, ..none });
    }
}
