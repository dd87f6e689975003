//! Runs of many seeds, on several threads.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::{Failure, Outcome, Plan, Scenario, run};

/// Range of seeds to run, with options.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The seeds.
    pub seeds: Range<u64>,
    /// Scenario of all runs. `None` for the scenario of each seed.
    pub only: Option<Scenario>,
    /// Number of threads; 0 counts as one.
    pub threads: usize,
    /// Failures after which no further seed is begun.
    pub failures_max: usize,
}

/// Report of a sweep while it runs.
#[derive(Debug)]
pub enum SweepEvent {
    /// The run of a seed has passed.
    Done(Outcome),
    /// The run of this seed has failed.
    Failed(u64, Failure),
}

impl Sweep {
    /// Runs all seeds, until `failures_max` failures, and reports each in order of completion.
    /// Returns the counts of the passed runs.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn run(&self, mut report: impl FnMut(&SweepEvent)) -> io::Result<Outcome> {
        let next = AtomicU64::new(self.seeds.start);
        let stop = AtomicBool::new(false);
        let (events, received) = mpsc::sync_channel(64);
        let mut total = Outcome::default();
        thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                let events = events.clone();
                let (next, stop) = (&next, &stop);
                scope.spawn(move || self.work(next, stop, &events));
            }
            drop(events);
            let mut failures = 0;
            for event in received {
                let event = event.inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
                match &event {
                    SweepEvent::Done(outcome) => total.add(outcome),
                    SweepEvent::Failed(..) => {
                        failures += 1;
                        stop.fetch_or(failures >= self.failures_max, Ordering::Relaxed);
                    }
                }
                report(&event);
            }
            Ok(total)
        })
    }

    fn work(
        &self,
        next: &AtomicU64,
        stop: &AtomicBool,
        events: &mpsc::SyncSender<io::Result<SweepEvent>>,
    ) {
        while !stop.load(Ordering::Relaxed) {
            // `u64::MAX` has no next seed.
            let following = |seed| (seed < self.seeds.end).then(|| seed + 1);
            let Ok(seed) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, following)
            else {
                return;
            };
            let event = run(&Plan::of_seed(seed, self.only)).map(|result| match result {
                Ok(outcome) => SweepEvent::Done(outcome),
                Err(failure) => SweepEvent::Failed(seed, failure),
            });
            // After an error the receiver no longer exists.
            if events.send(event).is_err() {
                return;
            }
        }
    }
}
