//! Meaning of completions of Sends and Writes: the peer has the data, or it was sent.

use urnic::{CompletionMeans, environment};

use crate::device::{Personality, personality};

/// Environment variable for the meaning; `urnic run --ack` sets it.
const ACK: &str = "URNIC_ACK";

/// Returns what completions of a queue pair mean. By default they promise what the shown device
/// promises: on InfiniBand that the message has reached the peer, on iWARP nothing about the peer
/// (RFC 5040 §5.5 rule 9).
pub(crate) fn completion() -> CompletionMeans {
    match (environment(ACK), personality()) {
        (Some(word), _) if word == "peer" => CompletionMeans::Placed,
        (Some(word), _) if word == "local" => CompletionMeans::Taken,
        (_, Personality::Ib) => CompletionMeans::Placed,
        (_, Personality::Iwarp) => CompletionMeans::Taken,
    }
}
