//! Text of peers, made fit for a terminal.

pub(crate) use urnic_replay::printable::printable;
