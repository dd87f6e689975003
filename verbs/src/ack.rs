//! What completions of Sends and Writes say: that the peer has it, or that it was sent.

use urnic::{CompletionMeans, environment};

use crate::device::{Personality, personality};

/// Says which, from `urnic run --ack` or the environment.
const ACK: &str = "URNIC_ACK";

/// What completions of a queue pair mean. Unless it is said, what the device that is shown promises:
/// InfiniBand's that the message is at the peer, iWARP's nothing of the peer
/// (RFC 5040 §5.5 rule 9).
pub(crate) fn completion() -> CompletionMeans {
    match (environment(ACK), personality()) {
        (Some(word), _) if word == "peer" => CompletionMeans::Placed,
        (Some(word), _) if word == "local" => CompletionMeans::Taken,
        (_, Personality::Ib) => CompletionMeans::Placed,
        (_, Personality::Iwarp) => CompletionMeans::Taken,
    }
}
