//! What the commands of InfiniBand share.

mod capture;

pub(crate) use capture::ErfCapture;
