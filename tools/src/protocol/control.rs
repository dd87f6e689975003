//! Control messages: Sends with Solicited Event.

use urnic_replay::printable::printable;

use crate::counters::{Counters, FIELD_COUNT};
use crate::protocol::{Input, ProtocolError, truncated};

pub(crate) const CONTROL_LEN_MAX: usize = 512;
const _: () = assert!(8 * FIELD_COUNT < CONTROL_LEN_MAX);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// Client: requests the server's counters. The answer comes after all payload sent before.
    CountersRequest,
    /// Server: its counters.
    Counters(Counters),
    /// Server: buffers for this many further payload messages.
    Credit(u32),
    /// Client: asks if the server has this chunk from an earlier session.
    Check { index: u64, crc: u32 },
    /// Client: the chunk is in this place of the region; its CRC32c.
    Verify { index: u64, crc: u32, place: u32 },
    /// Server: `is_good` is set if the chunk is present and right.
    Chunk { index: u64, is_good: bool },
    /// Client: all is written; the SHA-256 of the file.
    Commit { sha256: [u8; 32] },
    /// Server: the file is on the disk under its name.
    Committed,
    /// Client: requests the CRC32c of this chunk.
    DigestRequest { index: u64 },
    /// Client: requests this chunk in this place of the region. The answer is its digest.
    Fetch { index: u64, place: u32 },
    /// Server: the CRC32c.
    Digest { index: u64, crc: u32 },
    /// Client: requests the SHA-256 of the file.
    ShaRequest,
    /// Server: the SHA-256.
    Sha { sha256: [u8; 32] },
    /// Server: the answer takes longer.
    Working,
    /// Server: the received file differs from the file that was sent.
    NotVerified,
    /// Server: there will be no answer, with the reason.
    Failed(String),
    /// Client: the server's writes, or reads, may begin.
    Start,
    /// Client: stop the server's writes, or reads.
    Stop,
    /// Server: all messages in flight have completed; their number.
    Stopped { messages: u64 },
    /// Client: requests the processor time of the server.
    ProcessorTimeRequest,
    /// Server: processor time in nanoseconds.
    ProcessorTime { ns: u64 },
}

impl Control {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(CONTROL_LEN_MAX);
        match self {
            Self::CountersRequest => out.push(0),
            Self::Counters(counters) => {
                out.push(1);
                out.extend(counters.fields().into_iter().flat_map(u64::to_be_bytes));
            }
            Self::Credit(count) => {
                out.push(2);
                out.extend(count.to_be_bytes());
            }
            Self::Check { index, crc } => chunk(&mut out, 3, *index, *crc),
            Self::Verify { index, crc, place } => {
                chunk(&mut out, 4, *index, *crc);
                out.extend(place.to_be_bytes());
            }
            Self::Chunk { index, is_good } => chunk(&mut out, 5, *index, u32::from(*is_good)),
            Self::Commit { sha256 } => {
                out.push(6);
                out.extend(sha256);
            }
            Self::Committed => out.push(7),
            Self::DigestRequest { index } => {
                out.push(8);
                out.extend(index.to_be_bytes());
            }
            Self::Fetch { index, place } => chunk(&mut out, 15, *index, *place),
            Self::Digest { index, crc } => chunk(&mut out, 9, *index, *crc),
            Self::ShaRequest => out.push(10),
            Self::Sha { sha256 } => {
                out.push(11);
                out.extend(sha256);
            }
            Self::Working => out.push(12),
            Self::NotVerified => out.push(14),
            Self::Failed(reason) => {
                out.push(13);
                out.extend(truncated(reason, CONTROL_LEN_MAX - 1).as_bytes());
            }
            Self::Start => out.push(16),
            Self::Stop => out.push(17),
            Self::Stopped { messages } => {
                out.push(18);
                out.extend(messages.to_be_bytes());
            }
            Self::ProcessorTimeRequest => out.push(19),
            Self::ProcessorTime { ns } => {
                out.push(20);
                out.extend(ns.to_be_bytes());
            }
        }
        out
    }

    pub(crate) fn parse(octets: &[u8]) -> Result<Self, ProtocolError> {
        let mut input = Input(octets);
        let message = match input.u8()? {
            0 => Self::CountersRequest,
            1 => {
                let mut fields = [0; FIELD_COUNT];
                for field in &mut fields {
                    *field = input.u64()?;
                }
                Self::Counters(Counters::from_fields(fields))
            }
            2 => Self::Credit(input.u32()?),
            3 => Self::Check { index: input.u64()?, crc: input.u32()? },
            4 => Self::Verify { index: input.u64()?, crc: input.u32()?, place: input.u32()? },
            5 => Self::Chunk { index: input.u64()?, is_good: input.u32()? != 0 },
            6 => Self::Commit { sha256: input.take()? },
            7 => Self::Committed,
            8 => Self::DigestRequest { index: input.u64()? },
            9 => Self::Digest { index: input.u64()?, crc: input.u32()? },
            10 => Self::ShaRequest,
            11 => Self::Sha { sha256: input.take()? },
            12 => Self::Working,
            13 => Self::Failed(printable(&input.text(CONTROL_LEN_MAX)?)),
            14 => Self::NotVerified,
            15 => Self::Fetch { index: input.u64()?, place: input.u32()? },
            16 => Self::Start,
            17 => Self::Stop,
            18 => Self::Stopped { messages: input.u64()? },
            19 => Self::ProcessorTimeRequest,
            20 => Self::ProcessorTime { ns: input.u64()? },
            _ => return Err(ProtocolError::Malformed),
        };
        input.end()?;
        Ok(message)
    }
}

fn chunk(out: &mut Vec<u8>, code: u8, index: u64, value: u32) {
    out.push(code);
    out.extend(index.to_be_bytes());
    out.extend(value.to_be_bytes());
}
