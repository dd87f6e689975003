mod lengths;
mod life;
mod numbers;
mod random;
mod refused;
mod udp;

use std::net::IpAddr;
use std::ops::Range;

use super::*;
use crate::association::{BACK_MAX, FRONT_MAX, Mode};
use crate::counters::DropReason;
use crate::crypto::Keying;
use crate::key::Key;
use crate::lifetime::Lifetime;
use crate::policy::Template;
use crate::selector::Prefix;
use crate::wire::ip::{self, Header};

pub(super) const REQUEST: u32 = 7;
/// SPI of packets from the first host to the second.
pub(super) const SPI: u32 = 0x1001;
const TCP: u8 = 6;

pub(super) fn hosts(is_ipv6: bool) -> [IpAddr; 2] {
    if is_ipv6 {
        ["fd00::1", "fd00::2"].map(|host| host.parse().unwrap())
    } else {
        [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from)
    }
}

pub(super) fn gcm() -> Keying {
    Keying::AesGcm(Key::new((0..20).collect()))
}

/// An association from the first host to the second.
pub(super) fn association(mode: Mode, keying: Keying) -> Association {
    let [source, destination] = hosts(false);
    Association {
        spi: SPI,
        source,
        destination,
        mode,
        request: REQUEST,
        keying,
        extended_numbers: true,
        window: 1024,
        lifetime: Lifetime::default(),
        udp: None,
        selector: None,
    }
}

pub(super) fn transport() -> Association {
    association(Mode::Transport, gcm())
}

/// A policy of one protocol from the first host to the second.
pub(super) fn policy(direction: Direction, protocol: u8, action: Action) -> Policy {
    let [source, destination] = [0, 1].map(|_| Prefix::new([0, 0, 0, 0].into(), 0));
    let selector = Selector { protocol: Some(protocol), ..Selector::between(source, destination) };
    Policy { selector, direction, action, priority: 0 }
}

/// Two hosts: what the first sends by TCP to the second is protected.
pub(super) struct Pair {
    pub(super) sender: Esp,
    pub(super) receiver: Esp,
    pub(super) room: Vec<u8>,
}

impl Pair {
    /// Without associations.
    pub(super) fn new(mode: Mode, is_ipv6: bool, config: Config) -> Self {
        let ends = (mode == Mode::Tunnel).then(|| (hosts(is_ipv6)[0], hosts(is_ipv6)[1]));
        let protect = Action::Protect(Template { request: REQUEST, mode, ends });
        let mut hosts = [Direction::Out, Direction::In].map(|direction| {
            let mut host = Esp::new(config);
            for any in [Prefix::new([0; 4].into(), 0), Prefix::new([0; 16].into(), 0)] {
                let selector = Selector { protocol: Some(TCP), ..Selector::between(any, any) };
                let policy = Policy { selector, direction, action: protect, priority: 1 };
                host.add_policy(policy).unwrap();
            }
            host
        });
        let receiver = std::mem::replace(&mut hosts[1], Esp::new(config));
        let [sender, _] = hosts;
        Self { sender, receiver, room: Vec::new() }
    }

    /// With an association.
    pub(super) fn with(association: &Association) -> Self {
        let is_ipv6 = association.source.is_ipv6();
        let mut pair = Self::new(association.mode, is_ipv6, Config::default());
        pair.add(0, association);
        pair
    }

    pub(super) fn add(&mut self, now_ns: u64, association: &Association) {
        self.receiver.add_inbound(now_ns, association).unwrap();
        self.sender.add_outbound(now_ns, association).unwrap();
    }

