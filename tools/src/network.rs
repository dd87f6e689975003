//! Networks on the command line: `ADDRESS[/BITS]`.

use std::net::IpAddr;
use std::str::FromStr;

/// Addresses that share their first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    first: IpAddr,
    bits: u32,
}

impl Network {
    /// Returns true if `address` is in the network. An IPv4 address is the same when an IPv6 socket
    /// shows it (RFC 4291 §2.5.5.2).
    pub(crate) fn contains(self, address: IpAddr) -> bool {
        let differing = match (self.first, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(other)) => {
                u128::from(first.to_bits() ^ other.to_bits()) << 96
            }
            (IpAddr::V6(first), IpAddr::V6(other)) => first.to_bits() ^ other.to_bits(),
            _ => return false,
        };
        differing.leading_zeros() >= self.bits
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let first: IpAddr = address.parse().map_err(|_| format!("'{address}' is no IP address"))?;
        let v4 = first.to_canonical();
        if v4 != first {
            return Err(format!("'{first}' is the IPv4 address {v4}: write that"));
        }
        let most = if first.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => bits
                .parse()
                .ok()
                .filter(|bits| *bits <= most)
                .ok_or_else(|| format!("'{bits}' is no length of a prefix, 0 to {most}"))?,
        };
        Ok(Self { first, bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_the_addresses_of_their_prefix() {
        let contains = |network: &str, address: &str| {
            network.parse::<Network>().unwrap().contains(address.parse().unwrap())
        };
        assert!(contains("192.0.2.0/24", "192.0.2.255") && !contains("192.0.2.0/24", "192.0.3.0"));
        assert!(contains("192.0.2.7", "192.0.2.7") && !contains("192.0.2.7", "192.0.2.6"));
        assert!(contains("192.0.2.7/24", "192.0.2.6"), "the other bits do not matter");
        assert!(contains("192.0.2.0/24", "::ffff:192.0.2.9"), "at an IPv6 socket");
        assert!(contains("2001:db8::/32", "2001:db8:ffff::1") && !contains("2001:db8::/32", "::1"));
        assert!(contains("0.0.0.0/0", "8.8.8.8") && !contains("0.0.0.0/0", "2001:db8::1"));
        assert!(contains("::/0", "2001:db8::1") && !contains("::/0", "8.8.8.8"));
        for text in [
            "",
            "192.0.2.0/33",
            "::/129",
            "192.0.2.0/",
            "192.0.2.0/-1",
            "a/8",
            "::ffff:192.0.2.0/120",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
