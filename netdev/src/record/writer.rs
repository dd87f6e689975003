//! A pcapng file being written, shared by its recorders.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::Block;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};

use crate::Medium;

/// Handle to a pcapng file being written to a `W`; clones are handles to the same file.
///
/// Frames are written in the order of the calls. Wrap a file in [`io::BufWriter`]: each frame takes
/// several small writes.
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
    file: PcapNgWriter<W>,
    interfaces: u32,
    /// First error. After an error nothing is written, so that the file ends in a truncated block
    /// at worst, not in a wrong one.
    error: Option<io::Error>,
}

impl<W: Write> CaptureWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// If its header cannot be written.
    pub fn new(sink: W) -> io::Result<Self> {
        let file = PcapNgWriter::new(sink).map_err(into_io)?;
        let shared = Shared { file, interfaces: 0, error: None };
        Ok(Self { shared: Arc::new(Mutex::new(shared)) })
    }

    /// Adds an interface called `name`, with timestamps in nanoseconds.
    #[must_use]
    pub fn interface(&self, name: &str, medium: Medium) -> Interface {
        let mut shared = self.lock();
        let block = InterfaceDescriptionBlock {
            linktype: match medium {
                Medium::Ethernet => DataLink::ETHERNET,
                Medium::Ip => DataLink::RAW,
            },
            // No limit: super-frames are written whole.
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(shortened(name).to_owned())),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        shared.write(&Block::InterfaceDescription(block));
        let interface = Interface(shared.interfaces);
        shared.interfaces += 1;
        interface
    }

    /// Adds a frame. An error is kept for [`finish`](Self::finish).
    pub fn write(&self, interface: Interface, now_ns: u64, direction: Direction, frame: &[u8]) {
        let mut shared = self.lock();
        let flags = match direction {
            Direction::Inbound => 0b01,
            Direction::Outbound => 0b10,
        };
        let block = Block::EnhancedPacket(EnhancedPacketBlock {
            interface_id: interface.0,
            timestamp: Duration::from_nanos(now_ns),
            original_len: u32::try_from(frame.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(frame),
            options: vec![EnhancedPacketOption::Flags(flags)],
        });
        shared.write(&block);
    }

    /// Flushes the file.
    ///
    /// # Errors
    /// The first error so far, once; nothing was written after it.
    pub fn finish(&self) -> io::Result<()> {
        let mut shared = self.lock();
        match shared.error.take() {
            None => shared.file.get_mut().flush(),
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
    fn write(&mut self, block: &Block<'_>) {
        if self.error.is_none()
            && let Err(error) = self.file.write_block(block)
        {
            self.error = Some(into_io(error));
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

fn into_io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

/// Returns the longest prefix of `name` that an option can hold.
fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_LEN_MAX)]
}

/// `if_tsresol`: 10^-9 seconds.
const NANOSECONDS: u8 = 9;
const NAME_LEN_MAX: usize = 255;
