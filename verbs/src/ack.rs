//! Meaning of completions of Sends and Writes: the peer has the data, or it was sent.

use urnic::{CompletionLevel, environment};

use crate::device::{Personality, personality};

/// `urnic run --ack` sets it.
const ACK: &str = "URNIC_ACK";

/// Returns what the shown device promises by default: on InfiniBand that the message has reached
/// the peer, on iWARP nothing about the peer (RFC 5040 §5.5 rule 9).
pub(crate) fn completion() -> CompletionLevel {
    match (environment(ACK), personality()) {
        (Some(word), _) if word == "peer" => CompletionLevel::Placed,
        (Some(word), _) if word == "local" => CompletionLevel::Taken,
        (_, Personality::Ib) => CompletionLevel::Placed,
        (_, Personality::Iwarp) => CompletionLevel::Taken,
    }
}
