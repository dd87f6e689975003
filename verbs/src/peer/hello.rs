//! Private Data of the MPA Request (RFC 5044 §7.1.1) between queue pairs that connect without
//! rdma_cm. The data names the two queue pairs.
//!
//! ```text
//!    0  "uRQP"          8  own GID (16)      28  GID of the peer that is wanted (16)
//!    4  version (2)    24  own number (4)    44  number of the peer that is wanted (4)
//!    6  features (2)   48  proof by the PSN of the peer that is wanted (8)
//!                      56  proof by the own PSN (8), with feature 0x0001
//!                                            all numbers big-endian
//! ```
//!
//! Names are no secrets: other users of a host see ports, and with them numbers. PSNs are numbers
//! of 24 bits that the two applications draw, exchange and give to `ibv_modify_qp`. A proof is
//! SipHash-2-4 of the two names with a PSN as its key. An end in RTR knows the PSN of its peer; an
//! end in RTS also knows its own. So a connecting end in RTR can send the first proof only, and a
//! passive end in RTR can check the second proof only.

use std::cmp::Ordering;
use std::fmt;
use std::net::IpAddr;

use urnic_engine::keyed_hash;

use crate::gid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) address: IpAddr,
    pub(crate) number: u32,
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    /// Numbers first: an end with several addresses may have given its peer another one.
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |name: &Self| (name.number, gid::octets(name.address));
        key(self).cmp(&key(other))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Psns {
    /// The peer's, `rq_psn` of RTR.
    pub(crate) peer: u32,
    /// This end's, `sq_psn` of RTS.
    pub(crate) own: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(super) from: Name,
    pub(super) to: Name,
    /// Proof by the PSN of `to`; `from_proof` is the proof by the PSN of `from`.
    to_proof: u64,
    from_proof: Option<u64>,
}

/// Omits the proofs: who has a proof and the names finds the PSN with 2^24 attempts.
impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, .. } = self;
        f.debug_struct("Hello").field("from", from).field("to", to).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// Application with which this application has exchanged names and PSNs.
    Peer,
    /// Not proved yet: one of the ends must reach RTS first.
    Unproved,
    Other,
}

const MAGIC: [u8; 4] = *b"uRQP";
const VERSION: u16 = 2;
/// Feature: the message has the proof by the own PSN.
const HAS_FROM_PROOF: u16 = 1;
/// The bits of a PSN.
const PSN: u32 = 0x00ff_ffff;

fn proof(from: Name, to: Name, psn: u32) -> u64 {
    let mut octets = [0; 40];
    for (place, name) in octets.chunks_exact_mut(20).zip([from, to]) {
        place[..16].copy_from_slice(&gid::octets(name.address));
        place[16..].copy_from_slice(&name.number.to_be_bytes());
    }
    keyed_hash((u64::from(psn & PSN), 0), &octets)
}

impl Hello {
    pub(super) const LEN: usize = 64;

    pub(crate) fn new(from: Name, to: Name, psns: Psns) -> Self {
        let of = |psn| proof(from, to, psn);
        Self { from, to, to_proof: of(psns.peer), from_proof: psns.own.map(of) }
    }

    /// Checks each proof that the message has and whose PSN this end knows, at the end that the
    /// message names. Only this function authenticates the peer of a queue pair without rdma_cm.
    pub(super) fn sender(&self, psns: Psns) -> Sender {
        let proof = |psn| proof(self.from, self.to, psn);
        let by_to = psns.own.map(|own| proof(own) == self.to_proof);
        let by_from = self.from_proof.map(|from_proof| proof(psns.peer) == from_proof);
        match (by_to, by_from) {
            (Some(false), _) | (_, Some(false)) => Sender::Other,
            (None, None) => Sender::Unproved,
            _ => Sender::Peer,
        }
    }

    pub(crate) fn to_octets(self) -> Vec<u8> {
        let mut octets = Vec::with_capacity(Self::LEN);
        octets.extend(MAGIC);
        octets.extend(VERSION.to_be_bytes());
        let features = if self.from_proof.is_some() { HAS_FROM_PROOF } else { 0 };
        octets.extend(features.to_be_bytes());
        for name in [self.from, self.to] {
            octets.extend(gid::octets(name.address));
            octets.extend(name.number.to_be_bytes());
        }
        for proof in [self.to_proof, self.from_proof.unwrap_or(0)] {
            octets.extend(proof.to_be_bytes());
        }
        octets
    }

    pub(super) fn version(octets: &[u8]) -> Option<u16> {
        let (magic, rest) = octets.split_first_chunk()?;
        let version = rest.first_chunk()?;
        (*magic == MAGIC).then_some(u16::from_be_bytes(*version))
    }

    /// `None` for other data and other versions.
    pub(super) fn parse(octets: &[u8]) -> Option<Self> {
        if Self::version(octets)? != VERSION {
            return None;
        }
        let (features, rest) = octets.get(6..)?.split_first_chunk()?;
        let has_from_proof = u16::from_be_bytes(*features) & HAS_FROM_PROOF != 0;
        let (from, rest) = name(rest)?;
        let (to, rest) = name(rest)?;
        let (to_proof, rest) = rest.split_first_chunk()?;
        let (from_proof, _later_versions) = rest.split_first_chunk()?;
        let from_proof = has_from_proof.then_some(u64::from_be_bytes(*from_proof));
        Some(Self { from, to, to_proof: u64::from_be_bytes(*to_proof), from_proof })
    }
}

