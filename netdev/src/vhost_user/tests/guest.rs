//! A backend, and a driver controlled by a test, with buffers like a virtual machine's.

use std::fs::File;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{frame, later, path, receive};
use crate::digests::tests::{digests_every, expected};
use crate::peer::channel::{Channel, Message};
use crate::peer::closer::Closer;
use crate::peer::header::Header;
use crate::peer::tell;
use crate::sys::digester::tests::ADDER;
use crate::sys::published;
use crate::sys::shared_mapping::{sealed_huge_memory, sealed_memory};
use crate::vhost_user::message::{
    MemoryRegion, PROTOCOL_CONFIGURE_MEM_SLOTS, PROTOCOL_REPLY_ACK, Request,
};
use crate::vhost_user::offload::{MRG_RXBUF, OFFLOADS, PROTOCOL_FEATURES, VERSION_1};
use crate::vhost_user::{CONTROL_INTERVAL_NS, VhostUser, VhostUserConfig};
use crate::virtqueue::{Direction, DriverQueue, Layout, MemoryTable};
use crate::{Device, Digests, SharedSlice, TransmitError, TxChecksum, TxFrame};

/// A frontend controlled by a test, like a guest with small buffers.
pub(super) struct Guest {
    pub(super) channel: Channel,
    table: MemoryTable,
    pub(super) file: OwnedFd,
    queues: [DriverQueue; 2],
    events: Vec<OwnedFd>,
}

pub(super) const GUEST_LEN: usize = 1 << 20;
pub(super) const GUEST_BASE: u64 = 1 << 20;
const GUEST_QUEUE: u16 = 64;
/// Length of each receive buffer.
const GUEST_BUFFER: u64 = 1526;

impl Guest {
    /// Sets up a virtqueue pair at the socket; `turn` polls the backend.
    pub(super) fn new(path: &Path, features: u64, mut turn: impl FnMut()) -> Self {
        let channel = Channel::new(UnixStream::connect(path).unwrap(), Closer::default()).unwrap();
        let file = sealed_memory(c"guest", GUEST_LEN).unwrap();
        let mut table = MemoryTable::default();
        let numbers = [GUEST_BASE, GUEST_BASE, GUEST_LEN as u64, 0];
        table.add(numbers, file.as_fd()).unwrap();
        let parts = |index: u64| [0, 4096, 8192].map(|at| GUEST_BASE + index * 16_384 + at);
        let layout = |index| Layout::new(&table, GUEST_QUEUE, parts(index)).unwrap();
        let queues = [DriverQueue::new(layout(0), false), DriverQueue::new(layout(1), false)];
        let mut guest = Self { channel, table, file, queues, events: Vec::new() };
        guest.say(&Request::SetFeatures(features), &[]);
        let len = GUEST_LEN as u64;
        let region = MemoryRegion { guest: GUEST_BASE, len, user: GUEST_BASE, offset: 0 };
        let file = guest.file.try_clone().unwrap();
        guest.say(&Request::SetMemoryTable(vec![region]), &[file]);
        for index in 0..2 {
            guest.say(&Request::SetVringSize { index, size: GUEST_QUEUE }, &[]);
            let addresses = parts(u64::from(index));
            guest.say(&Request::SetVringAddresses { index, parts: addresses }, &[]);
            for has_descriptor in [true, false] {
                let event = tell::event().unwrap();
                let request = if has_descriptor {
                    Request::SetVringKick { index, has_descriptor: true }
                } else {
                    Request::SetVringCall { index, has_descriptor: true }
                };
                guest.say(&request, &[event.try_clone().unwrap()]);
                guest.events.push(event);
            }
            guest.say(&Request::SetVringEnable { index, enabled: true }, &[]);
        }
        for number in 0..GUEST_QUEUE {
            let len = u32::try_from(GUEST_BUFFER).unwrap();
            guest.queues[0].offer(
                &guest.table,
                number,
                guest_buffer(number),
                len,
                Direction::ToDriver,
            );
        }
        guest.queues[0].publish(&guest.table);
        turn();
        guest
    }

    pub(super) fn say(&self, request: &Request, files: &[OwnedFd]) {
        let (id, body) = request.encode();
        let header = Header::of_request(id, u32::try_from(body.len()).unwrap(), false);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        self.channel.send(header, &body, &files).unwrap();
    }

