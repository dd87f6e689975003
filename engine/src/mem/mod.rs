//! Registered memory: bytes that a peer may read or write at the same time as the application.
//!
//! **Owns** the regions that an application registered ([`Region`]), the table that maps a steering
//! tag to one of them ([`RegionTable`]), and every copy into or out of them.
//!
//! **Promises** the layers above that no byte outside a granted range is ever accessed. The only
//! way from a steering tag to memory is [`TableGuard::check`], which yields a [`Grant`] or a
//! [`Refusal`]. After an STag is deregistered or invalidated, nothing from the network writes by
//! it, not even into posted receives (RFC 5040 §8.1.1), and no byte is read by it for a peer (RFC
//! 5042 §6.3.3). The same holds for the bindings of memory windows.
//!
//! **Must not** create a `&[u8]` over such memory. An engine thread writes for the peer while
//! application threads read: in the language's terms, a data race on every byte. So memory is
//! accessed through [`SharedSlice`], whose operations have the semantics of byte-wise relaxed
//! atomics. They order nothing. The completion queue orders memory accesses with completions. An
//! RDMA Write raises no completion at the target and orders nothing.
//!
//! The unsafe code of this package is in `digest`, `region` and `shared`. The copy itself is
//! [`urnic_netdev::shared_memory`], since devices copy such memory too.

pub mod access;
pub mod atomic;
pub mod digest;
pub mod grant;
pub(crate) mod handles;
pub(crate) mod pool;
pub mod region;
pub mod scattered;
pub mod shared;
mod stag;
pub mod table;
mod window;

pub use access::{Access, Refusal, RegionMisuse, RegisterError, Scope};
pub use atomic::AtomicOp;
pub(crate) use digest::{CRC32C, copy_and_digest, crc32c_append_shared};
pub use grant::Grant;
pub use region::{PageKind, Region};
pub use scattered::Scattered;
pub use shared::Misaligned;
pub use table::{RegionTable, Registration, TableGuard, TableLease};
pub use urnic_netdev::SharedSlice;
pub use window::{BindError, MwBind, MwType};
