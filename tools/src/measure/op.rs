//! Subject of a measurement: an operation, and the size of its messages.

use anyhow::ensure;
use clap::ValueEnum;
use serde::Serialize;

use crate::host::Payload;
use crate::measure::Timing;
use crate::size;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// RDMA Write into the server's memory
    Write,
    /// RDMA Read from the server's memory
    Read,
    /// Send to the server
    Send,
    /// Atomic FetchAdd of 8 bytes of the server's memory (RFC 7306 §5.1.1)
    FetchAdd,
    /// Immediate Data, 8 bytes in a completion at the server (RFC 7306 §6)
    Immediate,
}

impl Op {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::FetchAdd => "fetch-add",
            Self::Immediate => "immediate",
        }
    }

    /// `None` if the user may choose.
    const fn fixed_len(self) -> Option<u32> {
        match self {
            Self::Write | Self::Read | Self::Send => None,
            Self::FetchAdd | Self::Immediate => Some(ATOMIC_LEN),
        }
    }

    /// The server's application answers Writes, Sends and Immediate Data by the same operation; its
    /// RNIC alone answers Reads and Atomics.
    pub(crate) const fn timing(self) -> Timing {
        match self {
            Self::Write | Self::Send | Self::Immediate => Timing::HalfRoundTrip,
            Self::Read | Self::FetchAdd => Timing::PostToCompletion,
        }
    }

    pub(crate) const fn payload(self) -> Payload {
        match self {
            Self::Read => Payload::FromPeer,
            Self::FetchAdd => Payload::Both,
            Self::Write | Self::Send | Self::Immediate => Payload::ToPeer,
        }
    }

    /// The peer's IRD also limits open requests.
    pub(crate) const fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd)
    }

    pub(crate) const fn takes_buffer(self) -> bool {
        matches!(self, Self::Send | Self::Immediate)
    }
}

/// Returns all with `is_all`, or the given one, or the default. Fails if there is only one size.
pub(crate) fn sizes(
    op: Op,
    given: Option<u32>,
    is_all: bool,
    default: u32,
) -> anyhow::Result<Vec<u32>> {
    if let Some(len) = op.fixed_len() {
        let name = op.name();
        ensure!(!is_all, "--all-sizes: a message of --op {name} has {len} bytes, always");
        ensure!(given.is_none_or(|size| size == len), "--size: --op {name} is of {len} bytes");
        return Ok(vec![len]);
    }
    Ok(if is_all { ALL_SIZES.to_vec() } else { vec![given.unwrap_or(default)] })
}

pub(crate) fn message_size(text: &str) -> Result<u32, String> {
    match u32::try_from(size::parse(text)?) {
        Ok(0) => Err("a message has 1 byte at least".into()),
        Ok(size) => Ok(size),
        Err(_) => Err("a message is shorter than 4 GiB (RFC 5041)".into()),
    }
}

/// Immediate Data has the same length.
pub(crate) const ATOMIC_LEN: u32 = 8;

/// Sizes of one table: powers of two from 2 bytes to 8 MiB, as in perftest.
pub(crate) const ALL_SIZES: [u32; 23] = {
    let mut sizes = [0; 23];
    let mut index = 0;
    while index < sizes.len() {
        sizes[index] = 2 << index;
        index += 1;
    }
    sizes
};

const _: () = assert!(ALL_SIZES[22] == 8 << 20);

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7306: Atomics are Reads for the peer's IRD; Immediate Data uses a receive buffer.
    #[test]
    fn each_operation_has_its_own_figures_and_needs() {
        use Timing::{HalfRoundTrip, PostToCompletion};
        for (op, name, timing, is_read, takes_buffer) in [
            (Op::Write, "write", HalfRoundTrip, false, false),
            (Op::Read, "read", PostToCompletion, true, false),
            (Op::Send, "send", HalfRoundTrip, false, true),
            (Op::FetchAdd, "fetch-add", PostToCompletion, true, false),
            (Op::Immediate, "immediate", HalfRoundTrip, false, true),
        ] {
            let found = (op.name(), op.timing(), op.is_read(), op.takes_buffer());
            assert_eq!(found, (name, timing, is_read, takes_buffer));
            assert_eq!(serde_json::to_value(op).unwrap(), name, "the name of the option");
        }
        assert!(matches!(Op::Read.payload(), Payload::FromPeer));
        assert!(matches!(Op::FetchAdd.payload(), Payload::Both));
        for op in [Op::Write, Op::Send, Op::Immediate] {
            assert!(matches!(op.payload(), Payload::ToPeer), "{op:?}");
        }
    }

    #[test]
    fn a_message_has_the_given_size_or_the_only_one_that_it_can_have() {
        let of = |op, given, is_all| sizes(op, given, is_all, 64).map_err(|why| why.to_string());
        for op in [Op::Write, Op::Read, Op::Send] {
            assert_eq!(of(op, None, false), Ok(vec![64]));
            assert_eq!(of(op, Some(7), false), Ok(vec![7]));
            let all = of(op, None, true).unwrap();
            assert_eq!((all[0], all.len(), all[22]), (2, 23, 8 << 20));
            assert!(all.is_sorted_by(|a, b| 2 * a == *b));
        }
        for op in [Op::FetchAdd, Op::Immediate] {
            assert_eq!(of(op, None, false), Ok(vec![8]));
            assert_eq!(of(op, Some(8), false), Ok(vec![8]));
            assert!(of(op, Some(9), false).unwrap_err().starts_with("--size"));
            assert!(of(op, None, true).unwrap_err().starts_with("--all-sizes"));
        }
        assert_eq!((message_size("1"), message_size("4K")), (Ok(1), Ok(4096)));
        assert_eq!(message_size("4294967295"), Ok(u32::MAX));
        assert!(message_size("0").unwrap_err().contains("at least"));
        assert!(message_size("4G").unwrap_err().contains("shorter than 4 GiB"));
    }
}
