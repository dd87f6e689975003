//! Receive ring of a packet socket, `TPACKET_V2`: slots of one length in blocks. The first word of
//! a slot tells whether the kernel or this process owns it.
#![expect(unsafe_code, reason = "slots are memory that the kernel and this process use in turns")]

use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::sys::mapping::Mapping;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingLayout {
    /// Bytes of a slot, a multiple of 16.
    pub(crate) slot_len: usize,
    /// Bytes of a block, a multiple of the page size and at least one slot.
    pub(crate) block_len: usize,
    pub(crate) blocks: usize,
}

impl RingLayout {
    const fn slots_per_block(&self) -> usize {
        self.block_len / self.slot_len
    }

    pub(crate) const fn slots(&self) -> usize {
        self.slots_per_block() * self.blocks
    }

    pub(crate) const fn len(&self) -> usize {
        self.block_len * self.blocks
    }
}

#[derive(Debug)]
pub(crate) struct PacketRing {
    mapping: Mapping,
    layout: RingLayout,
    next: usize,
}

/// The kernel's description of a frame. Nothing in it has been checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotHeader {
    /// `TP_STATUS_*`.
    pub(crate) status: u32,
    pub(crate) len: u32,
    /// Number of its bytes in the slot.
    pub(crate) captured_len: u32,
    /// Offset of the frame in the slot.
    pub(crate) mac_at: u16,
    /// Tag that the kernel removed from the frame.
    pub(crate) vlan_tci: u16,
    /// Type of that tag.
    pub(crate) vlan_tpid: u16,
    /// Time of arrival, since 1970.
    pub(crate) seconds: u32,
    pub(crate) nanos: u32,
}

impl SlotHeader {
    /// Returns hardware type and packet type of a frame, from the address behind the header.
    pub(crate) fn sender(self, slot: &[u8]) -> (u16, u8) {
        let address = slot.get(ADDRESS_AT..ADDRESS_AT + size_of::<libc::sockaddr_ll>());
        let Some(address) = address else { return (0, 0) };
        let at = offset_of!(libc::sockaddr_ll, sll_hatype);
        let hardware = u16::from_ne_bytes([address[at], address[at + 1]]);
        (hardware, address[offset_of!(libc::sockaddr_ll, sll_pkttype)])
    }
}

/// Length of the header, rounded up to 16 as the kernel does (`TPACKET_ALIGN`).
const ADDRESS_AT: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(16);

impl PacketRing {
    /// Panics if the mapping has another length than the layout.
    pub(crate) fn new(mapping: Mapping, layout: RingLayout) -> Self {
        assert_eq!(mapping.len(), layout.len(), "the mapping is the ring");
        Self { mapping, layout, next: 0 }
    }

    pub(crate) const fn slots(&self) -> usize {
        self.layout.slots()
    }

    /// Passes the next slot to `read`, which may change it, and returns it to the kernel.
    pub(crate) fn take<R>(&mut self, read: impl FnOnce(SlotHeader, &mut [u8]) -> R) -> Option<R> {
        let per_block = self.layout.slots_per_block();
        let at = self.next / per_block * self.layout.block_len
            + self.next % per_block * self.layout.slot_len;
        // Acquire: reads the kernel's writes that preceded its store of the status.
        let status = self.mapping.word(at).load(Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the kernel neither reads nor writes a slot marked with TP_STATUS_USER until the
        // mark is removed below, after the last use of the slice.
        let slot = unsafe { self.mapping.octets_mut(at, self.layout.slot_len) };
        let result = read(header(status, slot), slot);
        // Release: all accesses to the slot precede its return to the kernel.
        self.mapping.word(at).store(libc::TP_STATUS_KERNEL, Release);
        self.next = (self.next + 1) % self.layout.slots();
        Some(result)
    }
}

fn header(status: u32, slot: &[u8]) -> SlotHeader {
    let half = |at: usize| u16::from_ne_bytes([slot[at], slot[at + 1]]);
    let word = |at: usize| u32::from_ne_bytes([slot[at], slot[at + 1], slot[at + 2], slot[at + 3]]);
    SlotHeader {
        status,
        len: word(offset_of!(libc::tpacket2_hdr, tp_len)),
        captured_len: word(offset_of!(libc::tpacket2_hdr, tp_snaplen)),
        mac_at: half(offset_of!(libc::tpacket2_hdr, tp_mac)),
        vlan_tci: half(offset_of!(libc::tpacket2_hdr, tp_vlan_tci)),
        vlan_tpid: half(offset_of!(libc::tpacket2_hdr, tp_vlan_tpid)),
        seconds: word(offset_of!(libc::tpacket2_hdr, tp_sec)),
        nanos: word(offset_of!(libc::tpacket2_hdr, tp_nsec)),
    }
}

const _: () = assert!(offset_of!(libc::tpacket2_hdr, tp_status) == 0);
const _: () = assert!(size_of::<libc::tpacket2_hdr>() == 32);

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: RingLayout = RingLayout { slot_len: 1536, block_len: 4096, blocks: 2 };

    fn give(ring: &PacketRing, at: usize) {
        ring.mapping.word(at + 4).store(100 + u32::try_from(at).unwrap(), Release);
        ring.mapping.word(at).store(libc::TP_STATUS_USER, Release);
    }

    #[test]
    fn slots_come_in_order_and_go_back() {
        let mut ring = PacketRing::new(Mapping::fresh(LAYOUT.len()).unwrap(), LAYOUT);
        assert_eq!(LAYOUT.slots(), 4);
        assert!(ring.take(|_, _| ()).is_none());
        for round in 0..3 {
            for at in [0, 1536, 4096, 5632] {
                give(&ring, at);
                let taken = ring.take(|header, slot| (header.len, slot.len()));
                let len = 100 + u32::try_from(at).unwrap();
                assert_eq!(taken, Some((len, 1536)), "slot at {at} in round {round}");
                assert_eq!(ring.mapping.word(at).load(Acquire), libc::TP_STATUS_KERNEL);
                assert!(ring.take(|_, _| ()).is_none());
            }
        }
    }

    /// A slot is returned for any status.
    #[test]
    fn every_slot_goes_back_whatever_its_status() {
        let others = [libc::TP_STATUS_COPY, libc::TP_STATUS_LOSING, libc::TP_STATUS_CSUMNOTREADY];
        let mut ring = PacketRing::new(Mapping::fresh(LAYOUT.len()).unwrap(), LAYOUT);
        for (at, other) in [0, 1536, 4096].into_iter().zip(others) {
            ring.mapping.word(at).store(libc::TP_STATUS_USER | other, Release);
            assert!(ring.take(|_, _| ()).is_some());
            assert_eq!(ring.mapping.word(at).load(Acquire), libc::TP_STATUS_KERNEL, "{other:x}");
        }
    }
}
