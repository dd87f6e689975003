//! Runs an input of the fuzz targets; the tests of the devices replay the corpus with it.
//!
//! An input is a script of a hostile peer, which has the socket, the memory and the rings. The
//! device must survive it: no panic, no frame longer than the limit, no descriptor kept, no mapped
//! bytes beyond a peer's limit, no blocking call. Afterwards a correct peer must be served.

pub mod backend;
pub mod frontend;
mod peer;
mod script;
pub mod shm;
mod work;
