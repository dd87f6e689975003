//! Structures of ibsim's client protocol (0.10 and 0.12), in host byte order except where noted.
//!
//! ```text
//! sim_ctl      magic (4) | client (4) | type (4) | len (4) | data (64)
//! sim_request  dlid be (2) | 0 (2) | slid be (2) | 0 (2) | dqp be (4) | sqp be (4) | status be (4)
//!              | 0 (4) | length be (8) | MAD (256)
//! ```

use crate::wire::address::{Lid, Qpn};
use crate::wire::mad::MAD_LEN;

pub(super) const CONTROL_LEN: usize = 80;
const CONTROL_DATA_LEN: usize = 64;
const MAGIC: u32 = 0xdead_beef;
/// Length of a datagram in its envelope.
pub(super) const REQUEST_LEN: usize = 288;
const MAD_AT: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Connect,
    Disconnect,
    PortInfo,
    PKeys,
}

impl Control {
    const fn number(self) -> u32 {
        match self {
            Self::Connect => 1,
            Self::Disconnect => 2,
            Self::PortInfo => 8,
            Self::PKeys => 10,
        }
    }
}

pub(super) fn control(client: u32, what: Control, data: &[u8]) -> [u8; CONTROL_LEN] {
    let len = u32::try_from(data.len().min(CONTROL_DATA_LEN)).unwrap_or(0);
    let head = [MAGIC, client, what.number(), len].map(u32::to_ne_bytes);
    let mut octets = [0; CONTROL_LEN];
    for (octet, value) in octets.iter_mut().zip(head.iter().flatten().chain(data)) {
        *octet = *value;
    }
    octets
}

/// `None` if it is an error, or answers another request.
pub(super) fn control_answer(octets: &[u8], what: Control) -> Option<[u8; CONTROL_DATA_LEN]> {
    let (words, data) = octets.split_at_checked(16)?;
    let word = |at: usize| words.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let is_answer = word(0)? == MAGIC && word(8)? == what.number();
    data.first_chunk().filter(|_| is_answer).copied()
}

/// `hears` asks for unsolicited datagrams to queue pair 1.
pub(super) fn place(id: u32, node: &str, hears: bool) -> Vec<u8> {
    let words = [id, 0, u32::from(hears)].map(u32::to_ne_bytes);
    let mut data = words.concat();
    data.extend(node.as_bytes());
    data.resize(12 + 32, 0);
    data
}

/// A datagram with a directed route goes to no LID.
pub(super) fn envelope(to: Lid, qpn: Qpn, mad: &[u8; MAD_LEN]) -> [u8; REQUEST_LEN] {
    let from = if to == Lid::PERMISSIVE { Lid::PERMISSIVE } else { Lid(0) };
    let [d0, d1] = to.0.to_be_bytes();
    let [s0, s1] = from.0.to_be_bytes();
    let parts: [&[u8]; 6] = [
        &[d0, d1, 0, 0, s0, s1, 0, 0],
        &qpn.bits().to_be_bytes(),
        &qpn.bits().to_be_bytes(),
        &[0; 8],
        &(MAD_LEN as u64).to_be_bytes(),
        mad,
    ];
    let mut octets = [0; REQUEST_LEN];
    for (octet, value) in octets.iter_mut().zip(parts.into_iter().flatten()) {
        *octet = *value;
    }
    octets
}

/// Returns source port and queue pair. `None` if ibsim found it undeliverable, or it is invalid.
pub(super) fn opened(octets: &[u8]) -> Option<(Lid, Qpn, [u8; MAD_LEN])> {
    let (head, mad) = octets.split_at_checked(MAD_AT)?;
    let [_, _, _, _, s0, s1, _, _, q0, q1, q2, q3, _, _, _, _, status @ ..] =
        head.first_chunk::<20>()?;
    let qpn = Qpn::from_bits(u32::from_be_bytes([*q0, *q1, *q2, *q3]));
    let is_whole = octets.len() == REQUEST_LEN && *status == [0; 4];
    let mad = mad.first_chunk().filter(|_| is_whole)?;
    Some((Lid(u16::from_be_bytes([*s0, *s1])), qpn, *mad))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_question_and_its_answer() {
        let asked = control(3, Control::PortInfo, &[7]);
        assert_eq!(asked[..16], [MAGIC, 3, 8, 1].map(u32::to_ne_bytes).concat());
        assert_eq!(asked[16..18], [7, 0]);
        assert_eq!(control_answer(&asked, Control::PortInfo).unwrap()[0], 7);
        assert_eq!(control_answer(&asked, Control::PKeys), None);
        assert_eq!(control_answer(&asked[..79], Control::PortInfo), None);
        let error = control(3, Control::PortInfo, &[]).map(|octet| octet & !8);
        assert_eq!(control_answer(&error, Control::PortInfo), None);
    }

    #[test]
    fn an_envelope_octet_by_octet() {
        let mad = [9; MAD_LEN];
        let octets = envelope(Lid(0x0102), Qpn::GSI, &mad);
        assert_eq!(octets[..12], [1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(octets[24..32], 256_u64.to_be_bytes());
        assert_eq!(opened(&octets), Some((Lid(0), Qpn::GSI, mad)));
        let mut back = octets;
        back[19] = 110;
        assert_eq!(opened(&back), None, "no way");
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_octets_never_panics(octets in prop::collection::vec(any::<u8>(), 0..300)) {
            let _any = opened(&octets);
            let _any = control_answer(&octets, Control::PKeys);
        }
    }
}
