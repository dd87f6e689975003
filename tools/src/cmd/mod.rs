//! One file per command: its arguments, what it prints, its exit status.

pub(crate) mod replay;
