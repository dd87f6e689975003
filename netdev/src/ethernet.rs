//! Finds the network header of an Ethernet frame.

/// Length of an untagged Ethernet header, in bytes.
pub(crate) const HEADER_LEN: usize = 14;
/// Length of one VLAN tag, in bytes.
pub(crate) const TAG_LEN: usize = 4;
/// EtherType of IPv4.
pub(crate) const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub(crate) const IPV6: u16 = 0x86dd;

/// Returns the offset of the network header, and its EtherType, behind any number of VLAN tags.
/// `None` if the frame ends before.
#[inline]
pub(crate) fn network_header(frame: &[u8]) -> Option<(usize, u16)> {
    skip_tags(frame, HEADER_LEN, word(frame, HEADER_LEN - 2)?)
}

/// Skips VLAN tags from `at` on, the place of the content that `ethertype` announced.
pub(crate) fn skip_tags(frame: &[u8], mut at: usize, mut ethertype: u16) -> Option<(usize, u16)> {
    while is_tag(ethertype) {
        ethertype = word(frame, at + 2)?;
        at += TAG_LEN;
    }
    Some((at, ethertype))
}

/// Returns true for the EtherTypes of IEEE 802.1Q and 802.1ad tags, and for the older number of the
/// latter.
fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, 0x8100 | 0x88a8 | 0x9100)
}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]))
}