    /// Sends a request. Returns the answer: zero for success.
    pub(super) fn ask(&mut self, request: &Request, files: &[OwnedFd], turn: impl FnOnce()) -> u64 {
        let (id, body) = request.encode();
        let header = Header::of_request(id, u32::try_from(body.len()).unwrap(), true);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        self.channel.send(header, &body, &files).unwrap();
        turn();
        let answer = self.answer().expect("an answer");
        u64::from_ne_bytes(answer.body[..].try_into().unwrap())
    }

    /// Makes frames of 100 bytes available, or invalid buffers.
    fn offer_frames(&mut self, count: u16, direction: Direction) {
        for number in 0..count {
            self.queues[1].offer(&self.table, number, guest_buffer(number), 112, direction);
        }
        self.queues[1].publish(&self.table);
    }

    fn answer(&mut self) -> Option<Message> {
        self.channel.receive().unwrap()
    }
}

fn guest_buffer(number: u16) -> u64 {
    GUEST_BASE + 65_536 + u64::from(number) * 2048
}

pub(super) const GUEST_FEATURES: u64 = VERSION_1 | PROTOCOL_FEATURES | MRG_RXBUF | OFFLOADS;

/// Returns a backend, and a guest connected to it.
fn guest(features: u64) -> (VhostUser, Guest) {
    let config = VhostUserConfig::backend(path());
    let mut backend = VhostUser::open(&config).unwrap();
    let mut now = 0;
    let guest = Guest::new(&config.path, features, || {
        receive(&mut backend, later(&mut now));
    });
    receive(&mut backend, later(&mut now));
    (backend, guest)
}

#[test]
fn a_super_frame_takes_many_small_buffers() {
    let (mut backend, mut guest) = guest(GUEST_FEATURES);
    assert!(backend.link_up());
    let octets = frame(60_000);
    let payload: Vec<_> = octets[54..].chunks(700).map(SharedSlice::from_bytes).collect();
    let sent = TxFrame {
        head: &octets[..54],
        payload: &payload,
        checksum: TxChecksum::Partial { start: 34, offset: 16 },
        segment_size: NonZeroU16::new(1400),
        digests: None,
    };
    for round in 0..10 {
        // Digests, and the bytes that they cover, cross the ends of buffers.
        let digests = digests_every(1400 - round, 59_946, round % 2 == 0);
        let digests = Digests { digests: &digests, base: 0, digester: &ADDER };
        let sent = TxFrame { digests: (round > 0).then_some(digests), ..sent };
        backend.transmit(0, &sent).unwrap();
        backend.flush(0);
        // 60,066 bytes in buffers of 1526.
        assert_eq!(guest.queues[0].waiting(&guest.table), Ok(40));
        let mut came = Vec::new();
        for _ in 0..40 {
            let (number, len) = guest.queues[0].take(&guest.table).unwrap();
            let run = guest.table.user_run(guest_buffer(number), len as usize).unwrap();
            let mut part = vec![0; len as usize];
            guest.table.copy_out(run, &mut part);
            came.extend_from_slice(&part);
            let len = u32::try_from(GUEST_BUFFER).unwrap();
            let at = guest_buffer(number);
            guest.queues[0].offer(&guest.table, number, at, len, Direction::ToDriver);
        }
        assert_eq!(came[10..12], [40, 0], "the count of buffers");
        assert_eq!(came[12..66], octets[..54]);
        assert!(came[66..] == expected(&payload, sent.digests));
        guest.queues[0].publish(&guest.table);
    }
    // The next frame finds only 24 buffers, until there are more.
    backend.transmit(0, &sent).unwrap();
    assert_eq!(backend.transmit(0, &sent), Err(TransmitError::Full));
    assert_eq!(backend.transmit_room(), 0);
    backend.flush(0);
    for _ in 0..40 {
        let (number, _) = guest.queues[0].take(&guest.table).unwrap();
        let len = u32::try_from(GUEST_BUFFER).unwrap();
        guest.queues[0].offer(&guest.table, number, guest_buffer(number), len, Direction::ToDriver);
    }
    guest.queues[0].publish(&guest.table);
    assert!(backend.transmit_room() > 0);
    backend.transmit(0, &sent).unwrap();
}

#[test]
fn a_guest_without_merged_buffers_gets_what_fits_in_one() {
    let (mut backend, guest) = guest(VERSION_1 | PROTOCOL_FEATURES);
    assert!(backend.link_up());
    assert_eq!(backend.capabilities().segmentation_len_max, None);
    backend.transmit(0, &TxFrame::whole(&frame(1400))).unwrap();
    backend.flush(0);
    assert_eq!(guest.queues[0].waiting(&guest.table), Ok(1));
}

