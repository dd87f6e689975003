//! TCP for MPA: a TCP that deals in segments and records, not in a byte stream.
//!
//! `tcp` knows ranges of stream offsets and holds no payload: the layer above owns the bytes, and
//! gathers them again when a range must be retransmitted. `tcp` offers the payload of each arriving
//! segment at once, in any order, and acknowledges what the layer above [commits](Tcb::commit).
//!
//! Promises to the layer above:
//!
//! - bytes reported missing were never committed before (RFC 5044 appendix A.3);
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
//! Connections report changes of state, timeouts, probes, recoveries, a closed window, and drops
//! (when their counter reaches a power of two) to `tracing`, target `urnic::tcp`.

mod ack;
mod arrive;
mod assembler;
mod backlog;
mod config;
mod congestion;
mod connection;
mod cookie;
mod counters;
mod ecn;
mod header;
mod in_order;
mod keepalive;
mod listen;
mod pacing;
mod path;
mod prr;
mod rack;
mod recv;
mod rtt;
mod sack;
mod send;
mod send_window;
mod seq;
mod state;
mod time_wait;
mod timeout;
mod timer;
mod transmit;

pub use arrive::Arrival;
pub use backlog::{Backlog, BacklogPlace, Standing, Taken};
pub use config::{Config, KeepAliveTimes, PathConfig};
pub use congestion::{AckSample, CongestionKind, Controller};
pub use connection::{Tcb, TcpEvent};
pub(crate) use cookie::{COOKIE_VALID_NS, CookieEnds, SynCookies};
pub use counters::{Counters, DropReason};
pub use ecn::EcnUse;
pub use header::{
    Ecn, Flags, HEADER_LEN, HEADER_LEN_MAX, Header, HeaderError, Options, SackBlock, Timestamps,
};
pub use listen::SynRefusal;
pub(crate) use listen::{IsnGenerator, check_syn};
pub use recv::{ArrivedPayload, Full, ReceiveHalf};
pub use seq::{SeqNum, SeqSpace};
pub use state::{State, Trigger};
pub(crate) use time_wait::{TimeWait, TimeWaitOutcome};
pub use transmit::{Budget, Outgoing};

const TRACE: &str = "urnic::tcp";

#[cfg(test)]
mod tests;
