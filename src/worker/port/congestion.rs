//! Whether a device takes frames when its descriptor says that it does.
//!
//! A packet socket is writable while its send buffer has room, and yet a full queue of the interface
//! refuses each frame with `ENOBUFS` (packet(7)); memory that is short does the same to a TAP
//! interface. A worker that relies on the descriptor then offers the same frame again and again, as
//! fast as its core can.

use std::cell::Cell;

/// What a device's descriptor is worth to a worker that has frames to send.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    /// The descriptor said at the end of the last wait that there is room.
    writable: Cell<bool>,
    /// It said so, and not one frame was taken.
    refuses: Cell<bool>,
}

impl Congestion {
    /// What the descriptor said at the end of a wait.
    pub(super) fn note_writable(&self, is_writable: bool) {
        self.writable.set(is_writable);
    }

    /// Frames were offered: whether one was taken, and whether there are more.
    #[inline]
    pub(super) fn note_transmit(&self, taken: bool, has_more: bool) {
        if taken || !has_more {
            self.refuses.set(false);
        } else if self.writable.get() {
            self.refuses.set(true);
        }
        self.writable.set(false);
    }

    /// How long to wait, in nanoseconds, before frames are offered again; `None` to wait for the
    /// descriptor.
    pub(super) fn retry_ns(&self) -> Option<u64> {
        self.refuses.get().then_some(TRANSMIT_RETRY_NS)
    }
}

/// How long a device that refuses frames is left alone: the time in which an interface of 10 Gbit/s
/// sends a queue of a thousand frames.
const TRANSMIT_RETRY_NS: u64 = 1_000_000;
