//! Builds `libibverbs.so.1` and `librdmacm.so.1` in front of urnic, for unmodified applications.
//!
//! Applications see one device, `urnic0`. It looks like RoCE or, on request, like iWARP; the wire
//! is always iWARP over TCP. `docs/verbs.md` lists what is supported, what differs and why.
//!
//! The modules lie in strata. A module uses modules of its own stratum or of those above it in this
//! list, never of those below, and no two modules use each other (`tests/library/tidy/circles.rs`).
//!
//! ```text
//!   abi, object, errno, log, thread, fault, names, private, refused
//!              structures and constants of C as in rdma-core's headers; C pointers to objects of this
//!              crate, converted only in `object`; functions that have to exist and need no state
//!   event_queue, async_event, section, work, region, numbers, fork, exit, waited, turn
//!              queues of events, C's requests as the engine's, numbers of queue pairs, the end of the
//!              process, and the thread that advances the connections of `peer` and `cm`
//!   network, process
//!              the one RNIC and endpoint of a process, and what the endpoint runs on: the kernel's
//!              TCP, or an interface
//!   context, channel, gid, device, ack, attributes
//!              open devices, channels, and the values that a device shows
//!   peer       connections without rdma_cm
//!   pd, parent_domain, ah, mr, cq, srq
//!              protection domains, and the objects in them
//!   qp         queue pairs
//!   mw         memory windows, which queue pairs bind
//!   operations the table of the operations of a device, and its events, which name objects of each kind
//!   cm         rdma_cm: ids, their events, connections
//!   rsocket    sockets over rdma_cm
//! ```

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
mod newer;
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
