//! Octets and the values they stand for.
//!
//! Pure functions: no state, no decision about what is acceptable. All integers are big-endian but
//! for the two CRCs of a packet, which InfiniBand sends least significant octet first.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod address;
pub mod arp;
pub mod datagram;
pub mod dhcp;
pub mod mad;
pub mod ndisc;
pub mod packet;
pub mod reports;
pub mod smp;

/// The octets at hand are fewer than the value needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("needs {need} octets, {have} are there")]
pub struct TooShort {
    /// Octets the value takes.
    pub need: usize,
    /// Octets that were given.
    pub have: usize,
}

/// The first `N` octets.
pub(crate) fn head<const N: usize>(octets: &[u8]) -> Result<&[u8; N], TooShort> {
    octets.first_chunk().ok_or(TooShort { need: N, have: octets.len() })
}

/// Takes `N` octets off the front of `octets`.
pub(crate) fn take<const N: usize>(octets: &mut &[u8]) -> Result<[u8; N], TooShort> {
    let (first, rest) =
        octets.split_first_chunk().ok_or(TooShort { need: N, have: octets.len() })?;
    *octets = rest;
    Ok(*first)
}
