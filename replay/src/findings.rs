//! What the observer has to say about a connection, apart from numbers.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::comments::Comments;
use super::limits::{FINDINGS_MAX, FINDINGS_OWN};
use super::report::{Finding, Severity};

/// Kinds of finding. Each has one severity and one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
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
            Self::ReadRequestLength => "RFC 5040 §4.4",
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

    /// Whether it says something about frames of an iWARP connection.
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

/// The findings of one connection, in the order in which they were made.
#[derive(Debug)]
pub(super) struct Findings {
    list: Vec<Finding>,
    counts: BTreeMap<(Kind, &'static str), Count>,
    listing: Listing,
    /// Where frames are commented on, if they are.
    pub(super) comments: Option<Comments>,
}

/// How many findings of one kind there are from one sender.
#[derive(Debug, Default)]
struct Count {
    all: u64,
    listed: u64,
    /// Where the last one that is listed stands.
    last: usize,
}

/// How many more findings of a file can be listed.
#[derive(Clone, Debug)]
pub(super) struct Listing(Rc<Cell<usize>>);

impl Listing {
    pub(super) fn new() -> Self {
        Self(Rc::new(Cell::new(FINDINGS_MAX)))
    }

    /// Takes room for one more on a list of `len`.
    fn take(&self, len: usize) -> bool {
        if len < FINDINGS_OWN {
            return true;
        }
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left > 0
    }

    /// Gives back the room of a list that is not shown after all.
    pub(super) fn give(&self, list: &[Finding]) {
        self.0.set(self.0.get() + list.len().saturating_sub(FINDINGS_OWN));
    }
}

/// The findings of a connection that is over.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The last that is listed of a kind says how many more there are.
    pub(super) list: Vec<Finding>,
    /// Of all.
    pub(super) errors: u64,
    /// Those of kinds of which none is listed.
    pub(super) unlisted: u64,
}

impl Findings {
    pub(super) fn new(listing: Listing) -> Self {
        Self { list: Vec::new(), counts: BTreeMap::new(), listing, comments: None }
    }

    /// Adds a finding about what `from` sends, or about the connection if that is empty. If there
    /// are many of its kind already it is only counted.
    pub(super) fn add(
        &mut self,
        kind: Kind,
        from: &'static str,
        frame: u64,
        text: impl FnOnce() -> String,
    ) {
        let count = self.counts.entry((kind, from)).or_default();
        count.all += 1;
        let severity = kind.severity();
        let is_listed = count.listed < listed_max(severity) && self.listing.take(self.list.len());
        let comments = self.comments.as_ref().filter(|_| kind.is_about_iwarp());
        if !is_listed && comments.is_none() {
            return;
        }
        let text = if from.is_empty() { text() } else { format!("{from}: {}", text()) };
        if let Some(comments) = comments {
            comments.finding(frame, severity, kind.rule(), &text);
        }
        if is_listed {
            count.listed += 1;
            count.last = self.list.len();
            let (should, costs) = (kind.should(), kind.costs());
            self.list.push(Finding { severity, rule: kind.rule(), frame, text, should, costs });
        }
    }

    /// Whether there are findings of this kind.
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.counts.keys().any(|(known, _)| *known == kind)
    }

    /// The known implementation that `from` behaves like, by habits that no other is known to have.
    pub(super) fn profile(&self, from: &'static str) -> Option<&'static str> {
        let habits = [Kind::CrcAlone, Kind::TerminateLayout, Kind::CrcSplit];
        habits.iter().any(|habit| self.counts.contains_key(&(*habit, from))).then_some("siw")
    }

    /// Ends it.
    pub(super) fn into_found(mut self) -> Found {
        let (mut errors, mut unlisted) = (0, 0);
        for ((kind, _), count) in &self.counts {
            let Count { all, listed, last } = *count;
            if kind.severity() == Severity::Error {
                errors += all;
            }
            match self.list.get_mut(last) {
                _ if listed == 0 => unlisted += all,
                Some(finding) if all > listed => {
                    finding.text.push_str(&format!(" ({} more like this)", all - listed));
                }
                _ => {}
            }
        }
        Found { list: self.list, errors, unlisted }
    }
}

/// Findings of one kind and sender that are listed.
const fn listed_max(severity: Severity) -> u64 {
    match severity {
        Severity::Note => 1,
        Severity::Warning | Severity::Error => 100,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siw_is_known_by_its_habits() {
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
    fn what_is_not_listed_is_counted() {
        let mut findings = Findings::new(Listing::new());
        for frame in 1..=5 {
            findings.add(Kind::Pad, "initiator", frame, || "pad".to_owned());
        }
        for frame in 1..=103 {
            findings.add(Kind::Crc, "responder", frame, || "CRC".to_owned());
        }
        findings.add(Kind::Pad, "responder", 9, || "pad".to_owned());
        assert!(findings.has(Kind::Crc) && !findings.has(Kind::Gap));
        let Found { list, errors, unlisted } = findings.into_found();
        assert_eq!((errors, unlisted), (103, 0));
        assert_eq!(list.len(), 102);
        assert_eq!(list[0].text, "initiator: pad (4 more like this)");
        assert_eq!((list[100].frame, &*list[100].text), (100, "responder: CRC (3 more like this)"));
        assert_eq!(list[101].text, "responder: pad");
    }

    #[test]
    fn a_file_lists_so_many_findings_and_counts_the_others() {
        let listing = Listing::new();
        let many = |kinds: &[Kind]| {
            let mut findings = Findings::new(listing.clone());
            for kind in kinds {
                for frame in 1..=101 {
                    findings.add(*kind, "initiator", frame, String::new);
                }
            }
            let found = findings.into_found();
            assert_eq!(found.errors, 101 * kinds.len() as u64, "counted whether listed or not");
            (found.list, found.unlisted)
        };
        let shared = 100 - FINDINGS_OWN;
        for _ in 0..FINDINGS_MAX / shared {
            assert_eq!(many(&[Kind::Crc]).0.len(), 100);
        }
        let (rest, _) = many(&[Kind::Crc]);
        assert_eq!(rest.len(), FINDINGS_OWN + FINDINGS_MAX % shared);
        let (own, unlisted) = many(&[Kind::Crc, Kind::Marker]);
        assert_eq!((own.len(), unlisted), (FINDINGS_OWN, 101), "its own, and no Marker");
        listing.give(&rest);
        assert_eq!(many(&[Kind::Crc]).0.len(), rest.len(), "what was given back is there again");
    }
}
