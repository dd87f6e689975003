//! Files that are being transferred: where they are, what of them has arrived, and whether it is
//! right. Nothing here knows of connections.

mod chunks;
mod digest;
mod folder;
mod journal;
mod partial;

pub(crate) use chunks::{chunk_count, chunk_range};
pub(crate) use digest::{Hashing, chunk_crc, hex};
pub(crate) use folder::{Folder, Place};
pub(crate) use partial::Partial;
