//! Link-layer address option of neighbour discovery (RFC 4391 §9.3).
//!
//! ```text
//! type (1) | length 3 (1) | zero (2) | link-layer address (20)
//! ```

use super::address::LinkAddress;
use super::{TooShort, head};

/// Owner of the address in an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OptionKind {
    /// The sender (type 1).
    Source,
    /// The target (type 2).
    Target,
}

/// Length of the option, in bytes.
pub const OPTION_LEN: usize = 24;

/// Returns the bytes of the option.
// spec: IPOIB-9.3-1
#[must_use]
pub fn to_bytes(kind: OptionKind, address: LinkAddress) -> [u8; OPTION_LEN] {
    let number = match kind {
        OptionKind::Source => 1,
        OptionKind::Target => 2,
    };
    let mut octets = [0; OPTION_LEN];
    let (front, rest) = octets.split_at_mut(4);
    front.copy_from_slice(&[number, 3, 0, 0]);
    rest.copy_from_slice(&address.to_bytes());
    octets
}

/// Parses the option at the start of `octets`; `None` if it is another one, or of another length.
///
/// # Errors
/// If it is truncated.
pub fn parse(octets: &[u8]) -> Result<Option<(OptionKind, LinkAddress)>, TooShort> {
    let kind = match *head::<2>(octets)? {
        [1, 3] => OptionKind::Source,
        [2, 3] => OptionKind::Target,
        _ => return Ok(None),
    };
    let option = head::<OPTION_LEN>(octets)?;
    let address = LinkAddress::parse(option.get(4..).unwrap_or_default())?;
    Ok(Some((kind, address)))
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::super::address::{Gid, Guid, Qpn};
    use super::*;

    // spec: IPOIB-9.3-1
    #[test]
    fn link_address_option_has_the_specified_octets() {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x10_000a));
        let address = LinkAddress { qpn: Qpn::from_bits(0x49), gid };
        let mut octets = hex!("01 03 0000 00000049 fe80000000000000 000000000010000a");
        assert_eq!(to_bytes(OptionKind::Source, address), octets);
        octets[0] = 2;
        assert_eq!(to_bytes(OptionKind::Target, address), octets);
        octets[2..4].fill(0xff);
        assert_eq!(parse(&octets), Ok(Some((OptionKind::Target, address))));
    }

    #[test]
    fn other_options_are_skipped_and_truncated_ones_refused() {
        assert_eq!(parse(&[1, 1, 0, 0, 0, 0, 0, 0]), Ok(None), "an Ethernet address");
        assert_eq!(parse(&[5, 3]), Ok(None));
        assert_eq!(parse(&[1, 3, 0]), Err(TooShort { need: 24, have: 3 }));
        assert_eq!(parse(&[1]), Err(TooShort { need: 2, have: 1 }));
    }
}
