//! The connections of a port: by slot and by addresses, and the work that is due for them.
//!
//! The addresses of a connection are in the port's table. If the port is one of several queues of
//! an interface, they are also in the table of owners that the queues share. Both tables change
//! together, only in [`Connections::insert`], [`Connections::rename`], [`Connections::remove`] and
//! [`Connections::end_time_wait`]: no other code reaches the tables or the tuple of a connection.
//!
//! A connection is identified within the port by the number of its slot. The record of a connection
//! in TIME-WAIT has a number as well; [`is_in_time_wait`] distinguishes the two.

mod ahead;
pub(in crate::port) mod connection;
mod numbers;
mod slots;
mod table;
mod time_wait;
mod tuples;

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

pub(super) use time_wait::TimeWaitRecord;
pub(super) use tuples::Taken;

use crate::limits::{CONNECTIONS_MAX, TIME_WAIT_MAX};
use crate::port::connections::ahead::Ahead;
use crate::port::connections::connection::{ConnectionId, PortConnection};
use crate::port::connections::numbers::Numbers;
use crate::port::connections::slots::Slots;
use crate::port::connections::time_wait::TimeWaits;
use crate::port::connections::tuples::Tuples;
use crate::port::interface::path::PathMtu;
use crate::port::listeners::BacklogSlot;
use crate::port::timers::TimerQueue;
use crate::port::tuple::Tuple;
use crate::siphash::Key;
use crate::stream::carrier::OwnTcp;
use crate::tcp::TimeWait;
use crate::time::Instant;

/// The connections of a port.
#[derive(Debug)]
pub(super) struct Connections {
    slots: Slots<PortConnection>,
    /// Generation of the newest connection.
    generation: u32,
    tuples: Tuples,
    /// Hints about the next frames.
    ahead: Ahead,
    timers: TimerQueue,
    /// Connections that may have something to send.
    ready: VecDeque<u32>,
    /// Connections that did something since they were last processed.
    touched: Numbers,
    /// Connections to reopen with fewer demands on the peer.
    retries: Vec<u32>,
    time_waits: TimeWaits,
}

/// Bit that is set in the numbers of connections in TIME-WAIT.
const IN_TIME_WAIT: u32 = 1 << 31;

// The largest number means "none".
const _: () = assert!(CONNECTIONS_MAX <= 1 << 31 && TIME_WAIT_MAX < 1 << 31);

/// Returns true if a number is that of a connection in TIME-WAIT, and not a slot.
#[inline]
pub(super) const fn is_in_time_wait(number: u32) -> bool {
    number & IN_TIME_WAIT != 0
}

impl Connections {
    pub(super) fn new(key: Key) -> Self {
        Self {
            slots: Slots::new(),
            generation: 0,
            tuples: Tuples::new(key),
            ahead: Ahead::default(),
            timers: TimerQueue::default(),
            ready: VecDeque::with_capacity(64),
            touched: Numbers::new(),
            retries: Vec::new(),
            time_waits: TimeWaits::default(),
        }
    }

