//! Loss recovery. With SACK, RACK finds the losses (RFC 8985); without, duplicate ACKs do (RFC
//! 6582). In both cases the controller reduces once per recovery, and PRR spreads the reduction
//! (RFC 9937).

use std::ops::Range;

use arrayvec::ArrayVec;

use super::{AckOutcome, SendHalf};
use crate::tcp::ack::Echo;
use crate::tcp::congestion::Congestion;
use crate::tcp::header::Header;
use crate::tcp::prr::Prr;
use crate::tcp::rack::Deliveries;
use crate::tcp::sack::{Acknowledged, Resend};
use crate::time::Instant;
use crate::types::StreamOffset;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// No loss is known.
    Open,
    /// Losses found by acknowledgments (RFC 6675 §5, RFC 6582 §3.2), until `until` is acknowledged.
    Fast { until: StreamOffset, prr: Prr },
    /// The retransmission timer expired, until `until` is acknowledged.
    Timeout { until: StreamOffset },
}

#[derive(Clone, Debug)]
pub(crate) struct Undo {
    congestion: Congestion,
    /// Time of the recovery's first retransmission.
    resent_at: Option<Instant>,
    /// Not yet reported as duplicates; `None` once there were too many to track.
    resent: Option<ArrayVec<Range<StreamOffset>, UNDO_SEGMENTS_MAX>>,
    /// Nothing was acknowledged since: the next echoed timestamp decides (RFC 3522).
    is_undecided: bool,
}

/// Most connections never lose anything and allocate none; the others reuse their allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct UndoPlace {
    kept: Option<Box<Undo>>,
    is_current: bool,
}

impl UndoPlace {
    fn set(&mut self, undo: Undo) {
        match &mut self.kept {
            Some(kept) => **kept = undo,
            None => self.kept = Some(Box::new(undo)),
        }
        self.is_current = true;
    }

    pub(super) const fn clear(&mut self) {
        self.is_current = false;
    }

    fn current(&mut self) -> Option<&mut Undo> {
        self.kept.as_deref_mut().filter(|_| self.is_current)
    }
}

pub(super) struct Disorder<'a> {
    pub(super) header: &'a Header,
    /// Its number; before SND.UNA if later acknowledgments have overtaken it.
    pub(super) number: StreamOffset,
    /// SND.UNA before it.
    pub(super) una: StreamOffset,
    pub(super) acked: Acknowledged,
    pub(super) delivered: Deliveries,
    pub(super) duplicate: bool,
    pub(super) echo: Option<Echo>,
}

/// RFC 5681 §3.2: the third duplicate ACK begins fast retransmit.
const DUPLICATE_ACKS: u32 = 3;
/// Most retransmissions of a recovery that D-SACKs can undo. A recovery with more is not undone.
const UNDO_SEGMENTS_MAX: usize = 16;

impl SendHalf {
    pub(super) fn on_disorder(&mut self, now: Instant, mut ack: Disorder<'_>) -> AckOutcome {
        let advanced = ack.acked.bytes > 0;
        let before = self.recovery;
        let mut outcome = AckOutcome { advanced, ..AckOutcome::default() };
        self.rack.acknowledged(self.board.una());
        let duplicates_before = self.board.duplicate_bytes();
        let (sacked, dsack) = self.take_sacks(&mut ack);
        if let Some(dsack) = &dsack {
            outcome.undone |= self.on_dsack(dsack);
        }
        self.learn_deliveries(now, &ack, sacked);
        self.end_loss_probe(now, &ack, sacked, dsack.is_some());
        if advanced {
            outcome.undone |= self.undo_if_needless(now, &ack);
        }
        outcome.undone |= self.on_frto_ack(now, &ack, sacked);
        self.end_recovery();
        if !advanced && sacked == 0 && !ack.duplicate {
            return outcome;
        }
        let lost_before = self.board.has_unsent_loss();
        outcome.recovery_began = self.look_for_losses(now, &ack);
        let new_loss = self.board.has_unsent_loss() && !lost_before;
        let duplicates = self.board.duplicate_bytes();
        let delivered = (ack.acked.fresh + sacked + duplicates).saturating_sub(duplicates_before);
        let (pipe, emss) = (self.board.pipe(), u64::from(self.emss()));
        if let Recovery::Fast { prr, .. } = &mut self.recovery {
            prr.on_ack(delivered, pipe, emss, advanced && !new_loss);
        } else if advanced {
            let bytes = match before {
                Recovery::Open => ack.acked.bytes,
                // RFC 3465 §2.3: after a timeout "a TCP sender MUST use L=1*SMSS": one
                // acknowledgment often covers what had arrived long before.
                Recovery::Timeout { .. } if !outcome.undone => ack.acked.fresh.min(emss),
                // Bytes SACKed during the recovery have let out data then.
                _ => ack.acked.fresh,
            };
            self.grow(now, ack.una, bytes, None);
        }
        outcome
    }

