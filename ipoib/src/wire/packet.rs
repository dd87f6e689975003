//! InfiniBand packets of the unreliable-datagram service, with their two CRCs.
//!
//! ```text
//! LRH (8) | GRH (40), to groups and between subnets | BTH (12) | DETH (8) | payload | pad (0-3)
//!         | ICRC (4) | VCRC (2)
//! ```

use super::address::{Gid, Lid, PKey, QKey, Qpn};
use super::{TooShort, take};

/// Bytes before the payload without a global header.
pub const HEAD_LEN: usize = 8 + 12 + 8;
/// Length of a global header, in bytes.
pub const GLOBAL_LEN: usize = 40;
/// Bytes behind payload and pad.
pub const TAIL_LEN: usize = 4 + 2;

/// Addresses of a global header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label: 20 bits.
    pub flow_label: u32,
    /// Hop limit: routers that may still forward it.
    pub hop_limit: u8,
    /// GID of the source.
    pub source: Gid,
    /// GID of the destination.
    pub destination: Gid,
}

/// Headers of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHeader {
    /// Service level: four bits.
    pub service_level: u8,
    /// LID of the destination port or group in this subnet.
    pub dlid: Lid,
    /// LID of the source port.
    pub slid: Lid,
    /// The global header, if there is one.
    pub global: Option<GlobalRoute>,
    /// Partition key.
    pub p_key: PKey,
    /// Destination queue pair.
    pub destination_qp: Qpn,
    /// Packet sequence number: 24 bits, unused by datagrams.
    pub psn: u32,
    /// Key that the receiver compares.
    pub q_key: QKey,
    /// Source queue pair.
    pub source_qp: Qpn,
}

/// Reasons why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The bytes end inside a header.
    #[error(transparent)]
    Short(#[from] TooShort),
    /// The length in a header differs from the packet's.
    #[error("the packet's length is not what its header says")]
    Length,
    /// Another version or next header, or a local header without a transport.
    #[error("not a packet of this version of InfiniBand's transport")]
    Version,
    /// Not a datagram: another service, or another operation than SEND Only.
    #[error("operation {0:#04x} is not that of a datagram")]
    Opcode(u8),
    /// The CRC over the fields that routers do not change does not match.
    #[error("the invariant CRC does not match")]
    Icrc,
    /// The CRC over the whole packet does not match.
    #[error("the variant CRC does not match")]
    Vcrc,
}

const UD_SEND_ONLY: u8 = 0x64;
/// Next header of a global header: InfiniBand's transport.
const NEXT_HEADER: u8 = 0x1b;
/// Local next header: the transport follows, without a global header.
const LNH_LOCAL: u8 = 2;
/// Local next header: a global header follows, then the transport.
const LNH_GLOBAL: u8 = 3;
/// Path migration state in the BTH, as sent by ports without path migration.
const MIGRATED: u8 = 0x40;

/// CRC-16 of generator 100B, each byte least significant bit first.
const VCRC: crc::Crc<u16> = crc::Crc::<u16>::new(&crc::Algorithm {
    width: 16,
    poly: 0x100b,
    init: 0xffff,
    refin: true,
    refout: true,
    xorout: 0xffff,
    check: 0,
    residue: 0,
});

impl PacketHeader {
    /// Appends the whole packet that carries `payload` to `out`.
    ///
    /// # Panics
    /// If the packet exceeds its length field: 8188 bytes without the last CRC.
    pub fn emit(&self, payload: &[u8], out: &mut Vec<u8>) {
        self.emit_by(payload.len(), |place| place.copy_from_slice(payload), out);
    }

