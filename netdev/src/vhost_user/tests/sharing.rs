//! Frames that refer to published memory, from a frontend that shares it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use super::*;
use crate::Digest;
use crate::published::{PublishedBlock, Publisher};

/// Length of a payload between other bytes, like that of an FPDU between its header and its CRC.
const PAYLOAD_LEN: usize = 1440;
const AROUND: [u8; 22] = [0xA5; 22];

fn sharing(queues: usize, publisher: &Publisher) -> (Vec<VhostUser>, Vec<VirtioUser>) {
    let publisher = publisher.clone();
    pairs_with(queues, true, move |config| {
        VirtioUser::open_sharing(config, queues, &publisher).unwrap()
    })
}

fn block(publisher: &Publisher, len: usize) -> PublishedBlock {
    let mut block = publisher.allocate_blocks(1, len).unwrap().pop().unwrap();
    for (octet, i) in block.iter_mut().zip(0..) {
        *octet = u8::try_from(i * 7 % 251_usize).unwrap();
    }
    block
}

/// Polls both ends until all messages are handled.
fn settle(backend: &mut VhostUser, frontend: &mut VirtioUser, now: &mut u64) {
    for _ in 0..4 {
        receive(frontend, later(now));
        receive(backend, later(now));
    }
    receive(frontend, later(now));
}

/// Returns the longest super-frame, of these fragments.
fn super_frame<'a>(head: &'a [u8], payload: &'a [SharedSlice<'a>]) -> TxFrame<'a> {
    let checksum = TxChecksum::Partial { start: 34, offset: 16 };
    TxFrame { head, payload, checksum, segment_size: NonZeroU16::new(1400), digests: None }
}

/// Returns pieces of the memory, each with other bytes around it.
fn fpdus(memory: &[u8]) -> Vec<SharedSlice<'_>> {
    let mut payload = Vec::new();
    for piece in memory.chunks(PAYLOAD_LEN) {
        payload.extend([&AROUND[..18], piece, &AROUND[18..]].map(SharedSlice::from_bytes));
    }
    payload
}

/// Sends the frame and checks that it arrives. Returns the number of bytes sent by reference.
fn sent(from: &mut VirtioUser, to: &mut VhostUser, frame: &TxFrame<'_>) -> u64 {
    let before = from.counters();
    from.transmit(0, frame).unwrap();
    from.flush(0);
    let received = receive(to, 0);
    assert_eq!(received.len(), 1);
    let payload = expected(frame.payload, frame.digests);
    assert!(received[0].0 == [frame.head, &payload].concat());
    let after = from.counters();
    let referred = after.referred_tx_bytes - before.referred_tx_bytes;
    let copied = after.copied_tx_bytes - before.copied_tx_bytes;
    assert_eq!((referred + copied, after.frames_tx - before.frames_tx), (frame.len() as u64, 1));
    referred
}

#[test]
fn payload_in_published_memory_is_read_where_it_is() {
    for queues in [1, 2] {
        let publisher = Publisher::new();
        let first = block(&publisher, 60_000);
        let (mut backend, mut frontend) = sharing(queues, &publisher);
        let second = block(&publisher, 41 * PAYLOAD_LEN);
        let mut now = 1 << 40;
        settle(&mut backend[0], &mut frontend[0], &mut now);
        let octets = frame(0);
        for (backend, frontend) in backend.iter_mut().zip(&mut frontend) {
            for memory in [&first, &second] {
                let payload = fpdus(memory);
                let whole = super_frame(&octets, &payload);
                let in_place = backend.counters().in_place_rx_bytes;
                for _ in 0..300 {
                    assert_eq!(sent(frontend, backend, &whole), memory.len() as u64);
                }
                let in_place = backend.counters().in_place_rx_bytes - in_place;
                assert!(in_place > 300 * 59_000, "{in_place}");
            }
            // Bytes that are not published, or short, are copied.
            let own = frame(60_000);
            let payload = fpdus(&own);
            assert_eq!(sent(frontend, backend, &super_frame(&octets, &payload)), 0);
            for (len, referred) in [(255, 0), (256, 256), (1400, 1400)] {
                let payload = [SharedSlice::from_bytes(&first[7..7 + len])];
                let short = TxFrame { payload: &payload, ..TxFrame::whole(&octets) };
                assert_eq!(sent(frontend, backend, &short), referred, "{len}");
            }
            assert_eq!(backend.counters().chains_refused, 0);
        }
    }
}

