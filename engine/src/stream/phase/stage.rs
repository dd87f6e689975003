//! Current stage of a stream's life, and the timer of that stage.

use crate::stream::Stream;
use crate::stream::life::{Expiry, LifeTimes, Probes, Restart, Stage};
use crate::stream::phase::{Full, Phase, StartupFailure};
use crate::time::{Duration, Instant};
use crate::types::StreamOffset;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    fpdus: u64,
    acknowledged: StreamOffset,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::stream) struct Watch {
    stage: Stage,
    since: Instant,
    until: Option<Instant>,
    progress: Progress,
}

impl Watch {
    pub(in crate::stream) const fn new() -> Self {
        let progress = Progress { fpdus: 0, acknowledged: StreamOffset::ZERO };
        Self { stage: Stage::Streaming, since: Instant::ZERO, until: None, progress }
    }

    fn enter(now: Instant, stage: Stage, progress: Progress, times: &LifeTimes) -> Self {
        let duration = stage.row().timer.and_then(|timer| times.of(timer));
        Self { stage, since: now, until: duration.map(|duration| now + duration), progress }
    }

    /// Restarts the stage's timer if the progress since the last call counts for it.
    fn note(&mut self, now: Instant, progress: Progress, times: &LifeTimes) {
        let row = self.stage.row();
        let (before, restart) = (self.progress, row.restart);
        self.progress = progress;
        let counts = match restart {
            Restart::Never => false,
            Restart::Progress => progress != before,
            Restart::Acknowledgment => progress.acknowledged != before.acknowledged,
        };
        let Some(timer) = row.timer.filter(|_| counts) else { return };
        let until = times.of(timer).map(|duration| now + duration);
        let latest = times.longest(timer).filter(|_| restart == Restart::Acknowledgment);
        let latest = latest.map(|longest: Duration| self.since + longest);
        self.until = match (until, latest) {
            (Some(until), Some(latest)) => Some(until.min(latest)),
            (until, _) => until,
        };
    }
}

impl Stream {
    pub(crate) fn times(&self) -> &LifeTimes {
        &self.times
    }

    pub(crate) fn stage(&self) -> Option<Stage> {
        if self.gone {
            return None;
        }
        Some(match &self.phase {
            Phase::AwaitingReply { .. } if !self.connected => Stage::Opening,
            Phase::AwaitingReply { .. } => Stage::AwaitingReply,
            Phase::AwaitingRequest { .. } => Stage::AwaitingRequest,
            Phase::AwaitingAnswer { .. } => Stage::Answering,
            Phase::Streaming if self.closing => Stage::Leaving,
            Phase::Streaming => Stage::Streaming,
            Phase::Full(full) => self.stage_of_full(full),
            Phase::Ending(_) | Phase::Retrying { .. } | Phase::Over => Stage::Failed,
        })
    }

    fn stage_of_full(&self, full: &Full) -> Stage {
        match (self.sending_closed, self.peer_closed, self.closing) {
            (true, true, _) => Stage::BothClosed,
            // spec: MPA-7.2-1
            (true, false, _) => Stage::HalfClosed,
            (false, _, true) if self.is_silenced() => Stage::Silenced,
            (false, _, true) => Stage::Draining,
            (false, true, false) => Stage::PeerClosed,
            (false, false, false) if full.tx_unlocked => Stage::Running,
            (false, false, false) if full.awaits_rtr => Stage::AwaitingRtr,
            (false, false, false) => Stage::AwaitingFirstFpdu,
        }
    }

    /// Returns the keep-alive probes that the lower layer should send; `now` are those it sends
    /// now. Probes for a Response, once on, stay on until one is due and no Response is awaited.
    pub(crate) fn probes(&self, now: Probes) -> Probes {
        match self.watch.stage {
            _ if self.gone => Probes::Off,
            Stage::AwaitingFirstFpdu => Probes::FirstFpdu,
            _ if now == Probes::Response || self.awaits_response() => Probes::Response,
            _ => Probes::Off,
        }
    }

    #[inline]
    pub(crate) fn awaits_response(&self) -> bool {
        matches!(&self.phase, Phase::Full(full) if !full.tx.messages.requester.is_idle())
    }

    /// The stream was last seen in full operation and nothing has ended that: no timer runs.
    #[inline]
    pub(crate) const fn is_undisturbed(&self) -> bool {
        matches!(self.watch.stage, Stage::Running)
            && matches!(self.phase, Phase::Full(_))
            && !(self.closing | self.peer_closed | self.reset)
    }

    /// Updates the timer of the current stage. Call whenever something may have changed.
    pub(crate) fn watch(&mut self, now: Instant) {
        if self.is_undisturbed() {
            return;
        }
        // RFC 5044 §7.1.2 (4): a peer that has closed never sends the FPDU that the work waits for.
        if self.peer_closed && self.is_silenced() {
            self.give_up();
        }
        let Some(stage) = self.stage() else {
            self.watch.until = None;
            return;
        };
        let progress =
            Progress { fpdus: self.mpa_counters().fpdus, acknowledged: self.acknowledged };
        if stage == self.watch.stage {
            self.watch.note(now, progress, &self.times);
        } else {
            self.trace_stage(stage);
            self.watch = Watch::enter(now, stage, progress, &self.times);
        }
    }

