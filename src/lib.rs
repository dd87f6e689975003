//! RDMA over plain Ethernet, in user space.
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
