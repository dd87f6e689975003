//! Fragmentation of IPv4 datagrams for a link with a smaller MTU (RFC 791 §3.2, RFC 1812 §4.2.2.7).

use super::packet::{self, IPV4_HEADER_LEN_MAX};

/// The gate has already updated the header. `sink` gets each fragment of at most `mtu` bytes as
/// header and payload. `false` if the MTU is too small for any fragment.
pub(super) fn cut(
    header: &[u8],
    payload: &[u8],
    mtu: usize,
    mut sink: impl FnMut(&[u8], &[u8]),
) -> bool {
    let flags = u16::from_be_bytes([header[6], header[7]]);
    let (start, more_behind) = (usize::from(flags & 0x1fff) * 8, flags & MORE != 0);
    let room = mtu.saturating_sub(header.len()) / 8 * 8;
    if room == 0 {
        return false;
    }
    let mut at = 0;
    for piece in payload.chunks(room) {
        let mut own = [0; IPV4_HEADER_LEN_MAX];
        let len = if at == 0 {
            own[..header.len()].copy_from_slice(header);
            header.len()
        } else {
            copy_header(header, &mut own)
        };
        let fragment = &mut own[..len];
        let is_last = at + piece.len() == payload.len();
        let more = if is_last && !more_behind { 0 } else { MORE };
        // A valid datagram has less than 2^16 bytes, and offsets count units of eight bytes.
        let offset = u16::try_from((start + at) / 8).unwrap_or(0x1fff) & 0x1fff;
        let total = u16::try_from(len + piece.len()).unwrap_or(u16::MAX);
        fragment[2..4].copy_from_slice(&total.to_be_bytes());
        fragment[6..8].copy_from_slice(&(offset | more).to_be_bytes());
        packet::write_checksum(fragment);
        sink(fragment, piece);
        at += piece.len();
    }
    true
}

/// The whole datagram has at most 2^16 - 1 bytes (RFC 791 §3.1).
pub(super) fn is_possible(header: &[u8], payload: &[u8]) -> bool {
    let start = usize::from(u16::from_be_bytes([header[6], header[7]]) & 0x1fff) * 8;
    start + payload.len() + header.len() <= usize::from(u16::MAX)
}

/// Copies options with the copied flag only (RFC 791 §3.1). Returns the header's length.
fn copy_header(header: &[u8], to: &mut [u8; IPV4_HEADER_LEN_MAX]) -> usize {
    to[..20].copy_from_slice(&header[..20]);
    let mut len = 20;
    let mut options = &header[20..];
    while let [kind, rest @ ..] = options {
        let option_len = match *kind {
            END => break,
            NO_OPERATION => 1,
            _ => usize::from(*rest.first().unwrap_or(&0)),
        };
        let Some(option) = options.get(..option_len).filter(|_| option_len > 0) else { break };
        if kind & COPIED != 0 {
            to[len..len + option_len].copy_from_slice(option);
            len += option_len;
        }
        options = &options[option_len..];
    }
    // The rest of the last word ends the options.
    let padded = len.next_multiple_of(4);
    to[len..padded].fill(END);
    to[0] = 0x40 | u8::try_from(padded / 4).unwrap_or(15);
    padded
}

const MORE: u16 = 0x2000;
const COPIED: u8 = 0x80;
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
