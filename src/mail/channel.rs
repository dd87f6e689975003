//! Channels from a worker to a handle, which blocks in [`Receive::receive`] or registers a waker.
//! Each connection has one: less than 256 bytes, where one of `crossbeam` would take 1.3 KiB.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crossbeam::channel::{Receiver, RecvTimeoutError, TryRecvError, TrySendError};
use urnic_engine::time::Duration;
use urnic_engine::verbs::Alarm;

use crate::clock::monotonic_now;

#[derive(Debug)]
pub(crate) struct WorkerEnd<T>(Arc<Shared<T>>);

#[derive(Debug)]
pub(crate) struct HandleEnd<T>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    queue: Mutex<Queue<T>>,
    arrived: Condvar,
    alarm: Alarm,
}

#[derive(Debug)]
struct Queue<T> {
    messages: VecDeque<T>,
    limit: usize,
    tellers: usize,
    /// The handle's end exists.
    is_heard: bool,
}

pub(crate) fn unlimited<T>() -> (WorkerEnd<T>, HandleEnd<T>) {
    limited(usize::MAX)
}

pub(crate) fn limited<T>(limit: usize) -> (WorkerEnd<T>, HandleEnd<T>) {
    let queue = Queue { messages: VecDeque::new(), limit, tellers: 1, is_heard: true };
    let (queue, arrived, alarm) = (Mutex::new(queue), Condvar::new(), Alarm::new());
    let shared = Arc::new(Shared { queue, arrived, alarm });
    (WorkerEnd(Arc::clone(&shared)), HandleEnd(shared))
}

impl<T> Shared<T> {
    // A panic of another holder leaves the queue consistent: every step on it is atomic.
    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        self.arrived.notify_all();
        self.alarm.ring();
    }
}

impl<T> Queue<T> {
    fn take(&mut self) -> Result<T, TryRecvError> {
        let end = if self.tellers == 0 { TryRecvError::Disconnected } else { TryRecvError::Empty };
        let message = self.messages.pop_front().ok_or(end)?;
        if self.messages.is_empty() {
            // Frees the memory: most channels wait for their next message for a long time.
            self.messages = VecDeque::new();
        }
        Ok(message)
    }
}

impl<T> WorkerEnd<T> {
    /// Drops the message if the handle was dropped or has no room.
    pub(crate) fn tell(&self, message: T) {
        let _heard = self.try_tell(message);
    }

    /// Returns the message if the handle was dropped or has no room.
    pub(crate) fn try_tell(&self, message: T) -> Result<(), TrySendError<T>> {
        {
            let mut queue = self.0.queue();
            // The caller drops a refused message, without the lock.
            if !queue.is_heard {
                return Err(TrySendError::Disconnected(message));
            }
            if queue.messages.len() >= queue.limit {
                return Err(TrySendError::Full(message));
            }
            queue.messages.push_back(message);
        }
        self.0.ring();
        Ok(())
    }
}

