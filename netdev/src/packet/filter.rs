//! Classic BPF program that selects the frames which the kernel copies to the socket, built from
//! the stack's addresses. The rest of the interface's traffic costs nothing.

use std::net::IpAddr;

use crate::sys::packet_socket::FilterInstruction;

/// Most addresses of a filter.
pub const ADDRESSES_MAX: usize = 24;

const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_OCTET: u16 = 0x30;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER_OR_EQUAL: u16 = 0x35;
const JUMP_IF_SET: u16 = 0x45;
const RETURN: u16 = 0x06;

const ALL: u32 = u32::MAX;
const NOTHING: u32 = 0;

/// Builds a program that passes frames for `mac` or a group. Of these, IPv4 and IPv6 pass only if
/// they are for one of `addresses` or a group; of the other protocols only ARP passes. Without
/// addresses (a stack that does not know its own yet) every protocol passes.
pub(super) fn program(mac: [u8; 6], addresses: &[IpAddr]) -> Vec<FilterInstruction> {
    let [a, b, c, d, e, f] = mac;
    let mut program = vec![
        load(LOAD_OCTET, 0),
        // For a group address: go on with the protocol.
        jump(JUMP_IF_SET, 1, 5, 0),
        load(LOAD_HALF, 0),
        jump(JUMP_EQUAL, u32::from(u16::from_be_bytes([a, b])), 0, 2),
        load(LOAD_WORD, 2),
        jump(JUMP_EQUAL, u32::from_be_bytes([c, d, e, f]), 1, 0),
        give(NOTHING),
    ];
    if addresses.is_empty() {
        program.push(give(ALL));
        return program;
    }
    let ipv4 = ipv4_block(addresses);
    let ipv6 = ipv6_block(addresses);
    let len = |block: &[FilterInstruction]| {
        u8::try_from(block.len()).expect("ADDRESSES_MAX keeps blocks within a jump's reach")
    };
    program.push(load(LOAD_HALF, 12));
    program.push(jump(JUMP_EQUAL, u32::from(crate::ethernet::IPV4), 0, len(&ipv4)));
    program.extend(&ipv4);
    program.push(jump(JUMP_EQUAL, u32::from(crate::ethernet::IPV6), 0, len(&ipv6)));
    program.extend(&ipv6);
    // ARP, and tags that the kernel left in the frame.
    for ethertype in [0x0806, 0x8100, 0x88a8, 0x9100] {
        program.extend([jump(JUMP_EQUAL, ethertype, 0, 1), give(ALL)]);
    }
    program.push(give(NOTHING));
    program
}

fn ipv4_block(addresses: &[IpAddr]) -> Vec<FilterInstruction> {
    const DESTINATION_AT: u32 = 14 + 16;
    // Class D and above: groups, and the limited broadcast.
    const GROUPS: u32 = 0xe000_0000;
    let mut block = vec![load(LOAD_WORD, DESTINATION_AT)];
    for address in addresses {
        if let IpAddr::V4(address) = address {
            block.extend([jump(JUMP_EQUAL, address.to_bits(), 0, 1), give(ALL)]);
        }
    }
    block.extend([jump(JUMP_GREATER_OR_EQUAL, GROUPS, 0, 1), give(ALL), give(NOTHING)]);
    block
}

fn ipv6_block(addresses: &[IpAddr]) -> Vec<FilterInstruction> {
    const DESTINATION_AT: u32 = 14 + 24;
    let mut block = vec![load(LOAD_OCTET, DESTINATION_AT), jump(JUMP_EQUAL, 0xff, 0, 1), give(ALL)];
    for address in addresses {
        let IpAddr::V6(address) = address else { continue };
        let octets = address.octets();
        for (i, word) in (0u8..).zip(octets.as_chunks::<4>().0) {
            block.push(load(LOAD_WORD, DESTINATION_AT + 4 * u32::from(i)));
            // To the next address: skip the rest of this address's pairs and its return.
            block.push(jump(JUMP_EQUAL, u32::from_be_bytes(*word), 0, 2 * (3 - i) + 1));
        }
        block.push(give(ALL));
    }
    block.push(give(NOTHING));
    block
}

const fn load(code: u16, at: u32) -> FilterInstruction {
    FilterInstruction { code, jt: 0, jf: 0, k: at }
}

const fn jump(code: u16, value: u32, then: u8, otherwise: u8) -> FilterInstruction {
    FilterInstruction { code, jt: then, jf: otherwise, k: value }
}

