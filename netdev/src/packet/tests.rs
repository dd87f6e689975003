//! Checks of ring entries; whole devices are tested in network namespaces.

use super::*;
use crate::RxChecksum;

const AT: usize = 76;

fn header(status: u32, len: usize) -> SlotHeader {
    let len = u32::try_from(len).unwrap();
    let mac_at = u16::try_from(AT).unwrap();
    let status = status | libc::TP_STATUS_USER;
    SlotHeader {
        status,
        len,
        captured_len: len,
        mac_at,
        vlan_tci: 0x2005,
        vlan_tpid: 0x88a8,
        seconds: 0,
        nanos: 0,
    }
}

/// Returns a slot with the frame behind an empty `virtio_net_hdr`.
fn slot(frame: &[u8]) -> Vec<u8> {
    let mut slot = vec![0; 1700];
    slot[AT..AT + frame.len()].copy_from_slice(frame);
    slot
}

/// Returns an empty queue.
fn empty() -> File {
    File::open("/dev/null").unwrap()
}

#[test]
fn frame_is_read_from_its_slot() {
    let frame: Vec<u8> = (0..100).collect();
    let mut slot = slot(&frame);
    let found = frame_in(header(0, 100), &mut slot, &empty(), &mut []).unwrap();
    assert_eq!(found.head, frame);
    assert_eq!((found.checksum, found.segment_size), (RxChecksum::Unverified, None));
}

#[test]
fn a_tag_is_put_back() {
    let frame: Vec<u8> = (0..100).collect();
    for (status, kind) in [(0, [0x81, 0x00]), (libc::TP_STATUS_VLAN_TPID_VALID, [0x88, 0xa8])] {
        let status = status | libc::TP_STATUS_VLAN_VALID;
        let mut slot = slot(&frame);
        let found = frame_in(header(status, 100), &mut slot, &empty(), &mut []).unwrap();
        assert_eq!(found.head[..12], frame[..12]);
        assert_eq!(found.head[12..14], kind);
        assert_eq!(found.head[14..16], [0x20, 0x05]);
        assert_eq!(found.head[16..], frame[12..]);
    }
}

#[test]
fn a_checksum_is_still_found_behind_a_tag() {
    let mut frame = vec![0; 60];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[23] = 6;
    let mut slot = slot(&frame);
    slot[AT - 10] = 1;
    slot[AT - 4..AT - 2].copy_from_slice(&34u16.to_ne_bytes());
    slot[AT - 2..AT].copy_from_slice(&16u16.to_ne_bytes());
    let status = libc::TP_STATUS_VLAN_VALID;
    let found = frame_in(header(status, 60), &mut slot, &empty(), &mut []).unwrap();
    assert_eq!(found.checksum, RxChecksum::Valid);
}

#[test]
fn malformed_slots_give_no_frame() {
    let mut slot = slot(&[7; 100]);
    let good = header(0, 100);
    let mut bad = vec![
        SlotHeader { captured_len: 99, ..good },
        SlotHeader { len: 99, ..good },
        SlotHeader { mac_at: 9, ..good },
        SlotHeader { mac_at: 0, ..good },
        SlotHeader { mac_at: u16::MAX, ..good },
        SlotHeader { mac_at: 1601, ..good },
        SlotHeader { len: u32::MAX, captured_len: u32::MAX, ..good },
        SlotHeader { len: 1700, captured_len: 1700, ..good },
    ];
    // The kernel reports that the whole frame waits, but there is none.
    bad.push(SlotHeader { status: libc::TP_STATUS_COPY, ..good });
    for tagged_len in 0..14 {
        bad.push(header(libc::TP_STATUS_VLAN_VALID, tagged_len));
    }
    for header in bad {
        let mut buffer = [0; 64];
        let found = frame_in(header, &mut slot, &empty(), &mut buffer);
        assert!(found.is_none(), "{header:?}");
    }
    assert!(frame_in(good, &mut slot, &empty(), &mut []).is_some());
}

/// A slot's frame in the socket's queue is read even if a read returns a pending error first.
/// Otherwise each later slot would get the frame of the slot before it.
#[test]
fn an_error_that_waits_on_the_socket_does_not_leave_its_frame_behind() {
    use std::net::UdpSocket;
    use std::os::fd::OwnedFd;
    let queue = UdpSocket::bind("127.0.0.1:0").unwrap();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    queue.connect(peer.local_addr().unwrap()).unwrap();
    queue.set_nonblocking(true).unwrap();
    let waiting = |first: u8| [vec![0; vnet::HEADER_LEN], vec![first; 20]].concat();
    for first in [1, 2] {
        peer.send_to(&waiting(first), queue.local_addr().unwrap()).unwrap();
    }
    drop(peer);
    // The port is closed: the error is pending on the socket, before the two frames.
    queue.send(&[0]).unwrap();
    let queue = File::from(OwnedFd::from(queue));
    let mut buffer = [0; 64];
    for first in [1, 2] {
        let header = header(libc::TP_STATUS_COPY, 20);
        let frame = frame_in(header, &mut [], &queue, &mut buffer).unwrap();
        assert_eq!(frame.head, [first; 20]);
    }
    let none = frame_in(header(libc::TP_STATUS_COPY, 20), &mut [], &queue, &mut buffer);
    assert!(none.is_none(), "nothing waits");
}