    /// Like [`emit`](Self::emit), for a payload of `len` bytes that `fill` writes whole.
    ///
    /// # Panics
    /// As [`emit`](Self::emit) does.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "lengths are bounded by the assertion, and `out` only grows"
    )]
    // spec: IPOIB-2-1
    pub fn emit_by(&self, len: usize, fill: impl FnOnce(&mut [u8]), out: &mut Vec<u8>) {
        assert!(len < 1 << 13, "a packet's length fits eleven bits of words");
        let start = out.len();
        let pad = len.wrapping_neg() & 3;
        let global = if self.global.is_some() { GLOBAL_LEN } else { 0 };
        let transport = HEAD_LEN - 8 + len + pad + 4;
        let words = (8 + global + transport) / 4;
        assert!(words < 1 << 11, "a packet's length fits eleven bits of words");
        out.reserve(words * 4 + 2);
        self.emit_local(words, out);
        if let Some(route) = &self.global {
            route.emit(transport, out);
        }
        #[expect(clippy::cast_possible_truncation, reason = "0 to 3")]
        out.extend([UD_SEND_ONLY, MIGRATED | (pad as u8) << 4]);
        out.extend(self.p_key.0.to_be_bytes());
        out.extend(self.destination_qp.bits().to_be_bytes());
        out.extend((self.psn & 0x00ff_ffff).to_be_bytes());
        out.extend(self.q_key.0.to_be_bytes());
        out.extend(self.source_qp.bits().to_be_bytes());
        let at = out.len();
        out.resize(at + len, 0);
        fill(&mut out[at..]);
        out.extend(&[0; 3][..pad]);
        let icrc = invariant_crc(&out[start..], self.global.is_some());
        out.extend(icrc.to_le_bytes());
        let vcrc = VCRC.checksum(&out[start..]);
        out.extend(vcrc.to_le_bytes());
    }

    fn emit_local(&self, words: usize, out: &mut Vec<u8>) {
        let lnh = if self.global.is_some() { LNH_GLOBAL } else { LNH_LOCAL };
        out.extend([0, (self.service_level & 0xf) << 4 | lnh]);
        out.extend(self.dlid.0.to_be_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "eleven bits")]
        out.extend((words as u16).to_be_bytes());
        out.extend(self.slid.0.to_be_bytes());
    }

    /// Parses a packet: its headers and its payload, without the pad.
    ///
    /// # Errors
    /// See [`PacketError`].
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), PacketError> {
        let (covered, vcrc) =
            packet.split_last_chunk::<2>().ok_or(TooShort { need: 2, have: packet.len() })?;
        let mut rest = covered;
        let [version, lnh, d0, d1, l0, l1, s0, s1] = take::<8>(&mut rest)?;
        if version & 0x0f != 0 || !matches!(lnh & 3, LNH_LOCAL | LNH_GLOBAL) {
            return Err(PacketError::Version);
        }
        let words = usize::from(u16::from_be_bytes([l0, l1]) & 0x07ff);
        if words.checked_mul(4) != Some(covered.len()) {
            return Err(PacketError::Length);
        }
        let is_global = lnh & 3 == LNH_GLOBAL;
        let global = if is_global { Some(GlobalRoute::parse(&mut rest)?) } else { None };
        let [opcode, flags, p0, p1, _, q0, q1, q2, _, n0, n1, n2] = take::<12>(&mut rest)?;
        if opcode != UD_SEND_ONLY {
            return Err(PacketError::Opcode(opcode));
        }
        if flags & 0x0f != 0 {
            return Err(PacketError::Version);
        }
        let q_key = QKey(u32::from_be_bytes(take(&mut rest)?));
        let source_qp = Qpn::from_bits(u32::from_be_bytes(take(&mut rest)?));
        let (padded, icrc) =
            rest.split_last_chunk::<4>().ok_or(TooShort { need: 4, have: rest.len() })?;
        let pad = usize::from(flags >> 4 & 3);
        let len = padded.len().checked_sub(pad).ok_or(PacketError::Length)?;
        if VCRC.checksum(covered) != u16::from_le_bytes(*vcrc) {
            return Err(PacketError::Vcrc);
        }
        let invariant = covered.get(..covered.len().saturating_sub(4)).unwrap_or_default();
        if invariant_crc(invariant, is_global) != u32::from_le_bytes(*icrc) {
            return Err(PacketError::Icrc);
        }
        let header = Self {
            service_level: lnh >> 4,
            dlid: Lid(u16::from_be_bytes([d0, d1])),
            slid: Lid(u16::from_be_bytes([s0, s1])),
            global,
            p_key: PKey(u16::from_be_bytes([p0, p1])),
            destination_qp: Qpn::from_bits(u32::from_be_bytes([0, q0, q1, q2])),
            psn: u32::from_be_bytes([0, n0, n1, n2]),
            q_key,
            source_qp,
        };
        Ok((header, padded.get(..len).unwrap_or_default()))
    }
}

