//! Virtqueue pair as a frontend has set it up.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use tracing::debug;

use crate::TRACE;
use crate::peer::closer::PeerFd;
use crate::peer::tell::{Watch, tell};
use crate::vhost_user::offload::{EVENT_INDEX, VERSION_1};
use crate::vhost_user::{RingCounters, shared_pair};
use crate::virtqueue::{DeviceQueue, Layout, MemoryTable, QueueFault};

pub(super) type SharedPair = shared_pair::SharedPair<Pair>;

#[derive(Debug, Default)]
pub(super) struct Pair {
    pub(super) table: Arc<MemoryTable>,
    pub(super) features: u64,
    /// Queue 0 of the pair: the device fills the driver's buffers.
    pub(super) to_driver: Vring,
    /// Queue 1 of the pair: the device reads the driver's frames.
    pub(super) from_driver: Vring,
    pub(super) counters: RingCounters,
}

impl Pair {
    pub(super) const fn is_up(&self) -> bool {
        self.to_driver.runs() && self.from_driver.runs()
    }

    pub(super) const fn vring(&mut self, is_from_driver: bool) -> &mut Vring {
        if is_from_driver { &mut self.from_driver } else { &mut self.to_driver }
    }

    /// The driver sends no event for one of the queues: the device must poll.
    pub(super) const fn has_no_kick(&self) -> bool {
        matches!(self.from_driver.kick, Some(None)) || matches!(self.to_driver.kick, Some(None))
    }

    pub(super) fn start(&mut self) {
        let Self { table, features, to_driver, from_driver, .. } = self;
        for vring in [to_driver, from_driver] {
            vring.start(table, *features);
        }
    }

    pub(super) fn stop(&mut self) {
        self.to_driver.stop(&self.table);
        self.from_driver.stop(&self.table);
    }

    /// Stops a queue after a fault, until the frontend sets it up again.
    #[cold]
    pub(super) fn end(&mut self, is_from_driver: bool, fault: QueueFault) {
        self.counters.queues_ended += 1;
        debug!(target: TRACE, %fault, "a queue of a frontend ended");
        let Self { table, to_driver, from_driver, .. } = self;
        let vring = if is_from_driver { from_driver } else { to_driver };
        vring.stop(table);
        vring.parts = None;
    }
}

#[derive(Debug, Default)]
pub(super) struct Vring {
    pub(super) size: u16,
    /// User addresses of descriptor table, available ring and used ring.
    pub(super) parts: Option<[u64; 3]>,
    /// Index of the first available entry to take when the queue starts.
    pub(super) base: u16,
    pub(super) is_enabled: bool,
    /// `None` before the frontend has set it, `Some(None)` if the driver sends no event.
    pub(super) kick: Option<Option<PeerFd>>,
    pub(super) call: Option<PeerFd>,
    pub(super) queue: Option<DeviceQueue>,
}

impl Vring {
    const fn runs(&self) -> bool {
        self.is_enabled && self.queue.is_some()
    }

    fn start(&mut self, table: &MemoryTable, features: u64) {
        let (None, Some(parts), Some(_)) = (&self.queue, self.parts, &self.kick) else { return };
        // A legacy driver, such as a firmware's, has another header in front of frames.
        if features & VERSION_1 == 0 {
            return;
        }
        match Layout::new(table, self.size, parts) {
            Ok(layout) => {
                let event_index = features & EVENT_INDEX != 0;
                let queue = DeviceQueue::new(table, layout, event_index, self.base);
                queue.suppress(table);
                self.queue = Some(queue);
                // An earlier backend may not have notified the driver of its last used buffers.
                self.tell();
            }
            // The memory may arrive with the next table.
            Err(error) => debug!(target: TRACE, %error, "a queue of a frontend does not start"),
        }
    }

    /// Publishes the returned chains first, since `base` will be behind them.
    pub(super) fn stop(&mut self, table: &MemoryTable) {
        if let Some(mut queue) = self.queue.take() {
            if queue.publish(table) {
                self.tell();
            }
            self.base = queue.next();
        }
    }

    pub(super) fn set_kick(&mut self, watch: &Watch, kick: Option<PeerFd>) -> io::Result<()> {
        self.forget_kick(watch);
        if let Some(kick) = &kick {
            watch.add_queue(kick.as_fd())?;
        }
        self.kick = Some(kick);
        Ok(())
    }

    pub(super) fn forget_kick(&mut self, watch: &Watch) {
        if let Some(Some(kick)) = self.kick.take() {
            watch.remove(kick.as_fd());
        }
    }

    pub(super) fn tell(&self) {
        if let Some(call) = &self.call {
            tell(call);
        }
    }
}