#[test]
fn a_frame_that_does_not_fit_takes_no_buffer() {
    let config = VhostUserConfig { mtu: 9000, ..VhostUserConfig::backend(path()) };
    let mut backend = VhostUser::open(&config).unwrap();
    let guest = Guest::new(&config.path, VERSION_1 | PROTOCOL_FEATURES, || ());
    receive(&mut backend, 1 << 30);
    assert!(backend.link_up());
    for _ in 0..2 * GUEST_QUEUE {
        let sent = backend.transmit(0, &TxFrame::whole(&frame(3000)));
        assert_eq!(sent, Err(TransmitError::TooLong));
    }
    for _ in 0..GUEST_QUEUE {
        backend.transmit(0, &TxFrame::whole(&frame(1400))).unwrap();
    }
    backend.flush(0);
    assert_eq!(guest.queues[0].waiting(&guest.table), Ok(GUEST_QUEUE));
}

#[test]
fn a_legacy_driver_has_no_link() {
    let (backend, _guest) = guest(PROTOCOL_FEATURES | MRG_RXBUF);
    assert!(!backend.link_up());
}

/// The next frontend begins with queues in an unknown state.
#[test]
fn a_session_leaves_nothing_for_the_next() {
    let config = VhostUserConfig::backend(path());
    let mut backend = VhostUser::open(&config).unwrap();
    let mut now = 0;
    let first = Guest::new(&config.path, GUEST_FEATURES, || ());
    receive(&mut backend, later(&mut now));
    assert!(backend.link_up());
    drop(first);
    receive(&mut backend, later(&mut now));
    let next = Channel::new(UnixStream::connect(&config.path).unwrap(), Closer::default()).unwrap();
    let say = |request: &Request, files: &[OwnedFd]| {
        let (id, body) = request.encode();
        let header = Header::of_request(id, u32::try_from(body.len()).unwrap(), false);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        next.send(header, &body, &files).unwrap();
    };
    say(&Request::SetFeatures(GUEST_FEATURES), &[]);
    let region =
        MemoryRegion { guest: GUEST_BASE, len: GUEST_LEN as u64, user: GUEST_BASE, offset: 0 };
    say(&Request::SetMemoryTable(vec![region]), &[sealed_memory(c"next", GUEST_LEN).unwrap()]);
    for index in 0..2 {
        let kick = tell::event().unwrap();
        say(&Request::SetVringKick { index, has_descriptor: true }, &[kick]);
    }
    for _ in 0..3 {
        receive(&mut backend, later(&mut now));
    }
    assert!(!backend.link_up(), "no queue has a place");
    assert_eq!(backend.counters().sessions_ended, 1);
}

/// A header of virtio, and nothing behind it.
#[test]
fn a_frame_of_no_octets_is_refused() {
    let (mut backend, mut guest) = guest(GUEST_FEATURES);
    let len = u32::try_from(super::super::offload::HEADER_LEN).unwrap();
    for (number, len) in [(0, len), (1, len - 1)] {
        let at = guest_buffer(number);
        guest.queues[1].offer(&guest.table, number, at, len, Direction::ToDevice);
    }
    guest.queues[1].publish(&guest.table);
    assert_eq!(backend.receive(0, 16, &mut |_| panic!("no frame")), 2);
    assert_eq!(backend.counters().frames_refused, 2);
}

/// A device that sleeps without a buffer for its frames asks to be notified of the next one.
#[test]
fn a_device_without_buffers_is_woken_by_the_next() {
    let (mut backend, mut guest) = guest(GUEST_FEATURES);
    backend.readiness();
    let len = u32::try_from(GUEST_BUFFER).unwrap();
    for _ in 0..GUEST_QUEUE {
        backend.transmit(0, &TxFrame::whole(&frame(100))).unwrap();
    }
    backend.flush(0);
    assert_eq!(backend.transmit(0, &TxFrame::whole(&frame(100))), Err(TransmitError::Full));
    assert!(!tell::tests::is_readable(backend.readiness().unwrap()));
    let (number, _) = guest.queues[0].take(&guest.table).unwrap();
    guest.queues[0].offer(&guest.table, number, guest_buffer(number), len, Direction::ToDriver);
    assert!(guest.queues[0].publish(&guest.table), "a kick is wanted");
}

