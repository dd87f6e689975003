#![allow(clippy::disallowed_methods, reason = "tests wait for threads, with a bound")]

mod bounds;
mod hostile;
mod liar;
mod life;
mod limits_full;
mod published;

use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::limits::*;
use super::*;
use crate::published::{PublishedMemory, Publisher};
use crate::{Device, RxChecksum, SharedSlice, TransmitError, TxChecksum, TxFrame};

/// A path that no other test has.
fn path() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    std::env::temp_dir().join(format!("urnic-shm-{}-{number}", std::process::id()))
}

fn config(path: &std::path::Path, listens: bool) -> ShmConfig {
    ShmConfig { path: path.to_owned(), listens, mtu: 1500, peer: None }
}

/// Advances a clock far enough that a device polls its socket.
fn later(now: &mut u64) -> u64 {
    *now += CHECK_INTERVAL_NS;
    *now
}

/// Opens both ends of a link, the listening end first. The connecting end opens in another thread.
fn pair_of(near: &Publisher, far: &Publisher) -> [Shm; 2] {
    let path = path();
    let mut listening = Shm::open(&config(&path, true), near).unwrap();
    let far = far.clone();
    let opening = thread::spawn(move || Shm::open(&config(&path, false), &far).unwrap());
    let mut now = 0;
    while !(opening.is_finished() && listening.link_up()) {
        receive(&mut listening, later(&mut now));
        thread::sleep(Duration::from_micros(100));
    }
    let mut connecting = opening.join().unwrap();
    assert!(connecting.link_up() && receive(&mut connecting, 0).is_empty());
    [listening, connecting]
}

/// A received frame: its bytes, and its offloads.
#[derive(Debug, PartialEq, Eq)]
struct Received {
    octets: Vec<u8>,
    checksum: RxChecksum,
    segment_size: Option<NonZeroU16>,
}

fn receive(device: &mut Shm, now: u64) -> Vec<Received> {
    receive_some(device, now, usize::MAX)
}

fn receive_some(device: &mut Shm, now: u64, burst: usize) -> Vec<Received> {
    let (mut all, mut room) = (Vec::new(), Vec::new());
    device.receive(now, burst, &mut |frame| {
        assert!(frame.payload.is_empty() || frame.head.len() >= crate::RxFrame::HEAD_LEN_MIN);
        let whole = frame.gathered(&mut room);
        let octets = whole.head.to_vec();
        all.push(Received { octets, checksum: frame.checksum, segment_size: frame.segment_size });
    });
    all
}

/// Ethernet, IPv4 and TCP headers.
fn head() -> Vec<u8> {
    let mut octets = vec![0; 54];
    octets[12] = 8;
    octets[14] = 0x45;
    octets[23] = 6;
    octets[46] = 0x50;
    octets
}

fn octets(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 7 + salt * 13 + i / 250) % 251).unwrap()).collect()
}

fn frame<'a>(head: &'a [u8], payload: &'a [SharedSlice<'a>]) -> TxFrame<'a> {
    TxFrame { head, payload, checksum: TxChecksum::Complete, segment_size: None, digests: None }
}

/// Returns the longest super-frame, of these fragments.
fn super_frame<'a>(head: &'a [u8], payload: &'a [SharedSlice<'a>]) -> TxFrame<'a> {
    let checksum = TxChecksum::Partial { start: 34, offset: 16 };
    TxFrame { head, payload, checksum, segment_size: NonZeroU16::new(1400), digests: None }
}

/// Returns bytes of published memory, without creating a slice of it.
fn part(memory: &PublishedMemory, at: usize, len: usize) -> SharedSlice<'_> {
    crate::sys::published::tests::fragment(memory.as_ptr(), memory.len(), at, len)
}

fn fill(memory: &PublishedMemory, at: usize, octets: &[u8]) {
    crate::sys::published::tests::fill(memory.as_ptr(), memory.len(), at, octets);
}

