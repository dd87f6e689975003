//! Conversion between bytes and values.
//!
//! Pure functions, without state and without policy. All integers are big-endian except the two
//! CRCs of a packet, which InfiniBand sends least significant byte first.

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

/// Error: fewer bytes than the value needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("needs {need} bytes, has {have}")]
pub struct TooShort {
    /// Bytes that the value needs.
    pub need: usize,
    /// Bytes that were given.
    pub have: usize,
}

pub(crate) fn head<const N: usize>(octets: &[u8]) -> Result<&[u8; N], TooShort> {
    octets.first_chunk().ok_or(TooShort { need: N, have: octets.len() })
}

pub(crate) fn take<const N: usize>(octets: &mut &[u8]) -> Result<[u8; N], TooShort> {
    let (first, rest) =
        octets.split_first_chunk().ok_or(TooShort { need: N, have: octets.len() })?;
    *octets = rest;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parsing_arbitrary_octets_in_any_format_never_panics(
            octets in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let _any = super::address::LinkAddress::parse(&octets);
            let _any = super::arp::ArpPacket::parse(&octets);
            let _any = super::datagram::parse(&octets);
            let _any = super::dhcp::Answer::parse(&octets);
            let _any = super::mad::SaMad::parse(&octets);
            let _any = super::ndisc::parse(&octets);
            let _any = super::packet::PacketHeader::parse(&octets);
            let _any = super::smp::NodeInfo::parse(&octets);
            let _any = super::smp::PortSetup::parse(&octets);
            super::reports::changes(&octets, &mut |_| ());
        }
    }
}
