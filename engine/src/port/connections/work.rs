//! Work that is due for connections: to send, to process events, to let timers expire, to reopen.

use super::{Connections, is_in_time_wait};
use crate::port::connections::connection::PortConnection;
use crate::time::Instant;

impl Connections {
    pub(in crate::port) fn wake(&mut self, number: u32) {
        if let Some(ready) = self.ready_flag(number)
            && !std::mem::replace(ready, true)
        {
            self.ready.push_back(number);
        }
    }

    /// Its `DoorbellButton` stays pressed until the connection may send.
    pub(in crate::port) fn doorbell_rang(&mut self, slot: u32) {
        if let Some(connection) = self.slots.get_mut(slot) {
            connection.rung = true;
            if !std::mem::replace(&mut connection.ready, true) {
                self.ready.push_back(slot);
            }
        }
    }

    #[inline]
    fn ready_flag(&mut self, number: u32) -> Option<&mut bool> {
        if is_in_time_wait(number) {
            self.time_wait_mut(number).map(|record| &mut record.ready)
        } else {
            self.slots.get_mut(number).map(|connection| &mut connection.ready)
        }
    }

    /// Wakes a connection whose neighbour has answered, or must be queried again.
    pub(in crate::port) fn neighbour_answered(&mut self, number: u32) {
        if let Some(connection) = self.get_mut(number) {
            connection.awaits_neighbour = false;
        } else if let Some(record) = self.time_wait_mut(number) {
            record.awaits_neighbour = false;
        }
        self.wake(number);
    }

    /// A `DoorbellButton` found no room in the doorbell: any connection may have new work.
    pub(in crate::port) fn wake_all(&mut self) {
        for slot in self.slots() {
            self[slot].release_button();
            self.wake(slot);
        }
    }

    /// The connection did something. [`next_touched`](Self::next_touched) takes it.
    #[inline]
    pub(in crate::port) fn touch(&mut self, slot: u32) {
        let connection = &mut self.slots[slot];
        if !connection.touched {
            connection.touched = true;
            self.touched.push(slot);
        }
    }

    /// Marks a connection that has handled input: it may send, and its events must be collected.
    #[inline]
    pub(in crate::port) fn after_input(&mut self, slot: u32) {
        self.wake(slot);
        self.touch(slot);
    }

    pub(in crate::port) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(in crate::port) fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Takes the next connection to send, by its slot or its number in TIME-WAIT.
    pub(in crate::port) fn next_ready(&mut self) -> Option<u32> {
        loop {
            let number = self.ready.pop_front()?;
            if let Some(ready) = self.ready_flag(number) {
                *ready = false;
                return Some(number);
            }
        }
    }

    pub(in crate::port) const fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    pub(in crate::port) fn next_touched(&mut self) -> Option<u32> {
        loop {
            let slot = self.touched.pop()?;
            if let Some(connection) = self.slots.get_mut(slot) {
                connection.touched = false;
                return Some(slot);
            }
        }
    }

    pub(in crate::port) fn arm(&mut self, slot: u32) {
        if let Some(deadline) = self[slot].poll_timeout() {
            self.timers.arm(slot, deadline);
        }
    }

    pub(in crate::port) fn next_deadline(&mut self) -> Option<Instant> {
        let Self { slots, timers, .. } = self;
        timers.next(|slot| slots.get(slot).and_then(PortConnection::poll_timeout))
    }

    pub(in crate::port) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        self.prefetch_due(now);
        let Self { slots, timers, .. } = self;
        timers.pop_due(now, |slot| slots.get(slot).and_then(PortConnection::poll_timeout))
    }

    pub(in crate::port) fn push_retry(&mut self, slot: u32) {
        self.retries.push(slot);
    }

    pub(in crate::port) fn has_retries(&self) -> bool {
        !self.retries.is_empty()
    }

    pub(in crate::port) fn next_retry(&mut self) -> Option<u32> {
        loop {
            let slot = self.retries.pop()?;
            if self.get(slot).is_some_and(|one| one.carrier.stream.wants_retry()) {
                return Some(slot);
            }
        }
    }

    /// The timer belonged to the old TCP connection.
    pub(in crate::port) fn forget_deadline(&mut self, slot: u32) {
        self.timers.forget(slot);
    }
}