    fn take_sacks(&mut self, ack: &mut Disorder<'_>) -> (u64, Option<Range<StreamOffset>>) {
        let blocks = &ack.header.options.sack;
        if !self.has_sack() || blocks.is_empty() {
            return (0, None);
        }
        let (space, una) = (self.space, self.board.una());
        let mut ranges = blocks.iter().filter_map(|&(left, right)| {
            let range = space.offset_near(left, una)?..space.offset_near(right, una)?;
            (range.start < range.end).then_some(range)
        });
        // RFC 2883 §4: the first block reports a duplicate if it lies below the acknowledgment
        // number, or inside the second block. Not below SND.UNA: blocks of an overtaken
        // acknowledgment were new when sent.
        let (first, second) = (ranges.next(), ranges.next());
        let (number, window_max) = (ack.number, self.window_max());
        let dsack = first.clone().filter(|first| {
            let below = first.end <= number && number.bytes_since(first.start) <= window_max;
            let inside =
                |outer: &Range<StreamOffset>| first.start >= outer.start && first.end <= outer.end;
            below || second.as_ref().is_some_and(inside)
        });
        let all = first.into_iter().chain(second).chain(ranges);
        (self.board.sack(all, &mut ack.delivered), dsack)
    }

    fn learn_deliveries(&mut self, now: Instant, ack: &Disorder<'_>, sacked: u64) {
        let min_ns = self.rtt.min_ns().unwrap_or(0);
        // RFC 8985 §6.2 step 2: an acknowledgment that arrives sooner than any round trip so far,
        // or echoes an older timestamp, is for an earlier transmission.
        self.rack.update(now, &ack.delivered, |sent_at| {
            let too_old = ack.echo.is_some_and(|echo| echo.is_before(now, sent_at));
            !too_old && now.nanos_since(sent_at) >= min_ns
        });
        // Bytes newly SACKed were received just now (RFC 6298 §3 asks for a sample per round trip,
        // and the cumulative point may not move for several).
        if let Some(original) = ack.delivered.original
            && sacked > 0
            && ack.acked.bytes == 0
        {
            self.sample_round_trip(now, now.nanos_since(original.sent_at));
        }
    }

    /// Leaves a recovery whose end is acknowledged (RFC 6675 §5.1, RFC 6582 §3.2).
    // spec: TCP-6675-3
    fn end_recovery(&mut self) {
        let (Recovery::Fast { until, .. } | Recovery::Timeout { until }) = self.recovery else {
            return;
        };
        if self.board.una() >= until {
            self.recovery = Recovery::Open;
            self.board.forget_duplicates();
            self.rack.on_recovered();
        }
    }

    fn look_for_losses(&mut self, now: Instant, ack: &Disorder<'_>) -> bool {
        if self.has_sack() {
            return self.detect_losses(now);
        }
        if ack.acked.bytes > 0 {
            self.board.duplicates_acknowledged(ack.acked.bytes);
            // RFC 6582 §3.2 step 3, partial: "retransmit the first unacknowledged segment".
            // spec: TCP-6582-1
            if matches!(self.recovery, Recovery::Fast { .. }) {
                self.board.mark_first_lost();
                self.resend_at_once = true;
            }
        } else if ack.duplicate {
            self.on_duplicate_ack();
        }
        self.begin_recovery(now)
    }

    /// RFC 8985 §6.2 step 5. Returns true if a recovery began. Call it again at
    /// [`next_loss_at`](Self::next_loss_at).
    pub(crate) fn detect_losses(&mut self, now: Instant) -> bool {
        if self.board.is_plain() {
            self.next_loss_at = None;
            return false;
        }
        let window_ns = self.reordering_window_ns();
        let found = self.board.detect_losses(now, &self.rack, window_ns);
        self.next_loss_at = found.next_at;
        found.lost && self.begin_recovery(now)
    }

    fn reordering_window_ns(&self) -> u64 {
        let certain = self.recovery != Recovery::Open || self.board.has_dup_thresh();
        self.rack.window_ns(certain, self.rtt.min_ns(), self.rtt.srtt_ns())
    }

    fn begin_recovery(&mut self, now: Instant) -> bool {
        let begins = self.recovery == Recovery::Open && self.board.has_unsent_loss();
        if begins {
            let flight = self.board.flight();
            self.undo.set(self.snapshot());
            // RFC 5681 §3.2: data sent by limited transmit does not count.
            let lost = flight.min(self.congestion.cwnd());
            self.congestion.on_loss(now, lost);
            let in_flight = flight.saturating_sub(self.board.sacked_bytes());
            self.enter_fast(in_flight);
            self.resend_at_once = true;
        }
        begins
    }

    pub(super) fn enter_fast(&mut self, flight: u64) {
        let until = self.board.nxt();
        let prr = Prr::new(self.congestion.cwnd(), flight);
        self.recovery = Recovery::Fast { until, prr };
        self.recover = Some(until);
        self.refresh_cwnd();
    }