#[test]
fn frames_of_all_shapes_go_both_ways() {
    let [mut a, mut b] = pair_of(&Publisher::new(), &Publisher::new());
    let head = head();
    for round in 0..40 {
        let [from, to] = if round % 2 == 0 { [&mut a, &mut b] } else { [&mut b, &mut a] };
        let before = (from.counters(), to.counters());
        let mut expected = Vec::new();
        for len in (0..1446).step_by(61 + round) {
            let payload = octets(len, round);
            for cut in [2, 7, 100, 1446] {
                let fragments: Vec<_> = payload.chunks(cut).map(SharedSlice::from_bytes).collect();
                from.transmit(0, &frame(&head, &fragments)).unwrap();
                expected.push([&head[..], &payload].concat());
            }
            from.transmit(0, &frame(&expected.last().unwrap().clone(), &[])).unwrap();
            expected.push(expected.last().unwrap().clone());
        }
        from.flush(0);
        let received = receive(to, 0);
        assert_eq!(received.len(), expected.len());
        for (received, expected) in received.iter().zip(&expected) {
            assert!(received.octets == *expected);
            assert_eq!(received.checksum, RxChecksum::Unverified);
            assert_eq!(received.segment_size, None);
        }
        let payload = octets(65_000, round);
        let fragments: Vec<_> = payload.chunks(777).map(SharedSlice::from_bytes).collect();
        from.transmit(0, &super_frame(&head, &fragments)).unwrap();
        from.flush(0);
        let received = receive(to, 0);
        assert!(received.len() == 1 && received[0].octets == [&head[..], &payload].concat());
        assert_eq!(received[0].checksum, RxChecksum::Valid);
        assert_eq!(received[0].segment_size, NonZeroU16::new(1400));
        let total = expected.iter().map(Vec::len).sum::<usize>() + 65_054;
        let (sent, came) = (from.counters(), to.counters());
        let copied = sent.tx_bytes_copied - before.0.tx_bytes_copied;
        assert_eq!((copied, sent.tx_bytes_referred), (total as u64, 0));
        let came = (came.rx_bytes_in_place + came.rx_bytes_copied)
            - (before.1.rx_bytes_in_place + before.1.rx_bytes_copied);
        assert_eq!(came, total as u64);
    }
}

#[test]
fn published_octets_are_read_where_they_are() {
    let publishers = [Publisher::new(), Publisher::new()];
    let memory: Vec<_> =
        publishers.iter().map(|publisher| publisher.allocate(200_000).unwrap()).collect();
    let [mut a, mut b] = pair_of(&publishers[0], &publishers[1]);
    let head = head();
    for (round, memory) in [0, 1, 0, 1, 0].map(|end| (end, &memory[end])) {
        let [from, to] = if round == 0 { [&mut a, &mut b] } else { [&mut b, &mut a] };
        let before = (from.counters(), to.counters());
        let payload = octets(60_000, round);
        fill(memory, 1000, &payload);
        let headers = [9; 20];
        let mut fragments = Vec::new();
        for at in (0..60_000).step_by(1000) {
            fragments.push(SharedSlice::from_bytes(&headers));
            fragments.push(part(memory, 1000 + at, 1000));
        }
        from.transmit(0, &super_frame(&head, &fragments)).unwrap();
        // The peer reads the memory itself: it gets bytes written after `transmit`.
        fill(memory, 1500, b"written later");
        from.flush(0);
        assert_eq!(from.counters().frames_tx_referred_unread, 1);
        let received = receive(to, 0);
        let mut expected = head.clone();
        for part in payload.chunks(1000) {
            expected.extend_from_slice(&headers);
            expected.extend_from_slice(part);
        }
        expected[54 + 20 + 500..][..13].copy_from_slice(b"written later");
        assert!(received.len() == 1 && received[0].octets == expected);
        let (sent, came) = (from.counters(), to.counters());
        assert_eq!(sent.tx_bytes_referred - before.0.tx_bytes_referred, 60_000);
        assert_eq!(sent.tx_bytes_copied - before.0.tx_bytes_copied, 54 + 60 * 20);
        let head_len = crate::RxFrame::HEAD_LEN_MIN as u64;
        assert_eq!(came.rx_bytes_copied - before.1.rx_bytes_copied, head_len);
        let in_place = came.rx_bytes_in_place - before.1.rx_bytes_in_place;
        assert_eq!(in_place, 54 + 60 * 1020 - head_len);
        receive(from, 0);
        assert_eq!(from.counters().frames_tx_referred_unread, 0);
    }
}

