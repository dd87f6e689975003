//! Builds `libibverbs.so.1` and `librdmacm.so.1` in front of urnic, for unmodified applications.
//!
//! Applications see one device, `urnic0`. It looks like RoCE or, on request, like iWARP; the wire
//! is always iWARP over TCP. `docs/verbs.md` lists what is supported, what differs and why.
//!
//! ```text
//!   abi   structures and constants of C, as in rdma-core's headers
//!   object   C pointers to objects of this crate: the only place that converts between them
//!   process  the one RNIC and endpoint of a process
//!   network  what the endpoint runs on: the kernel's TCP, or an interface
//!   device, ack, context, attributes, gid, pd, parent_domain, mr, mw, channel, cq, srq, qp, work,
//!   async_event
//!   cm    rdma_cm: ids, their events, connections
//!   peer  connections without rdma_cm
//!   turn  the thread that advances the connections of both
//!   rsocket  sockets over rdma_cm
//!   private, refused, names   functions that have to exist and need no state
//! ```

/// Lets tests count heap allocations on the posting path.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: urnic_testkit::counting::Counting = urnic_testkit::counting::Counting;

pub mod abi;
mod ack;
mod ah;
mod async_event;
mod attributes;
mod channel;
mod cm;
mod context;
mod cq;
mod device;
mod errno;
mod event_queue;
mod exit;
mod fault;
mod fork;
mod gid;
mod log;
mod mr;
mod mw;
mod names;
mod network;
mod numbers;
mod object;
mod operations;
mod parent_domain;
mod pd;
mod peer;
mod private;
mod process;
mod qp;
mod refused;
mod region;
mod rsocket;
mod section;
mod srq;
mod thread;
mod turn;
mod waited;
mod work;