    /// Counts a duplicate ACK without SACK (RFC 5681 §3.2, RFC 6582 §3.2).
    // spec: TCP-5681-4
    fn on_duplicate_ack(&mut self) {
        self.duplicate_acks += 1;
        if matches!(self.recovery, Recovery::Timeout { .. }) {
            return;
        }
        // Room for limited transmit (RFC 3042) before the third, for new data after it.
        self.board.duplicate_ack(u64::from(self.emss()));
        let una = self.board.una();
        let is_new = self.recover.is_none_or(|recover| una > recover);
        if self.duplicate_acks == DUPLICATE_ACKS && is_new {
            self.board.mark_first_lost();
        }
    }

    /// RFC 6298 §5.4 to §5.6; returns true if the peer reneged.
    pub(crate) fn on_timeout(&mut self, now: Instant) -> bool {
        self.note_unanswered();
        // spec: TCP-2018-4
        let reneged = self.board.first_is_sacked();
        let first = self.timeouts == 0;
        if first {
            self.undo.set(self.snapshot());
        }
        self.begin_frto(first);
        self.congestion.on_timeout(now, self.board.flight(), first);
        if self.has_sack() && !reneged {
            // RFC 8985 §6.3: segments sent a moment ago need not be lost if the first one is.
            let window_ns = self.reordering_window_ns();
            self.board.mark_overdue_lost(now, &self.rack, window_ns);
        } else {
            self.board.mark_all_lost(reneged);
        }
        let until = self.board.nxt();
        self.recovery = Recovery::Timeout { until };
        self.recover = Some(until);
        self.rtt.back_off();
        self.timeouts = self.timeouts.saturating_add(1);
        self.duplicate_acks = 0;
        self.resend_at_once = true;
        self.loss_probe = None;
        self.refresh_cwnd();
        reneged
    }

    fn snapshot(&self) -> Undo {
        Undo {
            congestion: self.congestion.clone(),
            resent_at: None,
            resent: Some(ArrayVec::new()),
            is_undecided: true,
        }
    }

    pub(super) fn note_resent(&mut self, now: Instant, segment: &Resend) {
        let range = &segment.data;
        if let Recovery::Fast { prr, .. } = &mut self.recovery {
            prr.on_sent(range.end.bytes_since(range.start));
        }
        if let Some(undo) = self.undo.current() {
            if undo.resent_at.is_none() {
                undo.resent_at = Some(now);
                // The next acknowledgment answers a retransmission of the recovery before, if in
                // flight.
                undo.is_undecided = segment.first;
            }
            if undo.resent.as_mut().is_some_and(|resent| resent.try_push(range.clone()).is_err()) {
                undo.resent = None;
            }
        }
    }

    /// The peer received `range` twice (RFC 2883). If this holds for all that was retransmitted,
    /// nothing was lost (RFC 3708 §2). Returns true if a recovery was undone.
    fn on_dsack(&mut self, range: &Range<StreamOffset>) -> bool {
        self.rack.on_dsack(self.board.nxt());
        let Some(resent) = self.undo.current().and_then(|undo| undo.resent.as_mut()) else {
            return false;
        };
        // A network that duplicates causes D-SACKs, too: only retransmitted ranges count.
        let before = resent.len();
        resent.retain(|copy| copy.start < range.start || copy.end > range.end);
        resent.len() < before && resent.is_empty() && self.undo_recovery()
    }

    /// The first that moves SND.UNA after a retransmission. Returns true if a recovery was undone.
    fn undo_if_needless(&mut self, now: Instant, ack: &Disorder<'_>) -> bool {
        let Some(undo) = self.undo.current() else { return false };
        let Some(resent_at) = undo.resent_at else {
            // RFC 3522 §1: there was no retransmission: the acknowledgment was late.
            let timed_out = matches!(self.recovery, Recovery::Timeout { .. });
            return timed_out && !ack.acked.ambiguous && self.undo_recovery();
        };
        if !std::mem::take(&mut undo.is_undecided) {
            return false;
        }
        // RFC 3522 §3.2: it echoes a timestamp from before the retransmission.
        let original_arrived = ack.echo.is_some_and(|echo| echo.is_before(now, resent_at));
        original_arrived && self.undo_recovery()
    }

    /// Restores the windows (RFC 4015 §3.2). Returns true if there was something to undo.
    pub(super) fn undo_recovery(&mut self) -> bool {
        let Some(undo) = self.undo.current() else { return false };
        if self.congestion.cwnd() < undo.congestion.cwnd() {
            self.congestion = undo.congestion.clone();
            self.congestion.set_emss(self.emss);
        }
        self.undo.clear();
        if matches!(self.recovery, Recovery::Fast { .. }) {
            // The segments considered lost were late.
            self.rack.on_reordering();
        }
        if self.recovery != Recovery::Open {
            self.recovery = Recovery::Open;
            self.board.forget_losses();
            self.board.forget_duplicates();
            self.rack.on_recovered();
        }
        self.resend_at_once = false;
        true
    }
}
