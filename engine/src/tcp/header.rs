//! The TCP header as a value (RFC 9293 §3.1). The checksum field is written as 0 and not read: only
//! the port knows the IP addresses.

use arrayvec::ArrayVec;
use bitflags::bitflags;

use super::seq::SeqNum;

bitflags! {
    /// Control bits, in the order of byte 13 of the header.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// End of the sender's data.
        const FIN = 0x01;
        /// Synchronize sequence numbers.
        const SYN = 0x02;
        /// Reset the connection.
        const RST = 0x04;
        /// Push.
        const PSH = 0x08;
        /// The acknowledgment number is significant.
        const ACK = 0x10;
        /// The urgent pointer is significant.
        const URG = 0x20;
        /// ECN echo (RFC 3168).
        const ECE = 0x40;
        /// Congestion window reduced (RFC 3168).
        const CWR = 0x80;
    }
}

/// The timestamps option (RFC 7323 §3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the clock value being echoed.
    pub echo: u32,
}

/// A block of a SACK option: first number received, first number after it (RFC 2018 §3).
pub type SackBlock = (SeqNum, SeqNum);

/// The options this TCP understands. Others are skipped when parsing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum segment size (SYN only).
    pub mss: Option<u16>,
    /// Window scale shift as in the option, not yet limited to 14 (SYN only).
    pub window_scale: Option<u8>,
    /// SACK permitted (SYN only).
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks; beside timestamps at most three fit.
    pub sack: ArrayVec<SackBlock, SACK_BLOCKS_MAX>,
}

/// The ECN field of an IP header (RFC 3168 §5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// Not-ECT: routers drop it when they are congested.
    #[default]
    NotCapable = 0,
    /// ECT(1).
    Capable1 = 1,
    /// ECT(0), which this TCP sends.
    Capable0 = 2,
    /// CE: a router on the way was congested.
    Experienced = 3,
}

impl Ecn {
    /// Returns the value of the field's two bits; others are ignored.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotCapable,
            1 => Self::Capable1,
            2 => Self::Capable0,
            _ => Self::Experienced,
        }
    }

    /// The two bits of the field.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

/// A TCP header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first byte (of the SYN, if there is one).
    pub seq: SeqNum,
    /// Acknowledgment number; valid with [`Flags::ACK`].
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
    /// Window field, not scaled.
    pub window: u16,
    /// Options.
    pub options: Options,
    /// The ECN field of the IP header around it, which the code for that header carries over.
    pub ecn: Ecn,
}

/// Reason why bytes are not a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Fewer than 20 bytes, or fewer than the data offset requires.
    #[error("the segment is shorter than its header")]
    TooShort,
    /// A data offset below 5 words.
    #[error("the data offset lies inside the fixed header")]
    DataOffset,
    /// An option of length 0 or 1, or one that runs past the header.
    #[error("an option has an impossible length")]
    OptionLength,
}

/// SACK blocks in one header (RFC 2018 §3).
pub(crate) const SACK_BLOCKS_MAX: usize = 4;
/// Length of the header without options.
pub const HEADER_LEN: usize = 20;
/// Longest header.
pub const HEADER_LEN_MAX: usize = 60;
/// Header bytes that timestamps take, padding included.
pub(crate) const TIMESTAMPS_LEN: usize = 12;

mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
}
/// The usual layout of a segment that carries timestamps and nothing else (RFC 7323 appendix A).
const TIMESTAMPS_ALIGNED: [u8; 4] = [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10];

impl Header {
    /// Reads the header at the start of `segment`; also returns where the payload begins. Fails if
    /// the bytes cannot be a header. Unknown options, and known ones of a wrong length, are skipped
    /// (RFC 9293 MUST-6).
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(Self, usize), HeaderError> {
        let mut header = Self::default();
        let payload_at = header.read(segment)?;
        Ok((header, payload_at))
    }

    /// Reads as [`parse`](Self::parse) does, into this empty header, without a copy: a processor
    /// stalls if it reads what it has just written in portions of another size. On an error the
    /// header is invalid.
    #[inline(always)]
    pub(crate) fn read(&mut self, segment: &[u8]) -> Result<usize, HeaderError> {
        let (fixed, rest) =
            segment.split_first_chunk::<HEADER_LEN>().ok_or(HeaderError::TooShort)?;
        let payload_at = usize::from(fixed[12] >> 4) * 4;
        let options_len = payload_at.checked_sub(HEADER_LEN).ok_or(HeaderError::DataOffset)?;
        let options = rest.get(..options_len).ok_or(HeaderError::TooShort)?;
        self.src_port = u16::from_be_bytes([fixed[0], fixed[1]]);
        self.dst_port = u16::from_be_bytes([fixed[2], fixed[3]]);
        self.seq = SeqNum(u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]));
        self.ack = SeqNum(u32::from_be_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]));
        self.flags = Flags::from_bits_retain(fixed[13]);
        self.window = u16::from_be_bytes([fixed[14], fixed[15]]);
        self.options.read(options)?;
        Ok(payload_at)
    }

    /// Length of the header in bytes, options and padding included: a multiple of 4. Panics if the
    /// options do not fit (four SACK blocks beside timestamps, or blocks on a SYN): a caller's bug.
    #[must_use]
    pub fn len(&self) -> usize {
        let len = HEADER_LEN + self.options.len();
        assert!(len <= HEADER_LEN_MAX, "options exceed the TCP header");
        len
    }

    /// Returns false: a header is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the header, checksum field 0, to the first [`len`](Self::len) bytes of `out`. Panics
    /// if `out` is shorter than that, or the options do not fit a header: a caller's bug.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let len = self.len();
        let out = &mut out[..len];
        out[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        out[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        let words = u8::try_from(len / 4).expect("a header has at most 15 words");
        out[12] = words << 4;
        out[13] = self.flags.bits();
        out[14..16].copy_from_slice(&self.window.to_be_bytes());
        // Checksum, urgent pointer.
        out[16..20].fill(0);
        self.options.emit(&mut out[HEADER_LEN..]);
    }
}

