//! The only unsafe code of this package: memory a peer may write, and kernel interfaces.

pub(crate) mod copy;
pub(crate) mod fragment;
pub(crate) mod gather;
pub(crate) mod interface;
pub(crate) mod stream_socket;
mod sum;
pub(crate) mod tap;