    /// Sends a packet; returns the ESP packet.
    pub(super) fn seal(&mut self, now_ns: u64, packet: &[u8]) -> Vec<u8> {
        let (mut buffer, at) = buffer(packet);
        match self.sender.outbound(now_ns, &mut buffer, at) {
            Outbound::Sealed(range) => buffer[range].to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// Receives a packet; returns the packet inside.
    pub(super) fn open(&mut self, now_ns: u64, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
        match self.receiver.inbound(now_ns, packet, &mut self.room) {
            Inbound::Opened(len) => Ok(self.room[..len].to_vec()),
            Inbound::Dropped(reason) => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn dropped(&self, reason: DropReason) -> u64 {
        self.receiver.counters().dropped(reason)
    }
}

/// Copies a packet to a buffer with the room that sealing needs.
pub(super) fn buffer(packet: &[u8]) -> (Vec<u8>, usize) {
    let buffer = [&[0; FRONT_MAX], packet, &[0; BACK_MAX]].concat();
    (buffer, FRONT_MAX)
}

/// A packet with a payload from the first host to the second. The payload begins with ports.
pub(super) fn packet(is_ipv6: bool, protocol: u8, payload_len: usize) -> Vec<u8> {
    let [source, destination] = hosts(is_ipv6);
    let mut packet = vec![0; ip::outer_len(source)];
    packet.extend((0..=255).cycle().take(payload_len));
    ip::write_outer(&mut packet, (source, destination), protocol, 0);
    packet
}

pub(super) fn tcp(payload_len: usize) -> Vec<u8> {
    packet(false, TCP, payload_len)
}

pub(super) fn poll(esp: &mut Esp, now_ns: u64) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 4000];
    let range: Option<Range<usize>> = esp.poll_transmit(now_ns, &mut buffer, 14);
    range.map(|range| buffer[range].to_vec())
}

pub(super) fn events(esp: &mut Esp) -> Vec<Event> {
    std::iter::from_fn(|| esp.poll_event()).collect()
}

#[test]
fn an_esp_packet_has_its_form() {
    let mut pair = Pair::with(&transport());
    let sealed = pair.seal(0, &tcp(20));
    assert_eq!(sealed.len(), 20 + 8 + 8 + 24 + 16);
    let header = Header::parse(&sealed).unwrap();
    assert_eq!((header.next_header, header.flow.source), (50, hosts(false)[0]));
    assert_eq!(crate::wire::checksum(&[&sealed[..20]]), 0);
    assert_eq!(sealed[20..36], [0, 0, 0x10, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(pair.open(0, &sealed), Ok(tcp(20)));
    assert_eq!(pair.sender.counters().sealed.bytes, 40);
    assert_eq!(pair.receiver.counters().opened.bytes, 40);
    let [out, into] = [pair.sender.status(Direction::Out), pair.receiver.status(Direction::In)];
    assert_eq!((out[0].spi, out[0].number, out[0].packets, out[0].bytes), (SPI, 1, 1, 40));
    assert_eq!((into[0].spi, into[0].number, into[0].packets), (SPI, 1, 1));
}

#[test]
fn a_printed_processor_shows_no_key() {
    let keying = Keying::AesGcm(Key::new(vec![0xab; 36]));
    let pair = Pair::with(&association(Mode::Tunnel, keying));
    let text = format!("{:?} {:#?}", pair.sender, pair.receiver);
    assert!(text.contains("4097") && !text.contains("171") && !text.contains("abab"), "{text}");
}

#[test]
fn associations_and_spis_are_checked() {
    let mut esp = Esp::new(Config::default());
    let good = transport();
    let add = |esp: &mut Esp, association: &Association| {
        let result = esp.add_inbound(0, association);
        assert_eq!(esp.add_outbound(0, association).is_ok(), result.is_ok());
        result
    };
    let reserved = Association { spi: 255, ..good.clone() };
    assert_eq!(add(&mut esp, &reserved), Err(AssociationError::ReservedSpi));
    let families = Association { source: hosts(true)[0], ..good.clone() };
    assert_eq!(add(&mut esp, &families), Err(AssociationError::Families));
    let short = association(Mode::Tunnel, Keying::AesGcm(Key::new(vec![0; 16])));
    assert!(matches!(add(&mut esp, &short), Err(AssociationError::KeyLength(_))));
    assert_eq!(esp.reserve_spi(255), Err(AssociationError::ReservedSpi));
    assert_eq!([SPI, SPI].map(|spi| esp.reserve_spi(spi).is_ok()), [true, false]);
    assert_eq!(add(&mut esp, &good), Ok(()), "the key exchange adds what it has reserved");
    assert_eq!(add(&mut esp, &good), Err(AssociationError::SpiInUse));
    assert_eq!(esp.reserve_spi(SPI), Err(AssociationError::SpiInUse));
    assert_eq!([SPI, SPI].map(|spi| esp.remove_inbound(spi)), [true, false]);
    let destination = hosts(false)[1];
    assert_eq!([0, 0].map(|_| esp.remove_outbound(SPI, destination)), [true, false]);
}