impl Options {
    /// Nearly every segment has timestamps in their usual place; everything else is rare.
    #[inline(always)]
    fn read(&mut self, octets: &[u8]) -> Result<(), HeaderError> {
        if let Ok(&[k0, k1, k2, k3, a, b, c, d, e, f, g, h]) = <&[u8; 12]>::try_from(octets)
            && [k0, k1, k2, k3] == TIMESTAMPS_ALIGNED
        {
            let (value, echo) =
                (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
            self.timestamps = Some(Timestamps { value, echo });
            return Ok(());
        }
        self.read_any(octets)
    }

    #[inline(never)]
    fn read_any(&mut self, octets: &[u8]) -> Result<(), HeaderError> {
        let mut rest = octets;
        loop {
            rest = match rest {
                [] | [kind::END, ..] => return Ok(()),
                [kind::NOP, tail @ ..] => tail,
                // RFC 9293 MUST-7: "TCP implementations MUST be prepared to handle an illegal
                // option length (e.g., zero)".
                // spec: TCP-9293-2
                [kind, len, ..] if (2..=rest.len()).contains(&usize::from(*len)) => {
                    let (option, tail) = rest.split_at(usize::from(*len));
                    self.take(*kind, &option[2..]);
                    tail
                }
                _ => return Err(HeaderError::OptionLength),
            };
        }
    }

    fn take(&mut self, kind: u8, body: &[u8]) {
        match (kind, body) {
            (kind::MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            (kind::WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift),
            (kind::SACK_PERMITTED, []) => self.sack_permitted = true,
            (kind::TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                let (value, echo) =
                    (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
                self.timestamps = Some(Timestamps { value, echo });
            }
            (kind::SACK, body) if body.len().is_multiple_of(8) => {
                let (blocks, _) = body.as_chunks::<8>();
                self.sack = blocks
                    .iter()
                    .take(SACK_BLOCKS_MAX)
                    .map(|&[a, b, c, d, e, f, g, h]| {
                        let left = u32::from_be_bytes([a, b, c, d]);
                        let right = u32::from_be_bytes([e, f, g, h]);
                        (SeqNum(left), SeqNum(right))
                    })
                    .collect();
            }
            _ => {}
        }
    }

    fn len(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        let permitted = if self.sack_permitted { 4 } else { 0 };
        let timestamps = if self.timestamps.is_some() { TIMESTAMPS_LEN } else { 0 };
        let sack = if self.sack.is_empty() { 0 } else { 4 + 8 * self.sack.len() };
        mss + scale + permitted + timestamps + sack
    }

    #[inline]
    fn emit(&self, out: &mut [u8]) {
        // Nothing but timestamps takes exactly that many bytes.
        if let Some(Timestamps { value, echo }) = self.timestamps
            && let Ok(out) = <&mut [u8; TIMESTAMPS_LEN]>::try_from(&mut *out)
        {
            out[..4].copy_from_slice(&TIMESTAMPS_ALIGNED);
            out[4..8].copy_from_slice(&value.to_be_bytes());
            out[8..].copy_from_slice(&echo.to_be_bytes());
            return;
        }
        self.emit_any(out);
    }

    #[inline(never)]
    fn emit_any(&self, mut out: &mut [u8]) {
        if let Some(mss) = self.mss {
            let [a, b] = mss.to_be_bytes();
            out = put(out, [kind::MSS, 4, a, b]);
        }
        if let Some(shift) = self.window_scale {
            out = put(out, [kind::NOP, kind::WINDOW_SCALE, 3, shift]);
        }
        if self.sack_permitted {
            out = put(out, [kind::NOP, kind::NOP, kind::SACK_PERMITTED, 2]);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            out = put(out, TIMESTAMPS_ALIGNED);
            out = put(out, value.to_be_bytes());
            out = put(out, echo.to_be_bytes());
        }
        if !self.sack.is_empty() {
            let len = u8::try_from(2 + 8 * self.sack.len()).expect("four SACK blocks at most");
            out = put(out, [kind::NOP, kind::NOP, kind::SACK, len]);
            for (left, right) in &self.sack {
                out = put(out, left.0.to_be_bytes());
                out = put(out, right.0.to_be_bytes());
            }
        }
        debug_assert!(out.is_empty(), "len() and emit() disagree");
    }
}

fn put(out: &mut [u8], word: [u8; 4]) -> &mut [u8] {
    let (here, rest) = out.split_first_chunk_mut::<4>().expect("len() counted every option word");
    *here = word;
    rest
}

#[cfg(test)]
mod tests;