fn name(octets: &[u8]) -> Option<(Name, &[u8])> {
    let (address, rest) = octets.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let name = Name { address: gid::address(*address), number: u32::from_be_bytes(*number) };
    Some((name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM_PSN: u32 = 0x00c0_ffee;
    const TO_PSN: u32 = 0x0012_3456;

    fn names() -> [Name; 2] {
        [
            Name { address: "10.1.2.3".parse().unwrap(), number: 0x00ab_cd01 },
            Name { address: "fe80::1".parse().unwrap(), number: 7 },
        ]
    }

    fn hello(own: Option<u32>) -> Hello {
        let [from, to] = names();
        Hello::new(from, to, Psns { peer: TO_PSN, own })
    }

    #[test]
    fn a_hello_is_64_octets_and_comes_back() {
        for own in [None, Some(FROM_PSN)] {
            let octets = hello(own).to_octets();
            assert_eq!(octets.len(), Hello::LEN);
            assert_eq!(octets[..8], [b'u', b'R', b'Q', b'P', 0, 2, 0, u8::from(own.is_some())]);
            assert_eq!(octets[18..28], [0xff, 0xff, 10, 1, 2, 3, 0, 0xab, 0xcd, 1]);
            assert_eq!(Hello::parse(&octets), Some(hello(own)));
        }
    }

    /// The expected proofs are those of the first release with proofs: other implementations must
    /// compute the same.
    #[test]
    fn proofs_equal_those_of_the_first_release() {
        let octets = hello(Some(FROM_PSN)).to_octets();
        assert_eq!(octets[48..56], proof(names()[0], names()[1], TO_PSN).to_be_bytes());
        assert_eq!(octets[56..], proof(names()[0], names()[1], FROM_PSN).to_be_bytes());
    }

    #[test]
    fn each_known_psn_proves_the_sender() {
        let at = |own, peer| Psns { peer, own };
        let (right, wrong) = (Some(TO_PSN), Some(TO_PSN ^ 1));
        for (hello, psns, expected) in [
            // Asked in RTS.
            (hello(None), at(right, FROM_PSN), Sender::Peer),
            (hello(None), at(right, 0), Sender::Peer),
            (hello(None), at(wrong, FROM_PSN), Sender::Other),
            (hello(Some(FROM_PSN)), at(right, FROM_PSN), Sender::Peer),
            (hello(Some(FROM_PSN)), at(wrong, FROM_PSN), Sender::Other),
            (hello(Some(FROM_PSN)), at(right, FROM_PSN ^ 1), Sender::Other),
            // Asked in RTR.
            (hello(None), at(None, FROM_PSN), Sender::Unproved),
            (hello(Some(FROM_PSN)), at(None, FROM_PSN), Sender::Peer),
            (hello(Some(FROM_PSN)), at(None, FROM_PSN ^ 1), Sender::Other),
        ] {
            assert_eq!(hello.sender(psns), expected, "{hello:?} {psns:?}");
        }
        // Bits above the 24 of a PSN are ignored, as on InfiniBand's wire.
        let above = at(Some(TO_PSN | 0xff00_0000), FROM_PSN | 0x0100_0000);
        assert_eq!(hello(Some(FROM_PSN)).sender(above), Sender::Peer);
        // A proof covers both names, so it is useless for another queue pair.
        let mut other = hello(Some(FROM_PSN));
        other.to.number += 1;
        assert_eq!(other.sender(at(right, FROM_PSN)), Sender::Other);
        let mut other = hello(Some(FROM_PSN));
        other.from.address = "10.1.2.4".parse().unwrap();
        assert_eq!(other.sender(at(right, FROM_PSN)), Sender::Other);
    }

    /// The log shows no PSN.
    #[test]
    fn a_hello_is_shown_without_its_proofs() {
        let hello = hello(Some(FROM_PSN));
        let shown = format!("{hello:?} {hello:#?} {hello:x?} {hello:X?}");
        assert!(shown.contains("number: 7"), "{shown}");
        for proof in [hello.to_proof, hello.from_proof.unwrap()] {
            for digits in [format!("{proof}"), format!("{proof:x}"), format!("{proof:X}")] {
                assert!(!shown.contains(&digits), "{shown}");
            }
        }
    }

    #[test]
    fn malformed_hellos_are_refused() {
        let octets = hello(None).to_octets();
        for len in 0..Hello::LEN {
            assert_eq!(Hello::parse(&octets[..len]), None);
        }
        for index in 0..6 {
            let mut other = octets.clone();
            other[index] ^= 1;
            assert_eq!(Hello::parse(&other), None);
        }
        let mut first_version = octets.clone();
        first_version[5] = 1;
        assert_eq!(Hello::version(&first_version), Some(1));
        assert_eq!(Hello::parse(&first_version), None);
        // Later versions may append data and use other features.
        let mut longer = octets;
        longer[6] = 1;
        longer.push(9);
        assert_eq!(Hello::parse(&longer), Some(hello(None)));
    }

    #[test]
    fn names_are_ordered_by_number_before_address() {
        let [from, to] = names();
        assert!(to < from);
        let elsewhere = Name { address: "10.1.2.2".parse().unwrap(), ..from };
        assert!(elsewhere < from);
    }
}
