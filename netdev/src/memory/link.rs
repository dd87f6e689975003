//! The wire between two memory devices: what both ends share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Slot;

/// A handle on the link between two [`MemoryDevice`](super::MemoryDevice)s.
///
/// Clones are handles on the same link. It outlives the devices being wrapped in middleware or
/// moved to threads, so a simulator can change the link under them.
#[derive(Clone, Debug)]
pub struct Link {
    shared: Arc<Shared>,
}

// Two links have no cache line in common: each may be that of another thread.
#[derive(Debug)]
#[repr(align(128))]
struct Shared {
    up: AtomicBool,
    mtu: AtomicUsize,
    latency_ns: AtomicU64,
    wires: [Mutex<Wire>; 2],
}

/// One direction of the link.
#[derive(Debug, Default)]
pub(super) struct Wire {
    /// Frames in flight, first to arrive first.
    pub(super) frames: VecDeque<Slot>,
    /// Buffers given back by the receiving end.
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

    /// Takes the link down or up, for both ends. Going down loses the frames in flight.
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

    /// Changes the largest IP datagram of both directions, in bytes. Frames in flight are not
    /// affected.
    pub fn set_mtu(&self, mtu: usize) {
        self.shared.mtu.store(mtu, Ordering::Relaxed);
    }

    /// Changes the latency of both directions, for frames transmitted from now on. A frame never
    /// overtakes an earlier one.
    pub fn set_latency(&self, latency_ns: u64) {
        self.shared.latency_ns.store(latency_ns, Ordering::Relaxed);
    }

    /// Whether the link is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.shared.up.load(Ordering::Acquire)
    }

    /// Largest IP datagram, in bytes.
    #[must_use]
    pub fn mtu(&self) -> usize {
        self.shared.mtu.load(Ordering::Relaxed)
    }

    /// Time a frame travels after its last byte was sent, in nanoseconds.
    #[must_use]
    pub fn latency_ns(&self) -> u64 {
        self.shared.latency_ns.load(Ordering::Relaxed)
    }

    /// The wire of one direction. No caller's code runs under the lock, so a panic cannot leave it
    /// half changed and poisoning means nothing here.
    pub(super) fn lock(&self, direction: usize) -> MutexGuard<'_, Wire> {
        self.shared.wires[direction].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
