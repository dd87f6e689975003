//! Deadlines of connections, earliest first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::time::Instant;

/// Deadlines in order, at most one current entry per connection.
///
/// TCP moves its deadlines with almost every segment, nearly always to later. So an entry is added
/// only if a deadline becomes earlier. An entry that reaches the front too early is put back with
/// the deadline that is valid then. An entry that an earlier one has replaced is stale (void) until
/// it reaches the front. The queue is rebuilt before stale entries outnumber the connections.
///
/// Deadlines of one kind mostly arrive in order. They are kept in lanes (FIFO queues): a new entry
/// goes behind the latest one that is not later. Only an entry that fits behind none goes into a
/// heap, where an insertion walks through memory that grows with the connections.
#[derive(Debug)]
pub struct TimerQueue {
    /// The earliest entry of each lane, and of the heap; [`NOTHING`] if it is empty.
    fronts: [Entry; LANES + 1],
    /// The latest entry of each lane.
    backs: [Instant; LANES],
    /// Index of the front that is the earliest of all.
    first: usize,
    lanes: [VecDeque<Entry>; LANES],
    heap: BinaryHeap<Reverse<Entry>>,
    /// Deadline of each connection's current entry; [`NEVER`] if it has none.
    standing: Vec<Instant>,
}

type Entry = (Instant, u32);

/// Kinds of deadlines at one time: delayed acknowledgments, retransmissions, tail loss probes.
const LANES: usize = 3;

/// Stale entries that a queue for few connections may contain.
const VOID_MAX: usize = 14;

const NEVER: Instant = Instant::from_nanos(u64::MAX);
const NOTHING: Entry = (NEVER, u32::MAX);

impl Default for TimerQueue {
    fn default() -> Self {
        Self {
            fronts: [NOTHING; LANES + 1],
            backs: [Instant::ZERO; LANES],
            first: 0,
            lanes: Default::default(),
            heap: BinaryHeap::new(),
            standing: Vec::new(),
        }
    }
}

impl TimerQueue {
    /// Arms the connection's timer for `deadline`, or leaves an earlier one.
    #[inline]
    pub fn arm(&mut self, slot: u32, deadline: Instant) {
        let index = slot as usize;
        if self.standing.get(index).is_none_or(|standing| deadline < *standing) {
            self.advance(slot, deadline);
        }
    }

    #[inline(never)]
    fn advance(&mut self, slot: u32, deadline: Instant) {
        let index = slot as usize;
        if self.standing.len() <= index {
            self.standing.resize(index + 1, NEVER);
        }
        self.standing[index] = deadline;
        if self.len() >= 2 * self.standing.len() + VOID_MAX {
            self.drop_void();
        } else {
            self.add((deadline, slot));
        }
    }

    fn len(&self) -> usize {
        self.heap.len() + self.lanes.iter().map(VecDeque::len).sum::<usize>()
    }

    fn add(&mut self, entry: Entry) {
        let (at, _) = entry;
        // Searches without a branch for each lane: the processor could not predict the lane.
        let (mut lane, mut latest) = (LANES, Instant::ZERO);
        for (index, back) in self.backs.iter().enumerate() {
            let is_behind = (*back <= at) & ((lane == LANES) | (*back > latest));
            (lane, latest) = if is_behind { (index, *back) } else { (lane, latest) };
        }
        if let Some(entries) = self.lanes.get_mut(lane) {
            if entries.is_empty() {
                self.fronts[lane] = entry;
            }
            entries.push_back(entry);
            self.backs[lane] = at;
        } else {
            self.heap.push(Reverse(entry));
            // Of two entries at the same time, the heap has that of the smaller number in front.
            self.fronts[lane] = self.fronts[lane].min(entry);
        }
        if at < self.fronts[self.first].0 {
            self.first = lane;
        }
    }

    fn drop_void(&mut self) {
        let standing = std::mem::take(&mut self.standing);
        let entries = standing.iter().copied().zip(0..).filter(|(at, _)| *at != NEVER);
        let mut lanes = std::mem::take(&mut self.lanes);
        lanes.iter_mut().for_each(VecDeque::clear);
        lanes[0].extend(entries);
        lanes[0].make_contiguous().sort_unstable();
        let mut heap = std::mem::take(&mut self.heap);
        heap.clear();
        *self = Self { lanes, heap, standing, ..Self::default() };
        if let (Some(front), Some(back)) = (self.lanes[0].front(), self.lanes[0].back()) {
            (self.fronts[0], self.backs[0]) = (*front, back.0);
        }
    }

    #[inline(always)]
    fn first(&self) -> Option<Entry> {
        let first = self.fronts[self.first];
        (first.0 != NEVER).then_some(first)
    }

