//! Detects that a device refuses frames although its descriptor reports room.
//!
//! A packet socket is writable while its send buffer has room, and yet a full queue of the
//! interface refuses each frame with `ENOBUFS` (packet(7)). A lack of memory has the same effect on
//! a TAP interface. A worker that relies on the descriptor would then offer the same frame
//! continuously, as fast as its core can.

use std::cell::Cell;

/// Reliability of a device's descriptor for a worker that has frames to send.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    /// The descriptor reported room at the end of the last wait.
    writable: Cell<bool>,
    /// The descriptor reported room, and the device accepted no frame.
    refuses: Cell<bool>,
}

impl Congestion {
    /// Notes the state of the descriptor at the end of a wait.
    pub(super) fn note_writable(&self, is_writable: bool) {
        self.writable.set(is_writable);
    }

    /// Notes the result of offering frames: `taken` if one was accepted, `has_more` if more are
    /// left.
    #[inline]
    pub(super) fn note_transmit(&self, taken: bool, has_more: bool) {
        if taken || !has_more {
            self.refuses.set(false);
        } else if self.writable.get() {
            self.refuses.set(true);
        }
        self.writable.set(false);
    }

    /// Time to wait before frames are offered again, in nanoseconds; `None` to wait for the
    /// descriptor.
    pub(super) fn retry_ns(&self) -> Option<u64> {
        self.refuses.get().then_some(TRANSMIT_RETRY_NS)
    }
}

/// Pause after a device has refused frames: the time in which an interface of 10 Gbit/s sends a
/// queue of a thousand frames.
const TRANSMIT_RETRY_NS: u64 = 1_000_000;
