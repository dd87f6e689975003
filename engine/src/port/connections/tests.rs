use std::sync::Arc;

use super::*;
use crate::stream::{RxPolicy, Stream};
use crate::tcp::{self, SeqNum};
use crate::verbs::{HeldRnic, Rnic, RnicConfig};

const KEY: Key = (1, 2);

fn tuple(remote_port: u16) -> Tuple {
    Tuple::new([10, 0, 0, 1].into(), 7174, [10, 0, 0, 2].into(), remote_port)
}

fn insert(connections: &mut Connections, tuple: Tuple) -> Result<ConnectionId, Taken> {
    let rnic = Rnic::new(RnicConfig { seed: 1.into() });
    let stream = Stream::new(HeldRnic::by_stream(&rnic), RxPolicy::default(), Arc::default());
    let config = tcp::PathConfig::default();
    let tcp = tcp::Tcb::connect(Instant::ZERO, &config.into(), 1, 2, SeqNum(0), 0);
    let path = PathMtu::new(tuple.remote().ip(), 1500, 552);
    connections.insert(tuple, OwnTcp::new(tcp, stream, true), path, None)
}

/// Checks that the table and the connections agree, and that no two queues own one tuple.
fn check([one, other]: &mut [Connections; 2]) {
    for port in 0..20 {
        let tuple = tuple(port);
        let of_one = one.find(&tuple);
        let of_other = other.find(&tuple);
        assert!(of_one.is_none() || of_other.is_none(), "{tuple} has two owners");
        assert_eq!(one.other_owner(&tuple), of_other.map(|_| 1), "{tuple}");
        assert_eq!(other.other_owner(&tuple), of_one.map(|_| 0), "{tuple}");
        for (connections, found) in [(&*one, of_one), (&*other, of_other)] {
            let has_it = connections.iter().find(|(_, one)| one.tuple() == tuple);
            assert_eq!(has_it.map(|(slot, _)| slot), found, "{tuple}");
        }
    }
}

#[test]
fn a_connection_is_found_by_the_addresses_it_has_and_by_no_others() {
    let mut queues = [Connections::new(KEY), Connections::new(KEY)];
    Connections::join(KEY, queues.iter_mut());
    for port in 0..10 {
        let queue = &mut queues[usize::from(port % 2)];
        insert(queue, tuple(port)).unwrap();
        check(&mut queues);
    }
    for port in 0..10 {
        let [one, other] = &mut queues;
        let taken = [insert(one, tuple(port)), insert(other, tuple(port))];
        assert_eq!(taken, [Err(Taken); 2], "{port}");
        check(&mut queues);
    }
    for slot in 0..5_u16 {
        let (own, of_other) = (tuple(10 + slot), tuple(2 * slot + 1));
        assert_eq!(queues[0].rename(slot.into(), of_other), Err(Taken));
        check(&mut queues);
        queues[0].rename(slot.into(), own).unwrap();
        assert_eq!(queues[0].find(&own), Some(slot.into()));
        check(&mut queues);
    }
    for slot in 0..5 {
        queues.iter_mut().for_each(|queue| queue.remove(slot));
        check(&mut queues);
    }
    assert!(queues.iter().all(Connections::is_empty));
    for port in 0..20 {
        insert(&mut queues[0], tuple(port)).unwrap();
    }
}

#[test]
fn addresses_in_time_wait_are_taken_until_it_is_over() {
    let mut queues = [Connections::new(KEY), Connections::new(KEY)];
    Connections::join(KEY, queues.iter_mut());
    let [one, other] = &mut queues;
    for port in 0..3 {
        let id = insert(one, tuple(port)).unwrap();
        one.keep_time_wait(id.slot, time_wait::tests::closed(), Instant::from_nanos(9));
        assert!(one.by_id(id).is_none());
    }
    assert_eq!((one.len(), one.time_wait_count(), one.is_empty()), (0, 3, false));
    for port in 0..3 {
        let number = one.find(&tuple(port)).unwrap();
        assert!(is_in_time_wait(number) && one.contains(&tuple(port)));
        assert_eq!(one.time_wait(number).unwrap().tuple(), tuple(port));
        assert_eq!(other.other_owner(&tuple(port)), Some(0));
        assert_eq!(insert(one, tuple(port)), Err(Taken));
        assert_eq!(insert(other, tuple(port)), Err(Taken));
    }
    // Each owes an acknowledgment, and is returned once.
    assert_eq!(one.in_time_wait().len(), 3);
    let ready: Vec<u32> = std::iter::from_fn(|| one.next_ready()).collect();
    assert_eq!(ready, one.in_time_wait());
    while let Some(oldest) = one.oldest_in_time_wait() {
        one.end_time_wait(oldest);
        one.wake(oldest);
        one.neighbour_answered(oldest);
    }
    assert!(one.is_empty() && !one.has_ready() && one.next_time_wait_over().is_none());
    for port in 0..3 {
        insert(other, tuple(port)).unwrap();
    }
}

#[test]
fn connection_id_stays_unique_when_its_slot_is_reused() {
    let mut connections = Connections::new(KEY);
    let first = insert(&mut connections, tuple(1)).unwrap();
    connections.remove(first.slot);
    let second = insert(&mut connections, tuple(1)).unwrap();
    assert_eq!(first.slot, second.slot);
    assert!(connections.by_id(first).is_none());
    assert!(connections.by_id(second).is_some());
}