    /// Makes the tables of ports without connections share one table of owners, in this order.
    pub(super) fn join<'a>(key: Key, of_ports: impl Iterator<Item = &'a mut Self>) {
        Tuples::join(key, of_ports.map(|connections| &mut connections.tuples));
    }

    // ---- addresses ----

    /// Adds a connection with these addresses; it may send at once.
    ///
    /// # Errors
    /// This port, or another queue of the interface, has a connection with these addresses.
    pub(super) fn insert(
        &mut self,
        tuple: Tuple,
        carrier: OwnTcp,
        path: PathMtu,
        backlog_slot: Option<BacklogSlot>,
    ) -> Result<ConnectionId, Taken> {
        let slot = self.slots.vacant();
        let Self { slots, tuples, time_waits, .. } = self;
        tuples.insert(tuple, slot, |number| has(slots, time_waits, number, &tuple))?;
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        self.slots.insert(PortConnection::new(tuple, carrier, path, generation, backlog_slot));
        self.wake(slot);
        Ok(ConnectionId { slot, generation })
    }

    /// Changes the addresses of a connection. It has no route between them yet.
    ///
    /// # Errors
    /// Another connection has these addresses. The connection keeps its own.
    pub(super) fn rename(&mut self, slot: u32, tuple: Tuple) -> Result<(), Taken> {
        let Self { slots, tuples, time_waits, .. } = self;
        let before = slots[slot].tuple();
        tuples.rename(&before, tuple, slot, |number| has(slots, time_waits, number, &tuple))?;
        slots[slot].set_tuple(tuple);
        Ok(())
    }

    /// Removes a connection. Queued entries with its slot number become stale.
    pub(super) fn remove(&mut self, slot: u32) {
        let connection = self.slots.remove(slot);
        self.tuples.remove(&connection.tuple(), slot);
        self.timers.forget(slot);
    }

    /// Returns the slot, or the number in TIME-WAIT, of the connection with these addresses.
    #[inline(always)]
    pub(super) fn find(&mut self, tuple: &Tuple) -> Option<u32> {
        self.tuples.find_again(tuple).or_else(|| self.find_another(tuple))
    }

    /// Returns the number of a connection that is not the one found last.
    #[inline(never)]
    fn find_another(&mut self, tuple: &Tuple) -> Option<u32> {
        if !self.ahead.is_empty()
            && let Some(slot) = self.find_expected(tuple)
        {
            return Some(slot);
        }
        let Self { slots, tuples, time_waits, .. } = self;
        let number = tuples.find(tuple, |number| has(slots, time_waits, number, tuple))?;
        self.prefetch_found(number);
        Some(number)
    }

    /// Returns true if a connection of this port has these addresses.
    pub(super) fn contains(&self, tuple: &Tuple) -> bool {
        let Self { slots, time_waits, .. } = self;
        self.tuples.contains(tuple, |number| has(slots, time_waits, number, tuple))
    }

    /// Returns the other queue of the interface that owns the connection with these addresses.
    pub(super) fn other_owner(&self, tuple: &Tuple) -> Option<usize> {
        self.tuples.other_owner(tuple)
    }

    // ---- slots ----

    /// Number of connections that have a slot.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if there is no connection, not even in TIME-WAIT.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.time_waits.len() == 0
    }

    pub(super) fn get(&self, slot: u32) -> Option<&PortConnection> {
        self.slots.get(slot)
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut PortConnection> {
        self.slots.get_mut(slot)
    }

    /// Returns the connection with this identifier.
    pub(super) fn by_id(&self, id: ConnectionId) -> Option<&PortConnection> {
        self.get(id.slot).filter(|connection| connection.is(id))
    }

    /// Returns the connection with this identifier.
    pub(super) fn by_id_mut(&mut self, id: ConnectionId) -> Option<&mut PortConnection> {
        self.get_mut(id.slot).filter(|connection| connection.is(id))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &PortConnection)> {
        self.slots.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PortConnection> {
        self.slots.iter_mut()
    }

    /// The slots of all connections that have one.
    pub(super) fn slots(&self) -> Vec<u32> {
        self.iter().map(|(slot, _)| slot).collect()
    }

    // ---- connections in TIME-WAIT ----

    /// Number of connections in TIME-WAIT.
    pub(super) const fn time_wait_count(&self) -> usize {
        self.time_waits.len()
    }

    /// Reduces a connection to its TIME-WAIT record until `until`: a number in TIME-WAIT replaces
    /// its slot.
    pub(super) fn keep_time_wait(&mut self, slot: u32, tcp: TimeWait, until: Instant) {
        let tuple = self.slots.remove(slot).tuple();
        self.timers.forget(slot);
        let owes = tcp.owes();
        let number = self.time_waits.insert(tuple, tcp, until) | IN_TIME_WAIT;
        self.tuples.renumber(&tuple, slot, number);
        if owes {
            self.wake(number);
        }
    }

    /// Returns the record with this number in TIME-WAIT.
    pub(super) fn time_wait(&self, number: u32) -> Option<&TimeWaitRecord> {
        self.time_waits.get(number ^ IN_TIME_WAIT)
    }

    /// Returns the record with this number in TIME-WAIT.
    pub(super) fn time_wait_mut(&mut self, number: u32) -> Option<&mut TimeWaitRecord> {
        self.time_waits.get_mut(number ^ IN_TIME_WAIT)
    }

    /// Restarts the TIME-WAIT timer of a connection.
    pub(super) fn restart_time_wait(&mut self, number: u32, until: Instant) {
        self.time_waits.restart(number ^ IN_TIME_WAIT, until);
    }

    /// Removes a TIME-WAIT record.
    pub(super) fn end_time_wait(&mut self, number: u32) {
        if let Some(tuple) = self.time_waits.remove(number ^ IN_TIME_WAIT) {
            self.tuples.remove(&tuple, number);
        }
    }

    /// Returns the connection that has been in TIME-WAIT longest.
    pub(super) fn oldest_in_time_wait(&self) -> Option<u32> {
        self.time_waits.oldest().map(|index| index | IN_TIME_WAIT)
    }

    /// Time at which the first TIME-WAIT ends.
    pub(super) fn next_time_wait_over(&self) -> Option<Instant> {
        self.time_waits.next_deadline()
    }

    /// Numbers of all connections in TIME-WAIT.
    pub(super) fn in_time_wait(&self) -> Vec<u32> {
        self.time_waits.indices().map(|index| index | IN_TIME_WAIT).collect()
    }

    // ---- due work ----

    /// Adds the connection to the list of connections that may have something to send.
    pub(super) fn wake(&mut self, number: u32) {
        if let Some(ready) = self.ready_flag(number)
            && !std::mem::replace(ready, true)
        {
            self.ready.push_back(number);
        }
    }

    /// Wakes the connection because its queue pair has new work. Its `Bell` stays pressed until the
    /// connection has its turn.
    pub(super) fn bell_rang(&mut self, slot: u32) {
        if let Some(connection) = self.slots.get_mut(slot) {
            connection.rung = true;
            if !std::mem::replace(&mut connection.ready, true) {
                self.ready.push_back(slot);
            }
        }
    }

    /// Returns the flag that the connection is in the list of connections that may send.
    #[inline]
    fn ready_flag(&mut self, number: u32) -> Option<&mut bool> {
        if is_in_time_wait(number) {
            self.time_wait_mut(number).map(|record| &mut record.ready)
        } else {
            self.slots.get_mut(number).map(|connection| &mut connection.ready)
        }
    }

    /// Wakes a connection whose neighbour has answered, or must be queried again.
    pub(super) fn neighbour_answered(&mut self, number: u32) {
        if let Some(connection) = self.get_mut(number) {
            connection.awaits_neighbour = false;
        } else if let Some(record) = self.time_wait_mut(number) {
            record.awaits_neighbour = false;
        }
        self.wake(number);
    }

    /// Wakes all connections: a `Bell` found no room in the doorbell, so any of them may have new
    /// work.
    pub(super) fn wake_all(&mut self) {
        for slot in self.slots() {
            self[slot].release_bell();
            self.wake(slot);
        }
    }

    /// Adds the connection to the list of connections that did something:
    /// [`next_touched`](Self::next_touched) returns it.
    #[inline]
    pub(super) fn touch(&mut self, slot: u32) {
        let connection = &mut self.slots[slot];
        if !connection.touched {
            connection.touched = true;
            self.touched.push(slot);
        }
    }

    /// Marks a connection that has handled input: it may send, and its events must be collected.
    #[inline]
    pub(super) fn after_input(&mut self, slot: u32) {
        self.wake(slot);
        self.touch(slot);
    }

    /// Returns true if a connection may have something to send.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Number of connections that may have something to send.
    pub(super) fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Takes the next connection to send, by its slot or its number in TIME-WAIT.
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        loop {
            let number = self.ready.pop_front()?;
            if let Some(ready) = self.ready_flag(number) {
                *ready = false;
                return Some(number);
            }
        }
    }

    /// Returns true if a connection did something since they were last processed.
    pub(super) const fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Takes a connection that did something.
    pub(super) fn next_touched(&mut self) -> Option<u32> {
        loop {
            let slot = self.touched.pop()?;
            if let Some(connection) = self.slots.get_mut(slot) {
                connection.touched = false;
                return Some(slot);
            }
        }
    }

    /// Updates the timer of a connection whose deadline has changed.
    pub(super) fn arm(&mut self, slot: u32) {
        if let Some(deadline) = self[slot].poll_timeout() {
            self.timers.arm(slot, deadline);
        }
    }

    /// Returns the earliest deadline of a connection.
    pub(super) fn next_deadline(&mut self) -> Option<Instant> {
        let Self { slots, timers, .. } = self;
        timers.next(|slot| slots.get(slot).and_then(PortConnection::poll_timeout))
    }

    /// Takes a connection whose deadline has expired.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        self.prefetch_due(now);
        let Self { slots, timers, .. } = self;
        timers.pop_due(now, |slot| slots.get(slot).and_then(PortConnection::poll_timeout))
    }

    // ---- connections to reopen ----

    /// Marks the connection to be reopened with fewer demands on the peer.
    pub(super) fn push_retry(&mut self, slot: u32) {
        self.retries.push(slot);
    }

    pub(super) fn has_retries(&self) -> bool {
        !self.retries.is_empty()
    }

    /// Takes a connection that must be reopened.
    pub(super) fn next_retry(&mut self) -> Option<u32> {
        loop {
            let slot = self.retries.pop()?;
            if self.get(slot).is_some_and(|one| one.carrier.stream.wants_retry()) {
                return Some(slot);
            }
        }
    }

    /// Removes the timer of a connection that was reopened: it belonged to the old one.
    pub(super) fn forget_deadline(&mut self, slot: u32) {
        self.timers.forget(slot);
    }
}

