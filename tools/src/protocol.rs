//! Control protocol of `urnic serve` and its clients.
//!
//! A session is one connection. The client sends its request in the Private Data of the MPA Request
//! ([`Hello`]). The server accepts, with its memory and its number of receive buffers ([`Welcome`]),
//! or rejects with a reason ([`refusal_from`]). Afterwards, Sends *with* Solicited Event carry
//! [`Control`] messages and Sends without it carry payload. All numbers are big-endian.
//!
//! ```text
//! session      payload                                   control
//! Memory       client writes and reads the region        CountersRequest → Counters
//! Echo         client sends, server sends it back        "
//! Sink         client sends, at most its credits         Credit ←, CountersRequest → Counters
//! PingPong     each writes into the other's region when  CountersRequest → Counters
//!              the last byte of its own has changed
//! Both         each writes into, or reads from, the      Start; Stop → Stopped
//!              region of the other
//! Put          client writes chunks into places of the   Check, Verify → Chunk; Commit → Committed
//!              region; the server stores them
//! Get          client reads chunks from these places,    DigestRequest, Fetch → Digest;
//!              where the server has put them             ShaRequest → Sha
//! ```
//!
//! A place of a region holds a chunk of the file, or all of a shorter file.
//!
//! `Working` says that an answer takes longer, `Failed` why none will come. A client that has asked
//! nothing for a part of [`Welcome::idle_ms`] requests counters, as a keep-alive.
//!
//! The frame bounds everything that a peer sends; it is checked before use.

pub(crate) mod auth;
mod control;

pub(crate) use control::{CONTROL_LEN_MAX, Control};

use urnic::{RemoteBuffer, Stag, TaggedOffset};
use urnic_replay::printable::printable;

/// Begins Private Data in both directions.
const MAGIC: [u8; 4] = *b"urnc";
/// Other versions are refused.
const VERSION: u16 = 3;
/// Limit in bytes.
pub(crate) const NAME_LEN_MAX: usize = 400;
/// Bytes of a file between two checks of received data.
pub(crate) const CHUNK_LEN: u64 = 4 << 20;
/// Checks that a client may have in flight.
pub(crate) const CHECKS_MAX: usize = 16;
/// Chunks of a file in flight between its two ends: one crosses while others are read and written.
pub(crate) const PLACES_MAX: u32 = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    /// A region that the client writes and reads.
    Memory,
    /// The server returns payload.
    Echo,
    /// The server drops payload.
    Sink,
    /// Both ends write the last byte of the other's region; this is the client's region.
    PingPong(RemoteBuffer),
    /// Both ends write the other's region, or read it; this is the client's region.
    Both { remote: RemoteBuffer, is_read: bool },
    /// A file that the client sends.
    Put { name: String, force: bool },
    /// A file that the client receives.
    Get { name: String },
}

impl Session {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Memory => "reads and writes".into(),
            Self::Echo => "echo".into(),
            Self::Sink => "sends".into(),
            Self::PingPong(_) => "ping-pong".into(),
            Self::Both { .. } => "both ways".into(),
            Self::Put { name, .. } => format!("put {}", printable(name)),
            Self::Get { name } => format!("get {}", printable(name)),
        }
    }

    /// Control messages that a client may have unanswered, with a receive buffer each.
    pub(crate) const fn requests_max(&self) -> usize {
        match self {
            // A keep-alive, and the question at the end.
            Self::Memory | Self::Echo | Self::Sink | Self::PingPong(_) => 2,
            // The same, and the messages at the beginning and the end.
            Self::Both { .. } => 4,
            Self::Put { .. } | Self::Get { .. } => 2 * CHECKS_MAX,
        }
    }

    pub(crate) const fn answers_max(&self) -> usize {
        match self {
            // Two answers, and the credits for each half of the buffers.
            Self::Memory | Self::Echo | Self::Sink | Self::PingPong(_) | Self::Both { .. } => 4,
            Self::Put { .. } | Self::Get { .. } => 2 * CHECKS_MAX,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) session: Session,
    /// Bytes of the region, of each payload message, or of the file to put.
    pub(crate) len: u64,
    /// Payload messages in flight at a time.
    pub(crate) depth: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) region: RemoteBuffer,
    /// Bytes of the region or of the file to get.
    pub(crate) len: u64,
    /// Payload messages for which the server has buffers now, or chunk buffers in the region.
    pub(crate) credits: u32,
    /// Chunks of the file to put that the server already has from an earlier session.
    pub(crate) chunks_present: u64,
    /// Milliseconds without any work after which the server times out a client.
    pub(crate) idle_ms: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("the peer speaks RDMA, but is no 'urnic serve'")]
    Foreign,
    #[error("the peer speaks version {0} of the control protocol, this is version {VERSION}")]
    Version(u16),
    /// Too short, too long, or with invalid contents.
    #[error("the peer sent a malformed message of the control protocol")]
    Malformed,
}

