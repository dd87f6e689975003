//! Sequence numbers of ordinary sockets, made unpredictable for outsiders. smoltcp draws them from
//! one small generator: a few outputs reveal all later ones. So they are shifted on transmission by
//! a keyed hash of the connection's addresses, and acknowledgments back on reception: the F of RFC
//! 6528 §3. No state is needed, and the sender of a segment for no socket still accepts the reset.

use smoltcp::wire::checksum;

use crate::port::interface::demux::{self, Parsed};
use crate::port::interface::framing::LinkFraming;
use crate::siphash::{Key, hash_of_ends};

const SEQUENCE_AT: usize = 4;
const ACKNOWLEDGMENT_AT: usize = 8;
const FLAGS_AT: usize = 13;
const CHECKSUM_AT: usize = 16;
const RST: u8 = 4;
const ACK: u8 = 16;

struct Found {
    at: usize,
    /// Shift of the numbers of this end's bytes.
    shift: u32,
}

pub(super) fn shift_sent(key: Key, datagram: &mut [u8]) {
    let Some(Found { at, shift }) = find(key, datagram, true) else { return };
    let segment = &mut datagram[at..];
    let sequence = word(segment, SEQUENCE_AT);
    // RFC 9293 §3.10.7.1: the reset of a segment without ACK has sequence number zero.
    if segment[FLAGS_AT] & RST != 0 && sequence == 0 {
        return;
    }
    let moved = sequence.wrapping_add(shift);
    segment[SEQUENCE_AT..SEQUENCE_AT + 4].copy_from_slice(&moved.to_be_bytes());
    // RFC 1624 §3: HC' = ~(~HC + ~m + m').
    let before = u16::from_be_bytes([segment[CHECKSUM_AT], segment[CHECKSUM_AT + 1]]);
    let sums =
        [!before, checksum::data(&(!sequence).to_be_bytes()), checksum::data(&moved.to_be_bytes())];
    let after = !checksum::combine(&sums);
    segment[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&after.to_be_bytes());
}

/// The checksum was verified before; it is not updated.
pub(super) fn shift_received(key: Key, datagram: &mut [u8]) {
    let Some(Found { at, shift }) = find(key, datagram, false) else { return };
    let segment = &mut datagram[at..];
    if segment[FLAGS_AT] & ACK != 0 {
        let moved = word(segment, ACKNOWLEDGMENT_AT).wrapping_sub(shift);
        segment[ACKNOWLEDGMENT_AT..ACKNOWLEDGMENT_AT + 4].copy_from_slice(&moved.to_be_bytes());
    }
}

#[expect(clippy::cast_possible_truncation, reason = "sequence numbers are modulo 2^32")]
fn find(key: Key, datagram: &[u8], is_sent: bool) -> Option<Found> {
    let Ok(Parsed::Tcp(inbound)) = demux::parse(LinkFraming::Ip, datagram, datagram.len(), false)
    else {
        return None;
    };
    let segment = inbound.segment;
    if segment.len() < HEADER_LEN {
        return None;
    }
    let at = segment.as_ptr().addr() - datagram.as_ptr().addr();
    let port = |at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
    let tuple = inbound.tuple(port(0), port(2));
    let (source, destination) = (tuple.remote(), tuple.local());
    let (local, remote) = if is_sent { (source, destination) } else { (destination, source) };
    Some(Found { at, shift: hash_of_ends(key, local, remote, &[]) as u32 })
}

const HEADER_LEN: usize = 20;

