//! Detects that a device refuses frames although its descriptor reports room.
//!
//! A packet socket is writable while its send buffer has room, and yet a full queue of the
//! interface refuses each frame with `ENOBUFS` (packet(7)); a TAP interface that lacks memory does
//! the same. A worker that relies on the descriptor would offer the same frame as fast as it can.

use std::cell::Cell;

#[derive(Debug, Default)]
pub(super) struct Congestion {
    /// The descriptor reported room at the end of the last wait.
    writable: Cell<bool>,
    /// The descriptor reported room, and the device accepted no frame.
    refuses: Cell<bool>,
}

impl Congestion {
    pub(super) fn note_writable(&self, is_writable: bool) {
        self.writable.set(is_writable);
    }

    /// `taken` if a frame was accepted, `has_more` if more are left.
    #[inline]
    pub(super) fn note_transmit(&self, taken: bool, has_more: bool) {
        if taken || !has_more {
            self.refuses.set(false);
        } else if self.writable.get() {
            self.refuses.set(true);
        }
        self.writable.set(false);
    }

    /// Nanoseconds until frames are offered again; `None` to wait for the descriptor.
    pub(super) fn retry_ns(&self) -> Option<u64> {
        self.refuses.get().then_some(TRANSMIT_RETRY_NS)
    }
}

/// The time in which an interface of 10 Gbit/s sends a queue of a thousand frames.
const TRANSMIT_RETRY_NS: u64 = 1_000_000;