#[test]
fn digests_of_what_is_referred_to_are_computed() {
    let publisher = Publisher::new();
    let memory = block(&publisher, 59_946);
    let (mut backend, mut frontend) = sharing(1, &publisher);
    settle(&mut backend[0], &mut frontend[0], &mut (1 << 40));
    let octets = frame(0);
    let own = frame(0);
    for is_scattered in [false, true] {
        let list = digests_every(1400, 59_946, is_scattered);
        let digests = Some(Digests { digests: &list, base: 0, digester: &ADDER });
        // One run, and short runs that are not adjacent and partly copied.
        let whole = [SharedSlice::from_bytes(&memory)];
        let mixed: Vec<_> = memory
            .chunks(333)
            .zip(0..)
            .map(|(piece, i)| if i % 3 == 0 { &own[..piece.len().min(54)] } else { piece })
            .map(SharedSlice::from_bytes)
            .collect();
        let mixed_len: usize = mixed.iter().map(SharedSlice::len).sum();
        let frame = TxFrame { digests, ..super_frame(&octets, &whole) };
        let referred = sent(&mut frontend[0], &mut backend[0], &frame);
        assert_eq!(referred, (59_946 - list.len() * Digest::LEN) as u64);
        let list = digests_every(1400, u32::try_from(mixed_len).unwrap(), is_scattered);
        let digests = Some(Digests { digests: &list, base: 0, digester: &ADDER });
        let frame = TxFrame { digests, ..super_frame(&octets, &mixed) };
        let referred = sent(&mut frontend[0], &mut backend[0], &frame);
        assert!((1000..59_946).contains(&referred), "{referred}");
    }
}

#[test]
fn a_frame_of_more_runs_than_a_chain_has_is_copied_behind_them() {
    let publisher = Publisher::new();
    let memory = block(&publisher, 65_000);
    let (mut backend, mut frontend) = sharing(1, &publisher);
    settle(&mut backend[0], &mut frontend[0], &mut (1 << 40));
    let octets = frame(0);
    // In reverse order, so that no two runs merge. One run is the head, and one the copied bytes.
    for (len, count) in [(520, 125), (515, 126), (256, 253)] {
        let payload: Vec<_> = memory.chunks_exact(len).rev().map(SharedSlice::from_bytes).collect();
        assert_eq!(payload.len(), count);
        let referred = sent(&mut frontend[0], &mut backend[0], &super_frame(&octets, &payload));
        assert_eq!(referred, (count.min(125) * len) as u64, "{count} fragments");
    }
    assert_eq!(backend[0].counters().chains_refused, 0);
}

/// Returns how often a file is mapped in this process, and how many of these mappings are writable.
fn mappings(inode: u64) -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let field = |line: &str, at| line.split_whitespace().nth(at).unwrap_or_default().to_owned();
    let of_it = maps.lines().filter(|line| field(line, 4) == inode.to_string());
    let writable = of_it.clone().filter(|line| field(line, 1).contains('w'));
    (of_it.count(), writable.count())
}

fn inode(publisher: &Publisher) -> u64 {
    let file = publisher.look(|_, regions| regions.last().unwrap().file.try_clone().unwrap());
    File::from(file).metadata().unwrap().ino()
}

#[test]
fn memory_that_is_withdrawn_is_read_by_frames_on_their_way_and_then_let_go() {
    let publisher = Publisher::new();
    let (mut backend, mut frontend) = sharing(1, &publisher);
    let (backend, frontend) = (&mut backend[0], &mut frontend[0]);
    let mut now = 1 << 40;
    let octets = frame(0);
    let memory = block(&publisher, 50_000);
    let inode = inode(&publisher);
    assert_eq!(mappings(inode), (1, 1));
    settle(backend, frontend, &mut now);
    assert_eq!(mappings(inode), (2, 1), "the backend has it to be read");
    let payload = fpdus(&memory);
    let sent_octets = expected(&payload, None);
    for _ in 0..3 {
        frontend.transmit(0, &super_frame(&octets, &payload)).unwrap();
    }
    frontend.flush(0);
    assert_eq!(frontend.counters().referred_tx_bytes, 150_000);
    drop(payload);
    drop(memory);
    // The backend accepts one of the three; the others are not read yet.
    for count in [1, 1, 1] {
        receive(frontend, later(&mut now));
        assert_eq!(mappings(inode), (1, 0), "frames refer to it");
        let mut came = Vec::new();
        backend.receive(later(&mut now), count, &mut |frame| {
            came.push(frame.gathered(&mut Vec::new()).head.to_vec());
        });
        assert_eq!(came.len(), 1);
        assert!(came[0][54..] == sent_octets);
    }
    frontend.flush(0);
    settle(backend, frontend, &mut now);
    assert_eq!(mappings(inode), (0, 0), "it was let go");
    // The next region is announced.
    let memory = block(&publisher, 50_000);
    settle(backend, frontend, &mut now);
    assert_eq!(sent(frontend, backend, &super_frame(&octets, &fpdus(&memory))), 50_000);
}

