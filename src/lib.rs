//! RDMA over plain Ethernet, in user space.
pub mod counters;
pub mod limits;
pub mod mem;
pub mod time;
pub mod types;
