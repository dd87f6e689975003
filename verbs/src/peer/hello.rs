//! Which queue pair connects to which: the Private Data of the MPA Request (RFC 5044 §7.1.1) between queue pairs that
//! connect without rdma_cm.
//!
//! ```text
//!    0  "uRQP"          8  own GID (16)      28  GID of the peer that is wanted (16)
//!    4  version (2)    24  own number (4)    44  number of the peer that is wanted (4)
//!    6  features (2)                          all numbers big-endian
//! ```

use std::cmp::Ordering;
use std::net::IpAddr;

use crate::gid;

/// A queue pair as others know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) address: IpAddr,
    pub(crate) number: u32,
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    /// By number first: of addresses, an end with several may have told another one.
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |name: &Self| (name.number, gid::octets(name.address));
        key(self).cmp(&key(other))
    }
}

/// What the connecting end says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) from: Name,
    pub(super) to: Name,
}

const MAGIC: [u8; 4] = *b"uRQP";
const VERSION: u16 = 1;

impl Hello {
    pub(super) const LEN: usize = 48;

    pub(super) fn to_octets(self) -> Vec<u8> {
        let mut octets = Vec::with_capacity(Self::LEN);
        octets.extend(MAGIC);
        octets.extend(VERSION.to_be_bytes());
        octets.extend([0; 2]);
        for name in [self.from, self.to] {
            octets.extend(gid::octets(name.address));
            octets.extend(name.number.to_be_bytes());
        }
        octets
    }

    /// `None` for what is not said by such an end, or by one of another version.
    pub(super) fn parse(octets: &[u8]) -> Option<Self> {
        let (magic, rest) = octets.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (_features, rest) = rest.split_first_chunk::<2>()?;
        if *magic != MAGIC || u16::from_be_bytes(*version) != VERSION {
            return None;
        }
        let (from, rest) = name(rest)?;
        let (to, _later_versions) = name(rest)?;
        Some(Self { from, to })
    }
}

fn name(octets: &[u8]) -> Option<(Name, &[u8])> {
    let (address, rest) = octets.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let name = Name { address: gid::address(*address), number: u32::from_be_bytes(*number) };
    Some((name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            from: Name { address: "10.1.2.3".parse().unwrap(), number: 0x00ab_cd01 },
            to: Name { address: "fe80::1".parse().unwrap(), number: 7 },
        }
    }

    #[test]
    fn a_hello_is_48_octets_and_comes_back() {
        let octets = hello().to_octets();
        assert_eq!(octets.len(), Hello::LEN);
        assert_eq!(octets[..8], *b"uRQP\0\x01\0\0");
        assert_eq!(octets[18..28], [0xff, 0xff, 10, 1, 2, 3, 0, 0xab, 0xcd, 1]);
        assert_eq!(Hello::parse(&octets), Some(hello()));
    }

    #[test]
    fn anything_else_is_none() {
        let octets = hello().to_octets();
        for len in 0..Hello::LEN {
            assert_eq!(Hello::parse(&octets[..len]), None);
        }
        for index in 0..6 {
            let mut other = octets.clone();
            other[index] ^= 1;
            assert_eq!(Hello::parse(&other), None);
        }
        // A later version may say more behind it, and use the features.
        let mut longer = octets;
        longer[7] = 1;
        longer.push(9);
        assert_eq!(Hello::parse(&longer), Some(hello()));
    }

    #[test]
    fn the_smaller_number_counts_before_the_address() {
        let Hello { from, to } = hello();
        assert!(to < from);
        let elsewhere = Name { address: "10.1.2.2".parse().unwrap(), ..from };
        assert!(elsewhere < from);
    }
}
