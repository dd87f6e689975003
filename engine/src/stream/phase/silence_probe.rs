//! Empty Writes that remind a silent responder of data sent after its Reply: an option of
//! [`StartupConfig`](crate::mpa::startup::StartupConfig).

use crate::limits::{SILENCE_PROBE_AFTER_NS, SILENCE_PROBE_PAUSE_MAX_NS};
use crate::mpa::startup::RtrKind;
use crate::stream::Stream;
use crate::stream::phase::Phase;
use crate::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SilenceProbe {
    at: Instant,
    pause_ns: u64,
}

impl SilenceProbe {
    pub(super) const fn first(now: Instant) -> Self {
        Self { at: now.plus_nanos(SILENCE_PROBE_AFTER_NS), pause_ns: SILENCE_PROBE_AFTER_NS }
    }

    fn next(self, now: Instant) -> Option<Self> {
        let pause_ns = 2 * self.pause_ns;
        (pause_ns <= SILENCE_PROBE_PAUSE_MAX_NS)
            .then(|| Self { at: now.plus_nanos(pause_ns), pause_ns })
    }
}

impl Stream {
    pub(super) fn silence_probe_at(&self) -> Option<Instant> {
        match &self.phase {
            Phase::AwaitingReply { silence_probe, .. } => {
                silence_probe.map(|silence_probe| silence_probe.at)
            }
            Phase::Full(full) => full.silence_probe.map(|silence_probe| silence_probe.at),
            _ => None,
        }
    }

    pub(super) fn probe_silent_peer(&mut self, now: Instant) {
        if self.silence_probe_at().is_none_or(|at| at > now) {
            return;
        }
        match &mut self.phase {
            Phase::AwaitingReply { silence_probe, .. } => {
                *silence_probe = Some(SilenceProbe::first(now))
            }
            Phase::Full(full) if !self.closing && full.mpa.counters().fpdus == 0 => {
                if full.tx.fpdus_framed() > 0 {
                    full.tx.messages.set_rtr(RtrKind::WriteZero);
                }
                full.silence_probe =
                    full.silence_probe.and_then(|silence_probe| silence_probe.next(now));
            }
            Phase::Full(full) => full.silence_probe = None,
            _ => {}
        }
    }
}
