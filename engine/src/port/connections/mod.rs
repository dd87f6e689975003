//! The connections of a port: by slot and by addresses, and the work that is due for them.
//! Addresses enter and leave the port's table and the table of owners, which the queues of an
//! interface share, together: only in [`Connections::insert`], [`Connections::rename`],
//! [`Connections::remove`] and [`Connections::end_time_wait`]. The number of a connection is its
//! slot, or that of a record in TIME-WAIT: [`is_in_time_wait`] distinguishes the two.

mod ahead;
pub(in crate::port) mod connection;
mod numbers;
mod slots;
mod table;
#[cfg(test)]
mod tests;
mod time_wait;
mod tuples;
mod work;

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

pub(super) use time_wait::TimeWaitRecord;
pub(super) use tuples::Taken;

use crate::limits::{CONNECTIONS_MAX, TIME_WAIT_MAX};
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

#[derive(Debug)]
pub(super) struct Connections {
    slots: Slots<PortConnection>,
    generation: u32,
    tuples: Tuples,
    timers: TimerQueue,
    /// Connections that may have something to send.
    ready: VecDeque<u32>,
    /// Connections that did something since they were last processed.
    touched: Numbers,
    /// Connections to reopen with fewer demands on the peer.
    retries: Vec<u32>,
    time_waits: TimeWaits,
}

const IN_TIME_WAIT: u32 = 1 << 31;

// The largest number means "none".
const _: () = assert!(CONNECTIONS_MAX <= 1 << 31 && TIME_WAIT_MAX < 1 << 31);

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
            timers: TimerQueue::default(),
            ready: VecDeque::with_capacity(64),
            touched: Numbers::new(),
            retries: Vec::new(),
            time_waits: TimeWaits::default(),
        }
    }

    /// Makes ports without connections share one table of owners, in this order.
    pub(super) fn join<'a>(key: Key, of_ports: impl Iterator<Item = &'a mut Self>) {
        Tuples::join(key, of_ports.map(|connections| &mut connections.tuples));
    }

    /// It may send at once. Fails if a queue of the interface has its addresses.
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

    pub(super) fn rename(&mut self, slot: u32, tuple: Tuple) -> Result<(), Taken> {
        let Self { slots, tuples, time_waits, .. } = self;
        let before = slots[slot].tuple();
        tuples.rename(&before, tuple, slot, |number| has(slots, time_waits, number, &tuple))?;
        slots[slot].set_tuple(tuple);
        Ok(())
    }

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

    #[inline(never)]
    fn find_another(&mut self, tuple: &Tuple) -> Option<u32> {
        let Self { slots, tuples, time_waits, .. } = self;
        let number = tuples.find(tuple, |number| has(slots, time_waits, number, tuple))?;
        self.prefetch_found(number);
        Some(number)
    }

    pub(super) fn contains(&self, tuple: &Tuple) -> bool {
        let Self { slots, time_waits, .. } = self;
        self.tuples.contains(tuple, |number| has(slots, time_waits, number, tuple))
    }

    /// Returns the other queue of the interface that owns the connection with these addresses.
    pub(super) fn other_owner(&self, tuple: &Tuple) -> Option<usize> {
        self.tuples.other_owner(tuple)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.time_waits.len() == 0
    }

    pub(super) fn get(&self, slot: u32) -> Option<&PortConnection> {
        self.slots.get(slot)
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut PortConnection> {
        self.slots.get_mut(slot)
    }

    pub(super) fn by_id(&self, id: ConnectionId) -> Option<&PortConnection> {
        self.get(id.slot).filter(|connection| connection.is(id))
    }

    pub(super) fn by_id_mut(&mut self, id: ConnectionId) -> Option<&mut PortConnection> {
        self.get_mut(id.slot).filter(|connection| connection.is(id))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &PortConnection)> {
        self.slots.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PortConnection> {
        self.slots.iter_mut()
    }

    pub(super) fn slots(&self) -> Vec<u32> {
        self.iter().map(|(slot, _)| slot).collect()
    }

    pub(super) const fn time_wait_count(&self) -> usize {
        self.time_waits.len()
    }

    /// Replaces a connection by its TIME-WAIT record, under a new number. The slot is freed.
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

    pub(super) fn time_wait(&self, number: u32) -> Option<&TimeWaitRecord> {
        self.time_waits.get(number ^ IN_TIME_WAIT)
    }

    pub(super) fn time_wait_mut(&mut self, number: u32) -> Option<&mut TimeWaitRecord> {
        self.time_waits.get_mut(number ^ IN_TIME_WAIT)
    }

    pub(super) fn restart_time_wait(&mut self, number: u32, until: Instant) {
        self.time_waits.restart(number ^ IN_TIME_WAIT, until);
    }

    pub(super) fn end_time_wait(&mut self, number: u32) {
        if let Some(tuple) = self.time_waits.remove(number ^ IN_TIME_WAIT) {
            self.tuples.remove(&tuple, number);
        }
    }

    pub(super) fn oldest_in_time_wait(&self) -> Option<u32> {
        self.time_waits.oldest().map(|index| index | IN_TIME_WAIT)
    }

    pub(super) fn next_time_wait_over(&self) -> Option<Instant> {
        self.time_waits.next_deadline()
    }

    pub(super) fn in_time_wait(&self) -> Vec<u32> {
        self.time_waits.indices().map(|index| index | IN_TIME_WAIT).collect()
    }
}

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
