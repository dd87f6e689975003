//! Hostile peers, which send and write arbitrary data.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::liar::{Liar, header, inline, run};
use super::*;
use crate::peer::header::Header;
use crate::peer::tell;
use crate::shm::layout::{self, OUTBOX_LEN, Run};
use crate::shm::message::Message;
use crate::sys::published;
use crate::sys::shared_mapping::{SharedMapping, sealed_huge_memory, sealed_memory};

type Case<'a> = (bool, (Header, Vec<u8>), Vec<&'a OwnedFd>);

pub(super) const HELLO: Message = Message::Hello { mtu: 1500, outbox_len: OUTBOX_LEN as u64 };

/// Returns a device, and a peer connected to it.
pub(super) fn met(config: &ShmConfig, publisher: &Publisher, now: &mut u64) -> (Shm, Liar) {
    let mut device = Shm::open(config, publisher).unwrap();
    let liar = greeted(&mut device, config, now);
    (device, liar)
}

pub(super) fn greeted(device: &mut Shm, config: &ShmConfig, now: &mut u64) -> Liar {
    let mut liar = Liar::new(&config.path);
    for _ in 0..4 {
        receive(device, later(now));
    }
    assert!(device.link_up(), "a peer that keeps to the protocol is welcome");
    liar.hear();
    liar
}

/// Returns files of `len` bytes that are not memory which a peer may only read.
fn useless_files(len: usize) -> Vec<OwnedFd> {
    let seals = |seals: SealFlags, is_there: bool| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(c"test", flags).unwrap();
        let mut file = File::from(file);
        if is_there {
            file.write_all(&vec![1; len]).unwrap();
        } else {
            file.set_len(len as u64).unwrap();
        }
        fcntl_add_seals(&file, seals).unwrap();
        OwnedFd::from(file)
    };
    let mut files = vec![
        // Not sealed, with different seals missing.
        seals(SealFlags::empty(), true),
        seals(SealFlags::GROW | SealFlags::FUTURE_WRITE, true),
        seals(SealFlags::SHRINK | SealFlags::GROW, true),
        sealed_memory(c"test", len).unwrap(),
        // Missing pages: all or some.
        seals(SealFlags::SHRINK | SealFlags::FUTURE_WRITE, false),
        // Too short, too long.
        published::memory(c"test", len - 1).unwrap().0,
        published::memory(c"test", len + 1).unwrap().0,
        // No memory.
        tell::event().unwrap(),
        File::open("/dev/zero").unwrap().into(),
        File::open("/proc/self/exe").unwrap().into(),
        File::open("/").unwrap().into(),
        UnixStream::pair().unwrap().0.into(),
        rustix::pipe::pipe().unwrap().0,
    ];
    files.extend(sealed_huge_memory(c"test", 2 << 20));
    files
}

#[test]
fn malformed_messages_end_their_session_only() {
    let config = config(&path(), true);
    let mut device = Shm::open(&config, &Publisher::new()).unwrap();
    let mut now = 0;
    let (memory, _mapping) = published::memory(c"test", 4096).unwrap();
    let publish = |number| Message::Publish { number, len: 4096 };
    let (hello, (header_of, body)) = (HELLO, HELLO.encode());
    let other_magic = [&[b'x'][..], &body[1..]].concat();
    let other_version = [&body[..8], &[7], &body[9..]].concat();
    let longer = Header::of_request(1, header_of.len + 1, false);
    let reply = Header::of_reply(5, 0);
    let unknown = Header::of_request(6, 0, false);
    let long = Header::of_request(5, 4085, false);
    let raw = |header: Header, body: &[u8]| (header, body.to_vec());
    let say = |message: &Message| message.encode();
    // For each case: whether Hello was sent, the next message, and its descriptors.
    let cases: Vec<Case<'_>> = vec![
        (true, say(&hello), vec![&memory]),
        (true, say(&publish(1)), vec![]),
        (true, say(&publish(1)), vec![&memory, &memory]),
        (true, say(&publish(0)), vec![&memory]),
        (true, say(&Message::Wake), vec![&memory]),
        (true, raw(unknown, &[]), vec![]),
        (true, raw(reply, &[]), vec![]),
        (true, raw(long, &[]), vec![]),
        (false, say(&publish(1)), vec![&memory]),
        (false, say(&Message::Wake), vec![]),
        (false, say(&Message::Refuse { number: 0 }), vec![]),
        (false, say(&Message::Withdraw { number: 0, position: 0 }), vec![]),
        (false, say(&hello), vec![]),
        (false, say(&Message::Hello { mtu: 1501, outbox_len: OUTBOX_LEN as u64 }), vec![&memory]),
        (false, say(&Message::Hello { mtu: 1500, outbox_len: 4096 }), vec![&memory]),
        (false, say(&Message::Hello { mtu: 1500, outbox_len: u64::MAX }), vec![&memory]),
        (false, say(&hello), vec![&memory]),
        (false, raw(header_of, &other_magic), vec![&memory]),
        (false, raw(header_of, &other_version), vec![&memory]),
        (false, raw(longer, &[&body[..], &[0]].concat()), vec![&memory]),
    ];
    for (index, (says_hello, (header, body), files)) in cases.iter().enumerate() {
        let liar = if *says_hello {
            greeted(&mut device, &config, &mut now)
        } else {
            Liar::silent(&config.path)
        };
        let ended = device.counters().sessions_ended;
        let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        liar.channel.send(*header, body, &files).unwrap();
        for _ in 0..3 {
            receive(&mut device, later(&mut now));
        }
        assert_eq!(device.counters().sessions_ended, ended + 1, "case {index}");
        assert!(!device.link_up(), "case {index}");
    }
    // A number that is used twice.
    let liar = greeted(&mut device, &config, &mut now);
    liar.say(&publish(5), &[&memory]);
    liar.say(&publish(5), &[&memory]);
    receive(&mut device, later(&mut now));
    assert!(!device.link_up());
    greeted(&mut device, &config, &mut now);
}

