//! Framing of IP datagrams on a device: none, an Ethernet header, or one with a VLAN tag.

use urnic_netdev::Medium;

use crate::port::config::VlanId;
use crate::port::drops::FrameDrop;

pub(crate) const ADDRESSES_LEN: usize = 12;
pub(crate) const ETHERNET_LEN: usize = ADDRESSES_LEN + ETHERTYPE_LEN;
pub(crate) const IPV4_LEN: usize = 20;
pub(crate) const IPV6_LEN: usize = 40;
pub(crate) const PROTOCOL_TCP: u8 = 6;
pub(crate) const VLAN_TAG_LEN: usize = 4;
pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(crate) const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_LEN: usize = 2;
/// IEEE 802.1Q §9.6: the low 12 bits of a tag; 0: only a priority.
const VLAN_ID_MASK: u16 = 0x0fff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkFraming {
    Ip,
    Ethernet,
    Tagged(VlanId),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened<'f> {
    /// Both Ethernet addresses; empty without a link layer.
    pub(crate) addresses: &'f [u8],
    pub(crate) ethertype: u16,
    /// The datagram, or other contents, behind the Ethernet header.
    pub(crate) payload: &'f [u8],
}

impl Opened<'_> {
    pub(crate) fn source_mac(&self) -> Option<[u8; 6]> {
        self.addresses.last_chunk().copied()
    }

    /// Returns true if the frame was sent to several hosts, or all, of this link.
    pub(crate) fn is_multicast(&self) -> bool {
        self.addresses.first().is_some_and(|octet| octet & 1 != 0)
    }

    pub(crate) fn write(&self, frame: &mut Vec<u8>) {
        frame.clear();
        if !self.addresses.is_empty() {
            frame.extend_from_slice(self.addresses);
            frame.extend_from_slice(&self.ethertype.to_be_bytes());
        }
        frame.extend_from_slice(self.payload);
    }
}

impl LinkFraming {
    pub(crate) const fn new(medium: Medium, vlan: Option<VlanId>) -> Self {
        match (medium, vlan) {
            (Medium::Ip, _) => Self::Ip,
            (Medium::Ethernet, None) => Self::Ethernet,
            (Medium::Ethernet, Some(vlan)) => Self::Tagged(vlan),
        }
    }

    pub(crate) const fn has_link_layer(self) -> bool {
        !matches!(self, Self::Ip)
    }

    pub(crate) const fn without_tag(self) -> Self {
        if self.has_link_layer() { Self::Ethernet } else { Self::Ip }
    }

    pub(crate) const fn tag(self) -> Option<[u8; VLAN_TAG_LEN]> {
        let Self::Tagged(vlan) = self else { return None };
        let [a, b] = ETHERTYPE_VLAN.to_be_bytes();
        let [c, d] = vlan.bits().to_be_bytes();
        Some([a, b, c, d])
    }

    pub(crate) fn seal(self, frame: &mut Vec<u8>) {
        if let Some(tag) = self.tag() {
            frame.splice(ADDRESSES_LEN..ADDRESSES_LEN, tag);
        }
    }

    #[inline(always)]
    pub(crate) fn open(self, frame: &[u8]) -> Result<Opened<'_>, FrameDrop> {
        if self == Self::Ip {
            let ethertype = match frame.first().map(|octet| octet >> 4) {
                Some(4) => ETHERTYPE_IPV4,
                Some(6) => ETHERTYPE_IPV6,
                _ => return Err(FrameDrop::Malformed),
            };
            return Ok(Opened { addresses: &[], ethertype, payload: frame });
        }
        let (addresses, rest) =
            frame.split_at_checked(ADDRESSES_LEN).ok_or(FrameDrop::Malformed)?;
        let (ethertype, payload) = split_ethertype(rest)?;
        let own = match self {
            Self::Tagged(vlan) => vlan.bits(),
            _ => 0,
        };
        if ethertype != ETHERTYPE_VLAN {
            let opened = Opened { addresses, ethertype, payload };
            return if own == 0 { Ok(opened) } else { Err(FrameDrop::Vlan) };
        }
        let (tag, payload) = split_ethertype(payload)?;
        if tag & VLAN_ID_MASK != own {
            return Err(FrameDrop::Vlan);
        }
        let (ethertype, payload) = split_ethertype(payload)?;
        Ok(Opened { addresses, ethertype, payload })
    }
}

#[inline(always)]
fn split_ethertype(octets: &[u8]) -> Result<(u16, &[u8]), FrameDrop> {
    let (word, rest) = octets.split_first_chunk::<ETHERTYPE_LEN>().ok_or(FrameDrop::Malformed)?;
    Ok((u16::from_be_bytes(*word), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlan(id: u16) -> VlanId {
        VlanId::new(id).unwrap()
    }

    fn frame(tag: Option<u16>) -> Vec<u8> {
        let mut frame = vec![1; 6];
        frame.extend([2; 6]);
        if let Some(tag) = tag {
            frame.extend([0x81, 0x00]);
            frame.extend(tag.to_be_bytes());
        }
        frame.extend([0x08, 0x00, 7, 8, 9]);
        frame
    }

    #[test]
    fn a_port_takes_the_frames_of_its_vlan_only() {
        let (plain, five) = (LinkFraming::Ethernet, LinkFraming::Tagged(vlan(5)));
        // Tag; the untagged port takes it; the port of VLAN 5 takes it. The upper four bits are
        // priority and drop eligibility.
        let cases = [
            (None, true, false),
            (Some(0), true, false),
            (Some(0xe000), true, false),
            (Some(5), false, true),
            (Some(0xf005), false, true),
            (Some(6), false, false),
        ];
        for (tag, by_plain, by_five) in cases {
            let frame = frame(tag);
            for (framing, taken) in [(plain, by_plain), (five, by_five)] {
                match framing.open(&frame) {
                    Ok(opened) => {
                        assert!(taken, "{tag:?} {framing:?}");
                        assert_eq!((opened.ethertype, opened.payload), (0x0800, &[7, 8, 9][..]));
                        assert_eq!(opened.source_mac(), Some([2; 6]));
                    }
                    Err(why) => {
                        assert!(!taken && why == FrameDrop::Vlan, "{tag:?} {framing:?} {why:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn tagged_frame_survives_seal_and_open() {
        let mut tagged = frame(None);
        let framing = LinkFraming::Tagged(vlan(4094));
        framing.seal(&mut tagged);
        let mut back = Vec::new();
        framing.open(&tagged).unwrap().write(&mut back);
        assert_eq!(back, frame(None));
        for len in 0..18 {
            assert!(framing.open(&tagged[..len]).is_err(), "{len} octets");
        }
    }

    #[test]
    fn reserved_identifiers_name_no_vlan() {
        assert_eq!([0, 4095, u16::MAX].map(VlanId::new), [None; 3]);
    }
}
