//! How a queue pair tells its port that work was posted.

use std::sync::Arc;
use std::task::Waker;

use crate::limits::DOORBELL_PLACES;
use crate::verbs::alarm::Alarm;
use crate::verbs::sync::{ArrayQueue, AtomicBool, Mutex, Ordering, lock};

/// The list of queue pairs of one port, or of one engine over sockets, that have new work; each stands
/// in it at most once.
#[derive(Debug)]
pub struct Doorbell {
    rung: ArrayQueue<u32>,
    /// A queue pair found no place in the list.
    missed: AtomicBool,
    alarm: Alarm,
}

impl Doorbell {
    /// An empty list.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::with_places(DOORBELL_PLACES)
    }

    /// A place for each of `places` queue pairs.
    pub fn with_places(places: usize) -> Arc<Self> {
        let (rung, missed) = (ArrayQueue::new(places), AtomicBool::new(false));
        Arc::new(Self { rung, missed, alarm: Alarm::new() })
    }

    /// The connection of the next queue pair that has rung.
    #[must_use]
    pub fn next(&self) -> Option<u32> {
        self.rung.pop()
    }

    /// Whether a queue pair has rung that [`next`](Self::next) does not know of: release the bell of
    /// every connection, and look at it. Tells once.
    pub fn take_missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed) && self.missed.swap(false, Ordering::AcqRel)
    }

    /// Whether a queue pair has rung.
    #[must_use]
    pub fn has_rung(&self) -> bool {
        !self.rung.is_empty() || self.missed.load(Ordering::Relaxed)
    }

    /// Asks for one call of `waker` when a queue pair rings. Look once more afterwards.
    pub fn arm(&self, waker: &Waker) {
        self.alarm.arm(waker);
    }

    /// The call that `waker` has asked for is wanted no more.
    pub fn disarm(&self, waker: &Waker) {
        self.alarm.cancel(waker);
    }
}

/// A queue pair's button for its port's doorbell.
#[derive(Debug)]
pub struct Bell {
    /// The doorbell, and the connection that it is rung for.
    place: Mutex<(Arc<Doorbell>, u32)>,
    pressed: AtomicBool,
}

impl Bell {
    /// The button of the queue pair of `connection`.
    #[must_use]
    pub fn new(doorbell: Arc<Doorbell>, connection: u32) -> Self {
        Self { place: Mutex::new((doorbell, connection)), pressed: AtomicBool::new(false) }
    }

    /// Rings `doorbell` for `connection` from now on: another attempt to connect is made. A press just
    /// before may ring as it was.
    pub(crate) fn attach(&self, doorbell: &Arc<Doorbell>, connection: u32) {
        *lock(&self.place) = (Arc::clone(doorbell), connection);
        self.release();
    }

    /// Work was posted.
    pub fn press(&self) {
        if !self.pressed.swap(true, Ordering::AcqRel) {
            let (doorbell, connection) = lock(&self.place).clone();
            // There is a place for each connection. Queue pairs whose connection is over may still be
            // pressed once each, by a post that saw them connected, and take places of others.
            if doorbell.rung.push(connection).is_err() {
                doorbell.missed.store(true, Ordering::Release);
            }
            doorbell.alarm.ring();
        }
    }

    /// The port is about to look: later work has to press again.
    ///
    /// A press that finds this bell pressed adds nothing to the list, so what was posted before it
    /// has to be seen by the look that follows. Reading what the press wrote is what orders them; a
    /// store alone would let the look come first.
    pub fn release(&self) {
        self.pressed.swap(false, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_bell_rings_once_until_it_is_released() {
        let doorbell = Doorbell::new();
        let bell = Bell::new(Arc::clone(&doorbell), 7);
        assert!(!doorbell.has_rung());
        bell.press();
        bell.press();
        assert!(doorbell.has_rung());
        assert_eq!((doorbell.next(), doorbell.next()), (Some(7), None));
        bell.press();
        assert_eq!(doorbell.next(), None, "the port has not looked yet");
        bell.release();
        bell.press();
        assert_eq!(doorbell.next(), Some(7));
        assert!(!doorbell.has_rung() && !doorbell.take_missed());
    }

    #[test]
    fn a_bell_that_moves_rings_where_it_is() {
        let (first, second) = (Doorbell::new(), Doorbell::new());
        let bell = Bell::new(Arc::clone(&first), 1);
        bell.press();
        bell.attach(&first, 2);
        bell.press();
        assert_eq!([first.next(), first.next(), first.next()], [Some(1), Some(2), None]);
        for (doorbell, connection) in [(&second, 3), (&first, 4), (&first, 5)] {
            bell.attach(doorbell, connection);
            bell.press();
            bell.press();
            assert_eq!([doorbell.next(), doorbell.next()], [Some(connection), None]);
            bell.release();
        }
        assert!(!first.has_rung() && !second.has_rung());
    }

    #[test]
    fn bells_that_find_no_place_are_not_forgotten() {
        let doorbell = Doorbell::with_places(2);
        let bells: Vec<_> = (0..4).map(|i| Bell::new(Arc::clone(&doorbell), i)).collect();
        bells.iter().for_each(Bell::press);
        assert_eq!((doorbell.next(), doorbell.next()), (Some(0), Some(1)));
        assert_eq!(doorbell.next(), None);
        assert!(doorbell.has_rung(), "the port may not sleep");
        assert!(doorbell.take_missed());
        assert!(!doorbell.take_missed() && !doorbell.has_rung(), "told once");
        bells.iter().for_each(Bell::release);
        bells[3].press();
        assert_eq!(doorbell.next(), Some(3), "no bell stays pressed");
    }
}
