//! Handling of the other side's valid and invalid writes. The file is longer than most, since both
//! sides are tested against each other with the same helpers.

mod regions;
mod wrap;

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::SharedSlice;
use crate::sys::shared_mapping::{SharedMapping, sealed_memory};
use crate::virtqueue::ring::{Descriptor, INDIRECT, LayoutError, NEXT, WRITE};

const NAME: &CStr = c"virtqueue test";
/// Guest and user addresses of the memory, far from each other.
const GUEST: u64 = 0x4000_0000;
const USER: u64 = 0x7f00_0000_0000;
/// Offsets of the queue's parts in the memory; buffers follow.
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 4096;
const USED: u64 = 8192;
const BUFFERS: u64 = 16_384;
/// A table of descriptors.
const SOUND: u64 = BUFFERS + 8192;
const LEN: usize = 256 * 1024;

fn memory() -> OwnedFd {
    sealed_memory(NAME, LEN).unwrap()
}

/// Returns the memory as adjacent regions, divided at these offsets.
fn table(file: &OwnedFd, cuts: &[u64]) -> MemoryTable {
    let mut table = MemoryTable::default();
    let mut start = 0;
    for end in cuts.iter().copied().chain([LEN as u64]) {
        table.add([GUEST + start, USER + start, end - start, start], file.as_fd()).unwrap();
        start = end;
    }
    table
}

fn layout(table: &MemoryTable, size: u16) -> Layout {
    Layout::new(table, size, [USER + DESCRIPTORS, USER + AVAILABLE, USER + USED]).unwrap()
}

/// A driver that writes arbitrary values.
struct Writer {
    mapping: SharedMapping,
    size: u16,
    available: u16,
}

impl Writer {
    fn new(file: &OwnedFd, size: u16) -> Self {
        let mapping = SharedMapping::of(file.as_fd(), LEN).unwrap();
        Self { mapping, size, available: 0 }
    }

    fn descriptor(&self, at: u64, index: u16, descriptor: Descriptor) {
        let at = usize::try_from(at).unwrap() + 16 * usize::from(index);
        self.mapping.copy_in(at, &descriptor.to_octets());
    }

