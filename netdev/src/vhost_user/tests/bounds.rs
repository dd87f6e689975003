//! Limits of a frontend's use of the backend's process: bytes mapped, time in a call.

use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::guest::{GUEST_FEATURES, GUEST_LEN, Guest};
use super::{later, path, receive};
use crate::Device;
use crate::peer::closer::tests::{CLOSES_MAX, LINGER, lingering};
use crate::peer::header::Header;
use crate::peer::tell::tests::is_readable;
use crate::sys::shared_mapping::sealed_memory;
use crate::vhost_user::message::{
    MemoryRegion, PROTOCOL_CONFIGURE_MEM_SLOTS, PROTOCOL_REPLY_ACK, Request,
};
use crate::vhost_user::{VhostUser, VhostUserConfig, VirtioUser};

const REFUSED: u64 = 1;

/// Returns a backend with this limit, and a frontend that gets answers.
fn met(memory_max: u64, now: &mut u64) -> (VhostUser, Guest) {
    let config = VhostUserConfig { memory_max, ..VhostUserConfig::backend(path()) };
    let mut backend = VhostUser::open(&config).unwrap();
    let guest = Guest::new(&config.path, GUEST_FEATURES, || ());
    let protocol = PROTOCOL_REPLY_ACK | PROTOCOL_CONFIGURE_MEM_SLOTS;
    guest.say(&Request::SetProtocolFeatures(protocol), &[]);
    receive(&mut backend, later(now));
    receive(&mut backend, later(now));
    assert!(backend.link_up());
    (backend, guest)
}

/// Returns the mapped bytes of a file, from the process's list of mappings.
fn bytes_of(name: &str) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lines = maps.lines().filter(|line| line.contains(name));
    let ends = lines.map(|line| line.split_once(' ').unwrap().0.split_once('-').unwrap());
    let number = |text| u64::from_str_radix(text, 16).unwrap();
    ends.map(|(begin, end)| number(end) - number(begin)).sum()
}

#[test]
fn memory_of_a_frontend_is_mapped_up_to_its_limit() {
    let mut now = 0;
    // Files in memory have blocks of huge pages on some machines.
    let file = File::from(sealed_memory(c"bounds-limit", 64 << 20).unwrap());
    let block = file.metadata().unwrap().blksize();
    let own = (GUEST_LEN as u64).next_multiple_of(block);
    assert!(2 * own < 64 << 20, "blocks of {block} bytes");
    let (mut backend, mut guest) = met(2 * own, &mut now);
    let region = |place: u64, offset: u64, len: u64| MemoryRegion {
        guest: place << 40,
        len,
        user: place << 40,
        offset,
    };
    let mut add = |guest: &mut Guest, region: MemoryRegion| {
        let file = file.try_clone().unwrap();
        let request = Request::AddMemoryRegion(region);
        guest.ask(&request, &[file.into()], || drop(receive(&mut backend, later(&mut now))))
    };
    assert_eq!(add(&mut guest, region(1, 0, own + block)), REFUSED);
    // As many bytes as there may be, but they begin and end within a block.
    assert_eq!(add(&mut guest, region(1, 100, own)), REFUSED);
    assert_eq!(add(&mut guest, region(1, block, own)), 0);
    assert_eq!(bytes_of("bounds-limit"), own, "without what is in front of it in the file");
    assert_eq!(add(&mut guest, region(2, 0, 1)), REFUSED);
    assert_eq!(bytes_of("bounds-limit"), own);
    let mut turn = || drop(receive(&mut backend, later(&mut now)));
    for other in [region(1, 0, own - 1), MemoryRegion { user: 7, ..region(1, 0, own) }] {
        assert_eq!(guest.ask(&Request::RemoveMemoryRegion(other), &[], &mut turn), REFUSED);
    }
    assert_eq!(bytes_of("bounds-limit"), own);
    let removed = Request::RemoveMemoryRegion(region(1, 0, own));
    assert_eq!(guest.ask(&removed, &[], &mut turn), 0);
    assert_eq!(bytes_of("bounds-limit"), 0);
    // A new table replaces the old one, so each of the two may use the whole limit.
    let table = Request::SetMemoryTable(vec![region(3, 0, 2 * own)]);
    for _ in 0..2 {
        assert_eq!(guest.ask(&table, &[file.try_clone().unwrap().into()], &mut turn), 0);
    }
    let table = Request::SetMemoryTable(vec![region(3, 0, own), region(4, 0, own + 1)]);
    let files = [file.try_clone().unwrap().into(), file.try_clone().unwrap().into()];
    assert_eq!(guest.ask(&table, &files, &mut turn), REFUSED);
    assert_eq!(bytes_of("bounds-limit"), 2 * own, "the table before is kept");
    assert_eq!(backend.counters().regions_refused, 4);
    assert_eq!((backend.refusals().regions, backend.refusals().peers), (4, 0));
    drop(guest);
    receive(&mut backend, later(&mut now));
    assert_eq!((backend.counters().sessions_ended, bytes_of("bounds-limit")), (1, 0));
}