fn word(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = (5, 6);

    /// A segment from 10.0.0.`from`:80 to 10.0.0.`to`:90, or an IPv6 one with an extension header.
    fn datagram(v6: bool, from: u8, to: u8, seq: u32, ack: u32, flags: u8) -> Vec<u8> {
        let port = |last: u8| u16::from(last) * 10;
        let mut segment = port(from).to_be_bytes().to_vec();
        segment.extend(port(to).to_be_bytes());
        segment.extend(seq.to_be_bytes());
        segment.extend(ack.to_be_bytes());
        segment.extend([0x50, flags, 1, 0, 0, 0, 0, 0, 7, 7, 7]);
        let mut datagram = if v6 {
            let mut header = vec![0x60, 0, 0, 0, 0, 31, 60, 64];
            header.extend([[0; 15].as_slice(), &[from], &[0; 15], &[to]].concat());
            header.extend([6, 0, 1, 4, 0, 0, 0, 0]);
            header
        } else {
            let mut header = vec![0x45, 0, 0, 43, 0, 0, 0, 0, 64, 6, 0, 0];
            header.extend([10, 0, 0, from, 10, 0, 0, to]);
            let sum = !checksum::data(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header
        };
        let addresses = if v6 { &datagram[8..40] } else { &datagram[12..20] };
        let sums = [checksum::data(addresses), 6, 23, checksum::data(&segment)];
        let sum = !checksum::combine(&sums);
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        datagram.extend(segment);
        datagram
    }

    fn numbers(datagram: &[u8]) -> (u32, u32) {
        let segment = &datagram[datagram.len() - 23..];
        (word(segment, SEQUENCE_AT), word(segment, ACKNOWLEDGMENT_AT))
    }

    fn is_sound(datagram: &[u8]) -> bool {
        matches!(demux::parse(LinkFraming::Ip, datagram, datagram.len(), true), Ok(Parsed::Tcp(_)))
    }

    #[test]
    fn sent_sequence_numbers_are_shifted_and_acknowledgments_shifted_back() {
        for v6 in [false, true] {
            for (seq, ack) in [(1000, 2000), (u32::MAX, 0), (0, 1)] {
                let mut sent = datagram(v6, 8, 9, seq, ack, ACK);
                assert!(is_sound(&sent));
                shift_sent(KEY, &mut sent);
                assert!(is_sound(&sent), "the checksum follows");
                let (seen, acknowledged) = numbers(&sent);
                assert_eq!(acknowledged, ack, "a number of the peer's");
                assert_ne!(seen, seq);
                let mut answer = datagram(v6, 9, 8, ack, seen.wrapping_add(3), ACK);
                shift_received(KEY, &mut answer);
                assert_eq!(numbers(&answer), (ack, seq.wrapping_add(3)));
                // Without the ACK flag the field has no meaning.
                let mut syn = datagram(v6, 9, 8, 5, 0, 2);
                shift_received(KEY, &mut syn);
                assert_eq!(numbers(&syn), (5, 0));
            }
        }
    }

    #[test]
    fn sequence_offset_differs_for_each_connection() {
        let moved = |key, from, to| {
            let mut sent = datagram(false, from, to, 0, 0, ACK);
            shift_sent(key, &mut sent);
            numbers(&sent).0
        };
        let base = moved(KEY, 8, 9);
        for other in [moved(KEY, 8, 7), moved(KEY, 7, 9), moved(KEY, 9, 8), moved((5, 7), 8, 9)] {
            assert_ne!(other, base);
        }
    }

    #[test]
    fn reset_with_sequence_number_zero_reveals_no_offset() {
        for flags in [RST, RST | ACK] {
            let mut reset = datagram(false, 8, 9, 0, 7, flags);
            shift_sent(KEY, &mut reset);
            assert_eq!(reset, datagram(false, 8, 9, 0, 7, flags));
            let mut reset = datagram(false, 8, 9, 1, 7, flags);
            shift_sent(KEY, &mut reset);
            assert_ne!(numbers(&reset).0, 1);
        }
    }

    #[test]
    fn datagrams_that_are_no_segment_stay_unchanged() {
        let good = datagram(false, 8, 9, 1, 2, ACK);
        let mut udp = good.clone();
        udp[9] = 17;
        udp[10..12].fill(0);
        let sum = !checksum::data(&udp[..20]);
        udp[10..12].copy_from_slice(&sum.to_be_bytes());
        for mut other in [udp, good[..39].to_vec(), vec![], vec![0x45; 3]] {
            let before = other.clone();
            shift_sent(KEY, &mut other);
            shift_received(KEY, &mut other);
            assert_eq!(other, before);
        }
    }
}