#[test]
fn a_queue_stops_where_its_base_says() {
    let (mut backend, mut guest) = guest(GUEST_FEATURES);
    for _ in 0..5 {
        backend.transmit(0, &TxFrame::whole(&frame(10))).unwrap();
    }
    backend.flush(0);
    guest.say(&Request::GetVringBase { index: 0 }, &[]);
    receive(&mut backend, 1 << 40);
    let answer = guest.answer().expect("an answer");
    assert_eq!(answer.body, [0, 0, 0, 0, 5, 0, 0, 0]);
    assert!(!backend.link_up());
    assert_eq!(backend.transmit(0, &TxFrame::whole(&frame(10))), Err(TransmitError::LinkDown));
}

#[test]
fn malformed_chains_count_towards_the_burst() {
    let (mut backend, mut guest) = guest(GUEST_FEATURES);
    guest.offer_frames(40, Direction::ToDriver);
    assert_eq!(backend.receive(0, 15, &mut |_| panic!("no frame")), 15);
    assert_eq!(backend.counters().chains_refused, 15);
    assert_eq!(guest.queues[1].waiting(&guest.table), Ok(15));
    assert_eq!(backend.receive(0, 1000, &mut |_| panic!("no frame")), 25);
}

#[test]
fn filled_buffers_are_returned_before_their_queue_stops() {
    let (mut backend, guest) = guest(GUEST_FEATURES);
    for _ in 0..5 {
        backend.transmit(0, &TxFrame::whole(&frame(10))).unwrap();
    }
    assert_eq!(guest.queues[0].waiting(&guest.table), Ok(0));
    guest.say(&Request::GetVringBase { index: 0 }, &[]);
    receive(&mut backend, 1 << 40);
    assert_eq!(guest.queues[0].waiting(&guest.table), Ok(5));
}

#[test]
fn frames_of_a_disabled_queue_are_thrown_away() {
    let (mut backend, mut guest) = guest(GUEST_FEATURES);
    guest.say(&Request::SetVringEnable { index: 1, enabled: false }, &[]);
    guest.offer_frames(20, Direction::ToDevice);
    backend.receive(1 << 40, 15, &mut |_| panic!("disabled"));
    assert!(!backend.link_up());
    assert_eq!(guest.queues[1].waiting(&guest.table), Ok(15));
    backend.receive(1 << 40, 15, &mut |_| panic!("disabled"));
    assert_eq!(guest.queues[1].waiting(&guest.table), Ok(20));
    guest.say(&Request::SetVringEnable { index: 1, enabled: true }, &[]);
    receive(&mut backend, 1 << 41);
    for _ in 0..20 {
        guest.queues[1].take(&guest.table).unwrap();
    }
    guest.offer_frames(3, Direction::ToDevice);
    assert_eq!(receive(&mut backend, 1 << 41).len(), 3);
}

#[test]
fn a_region_that_is_refused_leaves_the_others_as_they_are() {
    let (mut backend, mut guest) = guest(GUEST_FEATURES);
    let features = PROTOCOL_REPLY_ACK | PROTOCOL_CONFIGURE_MEM_SLOTS;
    guest.say(&Request::SetProtocolFeatures(features), &[]);
    let mut now = 1 << 40;
    let file = || sealed_memory(c"more", 4096).unwrap();
    let over = MemoryRegion { guest: GUEST_BASE, len: 4096, user: 0, offset: 0 };
    let behind = MemoryRegion { guest: 0, len: 4096, user: 0, offset: 1 };
    let more = MemoryRegion { offset: 0, ..behind };
    let requests = [
        (Request::AddMemoryRegion(over), Some(file()), 1),
        (Request::SetMemoryTable(vec![behind]), Some(file()), 1),
        (Request::RemoveMemoryRegion(more), None, 1),
        (Request::AddMemoryRegion(more), Some(file()), 0),
        (Request::RemoveMemoryRegion(more), None, 0),
    ];
    for (request, file, expected) in requests {
        let answer = guest.ask(&request, file.as_slice(), || {
            receive(&mut backend, later(&mut now));
        });
        assert_eq!(answer, expected, "{request:?}");
        receive(&mut backend, now);
        assert!(backend.link_up(), "{request:?}");
        guest.offer_frames(3, Direction::ToDevice);
        assert_eq!(receive(&mut backend, now).len(), 3, "{request:?}");
        for _ in 0..3 {
            guest.queues[1].take(&guest.table).unwrap();
        }
    }
}

