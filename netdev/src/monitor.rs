//! Packet socket that only receives: every frame that an interface receives and sends, with the
//! kernel's timestamp. Frames longer than a slot of the ring (the kernel merges and sends
//! super-frames) are read whole from the socket's queue. If that is full, only the slot's part is
//! handed over. Such frames, and frames without a slot, are counted.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::OpenError;
use crate::interface::{Control, Name};
pub use crate::link_state::LinkState;
use crate::packet::{BUFFER_LEN, fetch, open, vlan};
use crate::sys::packet_ring::{PacketRing, SlotHeader};
use crate::sys::packet_socket::{self, Membership, PacketOption};

/// Monitor of one Ethernet interface.
#[derive(Debug)]
pub struct Monitor {
    /// Dropped before the socket, which owns the ring.
    ring: PacketRing,
    socket: File,
    control: Control,
    name: Name,
    interface_index: u32,
    buffer: Box<[u8]>,
    dropped: u64,
}

/// A frame as it passed the interface.
#[derive(Debug)]
pub struct MonitoredFrame<'a> {
    /// Kernel's timestamp, in nanoseconds since 1970.
    pub at_ns: u64,
    /// True if the frame was sent, false if it was received.
    pub is_outbound: bool,
    /// Length of the whole frame. Larger than the length of `bytes` if the frame was cut.
    pub original_len: usize,
    /// Bytes from the Ethernet header on, with VLAN tags; a checksum left to the device is
    /// incomplete.
    pub bytes: &'a [u8],
}

impl Monitor {
    /// Monitors an interface, which also receives frames for other stations meanwhile (promiscuous
    /// mode). An [`OpenError`] names a remedy.
    pub fn open(name: Name) -> Result<Self, OpenError> {
        let failed = |error| open::failed(name, "capture from", error);
        let control = Control::new().map_err(failed)?;
        let interface_index =
            control.index(name).map_err(|_| OpenError::unknown_interface(name))?;
        control.mac(name).map_err(|_| OpenError::WrongKind {
            name,
            wanted: "an Ethernet interface",
            remedy: "capture with `tcpdump -w FILE` and read that by `urnic replay`".to_owned(),
        })?;
        let mtu = control.mtu(name).map_err(failed)?;
        let socket = packet_socket::open().map_err(|error| open::open_error(name, error))?;
        let fd = socket.as_fd();
        let ring = packet_socket::set_option(fd, PacketOption::COPY_THRESHOLD, 1).and_then(|()| {
            packet_socket::set_buffers(fd, 0, RECEIVE_BUFFER_LEN);
            let slot_len = open::layout(mtu, 1).slot_len;
            packet_socket::receive_ring(fd, open::layout(mtu, RING_FRAMES.min(RING_LEN / slot_len)))
        });
        let ring = ring.map_err(failed)?;
        packet_socket::bind(fd, interface_index)
            .and_then(|()| packet_socket::join(fd, interface_index, Membership::Promiscuous))
            .map_err(failed)?;
        let buffer = vec![0; BUFFER_LEN].into_boxed_slice();
        let socket = File::from(socket);
        Ok(Self { ring, socket, control, name, interface_index, buffer, dropped: 0 })
    }

    /// Hands over at most `burst` waiting frames. Returns the number of slots read. The loopback
    /// interface shows each frame twice; only the received one is handed over.
    pub fn receive(&mut self, burst: usize, sink: &mut dyn FnMut(MonitoredFrame<'_>)) -> usize {
        let Self { ring, socket, buffer, dropped, .. } = self;
        let mut count = 0;
        while count < burst {
            let taken = ring.take(|header, slot| {
                let is_again = is_shown_again(&header, slot);
                let Some(frame) = frame_in(header, slot, socket, buffer) else {
                    *dropped += u64::from(!is_again);
                    return;
                };
                *dropped += u64::from(frame.original_len > frame.bytes.len());
                sink(frame);
            });
            if taken.is_none() {
                break;
            }
            count += 1;
        }
        count
    }

    /// Returns the number of frames so far that found no slot, or were cut.
    pub fn dropped(&mut self) -> io::Result<u64> {
        // Reading the kernel's count resets it.
        self.dropped += u64::from(packet_socket::drops(self.socket.as_fd())?);
        Ok(self.dropped)
    }

    /// Returns a descriptor that is readable when there are frames.
    #[must_use]
    pub fn readiness(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the state of the interface. A later one of the same name delivers no frames here.
    #[must_use]
    pub fn link_state(&self) -> LinkState {
        match (self.control.index(self.name), self.control.flags(self.name)) {
            (Ok(index), Ok(flags)) if index == self.interface_index => match flags.up() {
                true => LinkState::Up,
                false => LinkState::Down,
            },
            _ => LinkState::Gone,
        }
    }

    /// Takes the socket's pending error, such as that of an interface going down.
    pub fn take_error(&mut self) -> Option<io::Error> {
        packet_socket::take_error(self.socket.as_fd())
    }
}

/// Returns true if the loopback interface shows the slot's frame a second time.
fn is_shown_again(header: &SlotHeader, slot: &[u8]) -> bool {
    let (hardware, packet_type) = header.sender(slot);
    hardware == libc::ARPHRD_LOOPBACK && packet_type == libc::PACKET_OUTGOING
}

/// `None` for a frame that is shown twice, or is invalid.
fn frame_in<'a>(
    header: SlotHeader,
    slot: &'a mut [u8],
    queue: &File,
    buffer: &'a mut [u8],
) -> Option<MonitoredFrame<'a>> {
    let is_outbound = header.sender(slot).1 == libc::PACKET_OUTGOING;
    let is_again = is_shown_again(&header, slot);
    let is_waiting = header.status & libc::TP_STATUS_COPY != 0;
    let (memory, at, len) = if is_waiting {
        let room = buffer.get_mut(ROOM_FOR_TAG..)?;
        let len = fetch(queue, room)?;
        (buffer, ROOM_FOR_TAG, len)
    } else {
        (slot, usize::from(header.mac_at), usize::try_from(header.captured_len).ok()?)
    };
    if is_again {
        return None;
    }
    let memory = memory.get_mut(..at.checked_add(len)?)?;
    let original_len = usize::try_from(header.len).ok()?.max(len);
    let at_ns = u64::from(header.seconds) * 1_000_000_000 + u64::from(header.nanos);
    let has_tag = header.status & libc::TP_STATUS_VLAN_VALID != 0;
    if !has_tag {
        return Some(MonitoredFrame { at_ns, is_outbound, original_len, bytes: memory.get(at..)? });
    }
    let tpid = match header.status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => vlan::TPID,
        _ => header.vlan_tpid,
    };
    let bytes = vlan::put_back(memory, at, tpid, header.vlan_tci)?;
    let original_len = original_len + crate::ethernet::TAG_LEN;
    Some(MonitoredFrame { at_ns, is_outbound, original_len, bytes })
}