#[test]
fn unusable_outboxes_are_refused() {
    let config = config(&path(), true);
    let mut device = Shm::open(&config, &Publisher::new()).unwrap();
    let mut now = 0;
    for (index, file) in (1..).zip(useless_files(OUTBOX_LEN)) {
        let liar = Liar::silent(&config.path);
        liar.say(&HELLO, &[&file]);
        for _ in 0..3 {
            receive(&mut device, later(&mut now));
        }
        assert!(!device.link_up(), "file {index}");
        assert_eq!(device.counters().sessions_ended, index);
    }
    greeted(&mut device, &config, &mut now);
}

#[test]
fn unusable_regions_are_refused() {
    let config = config(&path(), true);
    let mut now = 0;
    let (mut device, mut liar) = met(&config, &Publisher::new(), &mut now);
    let mut refused = 0;
    for len in [2, 4096, 10_000] {
        for (index, file) in useless_files(len).iter().enumerate() {
            refused += 1;
            let message = Message::Publish { number: refused, len: len as u64 };
            liar.say(&message, &[file]);
            receive(&mut device, later(&mut now));
            assert_eq!(liar.hear(), [Message::Refuse { number: refused }], "{len} file {index}");
            liar.put_frame(&[run(refused, 0, 1)]);
            assert!(receive(&mut device, now).is_empty());
            assert_eq!(device.counters().regions_refused, u64::from(refused));
            assert_eq!(device.counters().frames_refused, u64::from(refused));
        }
    }
    for len in [0, u64::MAX, 1 << 63, 1 << 40] {
        refused += 1;
        let (file, _mapping) = published::memory(c"test", 4096).unwrap();
        liar.say(&Message::Publish { number: refused, len }, &[&file]);
        receive(&mut device, later(&mut now));
        assert_eq!(liar.hear(), [Message::Refuse { number: refused }]);
    }
    assert!(device.link_up(), "frames that are copied still flow");
    let counters = device.counters();
    let expected = crate::Refusals {
        peers: 0,
        regions: counters.regions_refused,
        frames: counters.frames_refused,
        sessions_ended: 0,
    };
    assert!(expected.regions > 0 && expected.frames > 0);
    assert_eq!(device.refusals(), expected);
    assert_eq!(crate::loopback::Loopback::new(&mut device, [0; 6]).refusals(), expected);
}

#[test]
fn octets_of_no_protocol_and_half_messages_end_a_session() {
    let config = config(&path(), true);
    let mut device = Shm::open(&config, &Publisher::new()).unwrap();
    let (mut now, mut state) = (0, 1_u32);
    for _ in 0..100 {
        let mut stream = UnixStream::connect(&config.path).unwrap();
        let octets: Vec<u8> = (0..state as usize % 300)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state.to_le_bytes()[3] & 0x1f
            })
            .collect();
        state = state.wrapping_add(77);
        stream.write_all(&octets).unwrap();
        for _ in 0..2 {
            receive(&mut device, later(&mut now));
        }
        drop(stream);
        for _ in 0..3 {
            receive(&mut device, later(&mut now));
        }
        assert!(!device.link_up());
    }
    greeted(&mut device, &config, &mut now);
    assert!(device.counters().sessions_ended >= 100);
}