/// Ends the program: `len` bytes of the frame pass.
const fn give(len: u32) -> FilterInstruction {
    FilterInstruction { code: RETURN, jt: 0, jf: 0, k: len }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::sys::packet_socket::attach_filter;

    const MAC: [u8; 6] = [2, 1, 2, 3, 4, 5];
    const BROADCAST: [u8; 6] = [0xff; 6];

    /// The kernel itself: runs the program on a socket that needs no privilege.
    struct Kernel(UnixDatagram, UnixDatagram);

    impl Kernel {
        fn new(addresses: &[IpAddr]) -> Self {
            let (near, far) = UnixDatagram::pair().unwrap();
            far.set_nonblocking(true).unwrap();
            attach_filter(far.as_fd(), &program(MAC, addresses)).unwrap();
            Self(near, far)
        }

        fn passes(&self, mac: [u8; 6], ethertype: u16, octets: &[u8]) -> bool {
            let mut frame = [mac, [9; 6]].concat();
            frame.extend(ethertype.to_be_bytes());
            frame.extend(octets);
            // A datagram that the filter stops fails at its sender, or is dropped.
            let _sent = self.0.send(&frame);
            match self.1.recv(&mut [0; 128]) {
                Ok(len) => {
                    assert_eq!(len, frame.len(), "whole");
                    true
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    false
                }
            }
        }

        fn passes_to(&self, address: IpAddr) -> bool {
            match address {
                IpAddr::V4(address) => {
                    let mut header = vec![0x45; 16];
                    header.extend(address.octets());
                    self.passes(MAC, 0x0800, &header)
                }
                IpAddr::V6(address) => {
                    let mut header = vec![0x60; 24];
                    header.extend(address.octets());
                    self.passes(MAC, 0x86dd, &header)
                }
            }
        }
    }

    fn many() -> Vec<IpAddr> {
        let v4 = (1..=12).map(|n| Ipv4Addr::new(10, 0, 0, n).into());
        let v6 = (1..=12).map(|n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, n, 7).into());
        v4.chain(v6).collect()
    }

    #[test]
    fn only_the_given_addresses_and_groups_pass() {
        let all_v6 = (1..=24).map(|n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, n, 0, 7).into()).collect();
        for addresses in [many(), many()[..1].to_vec(), many()[12..13].to_vec(), all_v6] {
            let kernel = Kernel::new(&addresses);
            for &address in &addresses {
                assert!(kernel.passes_to(address), "{address}");
            }
            for other in
                ["10.0.0.0", "10.0.0.77", "9.0.0.1", "fd00::1:8", "fd00::2:0:0:7", "fe80::1:7"]
            {
                assert!(!kernel.passes_to(other.parse().unwrap()), "{other}");
            }
            for group in ["224.0.0.1", "255.255.255.255", "ff02::1", "ff02::1:ff00:7"] {
                assert!(kernel.passes_to(group.parse().unwrap()), "{group}");
            }
        }
    }

    #[test]
    fn other_ethernet_addresses_do_not_pass() {
        for kernel in [Kernel::new(&many()), Kernel::new(&[])] {
            let arp = [0; 28];
            assert!(kernel.passes(MAC, 0x0806, &arp));
            assert!(kernel.passes(BROADCAST, 0x0806, &arp));
            for at in 0..6 {
                let mut other = MAC;
                other[at] ^= 2;
                assert!(!kernel.passes(other, 0x0806, &arp), "{other:?}");
            }
        }
    }

    #[test]
    fn other_protocols_pass_only_without_addresses() {
        for (addresses, expected) in [(many(), false), (vec![], true)] {
            let kernel = Kernel::new(&addresses);
            assert_eq!(kernel.passes(BROADCAST, 0x88cc, &[0; 46]), expected);
            assert!(kernel.passes(MAC, 0x8100, &[0; 46]), "a tag");
        }
        assert!(Kernel::new(&[]).passes_to("10.0.0.77".parse().unwrap()));
    }

    #[test]
    fn packets_cut_before_their_address_do_not_pass() {
        let kernel = Kernel::new(&many());
        for len in 0..16 {
            assert!(!kernel.passes(MAC, 0x0800, &[10; 20][..len]), "{len} octets");
            assert!(!kernel.passes(MAC, 0x86dd, &[0xfd; 20][..len]), "{len} octets");
        }
    }
}