    #[cold]
    fn trace_stage(&self, to: Stage) {
        let qp = self.qp().map(|qp| qp.number.0);
        tracing::debug!(target: "urnic::stream", qp, from = ?self.watch.stage, ?to, "stage");
    }

    pub(crate) const fn is_closing(&self) -> bool {
        self.closing
    }

    /// For lower layers that promise to deliver bytes before the peer has acknowledged them.
    pub(crate) const fn note_delivered(&mut self, end: StreamOffset) {
        self.acknowledged = end;
    }

    pub(in crate::stream) const fn stage_end(&self) -> Option<Instant> {
        if self.gone || self.reset { None } else { self.watch.until }
    }

    pub(in crate::stream) fn end_stage(&mut self) {
        self.watch.until = None;
        let (qp, stage) = (self.qp().map(|qp| qp.number.0), self.watch.stage);
        let expiry = stage.row().expiry;
        tracing::debug!(target: "urnic::stream", qp, ?stage, ?expiry, "the stage's timer ran out");
        match expiry {
            Expiry::Nothing => {}
            Expiry::FailStartup => self.startup_failed(StartupFailure::Timeout),
            Expiry::GiveUp => self.give_up(),
            Expiry::Reset => self.reset(),
        }
    }

    pub(crate) const fn wants_reset(&self) -> bool {
        self.reset
    }

    pub(crate) const fn sending_closed(&mut self) {
        self.sending_closed = true;
    }

    /// Returns true if work waits for the initiator's first FPDU.
    pub(in crate::stream) fn is_silenced(&self) -> bool {
        match &self.phase {
            Phase::Full(full) => !full.tx_unlocked && !full.tx.is_idle(&full.qp),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: LifeTimes = LifeTimes {
        open: Duration::from_secs(1),
        reply: Duration::from_secs(2),
        request: Duration::from_secs(3),
        first_fpdu: Duration::from_secs(4),
        close_silence: Duration::from_secs(5),
        linger: Duration::from_secs(6),
        probe: Duration::from_secs(7),
    };

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn made(fpdus: u64, acknowledged: u64) -> Progress {
        Progress { fpdus, acknowledged: StreamOffset(acknowledged) }
    }

    fn entered(stage: Stage) -> Watch {
        Watch::enter(at(100), stage, made(1, 10), &TIMES)
    }

    #[test]
    fn a_failed_stream_waits_longer_for_a_peer_that_acknowledges_but_not_for_ever() {
        for stage in [Stage::Failed, Stage::Leaving] {
            let mut watch = entered(stage);
            assert_eq!(watch.until, Some(at(106)));
            watch.note(at(104), made(2, 10), &TIMES);
            assert_eq!(watch.until, Some(at(106)), "what it sends does not count");
            for second in 1..40 {
                watch.note(at(100 + second), made(2, 10 + second), &TIMES);
                assert_eq!(watch.until, Some(at(106 + second).min(at(130))));
            }
        }
    }

    #[test]
    fn a_closing_stream_waits_as_long_as_there_is_progress() {
        for stage in [Stage::Draining, Stage::HalfClosed, Stage::BothClosed] {
            let mut watch = entered(stage);
            assert_eq!(watch.until, Some(at(105)));
            watch.note(at(103), made(1, 10), &TIMES);
            assert_eq!(watch.until, Some(at(105)));
            watch.note(at(104), made(2, 10), &TIMES);
            assert_eq!(watch.until, Some(at(109)));
            watch.note(at(108), made(2, 11), &TIMES);
            assert_eq!(watch.until, Some(at(113)));
            watch.note(at(1000), made(3, 11), &TIMES);
            assert_eq!(watch.until, Some(at(1005)), "without end");
        }
    }

    /// The Reply may be lost repeatedly: the time for the initiator's first FPDU begins when the
    /// Reply has arrived.
    #[test]
    fn the_first_fpdu_is_awaited_from_when_the_reply_is_acknowledged() {
        for stage in [Stage::AwaitingRtr, Stage::Silenced] {
            let mut watch = entered(stage);
            assert_eq!(watch.until, Some(at(104)));
            watch.note(at(103), made(1, 10), &TIMES);
            assert_eq!(watch.until, Some(at(104)));
            watch.note(at(103), made(1, 37), &TIMES);
            assert_eq!(watch.until, Some(at(107)));
        }
    }

    #[test]
    fn progress_does_not_restart_startup_timers() {
        for stage in Stage::ALL {
            if stage.row().restart == Restart::Never {
                let mut watch = entered(stage);
                let until = watch.until;
                watch.note(at(101), made(9, 99), &TIMES);
                assert_eq!(watch.until, until, "{stage:?}");
            }
        }
    }
}
