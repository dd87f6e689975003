//! Two ports on one virtual clock: tests, benches and the demo run a link this way.

use urnic_netdev::Device;

use crate::poll::Poller;
use crate::time::Instant;

/// Two pollers whose devices are the ends of a link with a virtual clock. Time does not pass while
/// frames move, and jumps to the next event then: equal seeds give equal runs.
#[derive(Debug)]
pub struct Lockstep<A, B> {
    /// One end.
    pub a: Poller<A>,
    /// The other end.
    pub b: Poller<B>,
    now: Instant,
}

impl<A: Device, B: Device> Lockstep<A, B> {
    /// Starts the clock for two pollers.
    pub const fn new(a: Poller<A>, b: Poller<B>) -> Self {
        Self { a, b, now: Instant::ZERO }
    }

    /// Sets the clock before the first step. Initial sequence numbers follow the clock.
    #[must_use]
    pub const fn starting_at(mut self, now: Instant) -> Self {
        self.now = now;
        self
    }

    /// The virtual time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Polls both ends once. If idle, advances the clock to the next event; returns false without
    /// one.
    pub fn step(&mut self) -> bool {
        self.step_within(Instant::from_nanos(u64::MAX))
    }

    /// Polls as [`step`](Self::step) does, but the clock does not pass `limit`.
    pub fn step_within(&mut self, limit: Instant) -> bool {
        let moved = self.a.poll(self.now) + self.b.poll(self.now);
        if moved > 0 {
            return true;
        }
        let next = match (self.a.next_wakeup(), self.b.next_wakeup()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        match next {
            Some(next) => {
                // A wake-up that is due already may need the clock to tick once to make progress.
                self.now = next.max(self.now.plus_nanos(1)).min(limit.max(self.now));
                true
            }
            None => false,
        }
    }

    /// Runs until `done`; returns false if the link fell silent or `deadline` passed first.
    pub fn run_until(
        &mut self,
        deadline: Instant,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        loop {
            if done(self) {
                return true;
            }
            if self.now >= deadline || !self.step() {
                return done(self);
            }
        }
    }
}
