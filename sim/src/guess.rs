//! A node that forges frames between others. It sees all frames that the switch forwards, so its
//! addresses and ports are right. At least one number that only the ends know is wrong.

use crate::plan::Guesses;
use crate::random::Random;

const ETHERNET_LEN: usize = 14;
const SEQ: usize = 4;
const ACK: usize = 8;
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;
const TCP_LEN: usize = 20;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACKED: u8 = 0x10;

/// Distance of wrong guesses: more than any window, and less than half of the number space.
const FAR_MIN: u64 = 64 << 20;
const FAR_MAX: u64 = 1 << 30;
const SEEN_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct Guesser {
    random: Random,
    left: u64,
    period_ns: u64,
    next_ns: u64,
    /// Segments with the offset of TCP in each.
    seen: Vec<(Vec<u8>, usize)>,
    pub(crate) forged: u64,
}

impl Guesser {
    pub(crate) fn new(plan: Guesses, seed: u64) -> Self {
        let Guesses { count, period_ns } = plan;
        let random = Random::new(seed ^ 0x6775_6573_7365_7321);
        Self { random, left: count, period_ns, next_ns: 0, seen: Vec::new(), forged: 0 }
    }

    pub(crate) fn see(&mut self, frame: &[u8]) {
        let Some(tcp) = tcp_at(frame) else { return };
        let segment = (frame.to_vec(), tcp);
        if self.seen.len() < SEEN_MAX {
            self.seen.push(segment);
        } else {
            let index = self.random.len(0, SEEN_MAX - 1);
            self.seen[index] = segment;
        }
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        (self.left > 0 && !self.seen.is_empty()).then_some(self.next_ns)
    }

    pub(crate) fn poll(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        self.next_ns().filter(|at| *at <= now_ns)?;
        self.left -= 1;
        self.next_ns = now_ns + self.period_ns;
        self.forged += 1;
        let index = self.random.len(0, self.seen.len() - 1);
        let (frame, tcp) = self.seen[index].clone();
        Some(self.forge(frame, tcp))
    }

    fn forge(&mut self, mut frame: Vec<u8>, tcp: usize) -> Vec<u8> {
        let header_len = usize::from(frame[tcp + 12] >> 4) * 4;
        let payload_len = frame.len() - tcp - header_len;
        let [seq, ack] = [SEQ, ACK].map(|at| number(&frame, tcp + at));
        let next = seq.wrapping_add(u32::try_from(payload_len).unwrap_or(0));
        let far = |random: &mut Random| {
            let distance = u32::try_from(random.between(FAR_MIN, FAR_MAX)).unwrap_or(u32::MAX);
            if random.one_in(2) { distance } else { distance.wrapping_neg() }
        };
        let (wrong_seq, wrong_ack) =
            (seq.wrapping_add(far(&mut self.random)), ack.wrapping_add(far(&mut self.random)));
        // Without an acknowledgment number that can be wrong, any guess could be right by chance.
        let has_ack = frame[tcp + FLAGS] & ACKED != 0;
        let kind = match self.random.below(11) {
            6 | 7 if !has_ack => 0,
            kind => kind,
        };
        let (seq, ack, flags) = match kind {
            0 => (wrong_seq, ack, RST),
            1 => (wrong_seq, ack, RST | ACKED),
            2 => (wrong_seq, 0, SYN),
            3 => (wrong_seq, wrong_ack, SYN | ACKED),
            4 => (wrong_seq, ack, FIN | ACKED),
            5 => (wrong_seq, ack, PSH | ACKED),
            6 => (seq, wrong_ack, ACKED),
            7 => (next, wrong_ack, PSH | ACKED),
            // With an old timestamp (RFC 7323 §5), if the connection has timestamps.
            8 => (next, ack, PSH | ACKED),
            // A connection that no end opened: its cookie is guessed (RFC 4987 §3.6).
            9 => (wrong_seq, wrong_ack, PSH | ACKED),
            _ => (wrong_seq, 0, SYN),
        };
        // An old timestamp for data in order, and one far ahead for other data: neither is new.
        let shift: u32 = 1 << 29;
        // RFC 7323 §4.3 accepts any timestamp with the right sequence number.
        let shift = match kind {
            6 | 7 => 0,
            8 => shift.wrapping_neg(),
            _ => shift,
        };
        // A SYN only offers timestamps.
        let was_syn = frame[tcp + FLAGS] & SYN != 0;
        let has_time = shift_time(&mut frame, tcp, header_len, shift) && !was_syn;
        let flags = if kind == 8 && !has_time { RST } else { flags };
        let seq = if kind == 8 && !has_time { wrong_seq } else { seq };
        let carries = flags & PSH != 0;
        frame.truncate(tcp + header_len);
        if carries {
            let request = b"MPA ID Req Frame\x40\x01\x00\x00";
            frame.extend(if kind == 9 { &request[..] } else { &[0x5a; 100] });
        }
        if kind >= 9 {
            let port = u16::try_from(self.random.between(1024, 65_535)).unwrap_or(1024);
            frame[tcp..tcp + 2].copy_from_slice(&port.to_be_bytes());
        }
        frame[tcp + SEQ..tcp + SEQ + 4].copy_from_slice(&seq.to_be_bytes());
        frame[tcp + ACK..tcp + ACK + 4].copy_from_slice(&ack.to_be_bytes());
        frame[tcp + FLAGS] = flags;
        finish(&mut frame, tcp);
        frame
    }
}