/// A quarter of a second of 1 Gbit/s in frames of 1500 bytes; super-frames last much longer.
const RING_FRAMES: usize = 16_384;
/// Length of the ring if frames are large, as on the loopback interface.
const RING_LEN: usize = 32 << 20;
/// Receive buffer for super-frames that exceed their slots.
const RECEIVE_BUFFER_LEN: i32 = 32 << 20;
const ROOM_FOR_TAG: usize = crate::ethernet::TAG_LEN;

#[cfg(test)]
mod tests {
    use super::*;

    const AT: usize = 66;

    fn header(status: u32, len: u32) -> SlotHeader {
        let mac_at = u16::try_from(AT).unwrap();
        let (vlan_tci, vlan_tpid) = (0x2005, 0x88a8);
        let (seconds, nanos) = (3, 7);
        let captured_len = len;
        SlotHeader { status, len, captured_len, mac_at, vlan_tci, vlan_tpid, seconds, nanos }
    }

    /// Builds a slot of a sender of this kind.
    fn slot(hardware: u16, packet_type: u8) -> Vec<u8> {
        let mut slot: Vec<u8> = (0..200).collect();
        slot[40..42].copy_from_slice(&hardware.to_ne_bytes());
        slot[42] = packet_type;
        slot
    }

    #[test]
    fn a_frame_is_given_with_its_time_and_direction() {
        let none = File::open("/dev/null").unwrap();
        for (kind, is_outbound) in [(libc::PACKET_OUTGOING, true), (libc::PACKET_HOST, false)] {
            let mut slot = slot(libc::ARPHRD_ETHER, kind);
            let found = frame_in(header(0, 60), &mut slot, &none, &mut []).unwrap();
            assert_eq!((found.at_ns, found.is_outbound), (3_000_000_007, is_outbound));
            let octets: Vec<u8> = (66..126).collect();
            assert_eq!((found.bytes, found.original_len), (&octets[..], 60));
        }
    }

    #[test]
    fn a_tag_is_put_back_and_what_is_cut_is_longer_than_its_octets() {
        let none = File::open("/dev/null").unwrap();
        let mut slot = slot(libc::ARPHRD_ETHER, 0);
        let tagged = SlotHeader { len: 1000, ..header(libc::TP_STATUS_VLAN_VALID, 60) };
        let found = frame_in(tagged, &mut slot, &none, &mut []).unwrap();
        assert_eq!(found.bytes[12..16], [0x81, 0x00, 0x20, 0x05]);
        assert_eq!((found.bytes.len(), found.original_len), (64, 1004));
    }

    #[test]
    fn duplicate_and_malformed_slots_give_no_frame() {
        let none = File::open("/dev/null").unwrap();
        let mut looped = slot(libc::ARPHRD_LOOPBACK, libc::PACKET_OUTGOING);
        assert!(is_shown_again(&header(0, 60), &looped));
        assert!(frame_in(header(0, 60), &mut looped, &none, &mut []).is_none());
        let mut slot = slot(libc::ARPHRD_ETHER, 0);
        assert!(!is_shown_again(&header(0, 60), &slot));
        for wrong in [header(0, 135), SlotHeader { mac_at: u16::MAX, ..header(0, 60) }] {
            assert!(frame_in(wrong, &mut slot, &none, &mut []).is_none());
        }
        let waiting = header(libc::TP_STATUS_COPY, 60);
        let mut buffer = [0; 100];
        let queue = File::open("/dev/zero").unwrap();
        let found = frame_in(waiting, &mut slot, &queue, &mut buffer).unwrap();
        assert_eq!(found.bytes.len(), 96);
        assert!(frame_in(header(0, 60), &mut [], &none, &mut []).is_none());
    }
}
