//! The timer table of one connection.

use crate::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Retransmission timeout of the SYN, data or the FIN (RFC 6298).
    Retransmit,
    /// An overtaken segment is overdue and counts as lost (RFC 8985 §6.2).
    Reordering,
    /// The last segment was not acknowledged (RFC 8985 §7).
    LossProbe,
    /// Pacing permits new data again; see `pacing.rs`.
    Pacing,
    /// A delayed or held acknowledgment must be sent (RFC 9293 §3.8.6.3).
    DelayedAck,
    /// The peer's window is too small to send into (RFC 9293 §3.8.6.1, §3.8.6.2.1).
    Persist,
    /// No segment has arrived for the keep-alive time (RFC 9293 §3.8.4).
    KeepAlive,
    /// End of TIME-WAIT.
    TimeWait,
}

const TIMERS: [Timer; 8] = [
    Timer::Retransmit,
    Timer::Reordering,
    Timer::LossProbe,
    Timer::Pacing,
    Timer::DelayedAck,
    Timer::Persist,
    Timer::KeepAlive,
    Timer::TimeWait,
];
const UNSET: Instant = Instant::from_nanos(u64::MAX);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    deadlines: [Instant; TIMERS.len()],
}

impl Timers {
    pub(crate) const fn new() -> Self {
        Self { deadlines: [UNSET; TIMERS.len()] }
    }

    pub(crate) const fn set(&mut self, timer: Timer, deadline: Instant) {
        self.deadlines[timer as usize] = deadline;
    }

    /// Sets a timer, unless it is set to an earlier deadline.
    pub(crate) fn set_at_most(&mut self, timer: Timer, deadline: Instant) {
        let set = &mut self.deadlines[timer as usize];
        *set = deadline.min(*set);
    }

    pub(crate) const fn clear(&mut self, timer: Timer) {
        self.deadlines[timer as usize] = UNSET;
    }

    pub(crate) fn clear_all(&mut self) {
        *self = Self::new();
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.deadlines[timer as usize] != UNSET
    }

    pub(crate) fn deadline(&self, timer: Timer) -> Option<Instant> {
        Some(self.deadlines[timer as usize]).filter(|deadline| *deadline != UNSET)
    }

    pub(crate) fn is_expired(&self, timer: Timer, now: Instant) -> bool {
        self.is_set(timer) && self.deadlines[timer as usize] <= now
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        let earliest = self.deadlines.iter().copied().fold(UNSET, Instant::min);
        (earliest != UNSET).then_some(earliest)
    }

    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<Timer> {
        let expired = |&timer: &Timer| {
            let deadline = self.deadlines[timer as usize];
            deadline != UNSET && deadline <= now
        };
        let timer = TIMERS.into_iter().find(expired)?;
        self.clear(timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_deadline_is_next_and_expired_timers_are_taken_once() {
        let at = Instant::from_nanos;
        let mut timers = Timers::new();
        assert_eq!(timers.next(), None);
        assert_eq!(timers.take_expired(at(u64::MAX)), None);
        timers.set(Timer::Persist, at(30));
        timers.set(Timer::TimeWait, at(20));
        timers.set(Timer::DelayedAck, at(40));
        assert_eq!(timers.next(), Some(at(20)));
        let deadlines = [Timer::Persist, Timer::KeepAlive].map(|timer| timers.deadline(timer));
        assert_eq!(deadlines, [Some(at(30)), None]);
        assert_eq!(timers.take_expired(at(19)), None);
        assert_eq!(timers.take_expired(at(30)), Some(Timer::Persist));
        assert_eq!(timers.take_expired(at(30)), Some(Timer::TimeWait));
        assert_eq!(timers.take_expired(at(30)), None);
        timers.clear_all();
        assert_eq!(timers.next(), None);
    }
}
