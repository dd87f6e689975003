//! Queues of datagrams that wait for an address, a path or a group.

use std::collections::VecDeque;

use crate::limits::{WAITING_BYTES_MAX, WAITING_MAX};

/// Payloads of packets, encapsulation header first, oldest first.
#[derive(Debug)]
pub(super) struct Waiting<T>(VecDeque<(T, Vec<u8>)>);

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

/// Bytes that wait in all queues together.
#[derive(Debug, Default)]
pub(super) struct Budget {
    used: usize,
}

#[cfg(test)]
impl Budget {
    pub(super) const fn used(&self) -> usize {
        self.used
    }
}

impl<T> Waiting<T> {
    /// Adds a payload. Drops the oldest ones if the queue is full, and the new one if all queues
    /// together hold too many bytes. Returns the number of dropped payloads.
    pub(super) fn push(&mut self, budget: &mut Budget, to: T, payload: Vec<u8>) -> u64 {
        let mut dropped = 0;
        while self.0.len() >= WAITING_MAX {
            drop(self.pop(budget));
            dropped += 1;
        }
        if budget.used + payload.len() > WAITING_BYTES_MAX {
            return dropped + 1;
        }
        budget.used += payload.len();
        self.0.push_back((to, payload));
        dropped
    }

    pub(super) fn pop(&mut self, budget: &mut Budget) -> Option<(T, Vec<u8>)> {
        let (to, payload) = self.0.pop_front()?;
        budget.used -= payload.len();
        Some((to, payload))
    }

    /// Drops all payloads. Returns their number.
    pub(super) fn clear(&mut self, budget: &mut Budget) -> u64 {
        let mut dropped = 0;
        while self.pop(budget).is_some() {
            dropped += 1;
        }
        dropped
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
