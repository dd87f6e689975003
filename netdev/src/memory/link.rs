//! The wire between two memory devices: their shared state.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Slot;

/// Handle to the link between two [`MemoryDevice`](super::MemoryDevice)s. Clones are handles to the
/// same link, and remain usable when the devices are wrapped in middleware or moved to threads.
#[derive(Clone, Debug)]
pub struct Link {
    shared: Arc<Shared>,
}

// Two links, perhaps of different threads, share no cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Shared {
    up: AtomicBool,
    mtu: AtomicUsize,
    latency_ns: AtomicU64,
    wires: [Mutex<Wire>; 2],
}

#[derive(Debug, Default)]
pub(super) struct Wire {
    /// Frames in flight, earliest arrival first.
    pub(super) frames: VecDeque<Slot>,
    /// Buffers returned by the receiving end.
    pub(super) spare: Vec<Box<[u8]>>,
}

impl Link {
    pub(super) fn new(mtu: usize, latency_ns: u64) -> Self {
        let shared = Shared {
            up: AtomicBool::new(true),
            mtu: AtomicUsize::new(mtu),
            latency_ns: AtomicU64::new(latency_ns),
            wires: [Mutex::default(), Mutex::default()],
        };
        Self { shared: Arc::new(shared) }
    }

    /// Takes the link down or up, for both ends. Taking it down loses the frames in flight.
    pub fn set_link_up(&self, up: bool) {
        self.shared.up.store(up, Ordering::Release);
        if up {
            return;
        }
        for direction in 0..self.shared.wires.len() {
            let mut wire = self.lock(direction);
            let Wire { frames, spare } = &mut *wire;
            spare.extend(frames.drain(..).map(|slot| slot.buffer));
        }
    }

    /// Changes the largest IP datagram of both directions, except for frames in flight.
    pub fn set_mtu(&self, mtu: usize) {
        self.shared.mtu.store(mtu, Ordering::Relaxed);
    }

    /// Changes the latency of later frames in both directions. No frame overtakes an earlier one.
    pub fn set_latency(&self, latency_ns: u64) {
        self.shared.latency_ns.store(latency_ns, Ordering::Relaxed);
    }

    /// Returns true if the link is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.shared.up.load(Ordering::Acquire)
    }

    /// Returns the largest IP datagram, in bytes.
    #[must_use]
    pub fn mtu(&self) -> usize {
        self.shared.mtu.load(Ordering::Relaxed)
    }

    /// Returns the time from the sending of a frame's last byte to its arrival, in nanoseconds.
    #[must_use]
    pub fn latency_ns(&self) -> u64 {
        self.shared.latency_ns.load(Ordering::Relaxed)
    }

    /// No callback runs under the lock, so a poisoned lock is still consistent.
    pub(super) fn lock(&self, direction: usize) -> MutexGuard<'_, Wire> {
        self.shared.wires[direction].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