fn number(frame: &[u8], at: usize) -> u32 {
    let octets = frame[at..].first_chunk().expect("inside the TCP header");
    u32::from_be_bytes(*octets)
}

/// `None` for anything but a whole frame without VLAN tag.
fn tcp_at(frame: &[u8]) -> Option<usize> {
    let ip = frame.get(ETHERNET_LEN..)?;
    let tcp = match (frame.get(12..14)?, ip.first()? >> 4) {
        ([0x08, 0x00], 4) if ip.get(9) == Some(&6) => ETHERNET_LEN + usize::from(ip[0] & 0xf) * 4,
        ([0x86, 0xdd], 6) if ip.get(6) == Some(&6) => ETHERNET_LEN + 40,
        _ => return None,
    };
    (frame.len() >= tcp + TCP_LEN).then_some(tcp)
}

/// Returns true if the segment has the option.
fn shift_time(frame: &mut [u8], tcp: usize, header_len: usize, by: u32) -> bool {
    let mut at = tcp + TCP_LEN;
    while at + 10 <= tcp + header_len {
        match frame[at] {
            0 => break,
            1 => at += 1,
            8 => {
                let time = number(frame, at + 2).wrapping_add(by);
                frame[at + 2..at + 6].copy_from_slice(&time.to_be_bytes());
                return true;
            }
            _ => at += usize::from(frame[at + 1]).max(2),
        }
    }
    false
}

fn finish(frame: &mut [u8], tcp: usize) {
    let tcp_len = u16::try_from(frame.len() - tcp).unwrap_or(u16::MAX);
    let is_v4 = frame[ETHERNET_LEN] >> 4 == 4;
    let addresses = if is_v4 {
        let total = u16::try_from(frame.len() - ETHERNET_LEN).unwrap_or(u16::MAX);
        frame[ETHERNET_LEN + 2..ETHERNET_LEN + 4].copy_from_slice(&total.to_be_bytes());
        frame[ETHERNET_LEN + 10..ETHERNET_LEN + 12].fill(0);
        let checksum = !fold(sum(&frame[ETHERNET_LEN..tcp]));
        frame[ETHERNET_LEN + 10..ETHERNET_LEN + 12].copy_from_slice(&checksum.to_be_bytes());
        ETHERNET_LEN + 12..ETHERNET_LEN + 20
    } else {
        frame[ETHERNET_LEN + 4..ETHERNET_LEN + 6].copy_from_slice(&tcp_len.to_be_bytes());
        ETHERNET_LEN + 8..ETHERNET_LEN + 40
    };
    frame[tcp + CHECKSUM..tcp + CHECKSUM + 2].fill(0);
    let pseudo = sum(&frame[addresses]) + 6 + u64::from(tcp_len);
    let checksum = !fold(pseudo + sum(&frame[tcp..]));
    frame[tcp + CHECKSUM..tcp + CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
}

pub(crate) fn sum(octets: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    octets.chunks(2).map(word).sum()
}

pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded into sixteen bits")
}
