//! Links on a fabric in memory, under a virtual clock, with all behaviour of an administrator, a
//! switch and peers.

mod dhcp;
mod groups;
mod hostile;
mod manager;
mod neighbours;
mod packets;
mod rules;
mod seeds;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use urnic_netdev::{Device, TransmitError, TxFrame};

use super::*;
use crate::counters::Counters;
use crate::device::IpoibDevice;
use crate::limits::OWN_WAITING_MAX;
use crate::link::{LinkConfig, LinkState};
use crate::wire::address::Qpn;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Hosts on a fabric, and the datagrams received by each.
struct Scene {
    fabric: Fabric,
    hosts: Vec<IpoibDevice<MemoryPort>>,
    received: Vec<Vec<Vec<u8>>>,
    now_ns: u64,
}

const fn guid(host: usize) -> Guid {
    Guid(0x10_0000 + host as u64)
}

fn ip4(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + u8::try_from(host).unwrap())
}

fn ip6(host: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1 + u16::try_from(host).unwrap())
}

fn settings(host: usize) -> LinkConfig {
    let qpn = Qpn::from_bits(0x48 + u32::try_from(host).unwrap());
    LinkConfig {
        ipv4: Some((ip4(host), 24)),
        ipv6: Some((ip6(host), 64)),
        ..LinkConfig::new(qpn, [u8::try_from(host).unwrap(); 32])
    }
}

impl Scene {
    fn new(config: FabricConfig, hosts: usize) -> Self {
        Self::with(config, (0..hosts).map(|host| (settings(host), vec![PKey(0xffff)])).collect())
    }

    fn with(config: FabricConfig, hosts: Vec<(LinkConfig, Vec<PKey>)>) -> Self {
        let fabric = Fabric::new(config);
        let received = vec![Vec::new(); hosts.len()];
        let plugged = hosts
            .into_iter()
            .enumerate()
            .map(|(host, (link, keys))| IpoibDevice::new(fabric.plug(guid(host), &keys), link));
        Self { hosts: plugged.collect(), fabric, received, now_ns: 1 }
    }

    /// Returns two hosts that are up.
    fn up() -> Self {
        let mut scene = Self::new(FabricConfig { latency_ns: 5_000, ..FabricConfig::default() }, 2);
        scene.run(MS);
        assert!(scene.hosts.iter().all(Device::link_up));
        scene
    }

    /// Advances the time.
    fn run(&mut self, for_ns: u64) {
        let end_ns = self.now_ns + for_ns;
        loop {
            for (host, received) in self.hosts.iter_mut().zip(&mut self.received) {
                host.receive(self.now_ns, 64, &mut |frame| received.push(frame.head.to_vec()));
            }
            let next = self.hosts.iter().filter_map(Device::next_arrival_ns).min();
            let next = next.map_or(end_ns, |next| next.max(self.now_ns + 1));
            if next >= end_ns {
                self.now_ns = end_ns;
                return;
            }
            self.now_ns = next;
        }
    }

    fn send(&mut self, host: usize, datagram: &[u8]) -> Result<(), TransmitError> {
        let frame = TxFrame::whole(datagram);
        self.hosts[host].transmit(self.now_ns, &frame)
    }

    /// Returns true if a datagram of `len` bytes to an address arrives at a host, once and
    /// unchanged.
    fn arrives(&mut self, from: usize, to: IpAddr, len: usize, at: usize) -> bool {
        let datagram = datagram(from, to, len);
        self.received[at].clear();
        self.send(from, &datagram).unwrap();
        self.run(10 * MS);
        match &self.received[at][..] {
            [] => false,
            [one] => {
                assert_eq!(*one, datagram);
                true
            }
            more => panic!("{} datagrams", more.len()),
        }
    }

    fn state(&self, host: usize) -> LinkState {
        self.hosts[host].link().state()
    }

    fn counters(&self, host: usize) -> Counters {
        *self.hosts[host].link().counters()
    }
}

/// Returns a UDP datagram of `len` bytes with its IP header, from a host.
fn datagram(from: usize, to: IpAddr, len: usize) -> Vec<u8> {
    let total = u16::try_from(len).unwrap();
    let mut datagram = match to {
        IpAddr::V4(to) => {
            let [a, b] = total.to_be_bytes();
            let head = [0x45, 0, a, b, 0, 0, 0x40, 0, 64, 17, 0, 0];
            [&head[..], &ip4(from).octets(), &to.octets()].concat()
        }
        IpAddr::V6(to) => {
            let [a, b] = (total - 40).to_be_bytes();
            [&[0x60, 0, 0, 0, a, b, 17, 64][..], &ip6(from).octets(), &to.octets()].concat()
        }
    };
    let start = datagram.len();
    datagram.extend((start..len).map(|at| at.to_le_bytes()[0]));
    datagram
}

/// RFC 4391 §7: 2044 bytes whole, 2045 not; 4092 on a fabric of larger packets. §5: MTU and Q_Key
/// come from the join.
// spec: IPOIB-5-1, IPOIB-7-1, IPOIB-ARCH-7
#[test]
fn the_mtu_is_that_of_the_broadcast_group() {
    for (mtu_octets, mtu) in [(2048, 2044), (4096, 4092), (1024, 1020)] {
        let mut scene = Scene::new(FabricConfig { mtu_octets, ..FabricConfig::default() }, 2);
        assert!(!scene.hosts[0].link_up());
        scene.run(MS);
        let LinkState::Up { mtu: link_mtu, q_key, .. } = scene.state(0) else { panic!("up") };
        assert_eq!((link_mtu, q_key), (mtu, QKey(0x8001_0b1b)));
        assert_eq!(scene.hosts[0].capabilities().mtu, mtu);
        for to in [IpAddr::V4(ip4(1)), IpAddr::V6(ip6(1))] {
            for len in [mtu, mtu - 1, mtu - 2, mtu - 3] {
                assert!(scene.arrives(0, to, len, 1), "{to} {len}");
            }
            let long = datagram(0, to, mtu + 1);
            assert_eq!(scene.send(0, &long), Err(TransmitError::TooLong));
        }
    }
}