impl Hello {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = header();
        let code: u8 = match &self.session {
            Session::Memory => 0,
            Session::Echo => 1,
            Session::Sink => 2,
            Session::PingPong(_) => 3,
            Session::Put { .. } => 4,
            Session::Get { .. } => 5,
            Session::Both { .. } => 6,
        };
        out.push(code);
        out.extend(self.len.to_be_bytes());
        out.extend(self.depth.to_be_bytes());
        match &self.session {
            Session::Memory | Session::Echo | Session::Sink => {}
            Session::PingPong(region) => emit_region(&mut out, *region),
            Session::Both { remote, is_read } => {
                out.push(u8::from(*is_read));
                emit_region(&mut out, *remote);
            }
            Session::Put { name, force } => {
                out.push(u8::from(*force));
                out.extend(name.as_bytes());
            }
            Session::Get { name } => out.extend(name.as_bytes()),
        }
        out
    }

    pub(crate) fn parse(octets: &[u8]) -> Result<Self, ProtocolError> {
        let mut input = check_header(octets)?;
        let code = input.u8()?;
        let (len, depth) = (input.u64()?, input.u32()?);
        let session = match code {
            0 => Session::Memory,
            1 => Session::Echo,
            2 => Session::Sink,
            3 => Session::PingPong(input.region()?),
            4 => {
                let force = input.u8()? != 0;
                Session::Put { force, name: input.text(NAME_LEN_MAX)? }
            }
            5 => Session::Get { name: input.text(NAME_LEN_MAX)? },
            6 => {
                let is_read = input.u8()? != 0;
                Session::Both { is_read, remote: input.region()? }
            }
            _ => return Err(ProtocolError::Malformed),
        };
        input.end()?;
        Ok(Self { session, len, depth })
    }
}

impl Welcome {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = header();
        emit_region(&mut out, self.region);
        out.extend(self.len.to_be_bytes());
        out.extend(self.credits.to_be_bytes());
        out.extend(self.chunks_present.to_be_bytes());
        out.extend(self.idle_ms.to_be_bytes());
        out
    }

    pub(crate) fn parse(octets: &[u8]) -> Result<Self, ProtocolError> {
        let mut input = check_header(octets)?;
        let welcome = Self {
            region: input.region()?,
            len: input.u64()?,
            credits: input.u32()?,
            chunks_present: input.u64()?,
            idle_ms: input.u32()?,
        };
        input.end()?;
        Ok(welcome)
    }
}

pub(crate) fn emit_refusal(reason: &str) -> Vec<u8> {
    let mut out = header();
    out.extend(truncated(reason, REASON_LEN_MAX).as_bytes());
    out
}

/// `None` if the rejection is not from `urnic serve`.
pub(crate) fn refusal_from(octets: &[u8]) -> Option<String> {
    check_header(octets).ok()?.text(REASON_LEN_MAX).ok().map(|text| printable(&text))
}

fn truncated(text: &str, len_max: usize) -> &str {
    let mut end = text.len().min(len_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Bytes that fit into an MPA frame of RFC 6581 with the header.
const REASON_LEN_MAX: usize = 480;

fn header() -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_be_bytes());
    out
}

fn check_header(octets: &[u8]) -> Result<Input<'_>, ProtocolError> {
    let Some((&MAGIC, rest)) = octets.split_first_chunk() else {
        return Err(ProtocolError::Foreign);
    };
    let mut input = Input(rest);
    match input.u16()? {
        VERSION => Ok(input),
        other => Err(ProtocolError::Version(other)),
    }
}

fn emit_region(out: &mut Vec<u8>, region: RemoteBuffer) {
    out.extend(region.stag.0.to_be_bytes());
    out.extend(region.to.0.to_be_bytes());
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(ProtocolError::Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, ProtocolError> {
        self.take().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, ProtocolError> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, ProtocolError> {
        self.take().map(u64::from_be_bytes)
    }

    fn region(&mut self) -> Result<RemoteBuffer, ProtocolError> {
        Ok(RemoteBuffer { stag: Stag(self.u32()?), to: TaggedOffset(self.u64()?) })
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn text(&mut self, len_max: usize) -> Result<String, ProtocolError> {
        let octets = self.rest();
        let text = str::from_utf8(octets).ok().filter(|text| text.len() <= len_max);
        text.map(str::to_owned).ok_or(ProtocolError::Malformed)
    }

    fn end(&self) -> Result<(), ProtocolError> {
        if self.0.is_empty() { Ok(()) } else { Err(ProtocolError::Malformed) }
    }
}

#[cfg(test)]
mod tests;
