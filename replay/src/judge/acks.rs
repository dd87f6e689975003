//! Acknowledgments of a stream; had the sender received them when it retransmitted?

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Acks {
    /// Acknowledgments of more than all before.
    latest: VecDeque<Ack>,
    syn_ns: Option<u64>,
    round_trip_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Ack {
    end: u64,
    at_ns: u64,
    frame: u64,
    stamp: Option<u32>,
}

/// Reason for a retransmission of bytes whose acknowledgment is in the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The acknowledgment in this frame did not reach the sender, although it had enough time.
    AckLost(u64),
    /// The sender had received it, as its echoed timestamps show.
    Known,
    /// The acknowledgment was in flight.
    Crossed,
    /// The capture does not show the reason.
    Untold,
}

impl Acks {
    pub(crate) const fn asked(&mut self, at_ns: u64) {
        if self.round_trip_ns.is_none() {
            self.syn_ns = Some(at_ns);
        }
    }

    pub(crate) const fn answered(&mut self, at_ns: u64) {
        if let Some(asked_ns) = self.syn_ns.take() {
            self.round_trip_ns = Some(at_ns.saturating_sub(asked_ns));
        }
    }

    pub(crate) const fn round_trip_ns(&self) -> Option<u64> {
        self.round_trip_ns
    }

    pub(crate) fn note(&mut self, end: u64, at_ns: u64, frame: u64, stamp: Option<u32>) {
        if self.end() >= end {
            return;
        }
        if self.latest.len() == ACKS_MAX {
            self.latest.pop_front();
        }
        self.latest.push_back(Ack { end, at_ns, frame, stamp });
    }

    pub(crate) fn end(&self) -> u64 {
        self.latest.back().map_or(0, |ack| ack.end)
    }

    pub(crate) fn last_frame(&self) -> u64 {
        self.latest.back().map_or(0, |ack| ack.frame)
    }

    /// Returns the reason why bytes before `end` are retransmitted, by a segment that echoes
    /// `echo`; `None` if they are not acknowledged.
    pub(crate) fn why(&self, end: u64, now_ns: u64, echo: Option<u32>) -> Option<Why> {
        // A dropped entry may have been the first acknowledgment; then it was even earlier.
        let ack = self.latest.iter().find(|ack| ack.end >= end)?;
        // RFC 7323 §4: the timestamps of a sender do not decrease.
        if let (Some(stamp), Some(echo)) = (ack.stamp, echo)
            && (1..1 << 31).contains(&echo.wrapping_sub(stamp))
        {
            return Some(Why::Known);
        }
        let waited_ns = now_ns.saturating_sub(ack.at_ns);
        Some(match self.round_trip_ns {
            // Frames without timestamps.
            None => Why::Untold,
            Some(0) if waited_ns == 0 => Why::Untold,
            Some(round_trip_ns) if waited_ns > 2 * round_trip_ns + SLACK_NS => {
                Why::AckLost(ack.frame)
            }
            Some(_) => Why::Crossed,
        })
    }
}

const ACKS_MAX: usize = 16;
/// Time by which an answer of an end may be slower than in the handshake.
const SLACK_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn acks() -> Acks {
        let mut acks = Acks::default();
        acks.asked(0);
        acks.answered(10 * MS);
        acks.note(100, 50 * MS, 7, Some(u32::MAX));
        acks.note(200, 60 * MS, 8, Some(5));
        acks
    }

    #[test]
    fn an_acknowledgment_that_had_time_to_arrive_was_lost() {
        let acks = acks();
        assert_eq!(acks.why(201, 500 * MS, None), None);
        assert_eq!(acks.why(100, 71 * MS, None), Some(Why::Crossed));
        assert_eq!(acks.why(100, 72 * MS, None), Some(Why::AckLost(7)));
        assert_eq!(acks.why(101, 72 * MS, None), Some(Why::Crossed), "a later one");
        assert_eq!((acks.end(), acks.last_frame()), (200, 8));
    }

    #[test]
    fn timestamp_echo_shows_that_an_acknowledgment_arrived() {
        let acks = acks();
        assert_eq!(acks.why(100, 500 * MS, Some(0)), Some(Why::Known), "stamps wrap");
        assert_eq!(acks.why(100, 500 * MS, Some(u32::MAX)), Some(Why::AckLost(7)));
        assert_eq!(acks.why(200, 500 * MS, Some(4)), Some(Why::AckLost(8)));
    }

    #[test]
    fn cause_is_unknown_without_a_handshake_or_timestamps() {
        let mut acks = Acks::default();
        acks.note(100, 50 * MS, 7, None);
        assert_eq!(acks.why(100, 500 * MS, None), Some(Why::Untold));
        let mut acks = Acks::default();
        acks.asked(0);
        acks.answered(0);
        acks.note(100, 0, 7, None);
        assert_eq!(acks.why(100, 0, None), Some(Why::Untold));
        for end in 101..200 {
            acks.note(end, 0, end, None);
        }
        assert_eq!(acks.latest.len(), ACKS_MAX);
    }
}
