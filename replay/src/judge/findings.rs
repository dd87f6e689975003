//! Findings about a connection.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::limits::{FINDINGS_MAX, FINDINGS_OWN};
use crate::report::comments::Comments;
use crate::report::{Finding, Severity};

/// Each kind has one severity and one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Crc,
    Marker,
    UlpduLength,
    Pad,
    Unaligned,
    CrcAlone,
    CutFpdu,
    DdpHeader,
    DdpVersion,
    DdpReserved,
    QueueNumber,
    MessageNumber,
    MessageOffset,
    TaggedMessage,
    TaggedOffsetWrap,
    RdmapVersion,
    RdmapReserved,
    Opcode,
    ReadRequestLength,
    ReadRequestSwapped,
    ResponseUnasked,
    ResponseMismatch,
    ReadUnanswered,
    AfterTerminate,
    Terminate,
    TerminateLength,
    TerminateLayout,
    StartupFrame,
    StartupReserved,
    StartupAnswer,
    Depths,
    Rtr,
    RtrUnmatched,
    BothInitiate,
    Rejected,
    InitiatorEarly,
    ResponderEarly,
    NoRequest,
    NoReply,
    NotMpa,
    MidConnection,
    Resumed,
    CrcSplit,
    ZeroWindow,
    Spurious,
    AckLost,
    Offloaded,
    EmssSmall,
    EmssOdd,
    FpduTooLong,
    ExtensionOpcode,
    ImmediateLength,
    ImmediateAlone,
    AtomicRequestForm,
    AtomicResponseForm,
    AtomicMismatch,
    AtomicUnasked,
    AtomicUnanswered,
    DepthsOpen,
    DepthsLowered,
    BeyondIrd,
    RtrOther,
    RtrIdle,
    Unseen,
    Gap,
    WaitingFull,
    MemoryFull,
    LetGo,
}

