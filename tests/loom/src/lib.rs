//! The engine's alarm and doorbell under loom: every order of their steps, and every value that a
//! relaxed load may return, is tried. A call that is lost is a deadlock here.
//!
//! ```text
//! cargo test -p urnic-loom
//! ```
//!
//! The files are those of the engine. A package of its own keeps loom's atomics out of everything
//! else, without flags for the compiler.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "these are files of another package, of which tests use a part"
)]

/// Stands for that of the engine: as small as shows what happens at it.
mod limits {
    pub(crate) const DOORBELL_PLACES: usize = 1;
    pub(crate) const ALARM_WAKERS_MAX: usize = 2;
}

#[path = "../../../engine/src/verbs"]
mod verbs {
    pub(crate) mod alarm;
    pub(crate) mod calls;
    pub(crate) mod doorbell;
    pub(crate) mod sync;
}

#[cfg(test)]
mod tests;
