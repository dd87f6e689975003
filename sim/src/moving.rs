//! Hosts of a switch that get another link address while data is in flight, like a virtual machine
//! that moves or a standby that takes over. Frames to the old address reach no host.
//!
//! A port keeps its first link address. The switch replaces it by the present one in frames of the
//! host and in their ARP and NDP messages, and the present one by the first in frames to the host.

use crate::address::{address_v4, address_v6};
use crate::guess::{fold, sum};

const ADDRESS_LEN: usize = 6;
const ETHERNET_LEN: usize = 14;
const IPV6_LEN: usize = 40;
/// Offset without extension headers.
const ICMPV6: usize = ETHERNET_LEN + IPV6_LEN;
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const NEXT_HEADER_ICMPV6: u8 = 58;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
/// Offset of the options in both messages, from the start of ICMPv6 (RFC 4861 §4.3, §4.4).
const NDP_OPTIONS: usize = 24;
/// No port of the switch has this link address.
const MADE_UP: [u8; ADDRESS_LEN] = [0x06, 0, 0, 0, 0, 0];

#[derive(Debug)]
pub(crate) struct Movers {
    moves: Vec<u8>,
    made_up: u32,
    pub(crate) astray: u64,
}

impl Movers {
    pub(crate) fn new(hosts: usize) -> Self {
        Self { moves: vec![0; hosts], made_up: 0, astray: 0 }
    }

    pub(crate) fn move_host(&mut self, host: usize) {
        self.moves[host] = self.moves[host].wrapping_add(1);
    }

    fn address(&self, host: usize) -> [u8; ADDRESS_LEN] {
        let [a, _, rest @ ..] = own_address(host);
        let [c, d, e, f] = rest;
        [a, self.moves[host], c, d, e, f]
    }

    /// Replaces the address in a frame that the host sends.
    pub(crate) fn leave(&self, host: usize, frame: &mut [u8]) {
        if self.moves[host] == 0 {
            return;
        }
        let (own, present) = (own_address(host), self.address(host));
        let replace = |frame: &mut [u8], at: usize| {
            if let Some(found) = frame.get_mut(at..at + ADDRESS_LEN)
                && *found == own
            {
                found.copy_from_slice(&present);
            }
        };
        replace(frame, ADDRESS_LEN);
        let ethertype = frame.get(12..14).and_then(|bytes| bytes.try_into().ok());
        match ethertype {
            Some(ETHERTYPE_ARP) => replace(frame, ETHERNET_LEN + 8),
            Some(ETHERTYPE_IPV6) if is_ndp(frame) => {
                let mut at = ICMPV6 + NDP_OPTIONS;
                // Each option begins with its type and its length in units of eight bytes.
                while let Some(units) = frame.get(at + 1).copied().filter(|units| *units > 0) {
                    replace(frame, at + 2);
                    at += 8 * usize::from(units);
                }
                finish_icmpv6(frame);
            }
            _ => {}
        }
    }

    /// Replaces the destination's present address by its own. `None` if no host has it now.
    pub(crate) fn arrive(&mut self, frame: &mut [u8]) -> Option<usize> {
        let to: [u8; ADDRESS_LEN] = *frame.first_chunk()?;
        let host = usize::from(to[ADDRESS_LEN - 1]).checked_sub(1)?;
        if host >= self.moves.len() {
            return None;
        }
        if to != self.address(host) {
            self.astray += 1;
            return None;
        }
        frame[..ADDRESS_LEN].copy_from_slice(&own_address(host));
        Some(host)
    }

    /// A gratuitous ARP request (RFC 5227 §3), and a Neighbor Advertisement (RFC 4861 §7.2.6).
    pub(crate) fn announcements(&self, host: usize) -> [Vec<u8>; 2] {
        let present = self.address(host);
        let own = address_v4(host).octets();
        [arp_request(present, own, own), advertisement(present, host)]
    }

