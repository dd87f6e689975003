//! What the ports of one station, each with a worker, hand to one another.

use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::driver::RECEIVE_BURST;
use crate::driver::wakeup::Wakeup;
use crate::limits::{HANDOVER_FRAMES_MAX, PORTS_MAX};
use crate::port::{Handover, Port, Recipient};
use crate::time::Instant;

const _: () = assert!(PORTS_MAX <= 64, "a bit for each in a word");

/// One port's way to the others of its station, and theirs to it.
#[derive(Debug)]
pub(crate) struct Siblings {
    index: usize,
    inbox: Receiver<Handover>,
    others: Arc<[Inbox]>,
}

/// Where a port's worker takes frames from.
#[derive(Debug)]
struct Inbox {
    frames: Sender<Handover>,
    wakeup: Arc<Wakeup>,
}

impl Siblings {
    /// The ways between ports whose workers these wake.
    pub(crate) fn among(wakeups: &[Arc<Wakeup>]) -> Vec<Self> {
        let (frames, inboxes): (Vec<_>, Vec<_>) =
            wakeups.iter().map(|_| bounded(HANDOVER_FRAMES_MAX)).unzip();
        let inbox =
            |(frames, wakeup): (_, &Arc<Wakeup>)| Inbox { frames, wakeup: Arc::clone(wakeup) };
        let others: Arc<[Inbox]> = frames.into_iter().zip(wakeups).map(inbox).collect();
        let own = |(index, inbox)| Self { index, inbox, others: Arc::clone(&others) };
        inboxes.into_iter().enumerate().map(own).collect()
    }

    /// Gives the port what others have handed over; returns how many frames.
    pub(crate) fn receive(&self, now: Instant, port: &mut Port) -> usize {
        let mut received = 0;
        for handover in self.inbox.try_iter().take(RECEIVE_BURST) {
            port.handle_handover(now, &handover);
            received += 1;
        }
        received
    }

    /// Hands over what the port has for others. What they have no room for is lost.
    pub(crate) fn send(&self, port: &mut Port) {
        // One bit for each of PORTS_MAX.
        let mut rung: u64 = 0;
        while let Some(handover) = port.poll_handover() {
            let to = handover.to();
            for (index, inbox) in self.others.iter().enumerate() {
                let meant = match to {
                    Recipient::One(one) => one == index,
                    Recipient::Others => index != self.index,
                };
                if meant && inbox.frames.try_send(handover.clone()).is_ok() {
                    rung |= 1 << index;
                }
            }
        }
        for (index, inbox) in self.others.iter().enumerate() {
            if rung & 1 << index != 0 {
                inbox.wakeup.ring();
            }
        }
    }
}
