//! Registered memory: bytes that a peer may read or write at the same time as the application. No
//! byte outside a granted range is ever accessed: the only way from a steering tag to memory is
//! [`TableGuard::check`], which yields a [`Grant`] or a [`Refusal`]. After an STag is deregistered
//! or invalidated, nothing from the network writes by it, not even into posted receives (RFC 5040
//! §8.1.1), and no byte is read by it for a peer (RFC 5042 §6.3.3); so for windows. Nothing may
//! create a `&[u8]` over such memory, since others write it. [`SharedSlice`] has the semantics of
//! byte-wise relaxed atomics, which order nothing. The completion queue orders memory accesses with
//! completions; an RDMA Write raises none at the target and orders nothing. The unsafe code of this
//! package is in `digest`, `region` and `shared`; the copy itself is
//! [`urnic_netdev::shared_memory`].

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