#[test]
fn malformed_frames_are_refused_one_by_one() {
    let config = config(&path(), true);
    let mut now = 0;
    let (mut device, mut liar) = met(&config, &Publisher::new(), &mut now);
    let (file, _mapping) = published::memory(c"test", 10_000).unwrap();
    liar.say(&Message::Publish { number: 3, len: 10_000 }, &[&file]);
    let inline_len = u64::try_from(INLINE_LEN).unwrap();
    let longest = u32::try_from(FRAME_LEN_MAX).unwrap();
    let of_length = |len: u32, runs: &[Run]| (header(len, runs.len()), runs.to_vec());
    let sums = |runs: &[Run]| {
        let sum = runs.iter().map(|run| run.len).fold(0, u32::wrapping_add);
        (header(sum, runs.len()), runs.to_vec())
    };
    let cases = [
        // Lengths.
        of_length(0, &[inline(0, 0)]),
        of_length(101, &[inline(0, 100)]),
        of_length(99, &[inline(0, 100)]),
        sums(&[inline(0, longest + 1)]),
        sums(&[inline(0, u32::MAX)]),
        sums(&[inline(0, u32::MAX), inline(0, 101)]),
        of_length(100, &[inline(0, u32::MAX), inline(0, 101)]),
        // Regions.
        sums(&[run(1, 0, 100)]),
        sums(&[run(4, 0, 100)]),
        sums(&[run(u32::MAX, 0, 100)]),
        sums(&[inline(0, 100), run(3, 0, 100), run(2, 0, 100)]),
        // Offsets in them.
        sums(&[inline(inline_len, 1)]),
        sums(&[inline(inline_len - 1, 2)]),
        sums(&[inline(u64::MAX, 1)]),
        sums(&[inline(u64::MAX - 10, 100)]),
        sums(&[run(3, 9_901, 100)]),
        sums(&[run(3, 10_000, 1)]),
        sums(&[run(3, u64::MAX, 1)]),
        sums(&[run(3, 1 << 63, 1)]),
        sums(&[inline(0, 300), run(3, 1 << 63, 1)]),
    ];
    let (count, mut came) = (cases.len(), 0);
    for (index, (header, runs)) in cases.into_iter().enumerate() {
        liar.put(header, &runs);
        liar.put_frame(&[inline(0, 30), run(3, 9_000, 1_000), inline(inline_len - 1, 1)]);
        let received = receive(&mut device, now);
        assert!(received.len() == 1 && received[0].octets.len() == 1031, "case {index}");
        came += 1;
        assert_eq!(device.counters().frames_refused, index as u64 + 1);
    }
    assert_eq!((device.counters().frames_rx, came), (count as u64, count));
    // All offload headers.
    for flags in 0..=255 {
        for offload in [[flags, 1, 0, 0, 255, 255, 14, 0, 255, 255], [flags; 10]] {
            liar.put(layout::Header { offload, ..header(600, 1) }, &[inline(0, 600)]);
            assert_eq!(receive(&mut device, now).len(), 1);
        }
    }
    // Withdrawn from a position on: readable before it, not behind it.
    for _ in 0..3 {
        liar.put_frame(&[run(3, 0, 500)]);
    }
    liar.say(&Message::Withdraw { number: 3, position: liar.position }, &[]);
    liar.put_frame(&[run(3, 0, 500)]);
    let refused = device.counters().frames_refused;
    for expected in [1, 1, 1, 0] {
        assert_eq!(receive_some(&mut device, later(&mut now), 1).len(), expected);
    }
    assert_eq!(device.counters().frames_refused, refused + 1);
    assert!(device.link_up());
}

