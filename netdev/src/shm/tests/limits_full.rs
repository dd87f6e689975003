//! Fills every limit to the last element.

use super::liar::Liar;
use super::*;
use crate::published::PUBLISHED_REGIONS_MAX;
use crate::published::runs::REFERRED_LEN_MIN;
use crate::shm::message::Message;

#[test]
fn a_frame_has_as_many_runs_as_it_may_have() {
    let publisher = Publisher::new();
    let memory = publisher.allocate(1 << 20).unwrap();
    let payload = octets(1 << 20, 1);
    fill(&memory, 0, &payload);
    let path = path();
    let mtu = *MTU.end();
    let listening = ShmConfig { mtu, ..config(&path, true) };
    let mut a = Shm::open(&listening, &publisher).unwrap();
    let connecting = ShmConfig { listens: false, ..listening };
    let opening = thread::spawn(move || Shm::open(&connecting, &Publisher::new()).unwrap());
    let mut now = 0;
    while !(opening.is_finished() && a.link_up()) {
        receive(&mut a, later(&mut now));
    }
    let mut b = opening.join().unwrap();
    let head = head();
    // Runs that are sent by reference, with copied ones between them, as many as fit.
    let most = a.capabilities().fragments_max;
    assert_eq!(most, RUNS_MAX - 1);
    let len = |index: usize| if index.is_multiple_of(6) { REFERRED_LEN_MIN } else { 10 };
    let mut fragments: Vec<_> =
        (0..most).map(|index| part(&memory, index * 1000, len(index))).collect();
    let expected: Vec<u8> =
        (0..most).flat_map(|index| payload[index * 1000..][..len(index)].to_vec()).collect();
    a.transmit(0, &frame(&head, &fragments)).unwrap();
    a.flush(0);
    assert!(a.counters().tx_bytes_referred > 40_000);
    let received = receive(&mut b, 0);
    assert!(received.len() == 1 && received[0].octets == [&head[..], &expected].concat());
    fragments.push(part(&memory, 0, 1));
    assert_eq!(a.transmit(0, &frame(&head, &fragments)), Err(TransmitError::TooLong));
    // All runs of one byte, none adjacent to another.
    let mut liar_like: Vec<_> = (0..most).map(|index| part(&memory, index * 3, 1)).collect();
    a.transmit(0, &frame(&head, &liar_like)).unwrap();
    liar_like.clear();
    // The longest frame, and a longer one.
    let whole = [part(&memory, 0, mtu + 14 - head.len())];
    a.transmit(0, &frame(&head, &whole)).unwrap();
    let whole = [part(&memory, 0, mtu + 15 - head.len())];
    assert_eq!(a.transmit(0, &frame(&head, &whole)), Err(TransmitError::TooLong));
    a.flush(0);
    let lens: Vec<_> = receive(&mut b, 0).iter().map(|frame| frame.octets.len()).collect();
    assert_eq!(lens, [head.len() + most, mtu + 14]);
    assert_eq!(b.counters().frames_refused, 0);
}

#[test]
fn all_that_can_be_published_is_mapped() {
    let publisher = Publisher::new();
    let mut all: Vec<_> =
        (0..PUBLISHED_REGIONS_MAX).map(|_| publisher.allocate(4096).unwrap()).collect();
    let [mut a, mut b] = pair_of(&publisher, &Publisher::new());
    let head = head();
    let mut now = 1 << 40;
    for round in 0..3 {
        // The socket takes some of it at a time.
        for _ in 0..20 {
            receive(&mut a, later(&mut now));
            receive(&mut b, now);
        }
        let before = a.counters().tx_bytes_referred;
        for memory in &all {
            fill(memory, 0, &octets(500, round));
            a.transmit(now, &frame(&head, &[part(memory, 0, 500)])).unwrap();
        }
        a.flush(now);
        let referred = a.counters().tx_bytes_referred - before;
        assert_eq!(referred, 500 * PUBLISHED_REGIONS_MAX as u64, "round {round}");
        // Withdraw all while frames refer to them, and publish as many again: there is room after
        // the frames are read.
        all.clear();
        all.extend((0..PUBLISHED_REGIONS_MAX).map(|_| publisher.allocate(4096).unwrap()));
        let before = a.counters().tx_bytes_copied;
        a.transmit(now, &frame(&head, &[part(&all[0], 0, 500)])).unwrap();
        assert_eq!(a.counters().tx_bytes_copied - before, 554, "what the peer does not know");
        a.flush(now);
        // The peer gets these messages before it reads the ring, and has room after it has read it.
        for _ in 0..20 {
            receive_some(&mut b, later(&mut now), 0);
            receive_some(&mut a, now, 0);
        }
        assert_eq!(b.counters().regions_refused, 0);
        let received = receive(&mut b, now);
        assert_eq!(received.len(), PUBLISHED_REGIONS_MAX + 1);
        assert!(
            received.iter().rev().skip(1).all(|frame| frame.octets[54..] == octets(500, round))
        );
    }
    assert_eq!((b.counters().regions_refused, b.counters().frames_refused), (0, 0));
}