#[test]
fn memory_that_nobody_can_write_is_read_and_never_written() {
    let (mut backend, mut guest) = guest(GUEST_FEATURES);
    let features = PROTOCOL_REPLY_ACK | PROTOCOL_CONFIGURE_MEM_SLOTS;
    guest.say(&Request::SetProtocolFeatures(features), &[]);
    let mut now = 1 << 40;
    let len = 65_536;
    let (file, own) = published::memory(c"read only", len).unwrap();
    own.copy_in(4096, &[&[0; 12][..], &frame(88)].concat());
    let start = 1 << 40;
    let region = MemoryRegion { guest: start, len: len as u64, user: start, offset: 0 };
    let short = MemoryRegion { len: 4096, ..region };
    for (region, expected) in [(short, 1), (region, 0)] {
        let file = file.try_clone().unwrap();
        let answer = guest.ask(&Request::AddMemoryRegion(region), &[file], || {
            receive(&mut backend, later(&mut now));
        });
        assert_eq!(answer, expected, "{region:?}");
    }
    receive(&mut backend, now);
    assert!(backend.link_up());
    // A frame in that memory is read.
    let payload_len = u32::try_from(12 + 142).unwrap();
    guest.queues[1].offer(&guest.table, 0, start + 4096, payload_len, Direction::ToDevice);
    guest.queues[1].publish(&guest.table);
    let came = receive(&mut backend, now);
    assert!(came.len() == 1 && came[0].0 == frame(88));
    // Buffers in that memory are not filled: the first frame is lost, the next one is not.
    for number in 0..GUEST_QUEUE {
        backend.transmit(0, &TxFrame::whole(&frame(10))).unwrap();
        backend.flush(0);
        let (taken, _) = guest.queues[0].take(&guest.table).unwrap();
        assert_eq!(taken, number);
    }
    for number in 0..2 {
        let at = if number == 0 { start } else { guest_buffer(number) };
        guest.queues[0].offer(&guest.table, number, at, 1526, Direction::ToDriver);
    }
    guest.queues[0].publish(&guest.table);
    let refused = backend.transmit(0, &TxFrame::whole(&frame(10)));
    assert_eq!(refused, Err(TransmitError::Refused));
    backend.transmit(0, &TxFrame::whole(&frame(10))).unwrap();
    backend.flush(0);
    assert_eq!(backend.counters().chains_refused, 1);
    assert_eq!(guest.queues[0].take(&guest.table), Ok((0, 0)));
    assert_eq!(guest.queues[0].take(&guest.table), Ok((1, 12 + 64)));
    // A queue in that memory is not used either.
    guest.say(&Request::GetVringBase { index: 0 }, &[]);
    let parts = [start, start + 4096, start + 8192];
    guest.say(&Request::SetVringAddresses { index: 0, parts }, &[]);
    receive(&mut backend, later(&mut now));
    receive(&mut backend, later(&mut now));
    assert!(!backend.link_up());
    let mut octets = [1; 4096];
    own.copy_out(0, &mut octets);
    assert!(octets == [0; 4096], "nothing was written");
}

#[test]
fn unsealed_memory_is_refused_if_sealing_is_required() {
    let unsealed = || {
        let path = path();
        let file = File::create_new(&path).unwrap();
        file.set_len(65_536).unwrap();
        let _unlinked = std::fs::remove_file(&path);
        OwnedFd::from(file)
    };
    let len = 65_536;
    let region = MemoryRegion { guest: 0, len, user: 0, offset: 0 };
    let config = VhostUserConfig { sealed: true, ..VhostUserConfig::backend(path()) };
    let mut backend = VhostUser::open(&config).unwrap();
    let guest = Guest::new(&config.path, GUEST_FEATURES, || ());
    receive(&mut backend, 0);
    assert!(backend.link_up(), "its own memory is sealed");
    guest.say(&Request::SetMemoryTable(vec![region]), &[unsealed()]);
    receive(&mut backend, CONTROL_INTERVAL_NS);
    assert!(!backend.link_up());
    assert_eq!(backend.counters().sessions_ended, 1);
    // Seals do not keep huge pages, so a page that is not there could be asked for.
    let file = match sealed_huge_memory(c"huge", 1 << 30) {
        Ok(file) => file,
        Err(error) => {
            return urnic_testkit::skip("huge pages of a guest", &format!("none: {error}"));
        }
    };
    let guest = Guest::new(&config.path, GUEST_FEATURES, || ());
    receive(&mut backend, 2 * CONTROL_INTERVAL_NS);
    assert!(backend.link_up());
    guest.say(&Request::SetMemoryTable(vec![region]), &[file]);
    receive(&mut backend, 3 * CONTROL_INTERVAL_NS);
    assert!(!backend.link_up());
    assert_eq!(backend.counters().sessions_ended, 2);
}
