//! Comments on frames, collected while a capture is replayed.
//!
//! Information about a frame comes when it arrives, when an FPDU that ends in it is placed, and
//! when the stream is delivered up to it. A comment is kept until it is among the oldest of
//! [`COMMENTS_OPEN_MAX`]; later findings are counted and left out.

pub(crate) mod spool;
pub(crate) mod write;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::rc::Rc;

use crate::limits::{COMMENT_LEN_MAX, COMMENTS_BYTES_MAX, COMMENTS_OPEN_MAX};
use crate::report::Severity;
use crate::trace::{Class, Fit};

/// Clones share the comments of a capture.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comments(Rc<RefCell<Book>>);

#[derive(Debug, Default)]
struct Book {
    open: BTreeMap<u64, Comment>,
    bytes: usize,
    closed: u64,
    late: u64,
}

#[derive(Debug, Default)]
struct Comment {
    segment: Option<(&'static str, Class)>,
    fit: Option<Fit>,
    lines: String,
    lines_left_out: u64,
}

impl Comments {
    pub(crate) fn segment(&self, frame: u64, from: &'static str, class: Class) {
        self.with(frame, |comment| {
            comment.segment.get_or_insert((from, class));
            0
        });
    }

    pub(crate) fn fit(&self, frame: u64, fit: Fit) {
        self.with(frame, |comment| {
            // The alignment alone is no reason to comment on a frame outside MPA streams.
            if comment.segment.is_some() {
                comment.fit = Some(fit);
            }
            0
        });
    }

    pub(crate) fn line(&self, frame: u64, text: &str) {
        self.with(frame, |comment| comment.add(text));
    }

    pub(crate) fn finding(&self, frame: u64, severity: Severity, rule: &str, text: &str) {
        let severity = match severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        self.line(frame, &format!("{severity}, {rule}: {text}"));
    }

    fn with(&self, frame: u64, change: impl FnOnce(&mut Comment) -> usize) {
        let mut book = self.0.borrow_mut();
        // Frames are numbered from 1; a finding about no frame is not added.
        if frame == 0 {
            return;
        }
        if frame <= book.closed {
            book.late += 1;
            return;
        }
        let added = change(book.open.entry(frame).or_default());
        book.bytes += added;
    }

    pub(crate) fn overflow(&self) -> Option<(u64, String)> {
        let is_over = {
            let book = self.0.borrow();
            book.open.len() > COMMENTS_OPEN_MAX || book.bytes > COMMENTS_BYTES_MAX
        };
        if is_over { self.first() } else { None }
    }

    /// Releases the oldest comment. Later findings about its frame and earlier ones are left out.
    pub(crate) fn first(&self) -> Option<(u64, String)> {
        let mut book = self.0.borrow_mut();
        let (frame, comment) = book.open.pop_first()?;
        book.bytes -= comment.lines.len();
        book.closed = frame;
        Some((frame, comment.text()))
    }

    /// Releases the comment on `frame`. Later findings about it and earlier ones are left out.
    pub(crate) fn take(&self, frame: u64) -> Option<String> {
        let book = &mut *self.0.borrow_mut();
        book.closed = book.closed.max(frame);
        let mut wanted = None;
        while let Some(first) = book.open.first_entry().filter(|first| *first.key() <= frame) {
            let (about, comment) = first.remove_entry();
            book.bytes -= comment.lines.len();
            wanted = (about == frame).then_some(comment);
        }
        wanted.map(Comment::text)
    }

    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.0.borrow().open.len()
    }

    pub(crate) fn late(&self) -> u64 {
        self.0.borrow().late
    }
}

impl Comment {
    /// Returns the number of added bytes.
    fn add(&mut self, text: &str) -> usize {
        if self.lines.len() + text.len() >= COMMENT_LEN_MAX {
            self.lines_left_out += 1;
            return 0;
        }
        let before = self.lines.len();
        if before > 0 {
            self.lines.push('\n');
        }
        self.lines.push_str(text);
        self.lines.len() - before
    }

    fn text(self) -> String {
        let mut text = String::new();
        if let Some((from, class)) = self.segment {
            let _infallible = write!(text, "iWARP from the {from}");
            text.push_str(match self.fit {
                Some(Fit::Aligned) => ", aligned with FPDUs",
                Some(Fit::Unaligned) => ", not aligned with FPDUs",
                Some(Fit::CrcAlone) => ", nothing but the CRC of an FPDU",
                None => "",
            });
            text.push_str(match class {
                Class::OutOfOrder => ", out of order",
                Class::Retransmitted => ", retransmission",
                _ => "",
            });
        }
        if !self.lines.is_empty() {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&self.lines);
        }
        if self.lines_left_out > 0 {
            let _infallible = write!(text, "\nand {} more", self.lines_left_out);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_on_one_frame_are_joined() {
        let comments = Comments::default();
        comments.fit(1, Fit::Aligned);
        comments.segment(2, "initiator", Class::OutOfOrder);
        comments.line(2, "Send");
        comments.fit(2, Fit::Unaligned);
        comments.finding(2, Severity::Error, "RFC 5044 §4.4", "wrong CRC");
        assert_eq!(comments.first(), Some((1, String::new())));
        let text = "iWARP from the initiator, not aligned with FPDUs, out of order\nSend\n\
                    error, RFC 5044 §4.4: wrong CRC";
        assert_eq!(comments.first(), Some((2, text.to_owned())));
        comments.line(2, "too late");
        assert_eq!((comments.first(), comments.late()), (None, 1));
    }

    #[test]
    fn taking_a_comment_drops_those_of_earlier_frames() {
        let comments = Comments::default();
        for frame in [1, 2, 4, 5, 6] {
            comments.line(frame, "some text");
        }
        assert_eq!((comments.take(3), comments.open()), (None, 3));
        assert_eq!(comments.take(5), Some("some text".to_owned()));
        assert_eq!((comments.open(), comments.0.borrow().bytes), (1, "some text".len()));
        assert_eq!(comments.take(4), None);
        comments.line(5, "too late");
        assert_eq!((comments.open(), comments.late()), (1, 1));
    }

    #[test]
    fn a_comment_has_a_greatest_length() {
        let comments = Comments::default();
        for _ in 0..COMMENT_LEN_MAX {
            comments.line(7, "0123456789");
        }
        let (_, text) = comments.first().unwrap();
        assert!(text.len() < COMMENT_LEN_MAX + 40, "{}", text.len());
        assert!(text.ends_with(" more"));
    }

    #[test]
    fn number_and_size_of_open_comments_are_limited() {
        let comments = Comments::default();
        for frame in 1..=COMMENTS_OPEN_MAX as u64 {
            comments.line(frame, "");
            assert_eq!(comments.overflow(), None);
        }
        comments.line(u64::MAX, "");
        assert_eq!(comments.overflow(), Some((1, String::new())));
        assert_eq!(comments.overflow(), None);
        let long = "x".repeat(COMMENT_LEN_MAX - 1);
        for frame in 0..=(COMMENTS_BYTES_MAX / long.len()) as u64 {
            comments.line(1 << 40 | frame, &long);
        }
        assert!(comments.overflow().is_some());
    }
}