/// RFC 4392 §4: a port that cannot carry the group's packets is not in the subnet.
// spec: IPOIB-4.1-3, IPOIB-ARCH-12
#[test]
fn a_group_that_the_port_cannot_carry_leaves_the_link_down_with_its_reason() {
    let mut scene = Scene::new(FabricConfig { mtu_octets: 4096, ..FabricConfig::default() }, 1);
    {
        let mut state = scene.fabric.lock();
        state.ports.values_mut().for_each(|plug| plug.info.mtu_octets = 2048);
    }
    scene.run(MS);
    let LinkState::Down(why) = scene.state(0) else { panic!("down") };
    assert_eq!(why.to_string(), "the broadcast group has an MTU of 4096, the port can carry 2048");
    assert!(scene.hosts[0].link().poll_timeout().is_some(), "it is tried again");
}

/// RFC 4392 §1.2: two partitions are two links; two limited members cannot communicate.
// spec: IPOIB-5-2, IPOIB-ARCH-3, IPOIB-ARCH-11
#[test]
fn partitions_isolate_and_limited_members_reach_full_ones_only() {
    let blue = |host: usize, keys: &[u16]| {
        let link = LinkConfig { p_key: PKey(0x8001), ..settings(host) };
        (link, keys.iter().map(|key| PKey(*key)).collect::<Vec<_>>())
    };
    let hosts = vec![
        blue(0, &[0x7fff, 0x8001]),
        blue(1, &[0x0001]),
        blue(2, &[0x0001]),
        (settings(3), vec![PKey(0xffff), PKey(0x8001)]),
        blue(4, &[0xffff]),
        blue(5, &[0x8001]),
    ];
    let mut scene = Scene::with(FabricConfig::default(), hosts);
    scene.fabric.add_partition(PKey(0x8001), Scope::LINK_LOCAL, QKey(0x8002_0b1b));
    scene.run(MS);
    let LinkState::Down(why) = scene.state(4) else { panic!("not in the partition") };
    assert!(why.to_string().contains("not in partition 0x8001"), "{why}");
    for (from, to, passes) in [
        (0, 5, true),
        (5, 0, true),
        (0, 1, true),
        (1, 0, true),
        (2, 5, true),
        (1, 2, false),
        (2, 1, false),
        (0, 3, false),
        (3, 0, false),
    ] {
        assert_eq!(scene.arrives(from, ip4(to).into(), 100, to), passes, "{from} to {to}");
        assert_eq!(scene.arrives(from, ip6(to).into(), 100, to), passes, "{from} to {to} by IPv6");
    }
}

/// One query for each neighbour and path, not for each packet.
// spec: IPOIB-10-5
#[test]
fn a_thousand_packets_ask_the_administrator_once() {
    let mut scene = Scene::up();
    assert!(scene.arrives(0, ip4(1).into(), 60, 1));
    assert!(scene.arrives(1, ip4(0).into(), 60, 0));
    let asked = scene.fabric.asked();
    for _ in 0..1000 {
        assert!(scene.arrives(0, ip4(1).into(), 60, 1));
    }
    assert_eq!(scene.fabric.asked(), asked);
    assert_eq!(asked.paths, 2, "one for each direction");
}

#[test]
fn datagrams_to_the_interface_itself_come_back() {
    let mut scene = Scene::up();
    assert!(scene.arrives(0, ip4(0).into(), 100, 0));
    assert!(scene.arrives(0, ip6(0).into(), 100, 0));
}

#[test]
fn leaving_host_is_in_no_group_and_gets_no_reports() {
    let mut scene = Scene::up();
    let broadcast = MulticastMap::new(Scope::LINK_LOCAL, PKey(0xffff)).broadcast();
    assert_eq!(scene.fabric.members(broadcast), Some(2));
    let now_ns = scene.now_ns;
    scene.hosts[1].leave(now_ns);
    scene.run(MS);
    assert_eq!(scene.fabric.members(broadcast), Some(1));
    let state = scene.fabric.lock();
    let left = Gid::new(Gid::DEFAULT_PREFIX, guid(1));
    assert!(!state.administrator.is_known(left));
}

#[test]
fn a_burst_is_of_own_and_other_datagrams_together() {
    let mut scene = Scene::up();
    assert!(scene.arrives(1, ip4(0).into(), 60, 0));
    for _ in 0..3 {
        scene.send(0, &datagram(0, ip4(0).into(), 60)).unwrap();
        scene.send(1, &datagram(1, ip4(0).into(), 60)).unwrap();
    }
    scene.now_ns += MS;
    let counts = [4, 4, 4].map(|burst| scene.hosts[0].receive(scene.now_ns, burst, &mut |_| ()));
    assert_eq!(counts, [4, 2, 0]);
    for _ in 0..3 {
        scene.send(0, &datagram(0, ip4(0).into(), 60)).unwrap();
    }
    assert_eq!(scene.hosts[0].next_arrival_ns(), Some(0), "own datagrams have come");
    let counts = [2, 2, 2].map(|burst| scene.hosts[0].receive(scene.now_ns, burst, &mut |_| ()));
    assert_eq!(counts, [2, 1, 0]);
    for _ in 0..OWN_WAITING_MAX {
        scene.send(0, &datagram(0, ip4(0).into(), 60)).unwrap();
    }
    assert_eq!(scene.send(0, &datagram(0, ip4(0).into(), 60)), Err(TransmitError::Full));
}
