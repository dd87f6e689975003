//! The ping-pong of rdma-core's `rping`, with the same bytes, for both sides.
//!
//! ```text
//! client                                  server
//!   Send: where the source is ──────────▶
//!          ◀────────────────────────────── RDMA Read of the source
//!          ◀────────────────────────────── Send: go ahead
//!   Send: where the sink is ────────────▶
//!          ◀────────────────────────────── RDMA Write into the sink
//!          ◀────────────────────────────── Send: done
//!   sink == source?
//! ```
//!
//! Every Send has 16 bytes ([`Descriptor`]); the contents of the server's Sends have no meaning.

mod client;
mod descriptor;
mod pattern;
mod server;
mod session;

pub(crate) use client::Client;
pub(crate) use descriptor::Descriptor;
pub(crate) use server::Server;
pub(crate) use session::Session;

/// Largest ping: the limit of rdma-core's program is one byte less.
pub(crate) const SIZE_MAX: usize = 64 << 10;
/// Smallest ping, as with rdma-core's program: room for `rdma-ping-2147483647: ` and its zero.
pub(crate) const SIZE_MIN: usize = 23;
pub(crate) const READS: u16 = 1;
