//! Middleware that writes the frames passing through a device to a pcapng file. Any number of
//! recorders can write to one [`CaptureWriter`], each as its own interface, in the order of the
//! calls. Timestamps are the callers' `now_ns`.

mod writer;

use std::fmt;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;

pub use writer::{CaptureWriter, Direction, Interface};

use crate::{
    Capabilities, Device, Refusals, RxFrame, TransmitError, TxChecksum, TxFrame, checksum,
};

/// Frames that a [`Recorder`] writes. [`Sent`](Self::Sent) at each end of a pair records every
/// frame once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directions {
    /// Frames that the device took.
    Sent,
    /// Frames that the device delivered.
    Received,
    /// Both.
    Both,
}

/// Device that records the frames passing through it, whole, unless the inner device refuses them.
/// A partial checksum is completed in the written copy of a sent frame; a received one with
/// [`RxChecksum::Valid`](crate::RxChecksum::Valid) is written unchanged. An error of the file never
/// affects the data path: recording stops, and [`finish`](Self::finish) returns it.
pub struct Recorder<D, W: Write> {
    inner: D,
    writer: CaptureWriter<W>,
    interface: Interface,
    directions: Directions,
    gathered: Vec<u8>,
}

impl<D: Device, W: Write> Recorder<D, W> {
    /// Wraps `inner` and declares it to `writer` as an interface called `name`.
    #[must_use]
    pub fn new(inner: D, writer: &CaptureWriter<W>, name: &str, directions: Directions) -> Self {
        let writer = writer.clone();
        let interface = writer.interface(name, inner.capabilities().medium);
        Self { inner, writer, interface, directions, gathered: Vec::new() }
    }

    /// Returns the wrapped device.
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    /// Returns the wrapped device. Frames passing through it directly are not recorded.
    pub const fn inner_mut(&mut self) -> &mut D {
        &mut self.inner
    }

    /// Flushes the file, or returns the first error of writing; nothing was written after it.
    pub fn finish(&self) -> io::Result<()> {
        self.writer.finish()
    }
}

impl<D: Device, W: Write> Device for Recorder<D, W> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        if self.directions == Directions::Sent {
            return self.inner.receive(now_ns, burst, sink);
        }
        let Self { inner, writer, interface, gathered, .. } = self;
        inner.receive(now_ns, burst, &mut |frame| {
            // Writes the same bytes that are handed over, even if another process changes the
            // frame.
            let frame = frame.gathered(gathered);
            writer.write(*interface, now_ns, Direction::Inbound, frame.head);
            sink(frame);
        })
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        self.inner.transmit(now_ns, frame)?;
        if self.directions != Directions::Received {
            self.gathered.resize(frame.len(), 0);
            frame.gather(&mut self.gathered);
            if let TxChecksum::Partial { start, offset } = frame.checksum {
                checksum::complete(&mut self.gathered, start, offset);
            }
            self.writer.write(self.interface, now_ns, Direction::Outbound, &self.gathered);
        }
        Ok(())
    }

    fn transmit_room(&self) -> usize {
        self.inner.transmit_room()
    }

    fn refusals(&self) -> Refusals {
        self.inner.refusals()
    }

    fn flush(&mut self, now_ns: u64) {
        self.inner.flush(now_ns);
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.inner.next_arrival_ns()
    }

    fn link_up(&self) -> bool {
        self.inner.link_up()
    }

    fn check_interval_ns(&self) -> Option<u64> {
        self.inner.check_interval_ns()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.inner.readiness()
    }
}

// By hand, so that `W` need not be `Debug`.
impl<D: Device, W: Write> fmt::Debug for Recorder<D, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inner, writer: _, interface, directions, gathered: _ } = self;
        f.debug_struct("Recorder")
            .field("inner", inner)
            .field("interface", interface)
            .field("directions", directions)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