impl GlobalRoute {
    fn emit(&self, transport_len: usize, out: &mut Vec<u8>) {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff;
        out.extend(first.to_be_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "a packet is shorter than 8 KiB")]
        out.extend((transport_len as u16).to_be_bytes());
        out.extend([NEXT_HEADER, self.hop_limit]);
        out.extend(self.source.0);
        out.extend(self.destination.0);
    }

    fn parse(rest: &mut &[u8]) -> Result<Self, PacketError> {
        let first = u32::from_be_bytes(take(rest)?);
        let [l0, l1, next, hop_limit] = take::<4>(rest)?;
        let (source, destination) = (Gid(take(rest)?), Gid(take(rest)?));
        if first >> 28 != 6 || next != NEXT_HEADER {
            return Err(PacketError::Version);
        }
        if usize::from(u16::from_be_bytes([l0, l1])) != rest.len() {
            return Err(PacketError::Length);
        }
        #[expect(clippy::cast_possible_truncation, reason = "eight bits")]
        let traffic_class = (first >> 20) as u8;
        let flow_label = first & 0x000f_ffff;
        Ok(Self { traffic_class, flow_label, hop_limit, source, destination })
    }
}

/// The CRC over the fields that no switch or router changes, least significant byte first on the
/// wire. Variable fields count as ones: the virtual lane; in a global header the traffic class,
/// flow label and hop limit; the reserved byte behind the P_Key.
fn invariant_crc(packet: &[u8], is_global: bool) -> u32 {
    const MASKED_LOCAL: [(usize, u8); 2] = [(0, 0xf0), (8 + 4, 0xff)];
    const MASKED_GLOBAL: [(usize, u8); 7] = [
        (0, 0xf0),
        (8, 0x0f),
        (8 + 1, 0xff),
        (8 + 2, 0xff),
        (8 + 3, 0xff),
        (8 + 7, 0xff),
        (8 + GLOBAL_LEN + 4, 0xff),
    ];
    let masks: &[_] = if is_global { &MASKED_GLOBAL } else { &MASKED_LOCAL };
    let mut hasher = crc32fast::Hasher::new();
    let mut done = 0;
    for &(at, mask) in masks {
        let (Some(before), Some(octet)) = (packet.get(done..at), packet.get(at)) else { break };
        hasher.update(before);
        hasher.update(&[octet | mask]);
        done = at.saturating_add(1);
    }
    hasher.update(packet.get(done..).unwrap_or_default());
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;
    use proptest::prelude::*;

    use super::super::address::Guid;
    use super::*;

    fn header(global: bool) -> PacketHeader {
        let route = GlobalRoute {
            traffic_class: 0x5a,
            flow_label: 0x1_2345,
            hop_limit: 3,
            source: Gid::new(Gid::DEFAULT_PREFIX, Guid(0x10_0004)),
            destination: Gid(hex!("ff12401bffff000000000000ffffffff")),
        };
        PacketHeader {
            service_level: 2,
            dlid: Lid(0xc000),
            slid: Lid(4),
            global: global.then_some(route),
            p_key: PKey(0xffff),
            destination_qp: Qpn::MULTICAST,
            psn: 7,
            q_key: QKey(0x8001_0b1b),
            source_qp: Qpn::from_bits(0x48),
        }
    }

    fn emitted(header: &PacketHeader, payload: &[u8]) -> Vec<u8> {
        let mut packet = Vec::new();
        header.emit(payload, &mut packet);
        packet
    }

    /// Sample packet of the InfiniBand Architecture Specification, whose table of ICRC input has
    /// been published: 52 bytes, followed by 96 25 B7 5A.
    #[test]
    fn the_invariant_crc_is_that_of_the_specifications_sample() {
        let sample = hex!(
            "f012375c000e17d2 0a202487ff87b1b3000dec2a 01710a1c015d400238f27a05"
            "0000000ebb884d85fd5cfba4728bc0690ed40000"
        );
        assert_eq!(invariant_crc(&sample, false).to_le_bytes(), hex!("9625b75a"));
    }

    #[test]
    fn packet_has_the_specified_octets() {
        let packet = emitted(&header(false), &[1, 2, 3, 4, 5]);
        let expected = hex!(
            "00 22 c000 000a 0004"
            "64 70 ffff 00 ffffff 00000007"
            "80010b1b 00000048"
            "0102030405 000000"
        );
        assert_eq!(packet[..expected.len()], expected);
        assert_eq!(packet.len(), expected.len() + TAIL_LEN);
        let packet = emitted(&header(true), &[]);
        let expected = hex!(
            "00 23 c000 0012 0004"
            "65a12345 0018 1b 03 fe800000000000000000000000100004"
            "ff12401bffff000000000000ffffffff"
            "64 40 ffff 00 ffffff 00000007"
        );
        assert_eq!(packet[..expected.len()], expected);
    }

    #[test]
    fn fields_that_routers_change_are_not_in_the_invariant_crc() {
        let mut packet = emitted(&header(true), b"payload!");
        let end = packet.len() - TAIL_LEN;
        let before = invariant_crc(&packet[..end], true);
        for (at, bits) in [(0, 0xf0), (9, 0xff), (10, 0xff), (11, 0xff), (15, 0xff), (52, 0xff)] {
            packet[at] ^= bits;
            assert_eq!(invariant_crc(&packet[..end], true), before, "octet {at}");
        }
        packet[8] ^= 0x0f;
        assert_eq!(invariant_crc(&packet[..end], true), before);
        packet[8] ^= 0x10;
        assert_ne!(invariant_crc(&packet[..end], true), before);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for global in [false, true] {
            let mut packet = emitted(&header(global), b"eleven octe");
            for bit in 0..packet.len() * 8 {
                packet[bit / 8] ^= 1 << (bit % 8);
                assert!(PacketHeader::parse(&packet).is_err(), "bit {bit}, global {global}");
                packet[bit / 8] ^= 1 << (bit % 8);
            }
            for len in 0..packet.len() {
                assert!(PacketHeader::parse(&packet[..len]).is_err(), "{len} octets");
            }
            packet.push(0);
            assert_eq!(PacketHeader::parse(&packet), Err(PacketError::Length));
        }
    }

    #[test]
    fn each_crc_has_its_own_error() {
        let mut packet = emitted(&header(false), b"abcd");
        *packet.last_mut().unwrap() ^= 1;
        assert_eq!(PacketHeader::parse(&packet), Err(PacketError::Vcrc));
        *packet.last_mut().unwrap() ^= 1;
        let icrc_at = packet.len() - TAIL_LEN;
        packet[icrc_at] ^= 1;
        let vcrc_at = packet.len() - 2;
        let vcrc = VCRC.checksum(&packet[..vcrc_at]).to_le_bytes();
        packet[vcrc_at..].copy_from_slice(&vcrc);
        assert_eq!(PacketHeader::parse(&packet), Err(PacketError::Icrc));
    }

    // spec: IPOIB-2-1
    #[test]
    fn only_datagrams_are_taken() {
        let mut packet = emitted(&header(false), b"abcd");
        packet[8] = 0x04;
        assert_eq!(PacketHeader::parse(&packet), Err(PacketError::Opcode(0x04)));
        let mut packet = emitted(&header(false), b"abcd");
        packet[1] = packet[1] & 0xfc | 1;
        assert_eq!(PacketHeader::parse(&packet), Err(PacketError::Version));
    }

    proptest! {
        #[test]
        fn emitted_packets_parse_back(
            payload in prop::collection::vec(any::<u8>(), 0..2100),
            global: bool,
            (sl, dlid, slid, psn) in (0_u8..16, any::<u16>(), any::<u16>(), 0_u32..1 << 24),
            (p_key, q_key) in (any::<u16>(), any::<u32>()),
            (to, from) in (any::<u32>(), any::<u32>()),
        ) {
            let header = PacketHeader {
                service_level: sl,
                dlid: Lid(dlid),
                slid: Lid(slid),
                psn,
                p_key: PKey(p_key),
                q_key: QKey(q_key),
                destination_qp: Qpn::from_bits(to),
                source_qp: Qpn::from_bits(from),
                ..header(global)
            };
            let packet = emitted(&header, &payload);
            prop_assert_eq!(PacketHeader::parse(&packet), Ok((header, &payload[..])));
        }

        #[test]
        fn any_octets_are_refused_without_a_panic(octets in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(PacketHeader::parse(&octets).is_err());
        }
    }
}