impl Kind {
    const fn rule(self) -> &'static str {
        match self {
            Self::Crc | Self::CrcSplit => "RFC 5044 §4.4",
            Self::ZeroWindow => "RFC 9293 §3.8.6",
            Self::Spurious | Self::AckLost => "RFC 9293 §3.8.1",
            Self::Offloaded => "capture",
            Self::Marker => "RFC 5044 §4.3",
            Self::UlpduLength | Self::Pad => "RFC 5044 §4.1",
            Self::Unaligned => "RFC 5044 §5",
            Self::CrcAlone | Self::EmssSmall | Self::EmssOdd | Self::FpduTooLong => "RFC 5044 §4.5",
            Self::CutFpdu => "RFC 5044 §7.2",
            Self::DdpHeader | Self::DdpVersion | Self::DdpReserved => "RFC 5041 §4.1",
            Self::QueueNumber | Self::MessageNumber | Self::MessageOffset => "RFC 5041 §4.3",
            Self::TaggedMessage => "RFC 5041 §5.2",
            Self::TaggedOffsetWrap => "RFC 5041 §7.1",
            Self::RdmapVersion | Self::RdmapReserved | Self::Opcode => "RFC 5040 §4.1",
            Self::ReadRequestLength | Self::ReadRequestSwapped => "RFC 5040 §4.4",
            Self::ResponseUnasked | Self::ResponseMismatch | Self::ReadUnanswered => {
                "RFC 5040 §5.2"
            }
            Self::AfterTerminate => "RFC 5040 §5.4",
            Self::Terminate | Self::TerminateLength | Self::TerminateLayout => "RFC 5040 §4.8",
            Self::StartupFrame | Self::StartupReserved => "RFC 5044 §7.1.1",
            Self::StartupAnswer => "RFC 6581 §10",
            Self::Depths | Self::DepthsOpen | Self::DepthsLowered | Self::BeyondIrd => {
                "RFC 6581 §9.1"
            }
            Self::Rtr | Self::RtrUnmatched | Self::RtrOther | Self::RtrIdle => "RFC 6581 §9.2",
            Self::ExtensionOpcode => "RFC 7306 §4.1",
            Self::ImmediateLength => "RFC 7306 §6.3",
            Self::ImmediateAlone => "RFC 7306 §6",
            Self::AtomicRequestForm | Self::AtomicUnanswered => "RFC 7306 §5.2.1",
            Self::AtomicResponseForm | Self::AtomicMismatch | Self::AtomicUnasked => {
                "RFC 7306 §5.2.2"
            }
            Self::BothInitiate | Self::Rejected | Self::InitiatorEarly | Self::ResponderEarly => {
                "RFC 5044 §7.1.2"
            }
            Self::NoRequest
            | Self::NoReply
            | Self::NotMpa
            | Self::MidConnection
            | Self::Resumed => "RFC 5044 §7.1",
            Self::Gap | Self::Unseen | Self::WaitingFull | Self::MemoryFull | Self::LetGo => {
                "RFC 9293 §3.4"
            }
        }
    }

    const fn is_about_iwarp(self) -> bool {
        !matches!(self, Self::NotMpa | Self::MidConnection | Self::LetGo)
    }

    const fn severity(self) -> Severity {
        match self {
            Self::Pad
            | Self::Unaligned
            | Self::CrcAlone
            | Self::DdpReserved
            | Self::RdmapReserved
            | Self::ReadUnanswered
            | Self::TerminateLayout
            | Self::StartupReserved
            | Self::Rtr
            | Self::Rejected
            | Self::ZeroWindow
            | Self::Spurious
            | Self::AckLost
            | Self::Offloaded
            | Self::EmssSmall
            | Self::EmssOdd
            | Self::FpduTooLong
            | Self::ImmediateAlone
            | Self::AtomicUnanswered
            | Self::DepthsLowered
            | Self::RtrIdle
            | Self::NotMpa => Severity::Note,
            Self::CutFpdu
            | Self::Terminate
            | Self::StartupAnswer
            | Self::Depths
            | Self::DepthsOpen
            | Self::RtrUnmatched
            | Self::NoRequest
            | Self::NoReply
            | Self::MidConnection
            | Self::Resumed
            | Self::Unseen
            | Self::Gap
            | Self::WaitingFull
            | Self::MemoryFull
            | Self::LetGo => Severity::Warning,
            _ => Severity::Error,
        }
    }
}