#[test]
fn memory_that_the_backend_has_not_mapped_yet_is_copied() {
    let publisher = Publisher::new();
    let (mut backend, mut frontend) = sharing(1, &publisher);
    let (backend, frontend) = (&mut backend[0], &mut frontend[0]);
    let memory = block(&publisher, 50_000);
    let octets = frame(0);
    let payload = fpdus(&memory);
    let whole = super_frame(&octets, &payload);
    // Before the frontend has polled, before the backend has, and before the answer was read.
    let mut now = 1 << 40;
    assert_eq!(sent(frontend, backend, &whole), 0);
    receive(frontend, 0);
    assert_eq!(sent(frontend, backend, &whole), 0);
    receive(backend, later(&mut now));
    assert_eq!(sent(frontend, backend, &whole), 0);
    receive(frontend, later(&mut now));
    assert_eq!(sent(frontend, backend, &whole), 50_000);
    // Withdrawn meanwhile: the announced region is removed at once.
    let short_lived = block(&publisher, 4096);
    let inode = inode(&publisher);
    receive(frontend, later(&mut now));
    drop(short_lived);
    settle(backend, frontend, &mut now);
    assert_eq!(mappings(inode), (0, 0));
    assert_eq!(sent(frontend, backend, &whole), 50_000);
    assert_eq!(frontend.counters().sessions_ended, 0);
}

#[test]
fn all_that_can_be_published_is_shared_and_with_the_next_backend_again() {
    let publisher = Publisher::new();
    let path = path();
    let config = VhostUserConfig::backend(path.clone());
    let listening = VhostUserConfig { listens: true, ..VhostUserConfig::frontend(path) };
    let connecting = VhostUserConfig { listens: false, ..config };
    let mut frontend = VirtioUser::open_sharing(&listening, 1, &publisher).unwrap().pop().unwrap();
    let memory: Vec<_> =
        (0..crate::published::PUBLISHED_REGIONS_MAX).map(|_| block(&publisher, 4096)).collect();
    let octets = frame(0);
    let mut now = 1 << 40;
    for round in 1..3 {
        let mut backend = VhostUser::open(&connecting).unwrap();
        for _ in 0..20 {
            receive(&mut frontend, later(&mut now));
            receive(&mut backend, later(&mut now));
        }
        for region in &memory {
            let payload = fpdus(region);
            assert_eq!(sent(&mut frontend, &mut backend, &super_frame(&octets, &payload)), 4096);
        }
        drop(backend);
        receive(&mut frontend, later(&mut now));
        assert_eq!(frontend.counters().sessions_ended, round);
    }
}

#[test]
fn a_program_may_publish_while_it_is_handed_a_frame() {
    let publisher = Publisher::new();
    let (mut backend, mut frontend) = sharing(2, &publisher);
    let mut second = frontend.pop().unwrap();
    let mut other = backend.pop().unwrap();
    let (told, done) = std::sync::mpsc::channel();
    let publishing = publisher.clone();
    let rounds = thread::spawn(move || {
        let octets = frame(10);
        let mut count = 0;
        while count < 3000 {
            let _full = other.transmit(0, &TxFrame::whole(&octets));
            other.flush(0);
            second.receive(0, 64, &mut |_| {
                count += 1;
                drop(publishing.allocate(1).unwrap());
            });
        }
        told.send(()).unwrap();
    });
    // Meanwhile the first queue's thread announces and removes it.
    let (mut first, mut peer) = (frontend.pop().unwrap(), backend.pop().unwrap());
    let ended = std::sync::Arc::new(AtomicU32::new(0));
    let is_over = std::sync::Arc::clone(&ended);
    let telling = thread::spawn(move || {
        let mut now = 1 << 40;
        while is_over.load(Relaxed) == 0 {
            receive(&mut first, later(&mut now));
            receive(&mut peer, later(&mut now));
        }
    });
    done.recv_timeout(Duration::from_secs(30)).expect("neither waits for the other for ever");
    ended.store(1, Relaxed);
    rounds.join().unwrap();
    telling.join().unwrap();
}
