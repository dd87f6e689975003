//! Scripted scenarios: tables of segments with their times, one file per group of RFC sections.
#![allow(clippy::unwrap_used, reason = "a script stops at the first surprise")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "times of scripts are a few seconds"
)]

mod acknowledgments;
mod close;
mod frto;
mod handshake;
mod hardening;
mod octets;
mod pairs;
mod recovery;
mod reset;
mod sack;
mod script;
mod startup;
mod time_wait;
mod timer;
mod timestamps;