#[test]
fn a_checksum_that_is_not_of_the_outer_transport_is_completed() {
    let publisher = Publisher::new();
    let memory = publisher.allocate(4096).unwrap();
    let [mut a, mut b] = pair_of(&publisher, &Publisher::new());
    let (head, payload) = (head(), octets(1400, 3));
    fill(&memory, 0, &payload);
    let fragments = [part(&memory, 0, 1400)];
    // As in a tunnel: inside the copied part and behind it.
    for (start, is_known) in [(34, true), (84, false), (800, false), (14, false)] {
        let checksum = TxChecksum::Partial { start, offset: 16 };
        a.transmit(0, &TxFrame { checksum, ..frame(&head, &fragments) }).unwrap();
        a.flush(0);
        let received = receive(&mut b, 0);
        let mut expected = [&head[..], &payload].concat();
        if !is_known {
            crate::checksum::complete(&mut expected, start, 16);
        }
        let verdict = if is_known { RxChecksum::Valid } else { RxChecksum::Unverified };
        assert!(received.len() == 1 && received[0].octets == expected, "{start}");
        assert_eq!(received[0].checksum, verdict);
    }
    // A checksum outside the frame is refused.
    let checksum = TxChecksum::Partial { start: 1454, offset: 0 };
    let refused = a.transmit(0, &TxFrame { checksum, ..frame(&head, &fragments) });
    assert_eq!(refused, Err(TransmitError::Refused));
}

#[test]
fn a_program_of_single_packets_gets_them_whole() {
    let publisher = Publisher::new();
    let memory = publisher.allocate(70_000).unwrap();
    let [mut a, b] = pair_of(&publisher, &Publisher::new());
    let mut b = crate::packets::Packets::new(b, true);
    let (mut head, payload) = (head(), octets(42_000, 3));
    let len = u16::try_from(40 + payload.len()).unwrap();
    head[16..18].copy_from_slice(&len.to_be_bytes());
    fill(&memory, 0, &payload);
    let fragments: Vec<_> = (0..42).map(|index| part(&memory, index * 1000, 1000)).collect();
    a.transmit(0, &super_frame(&head, &fragments)).unwrap();
    a.flush(0);
    let mut came = Vec::new();
    while b.receive(0, 7, &mut |packet| {
        assert!(packet.payload.is_empty() && packet.checksum == RxChecksum::Unverified);
        came.extend_from_slice(&packet.head[54..]);
    }) > 0
    {}
    assert!(came == payload);
}

#[test]
fn a_full_link_says_so_and_loses_nothing() {
    let publisher = Publisher::new();
    let memory = publisher.allocate(70_000).unwrap();
    let [mut a, mut b] = pair_of(&publisher, &Publisher::new());
    let head = head();
    let payload = octets(64_000, 3);
    fill(&memory, 0, &payload);
    let referring: Vec<_> = (0..131).map(|i| part(&memory, i * 480, 470)).collect();
    let copied = [SharedSlice::from_bytes(&payload)];
    let short = [SharedSlice::from_bytes(&payload[..1])];
    for (fragments, least) in [(&referring[..], 64), (&copied[..], 64), (&short[..], 4000)] {
        for round in 0..3 {
            let mut sent = 0;
            while a.transmit_room() > 0 {
                for _ in 0..a.transmit_room() {
                    a.transmit(0, &super_frame(&head, fragments)).unwrap();
                    sent += 1;
                }
            }
            assert!(sent >= least, "{sent} frames in round {round}");
            assert_eq!(a.transmit(0, &super_frame(&head, fragments)), Err(TransmitError::Full));
            a.flush(0);
            assert_eq!(a.transmit(0, &super_frame(&head, fragments)), Err(TransmitError::Full));
            let mut len = 54;
            len += fragments.iter().map(SharedSlice::len).sum::<usize>();
            // A frame that was read frees its space.
            assert_eq!(receive_some(&mut b, 0, 1).len(), 1);
            let room = a.transmit_room();
            if round > 0 {
                receive(&mut a, 0);
                assert_eq!(a.transmit_room(), room);
            }
            let mut more = 0;
            while a.transmit(0, &super_frame(&head, fragments)).is_ok() {
                more += 1;
            }
            assert!(more >= room && (more > 0) == (room > 0), "{room} and {more}");
            a.flush(0);
            let received = receive(&mut b, 0);
            assert_eq!(received.len(), sent - 1 + more);
            assert!(received.iter().all(|frame| frame.octets.len() == len));
            receive(&mut a, 0);
        }
    }
}

