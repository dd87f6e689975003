//! The only unsafe code of this package: memory that a peer may write, and kernel interfaces.

pub(crate) mod address;
pub(crate) mod block;
pub(crate) mod bpf;
pub(crate) mod copy;
pub(crate) mod credentials;
pub(crate) mod descriptor;
pub(crate) mod digester;
pub(crate) mod gather;
pub(crate) mod interface;
pub(crate) mod mapping;
pub(crate) mod packet_ring;
pub(crate) mod packet_socket;
pub(crate) mod published;
pub(crate) mod read_mapping;
pub(crate) mod secure;
pub(crate) mod shared_mapping;
pub(crate) mod shared_slice;
pub(crate) mod stream_socket;
mod sum;
pub(crate) mod tap;
pub(crate) mod xdp_queue;
mod xdp_ring;
pub(crate) mod xdp_socket;
