//! Virtqueue pair in memory of this process that a backend maps.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tracing::debug;

use super::arena::{Arena, QUEUE_SIZE, SLOT_LEN, WRITTEN_AT, slot};
use super::referring::{self, has_long_run};
use super::sharing::Sharing;
use crate::peer::tell::{Watch, event, tell};
use crate::published::Publisher;
use crate::published::runs::Written;
use crate::vhost_user::offload::{self, EVENT_INDEX, HEADER_LEN, MRG_RXBUF};
use crate::vhost_user::{FRAME_LEN_MAX, RingCounters, shared_pair};
use crate::virtqueue::{Direction, DriverQueue, Layout, MemoryTable, QueueFault, Run};
use crate::{TRACE, TxFrame};

pub(super) type SharedPair = shared_pair::SharedPair<Pair>;

impl SharedPair {
    pub(super) fn stop(&self, pair: &mut Pair) {
        if let Some(queues) = pair.queues.take() {
            for queue in [&queues.to_driver, &queues.from_driver] {
                self.watch.remove(queue.call.as_fd());
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Pair {
    pub(super) queues: Option<Queues>,
    pub(super) counters: RingCounters,
    /// True if the backend broke a queue. The next turn of the session then ends it.
    pub(super) is_broken: bool,
}

impl Pair {
    #[cold]
    pub(super) fn end(&mut self, fault: QueueFault) {
        self.counters.queues_ended += 1;
        self.is_broken = true;
        debug!(target: TRACE, %fault, "a backend broke a queue");
    }

    pub(super) const fn is_up(&self) -> bool {
        self.queues.is_some() && !self.is_broken
    }

    pub(super) fn sharing(&mut self) -> Option<&mut Sharing> {
        self.queues.as_mut()?.sharing.as_mut()
    }
}

#[derive(Debug)]
pub(super) struct Queues {
    pub(super) table: Arc<MemoryTable>,
    pub(super) features: u64,
    pub(super) to_driver: Vring,
    pub(super) from_driver: Vring,
    /// Free transmit buffers, reused in the order of their return: that returned last is still in
    /// the cache of the backend's core, and a write would have to fetch each line from there, at
    /// half the speed of a shared cache.
    pub(super) free: VecDeque<u16>,
    pub(super) sharing: Option<Sharing>,
}

#[derive(Debug)]
pub(super) struct Vring {
    pub(super) queue: DriverQueue,
    pub(super) kick: OwnedFd,
    pub(super) call: OwnedFd,
    index: usize,
    slots: Box<[Run]>,
}

impl Vring {
    fn new(table: &MemoryTable, index: usize, features: u64) -> io::Result<Self> {
        let layout =
            Layout::new(table, QUEUE_SIZE, Arena::parts(index)).map_err(io::Error::other)?;
        let queue = DriverQueue::new(layout, features & EVENT_INDEX != 0);
        queue.suppress(table);
        let run = |number| table.user_run(slot(index, number), SLOT_LEN).expect("in the arena");
        let slots = (0..QUEUE_SIZE).map(run).collect();
        Ok(Self { queue, kick: event()?, call: event()?, index, slots })
    }

    #[inline]
    pub(super) fn slot(&self, number: u16) -> Run {
        self.slots[usize::from(number)]
    }

    #[inline]
    pub(super) fn offer(
        &mut self,
        table: &MemoryTable,
        number: u16,
        len: usize,
        direction: Direction,
    ) {
        let len = u32::try_from(len).expect("no more than a buffer");
        self.queue.offer(table, number, self.address(number), len, direction);
    }

    const fn address(&self, number: u16) -> u64 {
        slot(self.index, number)
    }

    #[inline]
    fn offer_written(&mut self, table: &MemoryTable, number: u16, frame: Written) {
        let address = self.address(number);
        if frame.referred > 0 {
            return self.queue.offer_table(table, number, address, frame.runs);
        }
        let len = u32::try_from(frame.copied).expect("no more than a buffer");
        let address = address + WRITTEN_AT as u64;
        self.queue.offer(table, number, address, len, Direction::ToDevice);
    }

    /// Returns true if the backend was notified, as it had asked.
    #[inline]
    pub(super) fn publish(&mut self, table: &MemoryTable) -> bool {
        let wants = self.queue.publish(table);
        if wants {
            tell(&self.kick);
        }
        wants
    }
}

impl Queues {
    pub(super) fn new(
        arena: &Arena,
        watch: &Watch,
        index: usize,
        features: u64,
        publisher: Option<&Publisher>,
    ) -> io::Result<Self> {
        let table = Arc::clone(&arena.table);
        let mut to_driver = Vring::new(&table, 2 * index, features)?;
        let from_driver = Vring::new(&table, 2 * index + 1, features)?;
        for queue in [&to_driver, &from_driver] {
            watch.add_queue(queue.call.as_fd())?;
        }
        for number in 0..QUEUE_SIZE {
            to_driver.offer(&table, number, SLOT_LEN, Direction::ToDriver);
        }
        let free = (0..QUEUE_SIZE).collect();
        let sharing = publisher.map(Sharing::new);
        Ok(Self { table, features, to_driver, from_driver, free, sharing })
    }

    #[inline]
    pub(super) fn reap(&mut self) -> Result<(), QueueFault> {
        let queue = &mut self.from_driver.queue;
        for _ in 0..queue.waiting(&self.table)? {
            let number = queue.take(&self.table)?.0;
            self.free.push_back(number);
            if let Some(sharing) = &mut self.sharing {
                sharing.take_back(number);
            }
        }
        Ok(())
    }

    /// Puts a frame into a free buffer, with long runs of published memory by reference, and
    /// returns their bytes. `None`: nothing was done, the frame must be copied whole.
    #[inline]
    pub(super) fn put_referring(
        &mut self,
        number: u16,
        header: &[u8],
        frame: &TxFrame<'_>,
    ) -> Option<usize> {
        let Self { table, from_driver, sharing, free, .. } = self;
        let sharing = sharing.as_mut()?;
        if !has_long_run(frame) || !sharing.readable.is_current() {
            return None;
        }
        let buffer = (from_driver.slot(number), from_driver.address(number));
        let written = referring::write(header, frame, table, buffer, &mut sharing.readable);
        from_driver.offer_written(table, number, written);
        if written.referred > 0 {
            sharing.give(number);
            // The next frame probably has the same layout: prefetches the lines of its buffer from
            // the cache of the backend's core.
            if let Some(next) = free.front() {
                for part in referring::parts(written) {
                    table.prefetch_to_write(from_driver.slot(*next).part(part.start, part.len()));
                }
            }
        }
        Some(written.referred)
    }

    /// Takes the buffers of the next frame into `buffers`, and the written part of each into
    /// `runs`. Returns the frame's length with the header, or `Some(None)` for an invalid frame.
    /// The caller must [offer the buffers again](Self::offer_again).
    pub(super) fn take_buffers(
        &mut self,
        buffers: &mut Vec<u16>,
        runs: &mut Vec<Run>,
    ) -> Result<Option<Option<usize>>, QueueFault> {
        let Self { table, to_driver, features, .. } = self;
        let merges = *features & MRG_RXBUF != 0;
        buffers.clear();
        runs.clear();
        let waiting = to_driver.queue.waiting(table)?;
        if waiting == 0 {
            return Ok(None);
        }
        let (mut left, mut len) = (1, 0);
        let mut is_good = true;
        while left > 0 {
            let (number, written) = to_driver.queue.take(table)?;
            let written = usize::try_from(written).expect("no more than a buffer");
            let run = to_driver.slot(number).part(0, written);
            left -= 1;
            if buffers.is_empty() {
                is_good = written > HEADER_LEN;
                if merges && is_good {
                    let mut header = [0; HEADER_LEN];
                    table.copy_out(run, &mut header);
                    let count = offload::buffer_count(header);
                    // Virtio 1.2 §5.1.6.4.1: all buffers of a frame are used at once.
                    if count == 0 || count > waiting {
                        return Err(QueueFault::Index);
                    }
                    left = count - 1;
                }
            }
            buffers.push(number);
            runs.push(run);
            len += written;
        }
        Ok(Some(Some(len).filter(|len| is_good && *len <= FRAME_LEN_MAX)))
    }

    pub(super) fn offer_again(&mut self, buffers: &[u16]) {
        let Self { table, to_driver, .. } = self;
        for number in buffers {
            to_driver.offer(table, *number, SLOT_LEN, Direction::ToDriver);
        }
    }
}
