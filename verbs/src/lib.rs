//! `libibverbs.so.1` and `librdmacm.so.1` in front of urnic, for programs as they are.
//!
//! Programs see one device, `urnic0`, which looks like RoCE or, if asked, like iWARP; the wire is
//! always iWARP over TCP. What is supported, what differs and why: `docs/verbs.md`.
//!
//! ```text
//!   abi         C's structures and constants, as rdma-core's headers have them
//!   object      C pointers to objects of this crate, the only place that makes one of the other
//!   process     the one RNIC and endpoint of a process
//!   network     what the endpoint is on: the kernel's TCP, or an interface
//!   device, ack, context, attributes, gid, pd, parent_domain, mr, mw, channel, cq, srq, qp, work,
//!   async_event
//!   cm          rdma_cm: ids, their events, connections
//!   peer        connections without rdma_cm
//!   turn        the thread that moves both on
//!   rsocket     sockets over rdma_cm
//!   private, refused, names   what has to be there and needs no state
//! ```

/// Tests count what posting asks the heap for.
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
mod object;
mod parent_domain;
mod pd;
mod peer;
mod private;
mod process;
mod qp;
mod refused;
mod rsocket;
mod section;
mod srq;
mod thread;
mod turn;
mod waited;
mod work;
