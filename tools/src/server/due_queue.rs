//! Timers of peers.

use std::collections::BTreeSet;

use urnic::QpNum;
use urnic_engine::time::Instant;

/// Peers in the order of their deadlines, each once.
#[derive(Debug, Default)]
pub(super) struct DueQueue(BTreeSet<(Instant, QpNum)>);

impl DueQueue {
    /// Replaces the peer's deadline `before`, if it has one, by `due`.
    pub(super) fn enter(&mut self, key: QpNum, before: Option<Instant>, due: Instant) {
        self.strike(key, before);
        self.0.insert((due, key));
    }

    /// Removes the peer's deadline `before`, if it has one.
    pub(super) fn strike(&mut self, key: QpNum, before: Option<Instant>) {
        if let Some(before) = before {
            self.0.remove(&(before, key));
        }
    }

    pub(super) fn first(&self) -> Option<Instant> {
        self.0.first().map(|(due, _)| *due)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes and returns a peer whose deadline is not after `now`.
    pub(super) fn take(&mut self, now: Instant) -> Option<QpNum> {
        self.first().filter(|due| *due <= now)?;
        self.0.pop_first().map(|(_, key)| key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_earliest_is_taken_first_and_each_once() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut due_queue = DueQueue::default();
        due_queue.enter(QpNum(1), None, at(30));
        due_queue.enter(QpNum(2), None, at(20));
        due_queue.enter(QpNum(3), None, at(10));
        due_queue.enter(QpNum(1), Some(at(30)), at(15));
        due_queue.strike(QpNum(3), Some(at(10)));
        assert_eq!(due_queue.first(), Some(at(15)));
        assert_eq!(due_queue.take(at(14)), None);
        let taken: Vec<_> = std::iter::from_fn(|| due_queue.take(at(99))).collect();
        assert_eq!(taken, [QpNum(1), QpNum(2)]);
        assert_eq!(due_queue.first(), None);
    }
}
