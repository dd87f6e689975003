//! Queues alone and together, each turned by a thread on a processor of its own.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::case::{Case, Layout};
use crate::flow::Flow;

/// Queues that run at the same time.
pub(crate) const QUEUES: usize = 2;

/// Messages a second, in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// One queue while the other one rests; the mean of both.
    pub(crate) one: f64,
    /// Two queues at the same time, together.
    pub(crate) two: f64,
}

/// The two queues of one layout.
pub(crate) struct Queues {
    flows: Vec<Flow>,
}

impl Queues {
    /// Makes them, and connects each in a thread of its own.
    pub(crate) fn open(case: &Case, layout: Layout) -> Result<Self> {
        let flows = match layout {
            Layout::Apart => in_threads([(), ()], |()| {
                let mut flows = Flow::queues(case, layout, 1)?;
                flows.pop().context("one was asked for")
            })?,
            Layout::OneRnic | Layout::OneMr => Flow::queues(case, layout, QUEUES)?,
        };
        let flows = in_threads(flows, |mut flow| flow.connect().map(|()| flow))?;
        Ok(Self { flows })
    }

    /// Runs each queue alone and then both together, each time for `time`.
    pub(crate) fn round(&mut self, time: Duration) -> Result<Round> {
        let mut alone = 0.0;
        for queue in 0..QUEUES {
            let rates = in_threads(self.flows.iter_mut().enumerate(), |(index, flow)| {
                if index == queue { rate(flow, time) } else { Ok(0.0) }
            })?;
            alone += rates.iter().sum::<f64>();
        }
        let together = in_threads(&mut self.flows, |flow| rate(flow, time))?;
        Ok(Round { one: alone / QUEUES as f64, two: together.iter().sum() })
    }
}

/// Messages a second while the queue runs for `time`.
fn rate(flow: &mut Flow, time: Duration) -> Result<f64> {
    // The other thread has filled the processor's caches: they are warm again after some messages.
    flow.advance(MESSAGES)?;
    let (began, mut messages) = (seconds(), 0);
    loop {
        flow.advance(MESSAGES)?;
        messages += MESSAGES;
        let elapsed = seconds() - began;
        if elapsed >= time.as_secs_f64() {
            return Ok(messages as f64 / elapsed);
        }
    }
}

/// Runs `work` on each of [`QUEUES`] items at the same time, each on its processor.
fn in_threads<T: Send, R: Send>(
    things: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let start = Barrier::new(QUEUES);
    let (start, work) = (&start, &work);
    thread::scope(|scope| {
        let threads: Vec<_> = things
            .into_iter()
            .enumerate()
            .map(|(index, thing)| {
                scope.spawn(move || {
                    let pinned = pin(index);
                    start.wait();
                    pinned.and_then(|()| work(thing))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|one| one.join().expect("a queue's thread does not panic"))
            .collect()
    })
}

/// Pins this thread to one of the processors that the process may use.
fn pin(index: usize) -> Result<()> {
    let usable = sched_getaffinity(None)?;
    let numbers: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&cpu| usable.is_set(cpu)).collect();
    let mut own = CpuSet::new();
    own.set(numbers[index % numbers.len()]);
    Ok(sched_setaffinity(None, &own)?)
}

fn seconds() -> f64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Messages between two reads of the clock.
const MESSAGES: u64 = 64;
