//! Channels from a worker to a handle. The handle waits by the channel, or asks for a waker to be called.

use std::sync::Arc;
use std::task::Waker;

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded, unbounded};
use urnic_engine::verbs::Alarm;

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Teller<T> {
    /// `None` only while it is dropped.
    sender: Option<Sender<T>>,
    alarm: Arc<Alarm>,
}

/// The handle's end.
#[derive(Debug)]
pub(crate) struct Told<T> {
    receiver: Receiver<T>,
    alarm: Arc<Alarm>,
}

/// A channel with room for any number of messages.
pub(crate) fn unlimited<T>() -> (Teller<T>, Told<T>) {
    ends(unbounded())
}

/// A channel with room for `limit` messages.
pub(crate) fn limited<T>(limit: usize) -> (Teller<T>, Told<T>) {
    ends(bounded(limit))
}

fn ends<T>((sender, receiver): (Sender<T>, Receiver<T>)) -> (Teller<T>, Told<T>) {
    let alarm = Arc::new(Alarm::new());
    (Teller { sender: Some(sender), alarm: Arc::clone(&alarm) }, Told { receiver, alarm })
}

impl<T> Teller<T> {
    /// Tells the handle. It may be gone, and then there is nothing to be told.
    pub(crate) fn tell(&self, message: T) {
        if let Some(sender) = &self.sender {
            let _heard = sender.send(message);
        }
        self.alarm.ring();
    }

    /// Tells the handle, if it is there and has room.
    pub(crate) fn try_tell(&self, message: T) -> Result<(), TrySendError<T>> {
        let Some(sender) = &self.sender else { return Err(TrySendError::Disconnected(message)) };
        sender.try_send(message)?;
        self.alarm.ring();
        Ok(())
    }
}

impl<T> Clone for Teller<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), alarm: Arc::clone(&self.alarm) }
    }
}

impl<T> Drop for Teller<T> {
    fn drop(&mut self) {
        // That the last of them has gone is news too: first it goes, then it is told.
        self.sender = None;
        self.alarm.ring();
    }
}

impl<T> Told<T> {
    pub(crate) const fn receiver(&self) -> &Receiver<T> {
        &self.receiver
    }

    /// Asks for one call of `waker` at the next message, or when there will be no more. Look once more
    /// afterwards: what was there before gives no call.
    pub(crate) fn notify(&self, waker: &Waker) {
        self.alarm.arm(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_message_and_the_end_of_the_last_teller_give_one_call_each() {
        let calls = Arc::new(Calls::default());
        let waker = Waker::from(Arc::clone(&calls));
        let called = || calls.0.load(Ordering::Relaxed);
        let (teller, told) = limited(1);
        teller.tell(1);
        assert_eq!(called(), 0, "not asked for");
        told.notify(&waker);
        assert!(teller.try_tell(2).is_err(), "full");
        assert_eq!(told.receiver().try_recv(), Ok(1));
        assert!(teller.try_tell(2).is_ok());
        assert_eq!((told.receiver().try_recv(), called()), (Ok(2), 1));
        teller.tell(3);
        assert_eq!((told.receiver().try_recv(), called()), (Ok(3), 1), "asked for once");
        told.notify(&waker);
        drop(teller.clone());
        told.notify(&waker);
        drop(teller);
        assert_eq!((told.receiver().try_recv().is_err(), called()), (true, 3));
    }
}
