//! The frames of a capture, as often as they are needed.

use std::io::Read;

use urnic_netdev::capture::{CaptureError, CaptureReader};

use super::packet::Segment;
use super::tunnel;
use super::unpack::Unpacked;

/// What is said about each frame: its number, and the TCP segment in it.
pub(super) type FrameSink<'a> = dyn FnMut(u64, Option<Segment<'_>>) + 'a;

/// A capture that can be read several times.
pub(super) trait Frames {
    /// Goes through all frames from the first on.
    fn for_each(&mut self, sink: &mut FrameSink<'_>) -> Summary;
}

/// How reading went.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// Frames read.
    pub(super) frames: u64,
    /// Frames of which not all octets were captured.
    pub(super) cut: u64,
    /// The first of them.
    pub(super) first_cut: u64,
    /// The header of the file was whole.
    pub(super) has_begun: bool,
    /// What ended it before the end of the file.
    pub(super) error: Option<CaptureError>,
}

/// Frames of a file that `open` opens.
pub(super) struct Capture<F>(pub(super) F);

impl<R: Read, F: FnMut() -> std::io::Result<R>> Frames for Capture<F> {
    fn for_each(&mut self, sink: &mut FrameSink<'_>) -> Summary {
        let mut summary = Summary::default();
        let unpacked = (self.0)().and_then(Unpacked::new).map_err(CaptureError::from);
        match unpacked.and_then(CaptureReader::open) {
            Err(error) => summary.error = Some(error),
            Ok(reader) => {
                summary.has_begun = true;
                for frame in reader {
                    let frame = match frame {
                        Ok(frame) => frame,
                        Err(error) => {
                            summary.error = Some(error);
                            break;
                        }
                    };
                    summary.frames += 1;
                    if frame.original_len > frame.bytes.len() {
                        summary.cut += 1;
                        if summary.cut == 1 {
                            summary.first_cut = frame.number;
                        }
                    }
                    let datagram = frame.ip_packet().unwrap_or_default();
                    let segment =
                        |datagram| Segment::parse(tunnel::innermost(datagram), frame.timestamp_ns);
                    sink(frame.number, datagram.and_then(segment));
                }
            }
        }
        summary
    }
}
