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

#[derive(Debug, Default)]
pub(super) struct Budget {
    used: usize,
    /// Payloads dropped with the queues of evicted entries, since they were last counted.
    evicted: u64,
}

impl Budget {
    pub(super) const fn take_evicted(&mut self) -> u64 {
        std::mem::replace(&mut self.evicted, 0)
    }
}

#[cfg(test)]
impl Budget {
    pub(super) const fn used(&self) -> usize {
        self.used
    }
}

impl<T> Waiting<T> {
    /// Drops the oldest payload if the queue is full, or the new one if all queues would hold too
    /// many bytes. Returns the number of dropped payloads.
    pub(super) fn push(&mut self, budget: &mut Budget, to: T, payload: Vec<u8>) -> u64 {
        let oldest = if self.0.len() >= WAITING_MAX { self.0.front() } else { None };
        let used = budget.used - oldest.map_or(0, |(_, payload)| payload.len());
        if used + payload.len() > WAITING_BYTES_MAX {
            return 1;
        }
        let dropped = u64::from(oldest.is_some() && self.pop(budget).is_some());
        budget.used += payload.len();
        self.0.push_back((to, payload));
        dropped
    }

    pub(super) fn pop(&mut self, budget: &mut Budget) -> Option<(T, Vec<u8>)> {
        let (to, payload) = self.0.pop_front()?;
        budget.used -= payload.len();
        Some((to, payload))
    }

    /// The entry makes room for another.
    pub(super) fn evict(&mut self, budget: &mut Budget) {
        budget.evicted += self.clear(budget);
    }

    /// Returns the number of payloads.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_keeps_its_oldest_payload_if_the_new_one_does_not_fit() {
        let (mut budget, mut full) = (Budget::default(), Waiting::default());
        for number in 0..WAITING_MAX {
            assert_eq!(full.push(&mut budget, number, vec![0; 10]), 0);
        }
        let left = WAITING_BYTES_MAX - budget.used;
        // The payload replaces the oldest, and takes all bytes that are left.
        assert_eq!(full.push(&mut budget, WAITING_MAX, vec![0; left + 10]), 1);
        assert_eq!(budget.used, WAITING_BYTES_MAX);
        assert_eq!(full.push(&mut budget, WAITING_MAX + 1, vec![0; 11]), 1);
        assert_eq!(full.pop(&mut budget).map(|(number, _)| number), Some(1));
        let mut other = Waiting::default();
        assert_eq!((other.push(&mut budget, (), vec![0; 11]), other.is_empty()), (1, true));
        assert_eq!((other.push(&mut budget, (), vec![0; 10]), other.is_empty()), (0, false));
        other.evict(&mut budget);
        assert_eq!((budget.take_evicted(), budget.take_evicted()), (1, 0));
        assert_eq!(full.clear(&mut budget), WAITING_MAX as u64 - 1);
        assert_eq!(budget.used, 0);
    }
}
