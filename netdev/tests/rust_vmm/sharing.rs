//! The crate's backend below a frontend that shares published memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

use urnic_netdev::published::{PublishedBlock, Publisher};
use urnic_netdev::vhost_user::{VhostUserConfig, VirtioUser};
use urnic_netdev::{Device, SharedSlice, TxFrame};

use super::crate_backend::{Answering, RequestCounts, chain, descriptor, give_back};
use super::{HEADER_LEN, frame, later, path, wait_until};

const PAYLOAD_LEN: usize = 300;
/// Flags of a descriptor: another follows; it refers to an indirect table.
const NEXT: u16 = 1;
const TABLE: u16 = 4;

fn block(publisher: &Publisher, number: u8) -> PublishedBlock {
    let mut block = publisher.allocate_blocks(1, 4096).unwrap().pop().unwrap();
    let octets = frame(number, block.len());
    block.copy_from_slice(&octets);
    block
}

fn open(name: &str, publisher: &Publisher) -> (VhostUserConfig, VirtioUser) {
    let config = VhostUserConfig { listens: true, ..VhostUserConfig::frontend(path(name)) };
    let mut devices = VirtioUser::open_sharing(&config, 1, publisher).unwrap();
    (config, devices.pop().unwrap())
}

fn up(device: &mut VirtioUser, backend: &Answering, now_ns: &mut u64, regions: usize) {
    wait_until("the link is up, and memory answered for", || {
        device.receive(later(now_ns), 64, &mut |_| panic!("no frame"));
        let asked = backend.asked();
        device.link_up()
            && asked.enabled == [true; 2]
            && asked.answered().is_some_and(|answered| answered >= regions)
    });
    // All answers are in the socket: make the device read the rest.
    device.receive(later(now_ns), 64, &mut |_| panic!("no frame"));
}

/// Sends a frame of some bytes and a part of each block.
fn send(device: &mut VirtioUser, blocks: &[PublishedBlock]) -> Vec<u8> {
    let head = frame(9, 60);
    let payload: Vec<_> =
        blocks.iter().map(|block| SharedSlice::from_bytes(&block[7..7 + PAYLOAD_LEN])).collect();
    let sent = TxFrame { payload: &payload, ..TxFrame::whole(&head) };
    device.transmit(0, &sent).unwrap();
    device.flush(0);
    let parts = blocks.iter().map(|block| &block[7..7 + PAYLOAD_LEN]);
    parts.fold(head.clone(), |whole, part| [&whole[..], part].concat())
}

/// Returns the bytes at a guest address, in any region.
fn octets(asked: &RequestCounts, guest: u64, len: u32) -> Vec<u8> {
    let mut octets = vec![0; len as usize];
    let found = asked.regions.iter().find(|(region, _)| {
        (region.guest_phys_addr..region.guest_phys_addr + region.memory_size).contains(&guest)
    });
    let (file, at): (&File, u64) = match found {
        Some((region, file)) => (file, guest - region.guest_phys_addr + region.mmap_offset),
        None => (asked.memory.as_ref().unwrap(), asked.at(guest)),
    };
    file.read_exact_at(&mut octets, at).unwrap();
    octets
}

