//! When connections want to be called, earliest first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Instant;

/// A heap with at most one standing entry per connection.
///
/// TCP moves its deadlines with almost every segment, nearly always to later. So an entry is only
/// added when a deadline becomes earlier than the one that stands; an entry that comes up too
/// early is put back at the deadline that holds then. An entry that an earlier one has replaced is
/// void: it stays in the heap until it comes up, and the heap is made anew before the void entries
/// outnumber the connections.
#[derive(Debug, Default)]
pub struct TimerQueue {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
    standing: Vec<Option<Instant>>,
}

impl TimerQueue {
    /// The connection wants to be called at `deadline`, or earlier if it said so before.
    pub fn arm(&mut self, slot: u32, deadline: Instant) {
        let index = slot as usize;
        if self.standing.len() <= index {
            self.standing.resize(index + 1, None);
        }
        if self.standing[index].is_none_or(|standing| deadline < standing) {
            self.standing[index] = Some(deadline);
            if self.heap.len() >= 2 * self.standing.len() + VOID_MAX {
                self.drop_void();
            } else {
                self.heap.push(Reverse((deadline, slot)));
            }
        }
    }

    /// Makes the heap anew from what stands.
    fn drop_void(&mut self) {
        self.heap.clear();
        let standing = self.standing.iter().zip(0..);
        self.heap.extend(standing.filter_map(|(at, slot)| Some(Reverse(((*at)?, slot)))));
    }

    /// The connection wants no call any more.
    pub fn forget(&mut self, slot: u32) {
        if let Some(standing) = self.standing.get_mut(slot as usize) {
            *standing = None;
        }
    }

    /// The earliest deadline that holds; `deadline_of` says what a connection wants now.
    pub fn next(&mut self, deadline_of: impl Fn(u32) -> Option<Instant>) -> Option<Instant> {
        loop {
            let &Reverse((at, slot)) = self.heap.peek()?;
            if self.standing[slot as usize] != Some(at) {
                self.heap.pop();
                continue;
            }
            match deadline_of(slot) {
                Some(deadline) if deadline <= at => return Some(at),
                later => {
                    self.heap.pop();
                    self.standing[slot as usize] = None;
                    if let Some(deadline) = later {
                        self.arm(slot, deadline);
                    }
                }
            }
        }
    }

    /// Takes a connection whose deadline has come.
    pub fn pop_due(
        &mut self,
        now: Instant,
        deadline_of: impl Fn(u32) -> Option<Instant>,
    ) -> Option<u32> {
        let at = self.next(deadline_of)?;
        if at > now {
            return None;
        }
        let Reverse((_, slot)) = self.heap.pop()?;
        self.standing[slot as usize] = None;
        Some(slot)
    }
}

/// Void entries that a heap for few connections may hold.
const VOID_MAX: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn a_deadline_that_moved_later_is_found_at_its_new_place() {
        let mut timers = TimerQueue::default();
        timers.arm(0, at(10));
        timers.arm(1, at(20));
        let now_wants = |slot| Some(if slot == 0 { at(30) } else { at(20) });
        assert_eq!(timers.next(now_wants), Some(at(20)));
        assert_eq!(timers.pop_due(at(25), now_wants), Some(1));
        assert_eq!(timers.pop_due(at(25), |slot| (slot == 0).then_some(at(30))), None);
        assert_eq!(timers.pop_due(at(30), |slot| (slot == 0).then_some(at(30))), Some(0));
        assert_eq!(timers.next(|_| None), None);
    }

    #[test]
    fn a_deadline_that_moved_earlier_counts_once() {
        let mut timers = TimerQueue::default();
        timers.arm(0, at(10));
        timers.arm(0, at(5));
        assert_eq!(timers.pop_due(at(5), |_| Some(at(5))), Some(0));
        assert_eq!(timers.next(|_| Some(at(50))), None, "the old entry is void");
    }

    #[test]
    fn overtaken_entries_do_not_pile_up() {
        // A far deadline that is overtaken and comes back, as by delayed acknowledgments.
        let mut timers = TimerQueue::default();
        for now in 0..10_000 {
            for slot in 0..3 {
                timers.arm(slot, at(1_000_000 + now));
                timers.arm(slot, at(now + 1));
            }
            let wants = |_| Some(at(now + 1));
            for slot in 0..3 {
                assert_eq!(timers.pop_due(at(now + 1), wants), Some(slot));
            }
            assert!(timers.heap.len() <= 2 * 3 + VOID_MAX);
        }
        timers.arm(1, at(77));
        assert_eq!(timers.next(|_| Some(at(77))), Some(at(77)));
    }
}
