//! One file per command: its arguments, and what it does with them.

pub(crate) mod demo;
pub(crate) mod impair;
pub(crate) mod replay;
pub(crate) mod sim;
