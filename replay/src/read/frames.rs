//! The frames of a capture, which can be read repeatedly.

use std::io::{self, Read};

use urnic_netdev::capture::{CaptureError, CaptureReader, CapturedFrame, LinkType};

use super::copies::{Copies, CopyPattern};
use super::packet::{Checksum, Segment};
use super::tunnel;
use super::unpack::Unpacked;
use crate::limits::LINK_TYPES_NAMED_MAX;

pub(crate) type FrameSink<'a> = dyn FnMut(u64, Option<Segment<'_>>) + 'a;

pub(crate) trait Frames {
    /// Calls `sink` for all frames, from the first on.
    fn for_each(&mut self, sink: &mut FrameSink<'_>) -> Summary;

    fn expect_copies(&mut self, pattern: CopyPattern);
}

#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) frames: u64,
    /// Frames that were not captured completely.
    pub(crate) cut: u64,
    pub(crate) first_cut: u64,
    /// Most bytes that were captured of one of them.
    pub(crate) cut_len_max: usize,
    /// The header of the file was whole.
    pub(crate) has_begun: bool,
    /// Frames that are copies of others, and the first of them.
    pub(crate) copies: u64,
    pub(crate) first_copy: u64,
    pub(crate) copy_pattern: CopyPattern,
    pub(crate) clock: Clock,
    pub(crate) unread: Unread,
    /// Name of the compression, if the file is truncated.
    pub(crate) packing_cut: Option<&'static str>,
    /// Error that ended reading before the end of the file.
    pub(crate) error: Option<CaptureError>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Unread {
    pub(crate) frames: u64,
    pub(crate) first_frame: u64,
    /// The numbers of the first few link types.
    pub(crate) numbers: Vec<u32>,
}

impl Unread {
    fn note(&mut self, frame: &CapturedFrame) {
        let LinkType::Other(number) = frame.link else { return };
        if self.frames == 0 {
            self.first_frame = frame.number;
        }
        self.frames += 1;
        if self.numbers.len() < LINK_TYPES_NAMED_MAX && !self.numbers.contains(&number) {
            self.numbers.push(number);
        }
    }

    /// Returns the error if all frames have an unsupported link type.
    pub(crate) fn error(&self, frames: u64) -> Option<CaptureError> {
        let number = *self.numbers.first().filter(|_| self.frames == frames)?;
        Some(CaptureError::UnsupportedLink { number, frame: self.first_frame })
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// The first timestamp, the earliest and the latest.
    pub(crate) first_ns: Option<u64>,
    earliest_ns: u64,
    latest_ns: u64,
    last_ns: u64,
    /// Frames stamped earlier than the previous one, the first of them, and the largest difference.
    pub(crate) back: u64,
    pub(crate) first_back: u64,
    pub(crate) back_max_ns: u64,
    /// Longest time without a captured frame, and the frame after it.
    pub(crate) pause_max_ns: u64,
    pub(crate) after_pause: u64,
}

impl Clock {
    pub(crate) const fn span_ns(&self) -> u64 {
        self.latest_ns - self.earliest_ns
    }

    fn note(&mut self, at_ns: u64, frame: u64) {
        if at_ns == 0 {
            return;
        }
        if self.first_ns.is_none() {
            (self.first_ns, self.earliest_ns) = (Some(at_ns), at_ns);
        }
        self.earliest_ns = self.earliest_ns.min(at_ns);
        self.latest_ns = self.latest_ns.max(at_ns);
        if at_ns < self.last_ns {
            self.back += 1;
            if self.back == 1 {
                self.first_back = frame;
            }
            self.back_max_ns = self.back_max_ns.max(self.last_ns - at_ns);
        } else if self.last_ns > 0 && at_ns - self.last_ns > self.pause_max_ns {
            (self.pause_max_ns, self.after_pause) = (at_ns - self.last_ns, frame);
        }
        self.last_ns = at_ns;
    }
}

pub(crate) struct Capture<F> {
    pub(crate) open: F,
    unpacked_max: Option<u64>,
    copy_pattern: CopyPattern,
    right_until: u64,
}

impl<F> Capture<F> {
    pub(crate) fn new(open: F, unpacked_max: Option<u64>) -> Self {
        Self { open, unpacked_max, copy_pattern: CopyPattern::default(), right_until: 0 }
    }
}

impl<R: Read, F: FnMut() -> io::Result<R>> Frames for Capture<F> {
    fn expect_copies(&mut self, pattern: CopyPattern) {
        self.copy_pattern = pattern;
    }

    fn for_each(&mut self, sink: &mut FrameSink<'_>) -> Summary {
        let mut summary = Summary::default();
        let mut copies = Copies::new(self.copy_pattern);
        let mut first_not_right = None;
        let unpacked = (self.open)().and_then(|source| Unpacked::new(source, self.unpacked_max));
        let mut unpacked = match unpacked {
            Ok(unpacked) => unpacked,
            Err(error) => return Summary { error: Some(error.into()), ..summary },
        };
        match CaptureReader::open(&mut unpacked) {
            Err(error) => summary.error = Some(error),
            Ok(mut reader) => {
                summary.has_begun = true;
                while let Some(frame) = reader.next() {
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
                        summary.cut_len_max = summary.cut_len_max.max(frame.bytes.len());
                        if summary.cut == 1 {
                            summary.first_cut = frame.number;
                        }
                    }
                    summary.unread.note(&frame);
                    summary.clock.note(frame.timestamp_ns, frame.number);
                    let datagram = frame.ip_packet().unwrap_or_default().map(tunnel::innermost);
                    let is_right = frame.number <= self.right_until;
                    let segment = datagram.and_then(|datagram| {
                        let mut segment = Segment::parse(datagram, frame.timestamp_ns, is_right)?;
                        if segment.checksum != Checksum::Right {
                            first_not_right.get_or_insert(frame.number);
                        }
                        segment.place = copies.place(&frame);
                        if !copies.is_copy(&frame, datagram, &segment) {
                            return Some(segment);
                        }
                        summary.copies += 1;
                        if summary.copies == 1 {
                            summary.first_copy = frame.number;
                        }
                        None
                    });
                    sink(frame.number, segment);
                    reader.recycle(frame);
                }
                if summary.error.is_none() {
                    summary.error = summary.unread.error(summary.frames);
                }
                summary.copy_pattern = copies.pattern();
                self.right_until = first_not_right.map_or(summary.frames, |number| number - 1);
            }
        }
        summary.packing_cut = unpacked.cut();
        if let (Some(packing), Some(CaptureError::Empty | CaptureError::Truncated { .. })) =
            (summary.packing_cut, &summary.error)
            && !summary.has_begun
        {
            let text = format!("the {packing} stream of the file ends before the capture begins");
            summary.error = Some(io::Error::new(io::ErrorKind::UnexpectedEof, text).into());
        }
        summary
    }
}
