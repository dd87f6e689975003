//! RDMA over plain Ethernet, in user space.
//!
//! `urnic` is a software RNIC: RDMA Write, RDMA Read, Send and the rest of RDMAP (RFC 5040, 7306)
//! over DDP (RFC 5041), MPA (RFC 5044, 6581) and a TCP of its own, with no RDMA hardware and no
//! kernel module. It is an *integrated optimized MPA/TCP* in the sense of RFC 5044 Appendix A.
//!
//! # Concepts
//!
//! - An [`Rnic`] is one adapter in software. A protection domain ([`Pd`]) of it groups memory and
//!   the queue pairs that may use it.
//! - An [`Endpoint`] is one interface: a port on a device (TAP, packet socket, AF_XDP, memory link)
//!   or the kernel's TCP, which needs no privilege. An endpoint connects and listens.
//! - Memory is registered ([`Mr`]) with rights ([`Access`]). A peer needs its steering tag and
//!   offset, a [`RemoteBuffer`], to write or read it. Applications send a `RemoteBuffer` by any
//!   means, for example in the private data of the connection.
//! - A queue pair ([`Qp`]) is one end of a connection. Work is posted to it ([`SendWr`],
//!   [`RecvWr`]). The results ([`Wc`]) are in its completion queue ([`Cq`]).
//! - Memory that a peer may write is never a Rust slice: it is read and written by copying, and the
//!   completion queue orders the copies.
//! - A completed Send or Write says that its memory belongs to the application again. With urnic's
//!   own TCP, the peer's TCP has acknowledged it; over the kernel's TCP only the local socket has
//!   accepted it. [`QpConfig::completion`] asks for more.
//! - [`Connection::close`] closes a connection in order. Dropping an endpoint resets the
//!   connections that are not closed yet.
//!
//! A typical order of calls: [`Rnic::new`], [`Endpoint::kernel`] or [`Endpoint::on_device`],
//! [`Rnic::alloc_pd`], [`Pd::reg_mr`], [`Rnic::create_cq`], [`Pd::create_qp`], [`Endpoint::listen`]
//! or [`Endpoint::connect`], [`Qp::post_send`], [`Endpoint::wait`], [`Connection::close`].
//!
//! A Write raises no completion at the peer. To report it, post a Send behind it, or
//! [`SendOp::RdmaWriteImmediate`] if both ends have set [`StartupConfig::immediates`].
//!
//! All configuration is plain structs with public fields and defaults:
//! `..EndpointConfig::default()`, or `..QpConfig::new(&cq)` and `..PortConfig::for_ipv4(address)`
//! if a field has no default. Errors of endpoints and connections are an [`Error`], of making
//! queues a [`QueueError`], of posting work a [`PostError`]; the result of posted work is a
//! [`WcStatus`]. The library logs by `tracing`, with the target `urnic`.
//!
//! # Depending on it
//!
//! ```toml
//! [dependencies]
//! urnic = { path = "../urnic" } # or git = "…", until it is in a registry
//! ```
//!
//! # A server and a client
//!
//! Two programs over the kernel's TCP. The server lets one peer write into its memory, and sends
//! the address by private data (`cargo run --example serve`):
//!
//! ```no_run
#![doc = include_str!("../examples/serve.rs")]
//! ```
//!
//! The client (`cargo run --example write`):
//!
//! ```no_run
#![doc = include_str!("../examples/write.rs")]
//! ```
//!
//! # Waiting in an async program
//!
//! A [`CompChannel`] has a descriptor that fits in any event loop; here in tokio's (`cargo run
//! --example tokio`):
//!
//! ```no_run
#![doc = include_str!("../examples/tokio.rs")]
//! ```
//!
//! # The engine by hand
//!
//! The package [`urnic_engine`] below is sans-IO: no thread, no clock, no socket. Replay, the
//! simulator, tests and benches drive it themselves; its documentation has an example.

mod clock;
mod config;
pub mod device;
mod environment;
mod error;
mod handle;
mod mail;
mod seed;
pub mod top;
mod worker;

// The adapter and its interface.
pub use config::EndpointConfig;
pub use environment::{environment, runtime_folder};
pub use error::Error;
pub use handle::endpoint::Endpoint;
pub use mail::events::EndpointEvent;
pub use seed::random_seed;
pub use urnic_engine::port::{PortConfig, PortDrops, PortError, VlanId};
pub use urnic_engine::stream::SendPath;
pub use urnic_engine::stream::life::LifeTimes;
pub use urnic_engine::tcp::{
    AckSample, Config as TcpConfig, CongestionKind, Controller, EcnUse, KeepAliveTimes,
};
pub use urnic_engine::verbs::{Rnic, RnicConfig, Seed};

// Counters.
pub use handle::watch::{Seen, Watch};
pub use mail::figures::{ConnectionFigures, EndpointFigures, FIGURES, Figures};

// Memory.
pub use urnic_engine::mem::{Access, Region};
pub use urnic_engine::types::{Stag, TaggedOffset};
pub use urnic_engine::verbs::{BindError, Mr, MrPart, Mw, MwBind, MwType, Pd, RemoteBuffer};

// Queues.
pub use handle::comp_channel::CompChannel;
pub use urnic_engine::verbs::{
    CompletionLevel, Cq, Qp, QpConfig, QpRules, QpState, QueueError, SendBatch, Srq,
};

// Connections.
pub use config::ConnectOptions;
pub use handle::connecting::{ConnectRequest, Connecting};
pub use handle::connection::{Connection, ConnectionEvent};
pub use handle::listener::Listener;
pub use urnic_engine::mpa::startup::{
    Fallback, Negotiated, Offer, PeerRequest, Rejection, Revision, RtrKinds, StartupConfig,
};
pub use urnic_engine::port::{ConnectionCounters, ListenParams, LowerLayer};
pub use urnic_engine::stream::{PhaseError, StartupFailure, StreamError};
pub use urnic_engine::wire::terminate::Terminate;

// Work and its completion.
pub use urnic_engine::types::{QpNum, WrId};
pub use urnic_engine::verbs::{PostError, RecvWr, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus};

/// The clock of endpoints, for applications that run a port or a device of the other packages.
pub use clock::monotonic_now;
