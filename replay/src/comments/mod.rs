//! Comments on frames, noted while a capture is replayed.
//!
//! A frame is spoken of at several times: when it comes, when an FPDU that ends in it is placed, when
//! the stream has come as far and it is known where FPDUs begin. What was said of it is kept until it
//! is among the oldest of [`COMMENTS_OPEN_MAX`]; what is found out later is counted and left out.

pub(crate) mod blocks;
pub(crate) mod classic;
pub(crate) mod spool;
pub(crate) mod write;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::rc::Rc;

use crate::limits::{COMMENT_LEN_MAX, COMMENTS_BYTES_MAX, COMMENTS_OPEN_MAX};
use crate::report::Severity;
use crate::trace::{Class, Fit};

/// A handle on the comments of a capture; clones are handles on the same ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comments(Rc<RefCell<Book>>);

#[derive(Debug, Default)]
struct Book {
    open: BTreeMap<u64, Comment>,
    bytes: usize,
    /// Frames up to this one have been given out.
    closed: u64,
    /// What came after its frame had been given out.
    late: u64,
}

/// What is said of one frame.
#[derive(Debug, Default)]
struct Comment {
    /// Its sender, and how its bytes stand in the stream.
    segment: Option<(&'static str, Class)>,
    fit: Option<Fit>,
    /// A line for each FPDU and finding.
    lines: String,
    lines_left_out: u64,
}

impl Comments {
    /// A segment with bytes of an MPA stream came in `frame`.
    pub(crate) fn segment(&self, frame: u64, from: &'static str, class: Class) {
        self.with(frame, |comment| {
            comment.segment.get_or_insert((from, class));
            0
        });
    }

    /// It is known how the bytes of a frame lie on FPDUs.
    pub(crate) fn fit(&self, frame: u64, fit: Fit) {
        self.with(frame, |comment| {
            // A frame that is not an MPA stream's is not spoken of for this alone.
            if comment.segment.is_some() {
                comment.fit = Some(fit);
            }
            0
        });
    }

    /// Something else is to be said.
    pub(crate) fn line(&self, frame: u64, text: &str) {
        self.with(frame, |comment| comment.add(text));
    }

    /// A finding about a frame.
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
        // Frames are numbered from 1: what is about none of them has no place.
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

    /// The oldest comment, if there are too many to keep.
    pub(crate) fn overflow(&self) -> Option<(u64, String)> {
        let is_over = {
            let book = self.0.borrow();
            book.open.len() > COMMENTS_OPEN_MAX || book.bytes > COMMENTS_BYTES_MAX
        };
        if is_over { self.first() } else { None }
    }

    /// The oldest comment. Nothing more is said of its frame and of those before.
    pub(crate) fn first(&self) -> Option<(u64, String)> {
        let mut book = self.0.borrow_mut();
        let (frame, comment) = book.open.pop_first()?;
        book.bytes -= comment.lines.len();
        book.closed = frame;
        Some((frame, comment.text()))
    }

    /// The comment on `frame`, of which and of those before nothing more is said.
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

    /// Comments that are kept.
    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.0.borrow().open.len()
    }

    /// How often something was found out too late for its frame.
    pub(crate) fn late(&self) -> u64 {
        self.0.borrow().late
    }
}

impl Comment {
    /// Adds a line; returns how many bytes were added.
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
    fn what_is_said_of_a_frame_is_one_text() {
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
    fn with_the_comment_on_a_frame_those_before_are_let_go() {
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
    fn so_many_comments_are_kept() {
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
