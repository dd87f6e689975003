//! What completions of Sends and Writes say: that the peer has it, or that it was sent.

use std::env;

use urnic::CompletionMeans;

/// Says which, from `urnic run --ack` or the environment.
const ACK: &str = "URNIC_ACK";

/// What completions of a queue pair mean. Unless the program asks for more, what iWARP promises: nothing
/// of the peer (RFC 5040 §5.5 rule 9).
pub(crate) fn completion() -> CompletionMeans {
    match env::var_os(ACK) {
        Some(word) if word == "peer" => CompletionMeans::Placed,
        _ => CompletionMeans::Taken,
    }
}
