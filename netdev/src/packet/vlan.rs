//! VLAN tags: the kernel removes the outermost one from a frame before packet sockets receive it.

/// Usual tag type (IEEE 802.1Q).
pub(crate) const TPID: u16 = 0x8100;

/// Length of both Ethernet addresses.
const ADDRESSES_LEN: usize = 12;

/// Restores a tag in the frame that begins at offset `at` of `memory`, using the four bytes before
/// it. Returns the tagged frame; `None` if there is no room, or no Ethernet header.
pub(crate) fn put_back(memory: &mut [u8], at: usize, tpid: u16, tci: u16) -> Option<&mut [u8]> {
    let begin = at.checked_sub(crate::ethernet::TAG_LEN)?;
    let frame = memory.get_mut(begin..)?;
    if frame.len() < crate::ethernet::HEADER_LEN + crate::ethernet::TAG_LEN {
        return None;
    }
    frame.copy_within(crate::ethernet::TAG_LEN..crate::ethernet::TAG_LEN + ADDRESSES_LEN, 0);
    frame[ADDRESSES_LEN..ADDRESSES_LEN + 2].copy_from_slice(&tpid.to_be_bytes());
    frame[ADDRESSES_LEN + 2..ADDRESSES_LEN + 4].copy_from_slice(&tci.to_be_bytes());
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlan_tag_is_restored_behind_the_addresses() {
        let mut memory = vec![0xee; 6];
        memory.extend(1..=12);
        memory.extend([0x08, 0x00, 99, 98]);
        let frame = put_back(&mut memory, 6, TPID, 0x2005).unwrap();
        let mut expected: Vec<u8> = (1..=12).collect();
        expected.extend([0x81, 0x00, 0x20, 0x05, 0x08, 0x00, 99, 98]);
        assert_eq!(frame, expected);
    }

    #[test]
    fn without_room_or_header_no_vlan_tag_is_restored() {
        assert_eq!(put_back(&mut [0; 64], 3, TPID, 1), None);
        assert_eq!(put_back(&mut [0; 17], 4, TPID, 1), None);
        assert_eq!(put_back(&mut [0; 17], 30, TPID, 1), None);
        assert!(put_back(&mut [0; 18], 4, TPID, 1).is_some());
    }
}
