//! What the fuzz targets do with an input; the tests of the devices do the same with the corpus.
//!
//! An input is a script of a peer that has the socket, the memory and the rings, and does with them what
//! it likes. The device has to go on: no panic, no frame that is longer than any, no descriptor kept, no more
//! bytes mapped than a peer may have, no call that waits, and a peer that keeps to the protocol is served
//! afterwards.

pub mod backend;
pub mod frontend;
mod peer;
mod script;
pub mod shm;
mod work;
