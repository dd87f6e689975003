//! Fast path: contiguous plain frames, as nearly every IPv4 frame is. Requires an untagged Ethernet
//! frame to one host with a whole IPv4 datagram without options. Any other frame takes the general
//! path, [`parse`](super::parse). `tests.rs` compares both. The gain is 2 % of the instructions for
//! a segment of 1500 bytes, 3.5 % without CRC (2026-11-27): offsets and the form of the addresses
//! are constants.

use std::net::Ipv4Addr;

use super::{
    FRAGMENT_OFFSET, Inbound, MORE_FRAGMENTS, is_right_sum, sum_of_words, tcp_checksum_is_right,
};
use crate::port::interface::framing::{
    ETHERNET_LEN, ETHERTYPE_IPV4, IPV4_LEN, LinkFraming, PROTOCOL_TCP,
};
use crate::port::tuple::mapped_ipv4;
use crate::tcp;

const PLAIN_LEN: usize = ETHERNET_LEN + IPV4_LEN;

/// `None` for any other frame, and for a wrong checksum if `verify` asks for its check.
#[inline(always)]
pub(crate) fn parse_plain(framing: LinkFraming, frame: &[u8], verify: bool) -> Option<Inbound<'_>> {
    let head: &[u8; PLAIN_LEN] = frame.first_chunk()?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let is_plain = framing == LinkFraming::Ethernet
        && head[0] & 1 == 0
        && word(12) == ETHERTYPE_IPV4
        && head[14] == 0x45
        && word(20) & (MORE_FRAGMENTS | FRAGMENT_OFFSET) == 0
        && head[23] == PROTOCOL_TCP
        && is_right_sum(sum_of_words(&head[ETHERNET_LEN..]));
    if !is_plain {
        return None;
    }
    let end = ETHERNET_LEN + usize::from(word(16));
    let address = |at: usize| Ipv4Addr::from([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let inbound = Inbound {
        source: mapped_ipv4(address(26)),
        destination: mapped_ipv4(address(30)),
        ecn: tcp::Ecn::from_bits(head[15]),
        segment: frame.get(PLAIN_LEN..end)?,
        padding_len: frame.len() - end,
    };
    // RFC 9293 MUST-3: the checksum is verified on every segment.
    (!verify || tcp_checksum_is_right(&inbound)).then_some(inbound)
}