#[test]
fn impossible_ring_index_ends_the_session() {
    let config = config(&path(), true);
    let publisher = Publisher::new();
    let mut device = Shm::open(&config, &publisher).unwrap();
    let mut now = 0;
    let lies: [&dyn Fn(&mut Liar); 7] = [
        &|liar| liar.put(header(10, 0), &[]),
        &|liar| liar.put(header(10, 2), &[inline(0, 10)]),
        &|liar| liar.put(header(10, RUNS_MAX + 1), &[inline(0, 1); RUNS_MAX + 1]),
        &|liar| liar.put(header(10, 65_535), &[inline(0, 1)]),
        &|liar| liar.memory.set_produced(RING_LEN + 1),
        &|liar| liar.memory.set_produced(u32::MAX),
        // Consumed more than was written.
        &|liar| liar.memory.set_consumed(3),
    ];
    for (index, lie) in lies.iter().enumerate() {
        let mut liar = greeted(&mut device, &config, &mut now);
        device.transmit(now, &frame(&head(), &[])).unwrap();
        device.flush(now);
        lie(&mut liar);
        let ended = device.counters().sessions_ended;
        receive(&mut device, now);
        assert_eq!(device.counters().sessions_ended, ended + 1, "lie {index}");
        assert!(!device.link_up());
        assert_eq!(device.transmit(now, &frame(&head(), &[])), Err(TransmitError::LinkDown));
    }
    // More frames than the ring has room for.
    let mut liar = greeted(&mut device, &config, &mut now);
    for _ in 0..RING_LEN / 2 {
        liar.put_frame(&[inline(0, 60)]);
    }
    liar.memory.set_produced(RING_LEN + 2);
    assert!(receive(&mut device, now).is_empty() && !device.link_up());
    // As many frames as the ring has room for.
    let mut liar = greeted(&mut device, &config, &mut now);
    for _ in 0..RING_LEN / 2 {
        liar.put_frame(&[inline(0, 60)]);
    }
    assert_eq!(receive(&mut device, now).len(), RING_LEN as usize / 2);
    assert!(device.link_up());
    drop(liar);
    receive(&mut device, later(&mut now));
    // Noticed when the ring is full.
    let liar = greeted(&mut device, &config, &mut now);
    while device.transmit(now, &frame(&head(), &[])).is_ok() {}
    liar.memory.set_consumed(u32::MAX);
    device.flush(now);
    assert_eq!(device.transmit(now, &frame(&head(), &[])), Err(TransmitError::LinkDown));
    assert_eq!(receive(&mut device, now).len(), 0);
    assert!(!device.link_up());
    greeted(&mut device, &config, &mut now);
}

#[test]
fn refusal_and_withdrawal_of_unknown_regions_are_ignored() {
    let config = config(&path(), true);
    let publisher = Publisher::new();
    let memory = publisher.allocate(4096).unwrap();
    let mut now = 0;
    let (mut device, mut liar) = met(&config, &publisher, &mut now);
    for number in [0, 2, 7, u32::MAX, 0] {
        liar.say(&Message::Refuse { number }, &[]);
        liar.say(&Message::Withdraw { number, position: number }, &[]);
    }
    receive(&mut device, later(&mut now));
    let send = |device: &mut Shm, now| {
        device.transmit(now, &frame(&head(), &[part(&memory, 0, 1000)])).unwrap();
        device.flush(now);
        (device.counters().tx_bytes_referred, device.counters().tx_bytes_copied)
    };
    assert_eq!(send(&mut device, now), (1000, 54));
    // After a refusal the bytes are copied.
    for _ in 0..3 {
        liar.say(&Message::Refuse { number: 1 }, &[]);
    }
    receive(&mut device, later(&mut now));
    assert_eq!(send(&mut device, now), (1000, 54 + 1054));
    // The refused region is withdrawn without a message; a new region is announced.
    drop(memory);
    liar.hear();
    let _next = publisher.allocate(4096).unwrap();
    for _ in 0..3 {
        device.transmit(now, &frame(&head(), &[])).unwrap();
        receive(&mut device, later(&mut now));
    }
    assert_eq!(liar.hear(), [Message::Publish { number: 2, len: 4096 }]);
}

#[test]
fn device_given_its_own_memory_reads_inside_it_only() {
    let config = config(&path(), true);
    let mut now = 0;
    let (mut device, mut liar) = met(&config, &Publisher::new(), &mut now);
    let (file, _) = liar.theirs.as_ref().unwrap();
    let file = file.try_clone().unwrap();
    liar.say(&Message::Publish { number: 1, len: OUTBOX_LEN as u64 }, &[&file]);
    for at in (0..OUTBOX_LEN as u64 - 60_000).step_by(500_000) {
        device.transmit(now, &frame(&head(), &[])).unwrap();
        device.flush(now);
        liar.put_frame(&[run(1, at, 60_000)]);
        assert_eq!(receive(&mut device, now).len(), 1);
    }
}