#[test]
fn sleeping_end_is_woken_by_a_frame() {
    let [mut a, mut b] = pair_of(&Publisher::new(), &Publisher::new());
    let is_ready = |device: &Shm| {
        let descriptor = device.readiness().expect("a descriptor");
        let flags = rustix::event::PollFlags::IN;
        let mut descriptors = [rustix::event::PollFd::from_borrowed_fd(descriptor, flags)];
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut descriptors, Some(&at_once)).unwrap() > 0
    };
    let head = head();
    for round in 0..4 {
        let [sender, sleeper] = if round % 2 == 0 { [&mut a, &mut b] } else { [&mut b, &mut a] };
        // Earlier events were handled.
        receive(sleeper, 0);
        sleeper.readiness();
        receive(sleeper, 0);
        assert!(!is_ready(sleeper), "nothing has come");
        let events = sender.counters().events_sent;
        for _ in 0..3 {
            sender.transmit(0, &frame(&head, &[])).unwrap();
            sender.flush(0);
        }
        assert_eq!(sender.counters().events_sent, events + 1, "one that sleeps is told once");
        assert!(is_ready(sleeper), "frames have come");
        assert_eq!(receive(sleeper, 0).len(), 3);
        // An end that polls gets no events.
        sender.transmit(0, &frame(&head, &[])).unwrap();
        sender.flush(0);
        assert_eq!(sender.counters().events_sent, events + 1);
        assert!(is_ready(sleeper), "a frame came before it slept");
        assert_eq!(receive(sleeper, 0).len(), 1);
        // An end that waits for room gets an event.
        while sender.transmit(0, &frame(&head, &[])).is_ok() {}
        sender.flush(0);
        receive(sender, 0);
        assert!(!is_ready(sender));
        let burst = receive_some(sleeper, 0, 10);
        assert!(burst.len() == 10 && is_ready(sender));
        receive(sender, 0);
        receive(sleeper, 0);
    }
}

#[test]
fn memory_is_published_and_withdrawn_while_frames_flow() {
    let publisher = Publisher::new();
    let [mut a, mut b] = pair_of(&publisher, &Publisher::new());
    let head = head();
    let mut now = 0;
    for round in 0..300 {
        // More than a peer handles in one poll.
        let count = if round % 100 == 0 { PUBLISHED } else { 1 + round % 5 };
        let all: Vec<_> = (0..count).map(|_| publisher.allocate(4096).unwrap()).collect();
        let payload = octets(1000, round);
        for memory in &all {
            fill(memory, 100, &payload);
        }
        let (first, last) = (&all[0], &all[count - 1]);
        let before = a.counters().tx_bytes_referred;
        for memory in [first, last] {
            a.transmit(now, &frame(&head, &[part(memory, 100, 1000)])).unwrap();
        }
        assert!(a.counters().tx_bytes_referred >= before + 1000, "round {round}");
        a.flush(now);
        // Freed here before the peer reads it.
        drop(all);
        let next = publisher.allocate(4096).unwrap();
        fill(&next, 100, &octets(1000, round + 1));
        a.transmit(now, &frame(&head, &[part(&next, 100, 1000)])).unwrap();
        a.flush(now);
        let received = receive(&mut b, now);
        let expected = [round, round, round + 1].map(|salt| octets(1000, salt));
        assert!(received.iter().map(|frame| &frame.octets[54..]).eq(expected.iter()), "{round}");
        receive(&mut a, later(&mut now));
        receive(&mut b, now);
    }
    assert_eq!((a.counters().regions_refused, b.counters().regions_refused), (0, 0));
    assert_eq!(b.counters().frames_refused, 0);
}

/// Regions published at once.
const PUBLISHED: usize = 200;

#[test]
fn settings_out_of_range_are_refused() {
    let config = ShmConfig { mtu: 70_000, ..config(&path(), true) };
    let error = Shm::open(&config, &Publisher::new()).unwrap_err();
    assert!(error.to_string().contains("MTU"), "{error}");
}

/// Runs that follow each other by their offsets, and lie in different regions.
#[test]
fn runs_of_two_regions_are_not_one() {
    let publisher = Publisher::new();
    let [mut a, mut b] = pair_of(&publisher, &Publisher::new());
    let regions = [0, 1].map(|salt| {
        let memory = publisher.allocate(8192).unwrap();
        fill(&memory, 0, &octets(8192, salt));
        memory
    });
    let mut now = 0;
    for _ in 0..3 {
        receive(&mut a, later(&mut now));
        receive(&mut b, later(&mut now));
    }
    let payload = [part(&regions[0], 0, 4096), part(&regions[1], 4096, 4096)];
    let head = head();
    a.transmit(now, &super_frame(&head, &payload)).unwrap();
    a.flush(now);
    let came = receive(&mut b, later(&mut now));
    let expected = [&octets(8192, 0)[..4096], &octets(8192, 1)[4096..]].concat();
    assert!(came.len() == 1 && came[0].octets[54..] == expected);
    assert_eq!(a.counters().tx_bytes_referred, 8192);
}
