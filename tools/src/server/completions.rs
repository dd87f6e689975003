//! The completion queues that all peers share.
//!
//! A queue for each peer would take 2.4 KiB and a poll. Shared queues grow and shrink with the
//! completions that the peers' queue pairs can raise, so that they never overflow. A further queue
//! is created when the others have the maximum depth.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::Context;
use urnic::{Cq, Rnic, Wc};
use urnic_engine::limits::CQ_DEPTH_MAX;

#[derive(Debug)]
pub(super) struct Completions {
    rnic: Rnic,
    queues: Vec<Queue>,
    depth_max: usize,
}

#[derive(Debug)]
struct Queue {
    cq: Cq,
    /// Completions that queue pairs may raise, also removed ones.
    reserved: usize,
    /// Completions of queue pairs that were removed since the last round.
    left: Rc<Cell<usize>>,
}

#[derive(Debug)]
pub(super) struct Reserved {
    pub(super) cq: Cq,
    depth: usize,
    left: Rc<Cell<usize>>,
}

impl Drop for Reserved {
    /// Releases the room: the queue pair raises no further completion.
    fn drop(&mut self) {
        self.left.set(self.left.get() + self.depth);
    }
}

/// Completions that wait in one queue when a turn begins.
#[derive(Debug)]
pub(super) struct Round {
    queue: usize,
    pub(super) waiting: usize,
    left: usize,
}

impl Completions {
    pub(super) const fn new(rnic: Rnic) -> Self {
        Self { rnic, queues: Vec::new(), depth_max: CQ_DEPTH_MAX }
    }

    /// Fails if one queue pair needs more than a queue can hold.
    pub(super) fn reserve(&mut self, depth: usize) -> anyhow::Result<Reserved> {
        let depth_max = self.depth_max;
        let has_room = |queue: &Queue| queue.reserved + depth <= depth_max;
        let at = match self.queues.iter().position(has_room) {
            Some(at) => at,
            None => {
                let first = depth.max(DEPTH_MIN.min(depth_max));
                let cq = self.rnic.create_cq(first).context("no completion queue")?;
                self.queues.push(Queue { cq, reserved: 0, left: Rc::default() });
                self.queues.len() - 1
            }
        };
        let queue = &mut self.queues[at];
        let needed = queue.reserved + depth;
        if needed > queue.cq.depth() {
            // Grows in proportion, so that few of many further peers make it grow.
            queue.cq.resize(roomy(needed).min(depth_max)).context("no completion queue")?;
        }
        queue.reserved = needed;
        Ok(Reserved { cq: queue.cq.clone(), depth, left: Rc::clone(&queue.left) })
    }

    pub(super) const fn queues(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn begin(&self, queue: usize) -> Round {
        let Queue { cq, left, .. } = &self.queues[queue];
        // In this order: the waiting completions then include all of a removed queue pair.
        let left = left.take();
        Round { queue, waiting: cq.len(), left }
    }

    pub(super) fn poll(&self, round: &Round) -> Option<Wc> {
        self.queues[round.queue].cq.poll()
    }

    /// Ends a round, whose completions must all have been polled.
    pub(super) fn end(&mut self, round: &Round) {
        if round.left == 0 {
            return;
        }
        let queue = &mut self.queues[round.queue];
        queue.reserved -= round.left;
        let roomy = roomy(queue.reserved).max(DEPTH_MIN.min(self.depth_max));
        if queue.cq.depth() > DEEP * roomy {
            // Completions that wait meanwhile have reserved room, so they fit.
            let _as_it_was = queue.cq.resize(roomy);
        }
    }

    /// Removes unused queues at the end of the list.
    pub(super) fn trim(&mut self) {
        while self.queues.len() > 1 && self.queues.last().is_some_and(|queue| queue.reserved == 0) {
            self.queues.pop();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.cq.is_empty())
    }

    #[cfg(test)]
    pub(super) fn depths(&self) -> (usize, usize) {
        let sum = |of: fn(&Queue) -> usize| self.queues.iter().map(of).sum();
        (sum(|queue| queue.reserved), sum(|queue| queue.cq.depth()))
    }

    #[cfg(test)]
    pub(super) const fn set_depth_max(&mut self, depth_max: usize) {
        self.depth_max = depth_max;
    }
}

/// Computes a depth for `reserved` completions, and for some more that may be needed next.
const fn roomy(reserved: usize) -> usize {
    reserved + reserved / 8
}

const DEPTH_MIN: usize = 64;
/// A queue that is deeper than needed by this factor shrinks.
const DEEP: usize = 3;

#[cfg(test)]
mod tests {
    use urnic::RnicConfig;

    use super::*;

    fn completions(depth_max: usize) -> Completions {
        let mut completions = Completions::new(Rnic::new(RnicConfig { seed: 1.into() }));
        completions.set_depth_max(depth_max);
        completions
    }

    fn turn(completions: &mut Completions) {
        for queue in 0..completions.queues() {
            let round = completions.begin(queue);
            assert_eq!(round.waiting, 0);
            completions.end(&round);
        }
        completions.trim();
    }

    #[test]
    fn room_is_made_before_it_is_needed_and_given_back_after_the_next_round() {
        let mut completions = completions(1 << 20);
        assert!(completions.is_empty());
        let mut held: Vec<_> = (0..1000).map(|_| completions.reserve(15).unwrap()).collect();
        let (reserved, depth) = completions.depths();
        assert_eq!((reserved, completions.queues()), (15_000, 1));
        assert!((15_000..=15_000 * 9 / 8).contains(&depth), "{depth}");
        assert!(held.iter().all(|one| one.cq.depth() == depth), "one queue");
        held.truncate(10);
        assert_eq!(completions.depths(), (15_000, depth), "what they raised may still wait");
        turn(&mut completions);
        let (reserved, depth) = completions.depths();
        assert_eq!(reserved, 150);
        assert!((150..=DEEP * 150 * 9 / 8).contains(&depth), "{depth}");
        drop(held);
        turn(&mut completions);
        let (reserved, depth) = completions.depths();
        assert!(reserved == 0 && depth <= DEEP * DEPTH_MIN, "{depth}");
    }

    #[test]
    fn a_full_queue_is_followed_by_another() {
        let mut completions = completions(100);
        let mut held: Vec<_> = (0..10).map(|_| completions.reserve(10).unwrap()).collect();
        assert_eq!((completions.depths(), completions.queues()), ((100, 100), 1), "to the last");
        held.push(completions.reserve(10).unwrap());
        held.push(completions.reserve(100).unwrap());
        assert_eq!(completions.queues(), 3);
        drop(held.drain(..10));
        turn(&mut completions);
        held.push(completions.reserve(90).unwrap());
        assert_eq!((completions.depths().0, completions.queues()), (200, 3), "the first has room");
        drop(held.drain(1..));
        turn(&mut completions);
        assert_eq!((completions.depths().0, completions.queues()), (10, 2), "the last goes first");
        drop(held);
        turn(&mut completions);
        assert_eq!((completions.depths().0, completions.queues()), (0, 1), "then the next");
        let too_deep = format!("{:#}", completions.reserve(CQ_DEPTH_MAX + 1).unwrap_err());
        assert!(too_deep.contains("depth"), "{too_deep}");
    }
}