impl<T> Clone for WorkerEnd<T> {
    fn clone(&self) -> Self {
        self.0.queue().tellers += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for WorkerEnd<T> {
    fn drop(&mut self) {
        // The drop of the last sender is an event, too: first decrement, then ring.
        self.0.queue().tellers -= 1;
        self.0.ring();
    }
}

impl<T> HandleEnd<T> {
    /// Requests one call of `waker`, at the next message or drop of a [`WorkerEnd`]. Receive once
    /// more afterwards: earlier messages cause no call.
    pub(crate) fn notify(&self, waker: &Waker) {
        self.0.alarm.arm(waker);
    }
}

impl<T> Drop for HandleEnd<T> {
    fn drop(&mut self) {
        let _dropped_after_the_lock = {
            let mut queue = self.0.queue();
            queue.is_heard = false;
            std::mem::take(&mut queue.messages)
        };
    }
}

pub(crate) trait Receive<T> {
    fn try_receive(&self) -> Result<T, TryRecvError>;

    /// `None` waits for ever.
    fn receive(&self, timeout: Option<Duration>) -> Result<T, RecvTimeoutError>;
}

impl<T> Receive<T> for HandleEnd<T> {
    fn try_receive(&self) -> Result<T, TryRecvError> {
        self.0.queue().take()
    }

    fn receive(&self, timeout: Option<Duration>) -> Result<T, RecvTimeoutError> {
        let deadline = timeout.map(|timeout| monotonic_now() + timeout);
        let mut queue = self.0.queue();
        loop {
            match queue.take() {
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            let arrived = &self.0.arrived;
            queue = if let Some(deadline) = deadline {
                let left = deadline - monotonic_now();
                if left.is_zero() {
                    return Err(RecvTimeoutError::Timeout);
                }
                arrived.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0
            } else {
                arrived.wait(queue).unwrap_or_else(PoisonError::into_inner)
            };
        }
    }
}

impl<T> Receive<T> for Receiver<T> {
    fn try_receive(&self) -> Result<T, TryRecvError> {
        self.try_recv()
    }

    fn receive(&self, timeout: Option<Duration>) -> Result<T, RecvTimeoutError> {
        match timeout {
            Some(timeout) => self.recv_timeout(timeout),
            None => self.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }
}

#[cfg(test)]
mod tests {
    use urnic_testkit::waker::counting;

    use super::*;

    #[test]
    fn message_and_last_sender_drop_wake_once_each() {
        let (calls, waker) = counting();
        let called = || calls.count();
        let (teller, told) = limited(1);
        teller.tell(1);
        assert_eq!(called(), 0, "not asked for");
        told.notify(&waker);
        assert!(teller.try_tell(2).is_err(), "full");
        assert_eq!(told.try_receive(), Ok(1));
        assert!(teller.try_tell(2).is_ok());
        assert_eq!((told.try_receive(), called()), (Ok(2), 1));
        teller.tell(3);
        assert_eq!((told.try_receive(), called()), (Ok(3), 1), "asked for once");
        told.notify(&waker);
        drop(teller.clone());
        told.notify(&waker);
        drop(teller);
        assert_eq!((told.try_receive().is_err(), called()), (true, 3));
    }

    #[test]
    fn empty_channel_is_small() {
        assert!(size_of::<Shared<[u64; 2]>>() <= 256 - 2 * size_of::<usize>());
        let (teller, told) = unlimited();
        teller.tell(1);
        assert_eq!(told.try_receive(), Ok(1));
        assert_eq!(told.0.queue().messages.capacity(), 0);
    }

    #[test]
    fn unreceived_messages_are_dropped_with_the_receiver() {
        let message = Arc::new(());
        let (teller, told) = unlimited();
        teller.tell(Arc::clone(&message));
        drop(told);
        assert_eq!(Arc::strong_count(&message), 1);
        teller.tell(Arc::clone(&message));
        assert_eq!(Arc::strong_count(&message), 1);
        assert!(matches!(teller.try_tell(message), Err(TrySendError::Disconnected(_))));
    }

    #[test]
    fn receive_waits_for_a_message_or_its_timeout() {
        const MESSAGES: u32 = 1000;
        let (teller, told) = unlimited();
        let short = Some(Duration::from_millis(1));
        assert_eq!(told.receive(short), Err(RecvTimeoutError::Timeout));
        let second = teller.clone();
        std::thread::scope(|scope| {
            for teller in [teller, second] {
                scope.spawn(move || (0..MESSAGES).for_each(|number| teller.tell(number)));
            }
            let all: Vec<_> = std::iter::from_fn(|| told.receive(None).ok()).collect();
            assert_eq!(all.len(), 2 * MESSAGES as usize, "until the last of both");
            assert_eq!(told.receive(short), Err(RecvTimeoutError::Disconnected));
            assert_eq!(told.try_receive(), Err(TryRecvError::Disconnected));
        });
    }
}
