//! The loop that runs an engine: polls while there is work, then waits. Workers know the messages
//! of handles, but no handles.

pub(crate) mod engine;
pub(crate) mod kernel;
pub(crate) mod listen;
pub(crate) mod port;
pub(crate) mod registry;
pub(crate) mod shared;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::Waker;

use crossbeam::channel::{Receiver, Sender, TryRecvError};
use tracing::{debug, error};

use crate::clock::monotonic_now;
use crate::mail::command::Command;
use crate::mail::wakeup::Wakeup;
use crate::worker::engine::{Engine, Owed};
use urnic_engine::time::{Duration, Instant};

/// Run by a thread of its own, or by the threads that wait for something.
#[derive(Debug)]
pub(crate) struct Worker {
    engine: Box<dyn Engine>,
    commands: Receiver<Command>,
    wakeup: Arc<Wakeup>,
    waker: Waker,
    spin: Duration,
    is_brief: bool,
    idle_since: Option<Instant>,
    stopped: bool,
    finishing: Vec<Finishing>,
}

#[derive(Debug)]
struct Finishing {
    until: Instant,
    reply: Sender<bool>,
}

const LOOK_AFTER: Duration = Duration::from_millis(2);

/// Time to wait for the peers' FINs after they have received everything of this end.
const ANSWERS_AWAITED: Duration = Duration::from_millis(200);

/// The time of a few frames; a yield takes as long as a look for work.
const BARE_SPIN: Duration = Duration::from_micros(5);

impl Worker {
    pub(crate) fn new(
        engine: Box<dyn Engine>,
        commands: Receiver<Command>,
        wakeup: Arc<Wakeup>,
        spin: Duration,
    ) -> Self {
        let waker = Waker::from(Arc::clone(&wakeup));
        let (is_brief, idle_since, stopped, finishing) = (false, None, false, Vec::new());
        Self { engine, commands, wakeup, waker, spin, is_brief, idle_since, stopped, finishing }
    }

    /// Makes a worker without work sleep almost at once, not yield for the spin time. If another
    /// thread polls its memory on the same core, a yield returns only after a whole time slice.
    pub(crate) const fn set_brief(&mut self, is_brief: bool) {
        self.is_brief = is_brief;
    }

    pub(crate) fn run(mut self) {
        while !self.stopped {
            self.turn_or_wait(None);
        }
    }

    /// Runs once. After the spin time without work, sleeps until work or `deadline`.
    ///
    /// # Panics
    /// If the engine or its device panics. The worker must be dropped then, which fails all work.
    pub(crate) fn turn_or_wait(&mut self, deadline: Option<Instant>) {
        let worked = catch_unwind(AssertUnwindSafe(|| self.work_or_wait(deadline)));
        if let Err(panic) = worked {
            error!(target: "urnic", "the worker of an endpoint panicked: all its work fails");
            resume_unwind(panic);
        }
    }

    fn work_or_wait(&mut self, deadline: Option<Instant>) {
        let now = monotonic_now();
        if self.turn(now) {
            self.idle_since = None;
            return;
        }
        let since = *self.idle_since.get_or_insert(now);
        let idle = now - since;
        if idle < self.spin.min(BARE_SPIN) {
            std::hint::spin_loop();
        } else if idle < self.spin && !self.is_brief {
            // With more threads than cores, the awaited thread may need this core.
            std::thread::yield_now();
        } else if !self.stopped && deadline.is_none_or(|deadline| deadline > now) {
            self.wait(now, deadline);
        }
    }

    /// Returns false if there was nothing to do.
    fn turn(&mut self, now: Instant) -> bool {
        let mut worked = false;
        while !self.stopped {
            match self.commands.try_recv() {
                // Or all handles were dropped.
                Ok(Command::Shutdown) | Err(TryRecvError::Disconnected) => {
                    self.engine.shutdown(now);
                    debug!(target: "urnic", "worker stopped");
                    self.stopped = true;
                }
                Ok(Command::Finish { until, reply }) => {
                    self.engine.close_all(now);
                    self.finishing.push(Finishing { until, reply });
                }
                Ok(command) => self.engine.handle_command(now, command),
                Err(TryRecvError::Empty) => break,
            }
            worked = true;
        }
        let moved = if self.stopped { 0 } else { self.engine.turn(now) };
        if !self.finishing.is_empty() {
            self.finish(now);
        }
        worked || moved > 0
    }

    #[cold]
    fn finish(&mut self, now: Instant) {
        let owed = self.engine.owed();
        for Finishing { until, reply } in &mut self.finishing {
            match owed {
                Owed::Nothing => *until = now,
                Owed::Answers => *until = (*until).min(now + ANSWERS_AWAITED),
                Owed::Octets => {}
            }
            if *until <= now {
                let _the_caller_waits_no_longer = reply.send(owed < Owed::Octets);
            }
        }
        let before = self.finishing.len();
        self.finishing.retain(|finishing| finishing.until > now);
        if self.finishing.len() < before && owed == Owed::Octets {
            self.engine.abort_owing();
            self.engine.turn(now);
        }
    }