    /// An ARP request that adds a new made-up host to the neighbour table of `host`.
    pub(crate) fn made_up(&mut self, host: usize) -> Vec<u8> {
        let [_, b, c, d] = self.made_up.to_be_bytes();
        self.made_up += 1;
        arp_request(MADE_UP, [10, 64 + b, c, d], address_v4(host).octets())
    }
}

/// The first link address, which the port keeps.
fn own_address(host: usize) -> [u8; ADDRESS_LEN] {
    let [a, b, c, d] = address_v4(host).octets();
    [0x02, 0, a, b, c, d]
}

fn is_ndp(frame: &[u8]) -> bool {
    frame.get(ETHERNET_LEN + 6) == Some(&NEXT_HEADER_ICMPV6)
        && matches!(frame.get(ICMPV6), Some(&(NEIGHBOR_SOLICITATION | NEIGHBOR_ADVERTISEMENT)))
}

/// RFC 826.
fn arp_request(mac: [u8; 6], sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0xff; ADDRESS_LEN];
    frame.extend(mac);
    frame.extend(ETHERTYPE_ARP);
    frame.extend([0, 1, 0x08, 0, 6, 4, 0, 1]);
    frame.extend(mac);
    frame.extend(sender);
    frame.extend([0; ADDRESS_LEN]);
    frame.extend(target);
    frame
}

/// Advertises to all nodes, and overrides known addresses.
fn advertisement(mac: [u8; 6], host: usize) -> Vec<u8> {
    let own = address_v6(host).octets();
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1];
    frame.extend(mac);
    frame.extend(ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0, 0, 32, NEXT_HEADER_ICMPV6, 255]);
    frame.extend(own);
    frame.extend([0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    frame.extend([NEIGHBOR_ADVERTISEMENT, 0, 0, 0, 0x20, 0, 0, 0]);
    frame.extend(own);
    frame.extend([2, 1]);
    frame.extend(mac);
    finish_icmpv6(&mut frame);
    frame
}

/// RFC 4443 §2.3.
fn finish_icmpv6(frame: &mut [u8]) {
    let len = (frame.len() - ICMPV6) as u64;
    frame[ICMPV6 + 2..ICMPV6 + 4].fill(0);
    let pseudo = sum(&frame[ETHERNET_LEN + 8..ICMPV6]) + len + u64::from(NEXT_HEADER_ICMPV6);
    let checksum = !fold(pseudo + sum(&frame[ICMPV6..]));
    frame[ICMPV6 + 2..ICMPV6 + 4].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_has_moved_is_reached_at_its_new_address_only() {
        let mut movers = Movers::new(3);
        let mut frame = vec![0; 60];
        frame[..ADDRESS_LEN].copy_from_slice(&own_address(1));
        assert_eq!(movers.arrive(&mut frame), Some(1));
        movers.move_host(1);
        assert_eq!((movers.arrive(&mut frame), movers.astray), (None, 1));
        frame[..ADDRESS_LEN].copy_from_slice(&movers.address(1));
        assert_eq!((movers.arrive(&mut frame), movers.astray), (Some(1), 1));
        assert_eq!(frame[..ADDRESS_LEN], own_address(1), "its port hears its own address");
        frame[..ADDRESS_LEN].copy_from_slice(&MADE_UP);
        assert_eq!((movers.arrive(&mut frame), movers.astray), (None, 1));
    }

    #[test]
    fn messages_of_arp_and_ndp_tell_the_new_address() {
        let mut movers = Movers::new(2);
        movers.move_host(0);
        let (own, present) = (own_address(0), movers.address(0));
        for told in movers.announcements(0) {
            let mut said = told.clone();
            for at in 0..said.len() - ADDRESS_LEN + 1 {
                if said[at..at + ADDRESS_LEN] == present {
                    said[at..at + ADDRESS_LEN].copy_from_slice(&own);
                }
            }
            assert_ne!(said, told);
            movers.leave(0, &mut said);
            assert_eq!(said, told);
        }
        let mut other = movers.announcements(1)[0].clone();
        let before = other.clone();
        movers.leave(1, &mut other);
        assert_eq!(other, before, "a host that has not moved");
    }
}
