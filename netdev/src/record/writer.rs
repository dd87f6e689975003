//! A pcapng file being written, shared by its recorders.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Medium;
use crate::capture::{PcapngWriter, WrittenFrame};

/// Handle to a pcapng file being written to a `W`; clones are handles to the same file. Frames are
/// written in the order of the calls, each by one write.
pub struct CaptureWriter<W: Write> {
    shared: Arc<Mutex<Shared<W>>>,
}

/// Interface of a capture file, to which its frames belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface(u32);

/// Direction in which a frame passed its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    Inbound,
    /// Sent.
    Outbound,
}

struct Shared<W: Write> {
    file: PcapngWriter<W>,
    interfaces: u32,
    /// Nothing is written after an error: the file ends in a truncated block at worst.
    error: Option<io::Error>,
}

impl<W: Write> CaptureWriter<W> {
    /// Begins a file. Fails if its header cannot be written.
    pub fn new(sink: W) -> io::Result<Self> {
        let file = PcapngWriter::new(sink, None)?;
        let shared = Shared { file, interfaces: 0, error: None };
        Ok(Self { shared: Arc::new(Mutex::new(shared)) })
    }

    /// Adds an interface called `name`, with timestamps in nanoseconds.
    #[must_use]
    pub fn interface(&self, name: &str, medium: Medium) -> Interface {
        let mut shared = self.lock();
        // No limit: super-frames are written whole.
        shared.write(|file| file.interface(medium, shortened(name), 0));
        let interface = Interface(shared.interfaces);
        shared.interfaces += 1;
        interface
    }

    /// Adds a frame. An error is kept for [`finish`](Self::finish).
    pub fn write(&self, interface: Interface, now_ns: u64, direction: Direction, frame: &[u8]) {
        let frame = WrittenFrame {
            interface: interface.0,
            at_ns: now_ns,
            is_outbound: direction == Direction::Outbound,
            original_len: frame.len(),
            bytes: frame,
            comment: None,
        };
        self.lock().write(|file| file.frame(&frame, u64::MAX).map(|_| ()));
    }

    /// Flushes the file, or returns the first error so far, once; nothing was written after it.
    pub fn finish(&self) -> io::Result<()> {
        let mut shared = self.lock();
        match shared.error.take() {
            None => shared.file.flush(),
            Some(error) => {
                // Keeps writing disabled: further blocks would not repair the file.
                shared.error = Some(error.kind().into());
                Err(error)
            }
        }
    }

    /// Returns the sink, if this is the last handle.
    #[must_use]
    pub fn into_inner(self) -> Option<W> {
        let shared = Arc::into_inner(self.shared)?;
        Some(shared.into_inner().unwrap_or_else(PoisonError::into_inner).file.into_inner())
    }

    fn lock(&self) -> MutexGuard<'_, Shared<W>> {
        // Only a panicking `W` poisons the lock; then the file has a gap at worst.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Write> Shared<W> {
    fn write(&mut self, part: impl FnOnce(&mut PcapngWriter<W>) -> io::Result<()>) {
        if self.error.is_none() {
            self.error = part(&mut self.file).err();
        }
    }
}

impl<W: Write> Clone for CaptureWriter<W> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<W: Write> fmt::Debug for CaptureWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leaves out the state behind the lock, which the debugging thread may hold.
        f.debug_struct("CaptureWriter").finish_non_exhaustive()
    }
}

/// For an option.
fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_LEN_MAX)]
}

const NAME_LEN_MAX: usize = 255;
