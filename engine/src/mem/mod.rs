//! Registered memory: bytes that a peer may read or write while the program looks.
//!
//! **Owns** the regions an application registered ([`Region`]), the table that maps a steering tag
//! to one of them ([`RegionTable`]), and every copy into or out of them.
//!
//! **Promises** the layers above that no byte outside a granted range is ever touched: the only
//! way from a steering tag to memory is [`TableGuard::check`], which yields a [`Grant`] or a
//! [`Refusal`]; and that once an STag is deregistered or invalidated, nothing that came in from
//! the network writes under it any more, posted receives included (RFC 5040 §8.1.1), and no byte is
//! read under it for a peer (RFC 5042 §6.3.3). That goes for the bindings of memory windows, too.
//!
//! **May not** hand out a `&[u8]` over such memory. The writer is an engine thread acting for the
//! peer while application threads read; in the language's terms that is a race on every byte. So
//! memory is reached through [`SharedSlice`], whose operations have the meaning of byte-wise
//! relaxed atomics. They order nothing: what a completion promises about memory is ordered by the
//! completion queue, and an RDMA Write, which raises no completion at the target, orders nothing.
//!
//! The unsafe code of this package is in `digest`, `region` and `shared`; the copy itself is
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
pub use shared::{Misaligned, SharedSlice};
pub use table::{RegionTable, Registration, TableGuard, TableLease};
pub use window::{BindError, MwBind, MwType};
