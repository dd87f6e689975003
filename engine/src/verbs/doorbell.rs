//! Notification of a port by its queue pairs that work was posted.
//!
//! 1. A thread puts work in its queue pair, and presses the button of the queue pair.
//! 2. The first press since the last release enters the connection in the doorbell's list, or sets
//!    `missed` if the list is full, and rings the alarm. Further presses do nothing.
//! 3. The port takes a connection from the list, or all connections after `missed`.
//! 4. The port releases the button, and then looks for work.
//! 5. A port that is about to sleep arms the doorbell, and looks at the list once more.
//!
//! Racy cases:
//!
//! - *Work is posted between steps 3 and 4.* The press may do nothing. The look of step 4 finds the
//!   work, since it follows the release.
//! - *Work is posted while the port goes to sleep.* The look of step 5 finds it, or the press wakes
//!   the port (`alarm`).
//! - *The button is moved to another doorbell while a thread presses.* Both hold the button's lock.
//!
//! Model: the loom tests of `tests/loom` run this file.

use std::sync::Arc;
use std::task::Waker;

use crate::limits::DOORBELL_PLACES;
use crate::verbs::alarm::Alarm;
use crate::verbs::sync::{ArrayQueue, AtomicBool, Mutex, Ordering, lock};

/// List of the queue pairs with new work, of one port or engine, each at most once.
#[derive(Debug)]
pub struct Doorbell {
    rung: ArrayQueue<u32>,
    /// A queue pair found the list full.
    missed: AtomicBool,
    alarm: Alarm,
}

impl Doorbell {
    /// An empty list.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::with_places(DOORBELL_PLACES)
    }

    /// A list with room for `places` queue pairs.
    pub fn with_places(places: usize) -> Arc<Self> {
        let (rung, missed) = (ArrayQueue::new(places), AtomicBool::new(false));
        Arc::new(Self { rung, missed, alarm: Alarm::new() })
    }

    /// Takes the next queue pair from the list. Returns its connection.
    #[must_use]
    pub fn next(&self) -> Option<u32> {
        self.rung.pop()
    }

    /// Returns true if a queue pair did not fit in the list, and resets the flag. Call
    /// [`DoorbellButton::release`] for every connection then, and check it for work.
    pub fn take_missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed) && self.missed.swap(false, Ordering::AcqRel)
    }

    /// Returns true if a queue pair has posted work.
    #[must_use]
    pub fn has_rung(&self) -> bool {
        !self.rung.is_empty() || self.missed.load(Ordering::Relaxed)
    }

    /// Asks for one call of `waker` when a queue pair posts work. Check once more afterwards.
    pub fn arm(&self, waker: &Waker) {
        self.alarm.arm(waker);
    }

    /// Cancels the request of `waker`.
    pub fn disarm(&self, waker: &Waker) {
        self.alarm.cancel(waker);
    }
}

/// Connects one queue pair to the doorbell of its port.
#[derive(Debug)]
pub struct DoorbellButton {
    place: Mutex<(Arc<Doorbell>, u32)>,
    pressed: AtomicBool,
}

impl DoorbellButton {
    /// A link for the queue pair of `connection`.
    #[must_use]
    pub fn new(doorbell: Arc<Doorbell>, connection: u32) -> Self {
        Self { place: Mutex::new((doorbell, connection)), pressed: AtomicBool::new(false) }
    }

    /// For another attempt to connect. A concurrent press may still use the former ones.
    pub(crate) fn attach(&self, doorbell: &Arc<Doorbell>, connection: u32) {
        *lock(&self.place) = (Arc::clone(doorbell), connection);
        self.release();
    }

    /// Notifies the port that work was posted.
    pub fn press(&self) {
        if !self.pressed.swap(true, Ordering::AcqRel) {
            let (doorbell, connection) = lock(&self.place).clone();
            // Queue pairs of ended connections may still press once each, by a post that saw them
            // connected, and take the room of others.
            if doorbell.rung.push(connection).is_err() {
                doorbell.missed.store(true, Ordering::Release);
            }
            doorbell.alarm.ring();
        }
    }

    /// Lets later work press again. Call before looking for work: that must see everything posted
    /// before a press that did nothing. The swap reads the value that the press wrote, which orders
    /// the two; a plain store would let the look run first.
    pub fn release(&self) {
        self.pressed.swap(false, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn doorbell_rings_once_until_its_release() {
        let doorbell = Doorbell::new();
        let button = DoorbellButton::new(Arc::clone(&doorbell), 7);
        assert!(!doorbell.has_rung());
        button.press();
        button.press();
        assert!(doorbell.has_rung());
        assert_eq!((doorbell.next(), doorbell.next()), (Some(7), None));
        button.press();
        assert_eq!(doorbell.next(), None, "the port has not looked yet");
        button.release();
        button.press();
        assert_eq!(doorbell.next(), Some(7));
        assert!(!doorbell.has_rung() && !doorbell.take_missed());
    }

    #[test]
    fn moved_doorbell_rings_at_its_new_port() {
        let (first, second) = (Doorbell::new(), Doorbell::new());
        let button = DoorbellButton::new(Arc::clone(&first), 1);
        button.press();
        button.attach(&first, 2);
        button.press();
        assert_eq!([first.next(), first.next(), first.next()], [Some(1), Some(2), None]);
        for (doorbell, connection) in [(&second, 3), (&first, 4), (&first, 5)] {
            button.attach(doorbell, connection);
            button.press();
            button.press();
            assert_eq!([doorbell.next(), doorbell.next()], [Some(connection), None]);
            button.release();
        }
        assert!(!first.has_rung() && !second.has_rung());
    }

    #[test]
    fn rings_beyond_the_doorbell_capacity_are_reported_as_missed() {
        let doorbell = Doorbell::with_places(2);
        let bells: Vec<_> = (0..4).map(|i| DoorbellButton::new(Arc::clone(&doorbell), i)).collect();
        bells.iter().for_each(DoorbellButton::press);
        assert_eq!((doorbell.next(), doorbell.next()), (Some(0), Some(1)));
        assert_eq!(doorbell.next(), None);
        assert!(doorbell.has_rung(), "the port may not sleep");
        assert!(doorbell.take_missed());
        assert!(!doorbell.take_missed() && !doorbell.has_rung(), "reported once");
        bells.iter().for_each(DoorbellButton::release);
        bells[3].press();
        assert_eq!(doorbell.next(), Some(3), "no queue pair stays pressed");
    }
}