#[test]
fn default_memory_limit_leaves_address_space_for_the_process() {
    let mut now = 0;
    let (mut backend, mut guest) = met(VhostUserConfig::MEMORY_DEFAULT, &mut now);
    let len = 16 << 30;
    let file = sealed_memory(c"bounds-usual", 1 << 44).unwrap();
    let mut refused = 0;
    for place in 1..=64 {
        let region =
            MemoryRegion { guest: place << 40, len, user: place << 40, offset: place * len };
        let request = Request::AddMemoryRegion(region);
        refused += guest.ask(&request, &[file.try_clone().unwrap()], || {
            receive(&mut backend, later(&mut now));
        });
    }
    assert_eq!((refused, bytes_of("bounds-usual")), (61, 3 * len));
    assert!(backend.link_up());
}

#[test]
fn memory_of_a_file_system_that_may_wait_is_refused() {
    let mut now = 0;
    let (mut backend, mut guest) = met(VhostUserConfig::MEMORY_DEFAULT, &mut now);
    let region = MemoryRegion { guest: 0, len: 4096, user: 0, offset: 0 };
    let file = File::open("/proc/self/exe").unwrap();
    let mut turn = || drop(receive(&mut backend, later(&mut now)));
    let answer = guest.ask(&Request::AddMemoryRegion(region), &[file.into()], &mut turn);
    assert_eq!(answer, REFUSED);
    assert!(backend.link_up());
}

#[test]
fn receive_never_blocks_on_closing_a_descriptor() {
    let mut now = 0;
    let config = VhostUserConfig::backend(path());
    let mut backend = VhostUser::open(&config).unwrap();
    let region = MemoryRegion { guest: 0, len: 4096, user: 0, offset: 0 };
    let kick = Request::SetVringKick { index: 0, has_descriptor: true };
    let bad = Request::SetVringSize { index: 0, size: 3 };
    // In a refused message, in an unread one, and more than a message may have.
    let cases: [&[(&Request, usize)]; 4] = [
        &[(&kick, 1)],
        &[(&Request::AddMemoryRegion(region), 1)],
        &[(&bad, 0), (&kick, 1)],
        &[(&bad, 3)],
    ];
    let begun = Instant::now();
    for case in cases {
        let guest = Guest::new(&config.path, GUEST_FEATURES, || ());
        receive(&mut backend, later(&mut now));
        assert!(backend.link_up());
        let mut kept = Vec::new();
        for (request, count) in case {
            let (sockets, far): (Vec<OwnedFd>, Vec<_>) = (0..*count).map(|_| lingering()).unzip();
            guest.say(request, &sockets);
            kept.extend(far);
        }
        receive(&mut backend, later(&mut now));
        assert!(!backend.link_up());
        drop(guest);
    }
    let _guest = Guest::new(&config.path, GUEST_FEATURES, || ());
    receive(&mut backend, later(&mut now));
    receive(&mut backend, later(&mut now));
    assert!(backend.link_up(), "a good one is served");
    assert!(begun.elapsed() < LINGER);
}

#[test]
fn receive_never_blocks_on_closing_an_out_of_band_descriptor() {
    let mut now = 0;
    let config = VhostUserConfig::backend(path());
    let mut backend = VhostUser::open(&config).unwrap();
    let guest = Guest::new(&config.path, GUEST_FEATURES, || ());
    receive(&mut backend, later(&mut now));
    let begun = Instant::now();
    let (socket, _far) = lingering();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [socket.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    match sendmsg(&guest.channel, &[IoSlice::new(&[0])], &mut control, SendFlags::OOB) {
        // Before Linux 5.15 there are none.
        Err(error @ rustix::io::Errno::OPNOTSUPP) => {
            let name = "receive_never_blocks_on_closing_an_out_of_band_descriptor";
            return urnic_testkit::skip(name, &format!("no urgent bytes: {error}"));
        }
        sent => assert_eq!(sent, Ok(1)),
    }
    drop(socket);
    receive(&mut backend, later(&mut now));
    drop(guest);
    receive(&mut backend, later(&mut now));
    assert!(begun.elapsed() < LINGER);
    assert_eq!(backend.counters().sessions_ended, 1);
}

/// Connects peers whose sockets cannot be closed. The device sleeps after each, also after it has
/// stopped accepting.
fn unclosed(device: &mut impl Device, path: &std::path::Path, answers: bool) {
    let mut now = 0;
    let header = if answers { Header::of_reply(99, 0) } else { Header::of_request(99, 0, false) };
    for count in 0..=CLOSES_MAX {
        let mut peer = UnixStream::connect(path).unwrap();
        // The first message ends the session, the second stays unread.
        peer.write_all(&[header.to_octets(); 2].concat()).unwrap();
        for _ in 0..2 {
            device.readiness();
            receive(device, later(&mut now));
        }
        assert!(!is_readable(device.readiness().unwrap()), "after {count}");
    }
}

#[test]
fn a_device_sleeps_while_sockets_of_earlier_peers_are_not_closed() {
    let config = VhostUserConfig::backend(path());
    let mut backend = VhostUser::open(&config).unwrap();
    backend.be_stuck();
    unclosed(&mut backend, &config.path, false);
    assert_eq!(backend.counters().sessions_ended, CLOSES_MAX as u64);
    let config = VhostUserConfig { listens: true, ..VhostUserConfig::frontend(path()) };
    let mut frontend = VirtioUser::open(&config).unwrap();
    frontend.be_stuck();
    unclosed(&mut frontend, &config.path, true);
}
