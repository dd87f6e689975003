//! A peer that speaks TCP and MPA correctly, and then breaks the rules of one layer after the
//! other.
//!
//! The peer is made of bytes: it shares only the device, the type of a TCP header and a CRC
//! function with the engine. Every broken rule must end in the Terminate message (or the close)
//! that the RFCs specify for it, with memory untouched.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(clippy::cast_possible_truncation, reason = "test octets are made of low octets")]

mod atomics;
mod connection;
mod flood;
mod guesses;
mod immediates;
mod invalidate;
mod life;
mod mpa;
mod not_ready;
mod peer;
mod reads;
mod replies;
mod scene;
mod shares;
mod startup;
mod tagged;
mod terminate;
mod untagged;
mod windows;