/// A thread writes valid and invalid words and descriptors while frames flow.
#[test]
fn a_peer_that_writes_its_memory_meanwhile_harms_nothing() {
    let config = config(&path(), true);
    let publisher = Publisher::new();
    let memory = publisher.allocate(100_000).unwrap();
    let mut device = Shm::open(&config, &publisher).unwrap();
    let (mut now, mut seed) = (0, 0_u32);
    let came = |device: &Shm| {
        let counters = device.counters();
        counters.frames_rx > 0 && counters.frames_refused > 0
    };
    // The scheduling of the threads decides how many frames are valid when they are read: continue
    // until there were frames of both kinds.
    while seed < 24 || (seed < 2000 && !came(&device)) {
        seed += 1;
        let mut liar = greeted(&mut device, &config, &mut now);
        let (file, mapping) = published::memory(c"test", 50_000).unwrap();
        liar.say(&Message::Publish { number: 1, len: 50_000 }, &[&file]);
        let [has_begun, is_over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let writing = {
            let (has_begun, is_over) = (Arc::clone(&has_begun), Arc::clone(&is_over));
            thread::spawn(move || {
                scribble(&mut liar, &mapping, seed, &has_begun, &is_over);
                liar
            })
        };
        // On a busy machine all turns might end before the thread first runs.
        while !has_begun.load(Relaxed) && !writing.is_finished() {
            thread::yield_now();
        }
        let ended = device.counters().sessions_ended;
        for turn in 0..300 {
            for received in receive_some(&mut device, now, 64) {
                assert!(received.octets.len() <= FRAME_LEN_MAX);
            }
            now += CONTROL_INTERVAL_NS / 10;
            let fragments = [part(&memory, turn * 100, 1000), part(&memory, 0, 100)];
            let _full_or_down = device.transmit(now, &frame(&head(), &fragments));
            let _room = device.transmit_room();
            device.flush(now);
            device.readiness();
            if device.counters().sessions_ended != ended {
                break;
            }
        }
        is_over.store(true, Relaxed);
        drop(writing.join().unwrap());
        while device.counters().sessions_ended == ended {
            receive(&mut device, later(&mut now));
        }
    }
    let counters = device.counters();
    assert!(came(&device), "{counters:?}");
    assert!(counters.sessions_ended == u64::from(seed), "{counters:?} after {seed}");
    greeted(&mut device, &config, &mut now);
}

/// Writes frames, most of them valid, in a loop.
fn scribble(
    liar: &mut Liar,
    mapping: &SharedMapping,
    seed: u32,
    has_begun: &AtomicBool,
    is_over: &AtomicBool,
) {
    let mut state = seed;
    let mut draw = move |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let mut published = 0_u32;
    while !is_over.load(Relaxed) {
        // Overwrites descriptors that the device may be reading.
        let place = liar.position.wrapping_sub(draw(200)).wrapping_add(draw(50));
        let len = [10, 64, 1000, 70_000, u32::MAX][draw(5) as usize];
        let offset =
            [0, 49_000, 1 << 22, u64::MAX][draw(4) as usize].wrapping_add(u64::from(draw(2)));
        let stray = run(draw(4) & !2, offset.wrapping_sub(1), len);
        liar.memory.put_descriptor(place, stray.to_octets());
        mapping.word(4 * draw(12_000) as usize).store(draw(1 << 24), Relaxed);
        let consumed = liar.theirs.as_ref().map_or(0, |(_, theirs)| theirs.produced());
        liar.memory.set_consumed(consumed);
        // Writes a frame that is valid at least for a moment, if there is room.
        let read = liar.theirs.as_ref().map_or(0, |(_, theirs)| theirs.consumed());
        if liar.position.wrapping_sub(read) < RING_LEN / 2 {
            liar.put_frame(&[inline(0, 60), run(1, u64::from(draw(60_000)), 600)]);
            published += 1;
        }
        if published.is_multiple_of(97) && seed.is_multiple_of(3) {
            liar.memory.set_produced(draw(1 << 24));
        }
        if published.is_multiple_of(389) && seed.is_multiple_of(5) {
            liar.memory.set_consumed(draw(1 << 24));
        }
        if draw(1000) == 0 && seed.is_multiple_of(2) {
            let message = Message::Wake;
            let _full = message.send(&liar.channel, &[]);
        }
        has_begun.store(true, Relaxed);
    }
}

/// The peer's memory outlives its socket, in another process.
#[test]
fn frames_written_after_hang_up_are_not_received() {
    let config = config(&path(), true);
    let mut now = 0;
    let (mut device, mut liar) = met(&config, &Publisher::new(), &mut now);
    liar.put_frame(&[inline(0, 60)]);
    liar.hang_up();
    let mut came = 0;
    device.receive(later(&mut now), 1000, &mut |_| {
        came += 1;
        liar.put_frame(&[inline(0, 60)]);
    });
    assert_eq!(came, 1, "what was there when it went");
    assert!(!device.link_up());
    greeted(&mut device, &config, &mut now);
}
