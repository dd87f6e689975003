//! Connecting without rdma_cm: `ibv_modify_qp` names the peer's address and queue pair number, on both
//! ends, and neither is client or server.
//!
//! ```text
//!   numbers    a queue pair's number has in it the TCP port at which its process listens
//!   hello      what the connecting end says of itself and of whom it wants, as Private Data
//!   requests   the listener: requests are given to the queue pair that they name, or wait for it
//!   link       one queue pair's connection: the end with the smaller number connects
//!   address    C's address vector, as an IP address
//! ```

pub(crate) mod address;
pub(crate) mod hello;
pub(crate) mod link;
pub(crate) mod numbers;
mod requests;
