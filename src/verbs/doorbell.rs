//! How a queue pair tells its port that work was posted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use crossbeam::queue::ArrayQueue;

use crate::limits::CONNECTIONS_MAX;
use crate::verbs::alarm::Alarm;

/// A port's list of queue pairs that have new work; each stands in it at most once.
#[derive(Debug)]
pub(crate) struct Doorbell {
    rung: ArrayQueue<u32>,
    alarm: Alarm,
}

impl Doorbell {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { rung: ArrayQueue::new(CONNECTIONS_MAX), alarm: Alarm::default() })
    }

    /// The connection of the next queue pair that has rung.
    pub(crate) fn next(&self) -> Option<u32> {
        self.rung.pop()
    }

    /// Whether a queue pair has rung.
    pub(crate) fn has_rung(&self) -> bool {
        !self.rung.is_empty()
    }

    /// Asks for one call of `waker` when a queue pair rings. Look once more afterwards.
    pub(crate) fn arm(&self, waker: &Waker) {
        self.alarm.arm(waker);
    }

    /// No call is wanted any more.
    pub(crate) fn disarm(&self) {
        self.alarm.disarm();
    }
}

/// A queue pair's button for its port's doorbell.
#[derive(Debug)]
pub(crate) struct Bell {
    doorbell: Arc<Doorbell>,
    connection: u32,
    pressed: AtomicBool,
}

impl Bell {
    pub(crate) fn new(doorbell: Arc<Doorbell>, connection: u32) -> Self {
        Self { doorbell, connection, pressed: AtomicBool::new(false) }
    }

    /// Work was posted.
    pub(crate) fn press(&self) {
        if !self.pressed.swap(true, Ordering::AcqRel) {
            // One place per connection and one press per connection at a time: always room.
            let pushed = self.doorbell.rung.push(self.connection);
            debug_assert!(pushed.is_ok(), "a doorbell has room for every connection");
            self.doorbell.alarm.ring();
        }
    }

    /// The port is about to look: later work has to press again.
    pub(crate) fn release(&self) {
        self.pressed.store(false, Ordering::Release);
    }
}
