//! RDMA over plain Ethernet, in user space.
//!
//! `urnic` is a software RNIC: RDMA Write, RDMA Read, Send and the rest of RDMAP (RFC 5040, 7306)
//! over DDP (RFC 5041), MPA (RFC 5044, 6581) and a TCP of its own, with no RDMA hardware and no
//! kernel module. It is an *integrated optimized MPA/TCP* in the sense of RFC 5044 Appendix A:
//!
//! - **Records, not bytes.** TCP knows FPDUs: every segment starts with one and holds whole ones, on
//!   the first transmission and on every retransmission.
//! - **Placement now, delivery in order.** Received segments pass up at once in any order. MPA finds
//!   the FPDUs in them (by the length chain, or by markers), DDP places their payload straight
//!   into registered memory. There is no reassembly buffer on that path.
//! - **No payload copy on the way out, one on the way in.** A frame is gathered from registered
//!   memory; what arrives is copied once, to where it belongs.
//!
//! # The flow
//!
//! ```text
//! rx  Device ─ port::demux ─ tcp ─ mpa::rx ─ ddp (place) ─ rdmap (deliver) ─ verbs::Cq
//! tx  verbs::Qp ─ rdmap ─ ddp (cut at MULPDU) ─ mpa::tx (FPDU) ─ tcp (record) ─ port::emit ─ Device
//! ```
//!
//! # Sans-IO
//!
//! Below [`driver`] nothing does I/O, sleeps, spawns, reads a clock or draws unseeded randomness.
//! Every layer follows one contract: `handle_*(now, input)` changes state, then the caller drains
//! `poll_transmit`, `poll_event` and `poll_timeout`. The same code runs on a virtual clock in tests,
//! on captured frames in `urnic replay`, and on devices.
//!
//! # Where to read
//!
//! [`verbs`] is the programming interface and [`port`] makes connections. [`stream`] composes the
//! layers: its `rx.rs` and `tx.rs` are the two pipelines, top to bottom. The layers themselves,
//! [`tcp`], [`mpa`], [`ddp`] and [`rdmap`], know nothing of each other. [`mem`] decides who may touch
//! which memory. [`wire`] is octets and nothing else. Every bound is in [`limits`].
//!
//! # Example
//!
//! Two RNICs on a memory link in one process; one writes into the other's memory.
//!
//! ```
#![doc = include_str!("../examples/hello_rdma.rs")]
//! ```

pub mod counters;
pub mod ddp;
pub mod driver;
pub mod limits;
pub mod mem;
pub mod mpa;
pub mod port;
pub mod rdmap;
pub mod stream;
pub mod tcp;
pub mod time;
pub mod types;
pub mod verbs;
pub mod wire;