    fn offer(&mut self, head: u16) {
        let slot = usize::from(self.available % self.size);
        let at = usize::try_from(AVAILABLE).unwrap();
        self.mapping.copy_in(at + 4 + 2 * slot, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.mapping.copy_in(at + 2, &self.available.to_le_bytes());
    }
}

fn collect(table: &MemoryTable, runs: &[Run]) -> Vec<u8> {
    let mut octets = Vec::new();
    for run in runs {
        let mut part = vec![0; run.len];
        table.copy_out(*run, &mut part);
        octets.extend_from_slice(&part);
    }
    octets
}

fn taken(queue: &mut DeviceQueue, table: &MemoryTable) -> (Chain, Vec<u8>) {
    let mut runs = Vec::new();
    let chain = queue.take(table, Direction::ToDevice, &mut runs).unwrap().expect("a chain");
    (chain, collect(table, &runs))
}

/// Chains as a driver may create them: lengths of buffers, and optionally an indirect table behind
/// this number of descriptors in the queue's table.
fn chains() -> impl Strategy<Value = Vec<(Vec<usize>, Option<usize>)>> {
    let chain = (prop::collection::vec(0..3000_usize, 1..7), prop::option::of(0..7_usize));
    prop::collection::vec(chain, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        rng_seed: RngSeed::Fixed(7),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The bytes of a chain arrive in order for any layout of the chain and of the regions.
    #[test]
    fn chains_of_any_layout_are_read_whole(
        chains in chains(),
        cut in BUFFERS..LEN as u64,
        second in 1..5000_u64,
    ) {
        let file = memory();
        let cuts = if cut + second < LEN as u64 { vec![cut, cut + second] } else { vec![cut] };
        let table = table(&file, &cuts);
        let mut queue = DeviceQueue::new(&table, layout(&table, 8), false, 0);
        let mut writer = Writer::new(&file, 8);
        for (round, (lens, outer)) in chains.iter().enumerate() {
            let mut expected = Vec::new();
            let mut at = BUFFERS + 1024;
            let direct = outer.map_or(lens.len(), |outer| outer.min(lens.len() - 1));
            // A table of descriptors at an unaligned address.
            let inner = BUFFERS + 3;
            let crosses = cuts.iter().any(|cut| *cut > inner && *cut < inner + 16 * 7);
            if direct < lens.len() && crosses {
                continue;
            }
            for (i, &len) in lens.iter().enumerate() {
                let octets: Vec<u8> = (0..len)
                    .map(|k| u8::try_from((k * 31 + i * 7 + round) % 251).unwrap())
                    .collect();
                writer.mapping.copy_in(usize::try_from(at).unwrap(), &octets);
                let is_last = i + 1 == lens.len();
                let (place, index) = if i < direct {
                    (DESCRIPTORS, u16::try_from(i).unwrap())
                } else {
                    (inner, u16::try_from(i - direct).unwrap())
                };
                let descriptor = Descriptor {
                    address: GUEST + at,
                    len: u32::try_from(len).unwrap(),
                    flags: if is_last { 0 } else { NEXT },
                    next: index + 1,
                };
                writer.descriptor(place, index, descriptor);
                expected.extend_from_slice(&octets);
                at += u64::try_from(len).unwrap() + 5;
            }
            if direct < lens.len() {
                let len = u32::try_from(16 * (lens.len() - direct)).unwrap();
                let index = u16::try_from(direct).unwrap();
                let descriptor =
                    Descriptor { address: GUEST + inner, len, flags: INDIRECT, next: 99 };
                writer.descriptor(DESCRIPTORS, index, descriptor);
            }
            writer.offer(0);
            let (chain, octets) = taken(&mut queue, &table);
            prop_assert_eq!(chain.len, Ok(expected.len()));
            prop_assert!(octets == expected);
            queue.give_back(&table, chain.head, 0);
            queue.publish(&table);
        }
    }

    /// A driver may write any descriptor: a chain is refused or is inside the memory.
    #[test]
    fn descriptors_of_any_octets_are_refused_or_lie_in_the_memory(
        octets in prop::collection::vec(any::<[u8; 16]>(), 8),
        near in prop::collection::vec((0..LEN as u64 * 2, 0..70_000_u32, 0..8_u16, 0..10_u16), 8),
        heads in prop::collection::vec(0..9_u16, 1..9),
        direction in prop::sample::select(vec![Direction::ToDevice, Direction::ToDriver]),
    ) {
        let file = memory();
        let table = table(&file, &[100_000]);
        let mut queue = DeviceQueue::new(&table, layout(&table, 8), false, 0);
        let mut writer = Writer::new(&file, 8);
        for i in 0..8 {
            let (address, len, flags, next) = near[usize::from(i)];
            let descriptor = if i % 3 == 0 {
                Descriptor::from_octets(octets[usize::from(i)])
            } else {
                Descriptor { address: GUEST + address, len, flags, next }
            };
            writer.descriptor(DESCRIPTORS, i, descriptor);
        }
        for head in heads {
            writer.offer(head);
            let mut runs = Vec::new();
            match queue.take(&table, direction, &mut runs) {
                Ok(Some(Chain { len: Ok(len), .. })) => {
                    prop_assert_eq!(runs.iter().map(|run| run.len).sum::<usize>(), len);
                    // Panics outside of the memory.
                    prop_assert_eq!(collect(&table, &runs).len(), len);
                }
                Ok(Some(_)) => {}
                Ok(None) => prop_assert!(false, "one was offered"),
                Err(fault) => {
                    prop_assert_eq!((fault, head), (QueueFault::Head, 8));
                    return Ok(());
                }
            }
        }
    }
}

#[test]
fn each_fault_of_a_chain_has_its_name() {
    let file = memory();
    let table = table(&file, &[]);
    let whole = Descriptor { address: GUEST + BUFFERS, len: 64, flags: 0, next: 0 };
    let sound = Descriptor { address: GUEST + SOUND, flags: INDIRECT, len: 16, next: 0 };
    let faults = [
        (Descriptor { flags: WRITE, ..whole }, ChainFault::Direction),
        (Descriptor { flags: NEXT, next: 8, ..whole }, ChainFault::Descriptor),
        (Descriptor { flags: NEXT, next: 0, ..whole }, ChainFault::TooLong),
        (Descriptor { address: GUEST - 1, ..whole }, ChainFault::Address),
        (Descriptor { address: GUEST + LEN as u64 - 63, ..whole }, ChainFault::Address),
        (Descriptor { address: u64::MAX, ..whole }, ChainFault::Address),
        (Descriptor { len: u32::MAX, ..whole }, ChainFault::Address),
        (Descriptor { flags: INDIRECT | NEXT, ..sound }, ChainFault::Table),
        (Descriptor { flags: INDIRECT, len: 0, ..whole }, ChainFault::Table),
        (Descriptor { len: 17, ..sound }, ChainFault::Table),
        (Descriptor { len: 15, ..sound }, ChainFault::Table),
        (Descriptor { flags: INDIRECT, address: 16, ..whole }, ChainFault::Address),
    ];
    let mut queue = DeviceQueue::new(&table, layout(&table, 8), false, 0);
    let mut writer = Writer::new(&file, 8);
    // A table whose only fault is its length.
    writer.descriptor(SOUND, 0, whole);
    writer.descriptor(DESCRIPTORS, 0, sound);
    writer.offer(0);
    assert_eq!(taken(&mut queue, &table).0.len, Ok(64));
    // A table in a table.
    writer.descriptor(BUFFERS, 0, Descriptor { flags: INDIRECT, ..whole });
    let nested = (Descriptor { flags: INDIRECT, ..whole }, ChainFault::Table);
    for (descriptor, fault) in faults.into_iter().chain([nested]) {
        writer.descriptor(DESCRIPTORS, 0, descriptor);
        writer.offer(0);
        let chain = queue.take(&table, Direction::ToDevice, &mut Vec::new()).unwrap().unwrap();
        assert_eq!(chain.len, Err(fault), "{descriptor:?}");
    }
}

#[test]
fn a_queue_lies_aligned_in_one_region() {
    let file = memory();
    let table = table(&file, &[USED + 4]);
    let place = |size, descriptors, available, used| {
        let addresses = [USER + descriptors, USER + available, USER + used];
        Layout::new(&table, size, addresses).map(|layout| layout.size())
    };
    assert_eq!(place(8, DESCRIPTORS, AVAILABLE, BUFFERS), Ok(8));
    assert_eq!(place(0, DESCRIPTORS, AVAILABLE, BUFFERS), Err(LayoutError::Size));
    assert_eq!(place(12, DESCRIPTORS, AVAILABLE, BUFFERS), Err(LayoutError::Size));
    assert_eq!(place(8, DESCRIPTORS, AVAILABLE, USED), Err(LayoutError::Address));
    assert_eq!(place(8, DESCRIPTORS, LEN as u64, BUFFERS), Err(LayoutError::Address));
    assert_eq!(place(8, DESCRIPTORS + 8, AVAILABLE, BUFFERS), Err(LayoutError::Alignment));
    assert_eq!(place(8, DESCRIPTORS, AVAILABLE + 1, BUFFERS), Err(LayoutError::Alignment));
    assert_eq!(place(8, DESCRIPTORS, AVAILABLE, BUFFERS + 2), Err(LayoutError::Alignment));
}

#[test]
fn impossible_regions_are_refused() {
    let file = memory();
    let mut table = MemoryTable::default();
    let mut add = |numbers| table.add(numbers, file.as_fd());
    assert!(matches!(add([0, 0, 0, 0]), Err(TableError::Range)));
    assert!(matches!(add([u64::MAX, 0, 4096, 0]), Err(TableError::Range)));
    assert!(matches!(add([0, u64::MAX, 4096, 0]), Err(TableError::Range)));
    assert!(matches!(add([0, 0, 4096, u64::MAX]), Err(TableError::Range)));
    assert!(matches!(add([0, 0, LEN as u64, 1]), Err(TableError::Map(_))), "behind the file");
    add([4096, 0, 4096, 0]).unwrap();
    assert!(matches!(add([8191, 0, 4096, 0]), Err(TableError::Range)), "over another");
    for i in 1..MemoryTable::REGIONS_MAX as u64 {
        add([4096 + i * 4096, i, 4096, 4096]).unwrap();
    }
    assert!(matches!(add([0, 0, 16, 0]), Err(TableError::TooMany)));
    assert_eq!(table.user_run(5000, 1), None);
}

#[test]
fn used_entries_of_a_device_are_validated() {
    let file = memory();
    let table = table(&file, &[]);
    let layout = layout(&table, 4);
    let mut queue = DriverQueue::new(layout, false);
    for number in 0..3 {
        let address = GUEST + BUFFERS + u64::from(number) * 100;
        queue.offer(&table, number, address, 100, Direction::ToDriver);
    }
    assert!(queue.publish(&table));
    layout.set_used_index(&table, 4);
    assert_eq!(queue.waiting(&table), Err(QueueFault::Index), "three were offered");
    layout.set_used_index(&table, 3);
    assert_eq!(queue.waiting(&table), Ok(3));
    layout.set_used_entry(&table, 0, 3, 1);
    assert_eq!(queue.take(&table), Err(QueueFault::Unknown));
    layout.set_used_entry(&table, 0, 400, 1);
    assert_eq!(queue.take(&table), Err(QueueFault::Unknown));
    layout.set_used_entry(&table, 0, 2, 101);
    assert_eq!(queue.take(&table), Err(QueueFault::Length));
    layout.set_used_entry(&table, 0, 2, 100);
    assert_eq!(queue.take(&table), Ok((2, 100)));
    layout.set_used_entry(&table, 1, 2, 0);
    assert_eq!(queue.take(&table), Err(QueueFault::Unknown), "twice");
}

/// Sleeps until the other side sends an event, with a long timeout.
fn sleep(bell: &Receiver<()>) {
    bell.recv_timeout(Duration::from_secs(10)).expect("the other side tells");
}

fn ring(bell: &SyncSender<()>) {
    let _rings_already = bell.try_send(());
}

const TURNS: u32 = 4000;

/// Runs driver and device in two threads, which sleep when they have nothing to do.
fn two_threads(event_index: bool) {
    let file = Arc::new(memory());
    let [(kick, kicked), (call, called)] = [sync_channel(1), sync_channel(1)];
    let of_device = Arc::clone(&file);
    let device = thread::spawn(move || {
        let table = table(&of_device, &[]);
        let mut queue = DeviceQueue::new(&table, layout(&table, 16), event_index, 0);
        let (mut runs, mut expected) = (Vec::new(), 0);
        while expected < TURNS {
            runs.clear();
            let Some(chain) = queue.take(&table, Direction::ToDevice, &mut runs).unwrap() else {
                if queue.publish(&table) {
                    ring(&call);
                }
                if !queue.arm(&table, 0) {
                    sleep(&kicked);
                }
                queue.suppress(&table);
                continue;
            };
            let mut octets = [0; 4];
            table.copy_out(runs[0], &mut octets);
            assert_eq!(u32::from_le_bytes(octets), expected);
            expected += 1;
            queue.give_back(&table, chain.head, 0);
        }
        if queue.publish(&table) {
            ring(&call);
        }
    });
    let table = table(&file, &[]);
    let mut queue = DriverQueue::new(layout(&table, 16), event_index);
    let mut free: Vec<u16> = (0..16).collect();
    let (mut sent, mut back) = (0, 0);
    while back < TURNS {
        while sent < TURNS
            && let Some(number) = free.pop()
        {
            let address = BUFFERS + u64::from(number) * 64;
            let run = table.user_run(USER + address, 4).unwrap();
            table.copy_from(run, SharedSlice::from_bytes(&u32::to_le_bytes(sent)));
            queue.offer(&table, number, GUEST + address, 4, Direction::ToDevice);
            sent += 1;
            // Sometimes a single one.
            if sent % 7 == 0 {
                break;
            }
        }
        if queue.publish(&table) {
            ring(&kick);
        }
        let waiting = queue.waiting(&table).unwrap();
        for _ in 0..waiting {
            free.push(queue.take(&table).unwrap().0);
            back += 1;
        }
        if waiting == 0 && (free.is_empty() || sent == TURNS) {
            if !queue.arm(&table) {
                sleep(&called);
            }
            queue.suppress(&table);
        }
    }
    device.join().unwrap();
}

#[test]
fn both_sides_stay_awake_while_there_is_work() {
    two_threads(false);
}

#[test]
fn both_sides_stay_awake_while_there_is_work_by_event_index() {
    two_threads(true);
}

/// A thread overwrites rings, descriptors and buffers while both sides use them. Bytes may have any
/// value, but each access is inside the memory, or the queue ends.
#[test]
fn a_thread_that_scribbles_over_the_rings_does_no_harm() {
    let file = Arc::new(memory());
    let over = Arc::new(AtomicBool::new(false));
    let scribbler = {
        let (file, over) = (Arc::clone(&file), Arc::clone(&over));
        thread::spawn(move || {
            let mapping = SharedMapping::of(file.as_fd(), LEN).unwrap();
            let mut state = 88_172_645_463_325_252_u64;
            while !over.load(Relaxed) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let area = [DESCRIPTORS, AVAILABLE, USED, BUFFERS][(state & 3) as usize];
                let at = area + ((state >> 8) % 256);
                // Addresses near the memory more often than others.
                let value = match (state >> 2) & 3 {
                    0 => state,
                    1 => GUEST + (state >> 40),
                    2 => (state >> 32) & 7,
                    _ => 0,
                };
                let len = 1 << ((state >> 4) & 3);
                let at = usize::try_from(at).unwrap();
                mapping.copy_in(at, &value.to_le_bytes()[..len]);
            }
        })
    };
    let table = table(&file, &[BUFFERS + 70_000]);
    let layout = layout(&table, 16);
    let mut tally = Tally::default();
    for round in 0..u16::MAX {
        if round >= 3000 && tally.ended > 0 && tally.refused > 0 {
            break;
        }
        use_as_device(&table, layout, round, &mut tally);
        use_as_driver(&table, layout, round, &mut tally);
    }
    over.store(true, Relaxed);
    scribbler.join().unwrap();
    assert!(tally.ended > 0 && tally.refused > 0 && tally.good > 0, "{tally:?}");
}

/// Results of chains and queues.
#[derive(Debug, Default)]
struct Tally {
    ended: u32,
    refused: u32,
    good: u32,
}

fn use_as_device(table: &MemoryTable, layout: Layout, round: u16, tally: &mut Tally) {
    let mut runs = Vec::with_capacity(2 * CHAIN_LEN_MAX);
    let mut stage = vec![0; LEN];
    // As after a reconnecting peer.
    let start = layout.available_index(table).wrapping_sub(round % 4);
    let mut queue = DeviceQueue::new(table, layout, round.is_multiple_of(2), start);
    let direction = if round.is_multiple_of(3) { Direction::ToDriver } else { Direction::ToDevice };
    for _ in 0..16 {
        runs.clear();
        match queue.take(table, direction, &mut runs) {
            Err(_) => {
                tally.ended += 1;
                return;
            }
            Ok(None) => return,
            Ok(Some(Chain { head, len: Err(_) })) => {
                tally.refused += 1;
                queue.give_back(table, head, 0);
            }
            Ok(Some(Chain { head, len: Ok(_) })) => {
                tally.good += 1;
                for run in &runs {
                    let len = run.len.min(stage.len());
                    if direction == Direction::ToDevice {
                        table.copy_out(*run, &mut stage[..len]);
                    } else if run.at >= usize::try_from(BUFFERS).unwrap() {
                        table.copy_in(*run, &stage[..len]);
                    }
                }
                queue.give_back(table, head, 1);
            }
        }
        queue.publish(table);
        queue.arm(table, 0);
    }
}

fn use_as_driver(table: &MemoryTable, layout: Layout, round: u16, tally: &mut Tally) {
    let mut queue = DriverQueue::new(layout, round.is_multiple_of(2));
    let mut numbers: Vec<u16> = (0..16).collect();
    for _ in 0..16 {
        if let Some(number) = numbers.pop() {
            let address = GUEST + BUFFERS + u64::from(number) * 64;
            queue.offer(table, number, address, 64, Direction::ToDriver);
        }
        queue.publish(table);
        let waiting = queue.waiting(table);
        match waiting.and_then(|count| (count > 0).then(|| queue.take(table)).transpose()) {
            Ok(Some((number, len))) => {
                assert!(number < 16 && len <= 64, "{number} {len}");
                numbers.push(number);
                tally.good += 1;
            }
            Ok(None) => {}
            Err(_) => {
                tally.ended += 1;
                return;
            }
        }
    }
}
