//! TCP for MPA: a TCP that deals in segments and records, not in a byte stream.
//!
//! It knows ranges of stream offsets and holds no payload: the layer above owns the octets, cuts
//! them into records, and gathers them again when a range must be retransmitted. On the way in, each
//! segment's payload is offered at once, in any order; what the layer above
//! [commits](Connection::commit) is acknowledged, what it does not is brought again by the peer.
//!
//! Promises to the layer above:
//!
//! - octets reported missing were never committed before (RFC 5044 appendix A.3);
//! - a retransmission repeats the boundaries of the original segment, unless the path shrank below
//!   it (RFC 5044 appendix A.1);
//! - data is never offered unless every acceptance check passed: window, PAWS, RFC 5961.
//!
//! # Call order
//!
//! ```text
//! in    handle_segment → (next_missing, can_commit, commit)* → finish_arrival
//! out   poll_transmit* → (send_budget, record_sent)* → poll_ack*
//! time  handle_timeout when poll_timeout says so
//! then  poll_event*
//! ```
//!
//! # Files
//!
//! `connection.rs` is the owner; `arrive.rs`, `transmit.rs` and `timeout.rs` are its inputs and
//! outputs. `recv.rs` with `assembler.rs` and `ack.rs` is the receive half, `send.rs` with `sack.rs`, `rtt.rs` and
//! `congestion/` the send half; `rack.rs`, `recovery.rs`, `prr.rs` and `tlp.rs` are its loss
//! recovery, `pacing.rs` spreads what it sends. `header.rs` and `seq.rs` are what goes on the wire,
//! `state.rs` is the state diagram, `listen.rs` and `cookie.rs` serve listeners, `path.rs` is told
//! about the path.

mod ack;
mod arrive;
mod assembler;
mod config;
mod congestion;
mod connection;
mod cookie;
mod counters;
mod ecn;
mod frto;
mod header;
mod listen;
mod pacing;
mod path;
mod prr;
mod rack;
mod recovery;
mod recv;
mod rtt;
mod sack;
mod send;
mod seq;
mod state;
mod timeout;
mod timer;
mod tlp;
mod transmit;

pub use arrive::Arrival;
pub use config::{Config, CongestionKind};
pub use connection::{Connection, TcpEvent};
pub use cookie::{COOKIE_VALID_NS, CookieEnds, SynCookies};
pub use counters::{Counters, DropReason};
pub use ecn::{Ecn, EcnUse};
pub use header::{
    Flags, HEADER_LEN, HEADER_LEN_MAX, Header, HeaderError, Options, SACK_BLOCKS_MAX, SackBlock,
    TIMESTAMPS_LEN, Timestamps,
};
pub use listen::{Backlog, IsnGenerator, SynRefusal, check_syn, reset_for};
pub use recv::{ArrivedPayload, Full, Receiver};
pub use seq::{SeqNum, SeqSpace};
pub use state::{State, Trigger};
pub use transmit::{Budget, Outgoing};

#[cfg(test)]
mod tests;
