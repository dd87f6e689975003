//! Security associations (RFC 4301 §4.1): keys and state of one direction of protected traffic.

mod open;
mod seal;

use std::net::IpAddr;

use crate::crypto::{KeyLengthError, Keying};
use crate::lifetime::Lifetime;
use crate::overhead::Overhead;
use crate::selector::Selector;
use crate::wire::esp::SPI_RESERVED_MAX;
use crate::wire::ip;
use crate::wire::udp;

pub(crate) use open::{Opener, Received};
pub(crate) use seal::Sealer;
pub use seal::{BACK_MAX, FRONT_MAX};

/// Extent of the protection.
// spec: SEC-I-4
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The payload of the IP packet.
    Transport,
    /// The whole IP packet, inside another one.
    Tunnel,
}

/// An association, as a key exchange makes it.
#[derive(Clone, Debug)]
pub struct Association {
    /// Security parameters index, chosen by the receiver.
    pub spi: u32,
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address.
    pub destination: IpAddr,
    /// Transport or tunnel.
    pub mode: Mode,
    /// Number of the policy that the association is for ([`Template`](crate::policy::Template)).
    pub request: u32,
    /// Algorithms and keys.
    pub keying: Keying,
    /// Sequence numbers of 64 bits (RFC 4303 §2.2.1).
    pub extended_numbers: bool,
    /// Size of the receiver's anti-replay window, in packets.
    pub window: usize,
    /// Limits.
    pub lifetime: Lifetime,
    /// Ports of ESP in UDP (RFC 3948).
    pub udp: Option<udp::Ports>,
    /// The packets that may use the association, if those of its policy are more.
    pub selector: Option<Selector>,
}

/// An association cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssociationError {
    /// The SPI is 0, or reserved (RFC 4303 §2.1).
    #[error("SPIs up to {SPI_RESERVED_MAX} are reserved")]
    ReservedSpi,
    /// There is an association with this SPI.
    #[error("there is an association with this SPI")]
    SpiInUse,
    /// The addresses are of two families.
    #[error("the two addresses are of different families")]
    Families,
    /// A key has a wrong length.
    #[error(transparent)]
    KeyLength(#[from] KeyLengthError),
    /// There are too many associations or reserved SPIs.
    #[error("there are too many associations")]
    TooMany,
}

impl Association {
    pub(crate) fn check(&self) -> Result<(), AssociationError> {
        if self.spi <= SPI_RESERVED_MAX {
            Err(AssociationError::ReservedSpi)
        } else if self.source.is_ipv4() != self.destination.is_ipv4() {
            Err(AssociationError::Families)
        } else {
            Ok(())
        }
    }

    /// Returns the lengths that the association adds to packets.
    #[must_use]
    pub const fn overhead(&self) -> Overhead {
        let outer = match self.mode {
            Mode::Transport => 0,
            Mode::Tunnel => ip::outer_len(self.source),
        };
        let udp = if self.udp.is_some() { udp::HEADER_LEN } else { 0 };
        Overhead { outer, udp, lengths: self.keying.lengths() }
    }

    pub(crate) const fn purpose(&self) -> Purpose {
        let Self { request, mode, source, destination, .. } = *self;
        Purpose { request, mode, source, destination }
    }
}

/// Fields by which a packet finds the associations that it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Purpose {
    /// Number of the policy.
    pub request: u32,
    /// Transport or tunnel.
    pub mode: Mode,
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address.
    pub destination: IpAddr,
}

/// State of an association, for display and for a key exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Security parameters index.
    pub spi: u32,
    /// Policy and ends.
    pub purpose: Purpose,
    /// Last number sent, or largest received.
    pub number: u64,
    /// Packets sealed or opened.
    pub packets: u64,
    /// Bytes of these packets, in clear.
    pub bytes: u64,
    /// Packets dropped as replays.
    pub replays: u64,
    /// Packets with a wrong ICV.
    pub bad_icv: u64,
}
