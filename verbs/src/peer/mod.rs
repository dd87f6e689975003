//! Connecting without rdma_cm: on both ends `ibv_modify_qp` names the peer's address and queue pair
//! number, and neither end is client or server.
//!
//! ```text
//!   hello      the Private Data in which the connecting end names itself and the wanted queue pair
//!   requests   the listener: hands requests to the queue pair that they name, once it is ready
//!   link       one queue pair's connection: the end with the smaller number connects
//!   address    C's address vector, as an IP address
//! ```

pub(crate) mod address;
pub(crate) mod hello;
pub(crate) mod link;
pub(crate) mod requests;
