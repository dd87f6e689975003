//! What the observer has to say about a connection, apart from numbers.

use std::collections::BTreeMap;

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
    Gap,
    WaitingFull,
    MemoryFull,
}

impl Kind {
    const fn rule(self) -> &'static str {
        match self {
            Self::Crc => "RFC 5044 §4.4",
            Self::Marker => "RFC 5044 §4.3",
            Self::UlpduLength | Self::Pad => "RFC 5044 §4.1",
            Self::Unaligned => "RFC 5044 §5",
            Self::CrcAlone => "RFC 5044 §4.5",
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
            Self::Depths => "RFC 6581 §9.1",
            Self::Rtr | Self::RtrUnmatched => "RFC 6581 §9.2",
            Self::BothInitiate | Self::Rejected | Self::InitiatorEarly | Self::ResponderEarly => {
                "RFC 5044 §7.1.2"
            }
            Self::NoRequest | Self::NoReply | Self::NotMpa | Self::MidConnection => "RFC 5044 §7.1",
            Self::Gap | Self::WaitingFull | Self::MemoryFull => "RFC 9293 §3.4",
        }
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
            | Self::NotMpa => Severity::Note,
            Self::CutFpdu
            | Self::Terminate
            | Self::StartupAnswer
            | Self::Depths
            | Self::RtrUnmatched
            | Self::NoRequest
            | Self::NoReply
            | Self::MidConnection
            | Self::Gap
            | Self::WaitingFull
            | Self::MemoryFull => Severity::Warning,
            _ => Severity::Error,
        }
    }
}

/// The findings of one connection, in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Findings {
    list: Vec<Finding>,
    /// How many of each kind, by sender, and where the last one that is listed stands.
    counts: BTreeMap<(Kind, &'static str), (u64, usize)>,
}

impl Findings {
    /// Adds a finding about what `from` sends, or about the connection if that is empty. If there
    /// are many of its kind already it is only counted.
    pub(super) fn add(
        &mut self,
        kind: Kind,
        from: &'static str,
        frame: u64,
        text: impl FnOnce() -> String,
    ) {
        let (count, last) = self.counts.entry((kind, from)).or_default();
        *count += 1;
        let severity = kind.severity();
        if *count <= listed_max(severity) {
            let text = if from.is_empty() { text() } else { format!("{from}: {}", text()) };
            *last = self.list.len();
            self.list.push(Finding { severity, rule: kind.rule(), frame, text });
        }
    }

    /// Whether there are findings of this kind.
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.counts.keys().any(|(known, _)| *known == kind)
    }

    /// The known implementation that `from` behaves like, by habits that no other is known to have.
    pub(super) fn profile(&self, from: &'static str) -> Option<&'static str> {
        let habits = [Kind::CrcAlone, Kind::TerminateLayout];
        habits.iter().any(|habit| self.counts.contains_key(&(*habit, from))).then_some("siw")
    }

    /// The list; the last that is listed of a kind says how many more there are.
    pub(super) fn into_list(mut self) -> Vec<Finding> {
        for ((kind, _), (count, last)) in &self.counts {
            let more = count.saturating_sub(listed_max(kind.severity()));
            if let Some(finding) = self.list.get_mut(*last).filter(|_| more > 0) {
                finding.text.push_str(&format!(" ({more} more like this)"));
            }
        }
        self.list
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
        let mut findings = Findings::default();
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
        let mut findings = Findings::default();
        for frame in 1..=5 {
            findings.add(Kind::Pad, "initiator", frame, || "pad".to_owned());
        }
        for frame in 1..=103 {
            findings.add(Kind::Crc, "responder", frame, || "CRC".to_owned());
        }
        findings.add(Kind::Pad, "responder", 9, || "pad".to_owned());
        assert!(findings.has(Kind::Crc) && !findings.has(Kind::Gap));
        let list = findings.into_list();
        assert_eq!(list.len(), 102);
        assert_eq!(list[0].text, "initiator: pad (4 more like this)");
        assert_eq!((list[100].frame, &*list[100].text), (100, "responder: CRC (3 more like this)"));
        assert_eq!(list[101].text, "responder: pad");
    }
}
