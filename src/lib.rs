//! RDMA over plain Ethernet, in user space.
pub mod counters;
pub mod limits;
pub mod mpa;
pub mod time;
pub mod types;
pub mod wire;
