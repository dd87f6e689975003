//! Removes control characters from text of peers, for terminals.

pub(crate) use urnic_replay::printable::printable;