#[test]
fn more_regions_than_a_peer_may_have_are_refused() {
    let config = config(&path(), true);
    let mut device = Shm::open(&config, &Publisher::new()).unwrap();
    let mut liar = Liar::new(&config.path);
    let mut now = 0;
    let (file, _mapping) = crate::sys::published::memory(c"test", 4096).unwrap();
    let mut refused = 0;
    for number in 1..3000 {
        liar.say(&Message::Publish { number, len: 4096 }, &[&file]);
        if number % 32 == 0 {
            receive(&mut device, later(&mut now));
            refused +=
                liar.hear().iter().filter(|one| matches!(one, Message::Refuse { .. })).count();
        }
    }
    receive(&mut device, later(&mut now));
    refused += liar.hear().iter().filter(|one| matches!(one, Message::Refuse { .. })).count();
    assert!(device.link_up(), "the others are of use");
    assert_eq!(refused, 2999 - REGIONS_MAX);
    assert_eq!(device.counters().regions_refused, refused as u64);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.lines().filter(|line| line.contains("/memfd:test")).count() < REGIONS_MAX + 100);
    // A withdrawn region makes room.
    liar.say(&Message::Withdraw { number: 1, position: 0 }, &[]);
    liar.say(&Message::Publish { number: 4000, len: 4096 }, &[&file]);
    liar.say(&Message::Publish { number: 4001, len: 4096 }, &[&file]);
    receive(&mut device, later(&mut now));
    assert_eq!(liar.hear(), [Message::Refuse { number: 4001 }]);
}

#[test]
fn messages_of_one_go_are_as_many_as_may_be() {
    let config = config(&path(), true);
    let mut device = Shm::open(&config, &Publisher::new()).unwrap();
    let liar = Liar::new(&config.path);
    let mut now = 0;
    receive(&mut device, later(&mut now));
    receive(&mut device, later(&mut now));
    assert!(device.link_up());
    let file = crate::sys::shared_mapping::sealed_memory(c"test", 4096).unwrap();
    for number in 1..=100 {
        liar.say(&Message::Publish { number, len: 4096 }, &[&file]);
    }
    receive(&mut device, later(&mut now));
    assert_eq!(device.counters().regions_refused, MESSAGES_MAX as u64);
    receive(&mut device, later(&mut now));
    assert_eq!(device.counters().regions_refused, 100);
}

#[test]
fn peer_that_reads_no_messages_gets_copies() {
    let publisher = Publisher::new();
    let config = config(&path(), true);
    let mut device = Shm::open(&config, &publisher).unwrap();
    let mut liar = Liar::new(&config.path);
    let mut now = 0;
    receive(&mut device, later(&mut now));
    receive(&mut device, later(&mut now));
    // Until the socket is full.
    let head = head();
    let mut kept = Vec::new();
    for _ in 0..5000 {
        kept.push(publisher.allocate(4096).unwrap());
        if kept.len() > 100 {
            kept.remove(0);
        }
        let newest = part(kept.last().unwrap(), 0, 1000);
        device.transmit(now, &frame(&head, &[newest])).unwrap();
        device.flush(now);
        let read = liar_reads(&mut liar);
        liar.memory.set_consumed(read);
        receive(&mut device, now);
    }
    assert!(device.link_up());
    let counters = device.counters();
    assert!(counters.tx_bytes_referred > 100_000 && counters.tx_bytes_copied > 1_000_000);
    // After reading its socket, it learns all regions.
    let mut told = std::collections::BTreeSet::new();
    for _ in 0..100 {
        for message in liar.hear() {
            match message {
                Message::Publish { number, .. } => assert!(told.insert(number)),
                Message::Withdraw { number, .. } => assert!(told.remove(&number)),
                _ => {}
            }
        }
        receive(&mut device, later(&mut now));
    }
    assert_eq!(told.len(), kept.len());
}

/// A peer that refuses all memory still gets every later announcement.
#[test]
fn memory_that_is_refused_does_not_count() {
    let publisher = Publisher::new();
    let config = config(&path(), true);
    let mut device = Shm::open(&config, &publisher).unwrap();
    let mut liar = Liar::new(&config.path);
    let mut now = 0;
    receive(&mut device, later(&mut now));
    receive(&mut device, later(&mut now));
    liar.hear();
    for count in 1..=REGIONS_MAX + 2 {
        let _memory = publisher.allocate(4096).unwrap();
        receive(&mut device, later(&mut now));
        let heard = liar.hear();
        let [Message::Publish { number, .. }] = heard[..] else { panic!("{count}: {heard:?}") };
        liar.say(&Message::Refuse { number }, &[]);
        receive(&mut device, later(&mut now));
    }
}

/// Reads all that there is.
fn liar_reads(liar: &mut Liar) -> u32 {
    if liar.theirs.is_none() {
        let first = liar.channel.receive().unwrap().unwrap();
        let file = &first.descriptors[0];
        let len = layout::OUTBOX_LEN;
        let mapping =
            crate::sys::read_mapping::ReadMapping::of(std::os::fd::AsFd::as_fd(file), len).unwrap();
        let memory = layout::PeerMemory::new(mapping);
        let file = std::os::fd::AsFd::as_fd(file).try_clone_to_owned().unwrap();
        liar.theirs = Some((file, memory));
    }
    liar.theirs.as_ref().map_or(0, |(_, memory)| memory.produced())
}