/// Findings of one connection, in order. Those of one kind and sender whose texts differ only in
/// numbers are one finding with a count.
#[derive(Debug)]
pub(crate) struct Findings {
    list: Vec<Finding>,
    counts: BTreeMap<(Kind, &'static str), Count>,
    listing: Listing,
    pub(crate) comments: Option<Comments>,
}

#[derive(Debug, Default)]
struct Count {
    all: u64,
    /// Listed findings: their texts without numbers, and their indices.
    listed: Vec<(String, usize)>,
}

impl Count {
    /// Returns the finding with this cause, or the last one of the kind if the list is full.
    fn place(&self, cause: &str, listed_max: usize) -> Option<usize> {
        let same = self.listed.iter().find(|(known, _)| known == cause);
        let is_full = self.listed.len() >= listed_max;
        same.or_else(|| self.listed.last().filter(|_| is_full)).map(|(_, place)| *place)
    }
}

fn cause(text: &str) -> String {
    let has_digit = |word: &str| word.bytes().any(|byte| byte.is_ascii_digit());
    let words = text.split(' ').map(|word| if has_digit(word) { "#" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[derive(Clone, Debug)]
pub(crate) struct Listing(Rc<Cell<usize>>);

impl Listing {
    pub(crate) fn new() -> Self {
        Self(Rc::new(Cell::new(FINDINGS_MAX)))
    }

    fn take(&self, len: usize) -> bool {
        if len < FINDINGS_OWN {
            return true;
        }
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left > 0
    }

    pub(crate) fn give(&self, list: &[Finding]) {
        let frames: usize = list.iter().map(|one| one.frames.len().saturating_sub(1)).sum();
        self.0.set(self.0.get() + list.len().saturating_sub(FINDINGS_OWN) + frames);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) list: Vec<Finding>,
    pub(crate) errors: u64,
    /// Findings not represented by a listed one.
    pub(crate) unlisted: u64,
}

impl Findings {
    pub(crate) fn new(listing: Listing) -> Self {
        Self { list: Vec::new(), counts: BTreeMap::new(), listing, comments: None }
    }

    /// `from` is empty for a finding about the connection. Only counts it if there are many.
    pub(crate) fn add(
        &mut self,
        kind: Kind,
        from: &'static str,
        frame: u64,
        text: impl FnOnce() -> String,
    ) {
        let Self { list, counts, listing, comments } = self;
        let count = counts.entry((kind, from)).or_default();
        count.all += 1;
        let (severity, listed_max) = (kind.severity(), listed_max(kind.severity()));
        let comments = comments.as_ref().filter(|_| kind.is_about_iwarp());
        let is_many = listed_max == 1 || count.all > TEXTS_MAX;
        let known = is_many.then(|| count.listed.last().map(|(_, place)| *place)).flatten();
        if let (Some(place), None) = (known, comments) {
            return again(&mut list[place], frame, listing);
        }
        let text = if from.is_empty() { text() } else { format!("{from}: {}", text()) };
        if let Some(comments) = comments {
            comments.finding(frame, severity, kind.rule(), &text);
        }
        let cause = cause(&text);
        if let Some(place) = known.or_else(|| count.place(&cause, listed_max)) {
            again(&mut list[place], frame, listing);
        } else if listing.take(list.len()) {
            count.listed.push((cause, list.len()));
            let (should, costs) = (kind.should(), kind.costs());
            let found = Finding::of(severity, kind.rule(), frame, text);
            list.push(Finding { should, costs, ..found });
        }
    }

    pub(crate) fn has(&self, kind: Kind) -> bool {
        self.counts.keys().any(|(known, _)| *known == kind)
    }

    /// Returns the implementation of `from`, by behaviour that no other one is known to have.
    pub(crate) fn profile(&self, from: &'static str) -> Option<&'static str> {
        let behaviour = [Kind::CrcAlone, Kind::TerminateLayout, Kind::CrcSplit];
        behaviour.iter().any(|habit| self.counts.contains_key(&(*habit, from))).then_some("siw")
    }

    pub(crate) fn into_found(mut self) -> Found {
        let mut errors = 0;
        for ((kind, _), count) in &self.counts {
            errors += if kind.severity() == Severity::Error { count.all } else { 0 };
        }
        let all: u64 = self.counts.values().map(|count| count.all).sum();
        let listed: u64 = self.list.iter().map(|finding| finding.count).sum();
        for finding in self.list.iter_mut().filter(|finding| finding.count > 1) {
            finding.text.push_str(&format!(" ({} more like this)", finding.count - 1));
        }
        self.list.sort_by_key(|finding| finding.frame);
        Found { list: self.list, errors, unlisted: all - listed }
    }
}

fn again(finding: &mut Finding, frame: u64, listing: &Listing) {
    finding.count += 1;
    if finding.frames.is_empty() {
        finding.frames.push(finding.frame);
    }
    finding.frame = finding.frame.min(frame);
    if finding.frames.len() < FRAMES_MAX && listing.take(FINDINGS_OWN) {
        finding.frames.push(frame);
    }
}

/// Most listed findings of one kind and sender, each with another cause.
const fn listed_max(severity: Severity) -> usize {
    match severity {
        Severity::Note => 1,
        Severity::Warning | Severity::Error => 100,
    }
}

/// Most findings of one kind and sender whose texts are compared.
const TEXTS_MAX: u64 = 1000;
/// Most frames that a finding names.
const FRAMES_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siw_is_recognised_by_its_deviations() {
        let mut findings = Findings::new(Listing::new());
        findings.add(Kind::Crc, "initiator", 1, String::new);
        assert_eq!(findings.profile("initiator"), None);
        findings.add(Kind::CrcAlone, "responder", 2, String::new);
        assert_eq!(findings.profile("responder"), Some("siw"));
        assert_eq!(findings.profile("initiator"), None, "the habit is the other end's");
        findings.add(Kind::TerminateLayout, "initiator", 3, String::new);
        assert_eq!(findings.profile("initiator"), Some("siw"));
    }

    #[test]
    fn findings_of_one_cause_are_one_with_a_count() {
        let mut findings = Findings::new(Listing::new());
        for frame in 1..=5 {
            findings.add(Kind::Pad, "initiator", 10 - frame, || "pad".to_owned());
        }
        for frame in 1..=203 {
            findings.add(Kind::Crc, "responder", frame, || format!("CRC of {frame} bytes"));
        }
        findings.add(Kind::Crc, "responder", 7, || "another".to_owned());
        findings.add(Kind::Pad, "responder", 9, || "pad".to_owned());
        assert!(findings.has(Kind::Crc) && !findings.has(Kind::Gap));
        let Found { list, errors, unlisted } = findings.into_found();
        assert_eq!((errors, unlisted), (204, 0));
        let found: Vec<_> = list.iter().map(|one| (one.frame, one.count, &*one.text)).collect();
        assert_eq!(
            found,
            [
                (1, 203, "responder: CRC of 1 bytes (202 more like this)"),
                (5, 5, "initiator: pad (4 more like this)"),
                (7, 1, "responder: another"),
                (9, 1, "responder: pad"),
            ]
        );
        assert_eq!(list[0].frames, (1..=FRAMES_MAX as u64).collect::<Vec<_>>());
        assert_eq!(list[1].frames, [9, 8, 7, 6, 5]);
        assert!(list[2].frames.is_empty());
    }

    #[test]
    fn the_causes_of_a_kind_that_are_listed_are_few() {
        let mut findings = Findings::new(Listing::new());
        let name = |number: u64| "x".repeat(usize::try_from(number).unwrap());
        for frame in 1..=103 {
            findings.add(Kind::Crc, "responder", frame, || name(frame));
        }
        // An earlier cause is still known, until there are too many to compare.
        findings.add(Kind::Crc, "responder", 104, || name(3));
        let last = 2 * TEXTS_MAX;
        for frame in 105..=last {
            findings.add(Kind::Crc, "responder", frame, || name(3));
        }
        let Found { list, errors, unlisted } = findings.into_found();
        assert_eq!((list.len(), errors, unlisted), (100, last, 0));
        assert_eq!((list[2].frame, list[2].count), (3, 1 + TEXTS_MAX - 103));
        assert_eq!((list[99].frame, list[99].count), (100, 4 + TEXTS_MAX));
    }

    #[test]
    fn findings_listed_for_a_file_are_limited_and_the_rest_counted() {
        let listing = Listing::new();
        let many = |kinds: &[Kind]| {
            let mut findings = Findings::new(listing.clone());
            for kind in kinds {
                for frame in 1..=101_usize {
                    findings.add(*kind, "initiator", frame as u64, || "x".repeat(frame));
                }
            }
            let found = findings.into_found();
            assert_eq!(found.errors, 101 * kinds.len() as u64, "counted whether listed or not");
            (found.list, found.unlisted)
        };
        // A folded finding adds its frame to the last listed one.
        let shared = 100 - FINDINGS_OWN + 1;
        for _ in 0..FINDINGS_MAX / shared {
            assert_eq!(many(&[Kind::Crc]).0.len(), 100);
        }
        let (rest, unlisted) = many(&[Kind::Crc]);
        assert_eq!(rest.len(), FINDINGS_OWN + FINDINGS_MAX % shared);
        assert_eq!(unlisted, 101 - rest.len() as u64);
        let (own, unlisted) = many(&[Kind::Crc, Kind::Marker]);
        assert_eq!((own.len(), unlisted), (FINDINGS_OWN, 202 - FINDINGS_OWN as u64));
        listing.give(&rest);
        assert_eq!(many(&[Kind::Crc]).0.len(), rest.len(), "what was given back is there again");
    }
}