    fn wait(&mut self, now: Instant, deadline: Option<Instant>) {
        // Commands ring the wakeup themselves; only queue pairs need a request.
        if self.engine.arm(&self.waker) {
            // No event of a socket reports that its peer has received everything.
            let look = |finishing: &Finishing| finishing.until.min(now + LOOK_AFTER);
            let finishing = self.finishing.iter().map(look).min();
            let next = [self.engine.next_wakeup(), deadline, finishing];
            let next = next.into_iter().flatten().min();
            if next.is_none_or(|next| next > now) {
                self.engine.wait(now, next, &self.wakeup);
            }
        }
        self.engine.disarm(&self.waker);
        self.wakeup.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use crossbeam::channel::{TryRecvError, bounded, unbounded};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// An engine that owes what the test sets, and counts the resets.
    #[derive(Clone, Debug)]
    struct Owing(Arc<Mutex<(Owed, usize)>>);

    impl Engine for Owing {
        fn handle_command(&mut self, _now: Instant, _command: Command) {}

        fn turn(&mut self, _now: Instant) -> usize {
            0
        }

        fn next_wakeup(&mut self) -> Option<Instant> {
            None
        }

        fn arm(&mut self, _waker: &Waker) -> bool {
            true
        }

        fn disarm(&mut self, _waker: &Waker) {}

        fn wait(&mut self, _now: Instant, _deadline: Option<Instant>, _wakeup: &Wakeup) {}

        fn shutdown(&mut self, _now: Instant) {}

        fn close_all(&mut self, _now: Instant) {}

        fn owed(&self) -> Owed {
            self.0.lock().unwrap().0
        }

        fn abort_owing(&mut self) {
            self.0.lock().unwrap().1 += 1;
        }
    }

    /// Notes how long its worker sleeps.
    #[derive(Clone, Debug, Default)]
    struct Sleeping {
        is_busy: bool,
        next: Option<Instant>,
        slept: Arc<Mutex<Vec<Option<Instant>>>>,
        disarmed: Arc<Mutex<usize>>,
    }

    impl Engine for Sleeping {
        fn handle_command(&mut self, _now: Instant, _command: Command) {}

        fn turn(&mut self, _now: Instant) -> usize {
            0
        }

        fn next_wakeup(&mut self) -> Option<Instant> {
            self.next
        }

        fn arm(&mut self, _waker: &Waker) -> bool {
            !self.is_busy
        }

        fn disarm(&mut self, _waker: &Waker) {
            *self.disarmed.lock().unwrap() += 1;
        }

        fn wait(&mut self, _now: Instant, deadline: Option<Instant>, _wakeup: &Wakeup) {
            self.slept.lock().unwrap().push(deadline);
        }

        fn shutdown(&mut self, _now: Instant) {}

        fn close_all(&mut self, _now: Instant) {}

        fn owed(&self) -> Owed {
            Owed::Octets
        }

        fn abort_owing(&mut self) {}
    }

    #[test]
    fn a_worker_sleeps_until_the_first_of_its_times_and_not_with_work_left() {
        let now = Instant::from_nanos(1_000_000_000);
        let [soon, late] = [1, 9].map(|seconds| now + Duration::from_secs(seconds));
        let look = now + LOOK_AFTER;
        /// Work is left; the engine's next time, its deadline, the end of the wait; the sleep's end.
        type Row = (bool, [Option<Instant>; 3], Option<Option<Instant>>);
        let times: [Row; 8] = [
            (false, [None, None, None], Some(None)),
            (false, [Some(soon), Some(late), None], Some(Some(soon))),
            (false, [Some(late), Some(soon), None], Some(Some(soon))),
            (false, [None, Some(soon), None], Some(Some(soon))),
            // The end of its peers' bytes is looked for.
            (false, [Some(late), Some(soon), Some(late)], Some(Some(look))),
            (false, [None, None, Some(now.plus_nanos(5))], Some(Some(now.plus_nanos(5)))),
            (false, [Some(now), None, None], None),
            (true, [Some(late), None, None], None),
        ];
        for (is_busy, [next, deadline, until], expected) in times {
            let engine = Sleeping { is_busy, next, ..Sleeping::default() };
            let (_sender, commands) = unbounded();
            let wakeup = Wakeup::new().unwrap();
            let mut worker = Worker::new(
                Box::new(engine.clone()),
                commands,
                Arc::clone(&wakeup),
                Duration::ZERO,
            );
            let (reply, _replied) = bounded(1);
            worker.finishing.extend(until.map(|until| Finishing { until, reply }));
            wakeup.ring();
            worker.wait(now, deadline);
            assert_eq!(*engine.slept.lock().unwrap(), Vec::from_iter(expected));
            assert_eq!(*engine.disarmed.lock().unwrap(), 1, "the next turn asks again");
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let rung = poll(&mut [PollFd::new(&*wakeup, PollFlags::IN)], Some(&at_once));
            assert_eq!(rung, Ok(0), "it would wake the next sleep at once");
        }
    }

    #[test]
    fn callers_wait_for_octets_all_their_time_and_for_answers_a_moment() {
        const TIME: Duration = Duration::from_secs(10);
        let begin = Instant::from_nanos(1);
        for (owed, waits, has_all) in [
            (Owed::Nothing, Duration::ZERO, true),
            (Owed::Answers, ANSWERS_AWAITED, true),
            (Owed::Octets, TIME, false),
        ] {
            let engine = Owing(Arc::new(Mutex::new((owed, 0))));
            let (sender, commands) = unbounded();
            let wakeup = Wakeup::new().unwrap();
            let mut worker =
                Worker::new(Box::new(engine.clone()), commands, wakeup, Duration::ZERO);
            let (reply, replied) = bounded(1);
            sender.send(Command::Finish { until: begin + TIME, reply }).unwrap();
            worker.turn(begin);
            if !waits.is_zero() {
                let early = Instant::from_nanos((begin + waits).as_nanos() - 1);
                worker.turn(early);
                assert_eq!(replied.try_recv(), Err(TryRecvError::Empty), "{owed:?}");
                worker.turn(begin + waits);
            }
            assert_eq!(replied.try_recv(), Ok(has_all), "{owed:?}");
            assert_eq!(engine.0.lock().unwrap().1, usize::from(!has_all), "resets for {owed:?}");
        }
    }
}
