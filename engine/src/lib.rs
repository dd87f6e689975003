//! The engine of [urnic](https://docs.rs/urnic), for applications that drive it themselves.
//!
//! Most applications use the package `urnic`: endpoints on devices or on the kernel's TCP, with
//! threads and a clock. This package is the part below: replay of captures, the simulator, tests
//! and benches use it directly, under a virtual clock. Its API follows the protocol layers and
//! changes with them.
//!
//! # Sans-IO
//!
//! Nothing here does I/O, sleeps, spawns threads, reads a clock or draws unseeded randomness. Every
//! layer, and the whole [`port::Port`], follows one contract: `handle_*(now, input)` changes state,
//! then the caller drains `poll_transmit`, `poll_event` and `poll_timeout`. [`poll::Poller`] does
//! so for a port and a device, [`poll::Lockstep`] for two of them on one virtual clock.
//!
//! # The flow
//!
//! ```text
//! rx  frame ─ port (demux) ─ tcp ─ stream::rx ─┬ mpa::rx finds FPDUs
//!                                              ├ places payload through mem
//!                                              └ delivers messages to verbs::Cq
//! tx  verbs::Qp ─ stream::tx ─┬ cuts messages at the MULPDU
//!                             ├ mpa::tx frames FPDUs
//!                             └ tcp records segments ─ port (emit) ─ frame
//! ```
//!
//! [`stream`] composes the layers: its halves `rx` and `tx` are the two pipelines, top to bottom.
//! The layers, [`tcp`], [`mpa`], [`ddp`] and [`rdmap`], do not depend on each other. [`mem`]
//! decides which accesses to memory are allowed. [`wire`] contains only byte formats. All limits
//! are in [`limits`].
//!
//! # Example
//!
//! Two RNICs on a memory link in one process; one writes into the other's memory.
//!
//! ```
#![doc = include_str!("../examples/lockstep.rs")]
//! ```

pub mod counters;
pub mod ddp;
pub mod limits;
pub mod mem;
pub mod mpa;
pub mod poll;
pub mod port;
pub mod rdmap;
mod secret;
mod siphash;
pub mod stream;
pub mod tcp;
pub mod time;
pub mod types;
pub mod verbs;
pub mod wire;

pub use siphash::keyed_hash;
