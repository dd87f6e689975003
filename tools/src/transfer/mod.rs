//! Files in transfer: location, received parts, verification. Knows no connections.

mod chunks;
mod digest;
mod folder;
mod journal;
mod partial;
mod room;
mod staging;
mod sweep;
mod unnamed;

pub(crate) use chunks::{chunk_count, chunk_range};
pub(crate) use digest::{Hashing, chunk_crc};
pub(crate) use folder::{Folder, Place};
pub(crate) use partial::Partial;
pub(crate) use room::Room;
pub(crate) use staging::{Staging, place_len, places_within};
pub(crate) use sweep::sweep;
pub(crate) use unnamed::{spooled, unnamed_file};