#[test]
fn backend_of_the_crate_reads_frames_from_published_memory() {
    let publisher = Publisher::new();
    let (config, mut device) = open("sharing", &publisher);
    let mut blocks = vec![block(&publisher, 1), block(&publisher, 2)];
    let backend = Answering::connect_as(&config.path, RequestCounts::with_slots(4, true));
    let mut now_ns = 0;
    up(&mut device, &backend, &mut now_ns, 2);
    for count in 0..3 {
        let expected = send(&mut device, &blocks);
        let asked = backend.asked();
        let (number, table, len) = chain(&asked, 1, count);
        let memory = asked.memory.as_ref().unwrap();
        let ring = asked.rings[1].descriptors + u64::from(number) * 16;
        assert_eq!(descriptor(memory, ring).2, TABLE);
        assert_eq!(len, 3 * 16, "what was copied, and a run in each region");
        let (mut whole, mut at) = (Vec::new(), 0);
        loop {
            let (guest, len, flags, next) = descriptor(memory, table + at * 16);
            whole.extend(octets(&asked, guest, len));
            if flags != NEXT {
                assert_eq!(flags, 0);
                break;
            }
            at = u64::from(next);
        }
        assert!(whole[HEADER_LEN..] == expected, "{count}");
        if count < 2 {
            give_back(&asked, 1, count, number, 0);
        }
    }
    let counters = device.counters();
    let referred = 3 * 2 * PAYLOAD_LEN as u64;
    assert_eq!((counters.referred_tx_bytes, counters.copied_tx_bytes), (referred, 3 * 60));
    // Regions beyond its limit are copied.
    blocks.extend([block(&publisher, 3), block(&publisher, 4)]);
    up(&mut device, &backend, &mut now_ns, 3);
    send(&mut device, &blocks);
    assert_eq!(device.counters().referred_tx_bytes, referred + 3 * PAYLOAD_LEN as u64);
    assert_eq!(device.counters().copied_tx_bytes, 4 * 60 + PAYLOAD_LEN as u64);
    // A withdrawn region is removed after the backend has returned the frames that refer to it;
    // another region takes its slot.
    blocks.truncate(1);
    for _ in 0..10 {
        device.receive(later(&mut now_ns), 64, &mut |_| panic!("no frame"));
    }
    std::thread::sleep(std::time::Duration::from_millis(10));
    assert_eq!(backend.asked().regions.len(), 3, "frames refer to them");
    for count in 2..4 {
        let asked = backend.asked();
        let (number, ..) = chain(&asked, 1, count);
        give_back(&asked, 1, count, number, 0);
    }
    device.flush(0);
    wait_until("they are taken away", || {
        device.receive(later(&mut now_ns), 64, &mut |_| panic!("no frame"));
        backend.asked().regions.len() == 1
    });
    blocks.push(block(&publisher, 5));
    up(&mut device, &backend, &mut now_ns, 2);
    let before = device.counters().referred_tx_bytes;
    send(&mut device, &blocks);
    assert_eq!(device.counters().referred_tx_bytes, before + 2 * PAYLOAD_LEN as u64);
    assert_eq!(device.counters().sessions_ended, 0);
}

#[test]
fn memory_that_a_backend_does_not_map_is_copied() {
    let publisher = Publisher::new();
    let (config, mut device) = open("copied", &publisher);
    let blocks = [block(&publisher, 1), block(&publisher, 2)];
    let backend = Answering::connect_as(&config.path, RequestCounts::with_slots(32, false));
    let mut now_ns = 0;
    up(&mut device, &backend, &mut now_ns, 2);
    let expected = send(&mut device, &blocks);
    let asked = backend.asked();
    let (_, at, len) = chain(&asked, 1, 0);
    let mut came = vec![0; len as usize];
    asked.memory.as_ref().unwrap().read_exact_at(&mut came, at).unwrap();
    assert!(came[HEADER_LEN..] == expected);
    let counters = device.counters();
    assert_eq!((counters.referred_tx_bytes, counters.copied_tx_bytes), (0, expected.len() as u64));
    assert_eq!((asked.refused, counters.sessions_ended), (2, 0));
}

#[test]
fn backend_without_memory_slots_is_refused() {
    let publisher = Publisher::new();
    let (config, mut device) = open("no-slots", &publisher);
    let backend = Answering::connect(&config.path);
    let mut now_ns = 0;
    wait_until("it is refused", || {
        device.receive(later(&mut now_ns), 64, &mut |_| panic!("no frame"));
        device.counters().sessions_ended == 1
    });
    assert!(!device.link_up());
    backend.thread.join().unwrap();
    drop(backend.stream);
}