    fn remove_first(&mut self) {
        let lane = self.first;
        let next = if let Some(entries) = self.lanes.get_mut(lane) {
            entries.pop_front();
            if entries.is_empty() {
                self.backs[lane] = Instant::ZERO;
            }
            entries.front().copied()
        } else {
            self.heap.pop();
            self.heap.peek().map(|Reverse(entry)| *entry)
        };
        self.fronts[lane] = next.unwrap_or(NOTHING);
        let (mut first, mut earliest) = (0, self.fronts[0].0);
        for (index, front) in self.fronts.iter().enumerate().skip(1) {
            (first, earliest) =
                if front.0 < earliest { (index, front.0) } else { (first, earliest) };
        }
        self.first = first;
    }

    /// Removes the connection's timer.
    pub fn forget(&mut self, slot: u32) {
        if let Some(standing) = self.standing.get_mut(slot as usize) {
            *standing = NEVER;
        }
    }

    /// `deadline_of` returns the current deadline of a connection.
    #[inline]
    pub fn next(&mut self, deadline_of: impl Fn(u32) -> Option<Instant>) -> Option<Instant> {
        loop {
            let (at, slot) = self.first()?;
            if self.standing[slot as usize] != at {
                self.remove_first();
                continue;
            }
            match deadline_of(slot) {
                Some(deadline) if deadline <= at => return Some(at),
                later => {
                    self.remove_first();
                    self.standing[slot as usize] = NEVER;
                    if let Some(deadline) = later {
                        self.arm(slot, deadline);
                    }
                }
            }
        }
    }

    /// Takes a connection whose deadline has expired.
    pub fn pop_due(
        &mut self,
        now: Instant,
        deadline_of: impl Fn(u32) -> Option<Instant>,
    ) -> Option<u32> {
        let at = self.next(deadline_of)?;
        if at > now {
            return None;
        }
        let (_, slot) = self.first()?;
        self.remove_first();
        self.standing[slot as usize] = NEVER;
        Some(slot)
    }

    /// Probably taken after `places` others, if its deadline has expired.
    #[inline]
    pub(super) fn soon_due(&self, now: Instant, places: usize) -> Option<u32> {
        let (at, slot) = *self.lanes.get(self.first)?.get(places)?;
        (at <= now).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn postponed_deadline_expires_at_its_new_time() {
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
    fn advanced_deadline_expires_once() {
        let mut timers = TimerQueue::default();
        timers.arm(0, at(10));
        timers.arm(0, at(5));
        assert_eq!(timers.pop_due(at(5), |_| Some(at(5))), Some(0));
        assert_eq!(timers.next(|_| Some(at(50))), None, "the old entry is void");
    }

    #[test]
    fn stale_timer_entries_do_not_accumulate() {
        // A far deadline that is replaced by an earlier one and returns, as with delayed
        // acknowledgments.
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
            assert!(timers.len() <= 2 * 3 + VOID_MAX);
        }
        timers.arm(1, at(77));
        assert_eq!(timers.next(|_| Some(at(77))), Some(at(77)));
    }

    /// Compares with a list that is searched: deadlines of several kinds, set, moved, removed and
    /// expired.
    #[test]
    fn timers_expire_in_deadline_order_for_any_order_of_arming() {
        const SLOTS: u32 = 200;
        let mut state = 1_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut timers = TimerQueue::default();
        let mut wanted = vec![None; SLOTS as usize];
        let mut now = 0;
        let mut called = 0;
        for _ in 0..50_000 {
            let slot = u32::try_from(random(SLOTS.into())).unwrap();
            let after = [50, 1000, 50_000, random(100_000)][usize::try_from(random(4)).unwrap()];
            let deadline = at(now + after);
            match random(10) {
                0 => {
                    wanted[slot as usize] = None;
                    timers.forget(slot);
                }
                1..8 => {
                    wanted[slot as usize] = Some(deadline);
                    timers.arm(slot, deadline);
                }
                _ => now += random(100),
            }
            assert_eq!(
                timers.next(|slot| wanted[slot as usize]),
                wanted.iter().flatten().min().copied()
            );
            while let Some(slot) = timers.pop_due(at(now), |slot| wanted[slot as usize]) {
                let taken = wanted[slot as usize].take().unwrap();
                assert!(taken <= at(now));
                assert!(wanted.iter().flatten().all(|other| taken <= *other));
                called += 1;
            }
            assert!(wanted.iter().flatten().all(|deadline| *deadline > at(now)));
            assert!(timers.len() <= 2 * SLOTS as usize + VOID_MAX);
        }
        assert!(called > 10_000 && timers.heap.capacity() > 0, "{called}");
    }

    #[test]
    fn soon_due_peeks_at_later_deadlines_of_a_kind() {
        let mut timers = TimerQueue::default();
        for slot in 0..100 {
            timers.arm(slot, at(1000 + u64::from(slot)));
            timers.arm(slot, at(10 + u64::from(slot)));
        }
        for slot in 0..98 {
            assert_eq!(timers.soon_due(at(200), 2), Some(slot + 2));
            assert_eq!(timers.soon_due(at(11 + u64::from(slot)), 2), None);
            assert_eq!(timers.pop_due(at(200), |slot| Some(at(10 + u64::from(slot)))), Some(slot));
        }
        assert_eq!(timers.heap.len(), 0, "each kind has a lane");
    }
}