/// Returns true if the connection of this number, a slot or one in TIME-WAIT, has these addresses.
#[inline(always)]
fn has(slots: &Slots<PortConnection>, time_waits: &TimeWaits, number: u32, tuple: &Tuple) -> bool {
    if is_in_time_wait(number) {
        time_waits.get(number ^ IN_TIME_WAIT).is_some_and(|record| record.tuple() == *tuple)
    } else {
        slots.get(number).is_some_and(|connection| connection.tuple() == *tuple)
    }
}

impl Index<u32> for Connections {
    type Output = PortConnection;

    #[inline]
    fn index(&self, slot: u32) -> &PortConnection {
        &self.slots[slot]
    }
}

impl IndexMut<u32> for Connections {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut PortConnection {
        &mut self.slots[slot]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::port::interface::demux::Glimpse;
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
        let config = tcp::Config::for_mtu(1500, 20);
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

    /// A frame is for the connection of its own addresses, no matter what hints a device gives.
    #[test]
    fn frames_that_come_otherwise_than_told_find_their_connections() {
        let mut connections = Connections::new(KEY);
        let slots: Vec<u32> =
            (0..300).map(|port| insert(&mut connections, tuple(port)).unwrap().slot).collect();
        assert!(connections.looks_ahead());
        let told = [Some(3), Some(4), None, Some(1000), Some(5), Some(6), Some(6), Some(7)];
        let as_told = [3, 4, 1000, 1000, 5, 6, 6, 7];
        let otherwise = [4, 3, 7, 5, 1000, 200, 6, 6, 8, 9];
        for come in [&as_told[..], &otherwise[..], &[]] {
            for remote_port in told {
                let data = remote_port == Some(4);
                connections.expect(remote_port.map(|port| Glimpse { tuple: tuple(port), data }));
            }
            connections.look_up_expected();
            for port in come {
                connections.frame_comes();
                let expected = slots.get(usize::from(*port)).copied();
                assert_eq!(connections.find(&tuple(*port)), expected, "{port}");
            }
            connections.expect_nothing();
        }
        // One is removed after its hint, and another gets its slot.
        connections.expect(Some(Glimpse { tuple: tuple(3), data: true }));
        connections.expect(Some(Glimpse { tuple: tuple(2000), data: true }));
        connections.look_up_expected();
        connections.remove(slots[3]);
        let other = insert(&mut connections, tuple(2000)).unwrap();
        assert_eq!(other.slot, slots[3]);
        for (port, expected) in [(3, None), (2000, Some(other.slot))] {
            connections.frame_comes();
            assert_eq!(connections.find(&tuple(port)), expected);
        }
        // More hints than there is room for.
        for _ in 0..200 {
            connections.expect(None);
        }
        connections.look_up_expected();
        (0..300).for_each(|_| connections.frame_comes());
    }

    #[test]
    fn a_name_means_one_connection_although_its_slot_is_used_again() {
        let mut connections = Connections::new(KEY);
        let first = insert(&mut connections, tuple(1)).unwrap();
        connections.remove(first.slot);
        let second = insert(&mut connections, tuple(1)).unwrap();
        assert_eq!(first.slot, second.slot);
        assert!(connections.by_id(first).is_none());
        assert!(connections.by_id(second).is_some());
    }
}
