//! The thread that advances connections: those of rdma_cm's ids, those of queue pairs that connect
//! without rdma_cm, and those of closed rsockets. A *turn* is one call of [`Turn::turn`] for an
//! object, in this thread.
//!
//! 1. A turn is requested: by [`request`], by the object's [`OwnWaker`] when a handle that the
//!    object has armed has an event, or by the object's [`Timer`] for a point in time.
//! 2. `send` puts the request into the thread's channel. The first request of a process, and the
//!    first of a forked child, starts the thread.
//! 3. The thread makes one timed turn that is due. Then it takes one request: it makes an immediate
//!    turn at once, and keeps a timed one in [`Later`]. So neither kind starves the other.
//! 4. In its turn an object arms its handles first, and looks at them after that. It acts on what
//!    it finds, and sets its timer if it has to act later.
//!
//! Racy cases:
//!
//! - *An event occurs between arming and looking.* The look finds it. The waker requests one more
//!   turn, which finds nothing.
//! - *Several requests wait for one object.* It gets a turn for each, and must accept turns in
//!   which there is nothing to do.
//! - *An object is dropped while a request waits.* Requests, wakers and timers hold weak
//!   references. The object gets no turn.
//! - *The process forks.* Requests in the parent's channel get no turn in the child, which does not
//!   have the thread. Objects of the parent cannot be used in the child.
//! - *The thread cannot be started.* An error is logged, at most once in [`LOG_PAUSE`]. Requests
//!   wait, and the next one tries again.
//!
//! No loom model: the threads share a channel and wakers only. The alarm below has a model.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Wake, Waker};
use std::thread;

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use tracing::error;
use urnic::monotonic_now;
use urnic_engine::time::{Duration, Instant};

use crate::event_queue::locked;
use crate::fork::PerProcess;
use crate::thread::run_as_own;

pub(crate) trait Turn: Send + Sync {
    /// Handles all events since the last turn. One thread calls it for all objects.
    fn turn(self: Arc<Self>);
}

struct Request {
    of: Weak<dyn Turn>,
    at: Option<Instant>,
}

pub(crate) fn request<T: Turn + 'static>(of: &Arc<T>) {
    let of: Weak<T> = Arc::downgrade(of);
    send(Request { of, at: None });
}

fn request_at<T: Turn + 'static>(of: &Arc<T>, at: Instant) {
    let of: Weak<T> = Arc::downgrade(of);
    send(Request { of, at: Some(at) });
}

/// Time of the next timed turn of one object. Requests a turn only for an earlier time, so few
/// requests wait however often the object sets it.
#[derive(Debug, Default)]
pub(crate) struct Timer(Mutex<Option<Instant>>);

impl Timer {
    /// Requests a turn at `at`, unless a turn is set for a time from now to `at`.
    pub(crate) fn set<T: Turn + 'static>(&self, of: &Arc<T>, at: Instant) {
        let mut set = locked(&self.0);
        let now = monotonic_now();
        if set.is_none_or(|set| set <= now || at < set) {
            *set = Some(at);
            request_at(of, at);
        }
    }
}

/// The only waker of an object. A handle that is armed at each turn recognizes it, so it holds it
/// once. The waker does not keep the object alive.
#[derive(Debug, Default)]
pub(crate) struct OwnWaker(OnceLock<Waker>);

impl OwnWaker {
    pub(crate) fn of<T: Turn + 'static>(&self, of: &Arc<T>) -> &Waker {
        self.0.get_or_init(|| {
            let of: Weak<T> = Arc::downgrade(of);
            Waker::from(Arc::new(Call(of)))
        })
    }
}

struct Call(Weak<dyn Turn>);

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.0.strong_count() > 0 {
            send(Request { of: Weak::clone(&self.0), at: None });
        }
    }
}

struct Channel {
    sender: Sender<Request>,
    /// End for the thread, until the thread has started.
    requests: Option<Receiver<Request>>,
    /// Time from which a failed start is logged again.
    log_at: Instant,
}

/// Least time between two log lines about a thread that cannot be started.
const LOG_PAUSE: Duration = Duration::from_millis(100);

fn send(request: Request) {
    static CHANNEL: PerProcess<Mutex<Option<Channel>>> =
        PerProcess::new(|_parents| Mutex::new(None));
    send_by(&mut locked(CHANNEL.of_this()), request, monotonic_now(), start);
}

/// Sends a request, and starts the thread if there is none. If that fails, the request waits for a
/// later start. `start` gets the requests, and true if it may log a failure.
fn send_by(
    channel: &mut Option<Channel>,
    request: Request,
    now: Instant,
    start: impl FnOnce(Receiver<Request>, bool) -> bool,
) {
    let channel = channel.get_or_insert_with(|| {
        let (sender, requests) = unbounded();
        Channel { sender, requests: Some(requests), log_at: now }
    });
    let _the_thread_never_ends = channel.sender.send(request);
    let may_log = channel.log_at <= now;
    if may_log {
        channel.log_at = now + LOG_PAUSE;
    }
    channel.requests.take_if(|requests| start(requests.clone(), may_log));
}

fn start(requests: Receiver<Request>, may_log: bool) -> bool {
    let body = move || run(&requests);
    let start = move || thread::Builder::new().name("urnic-cm".to_owned()).spawn(body);
    let started = run_as_own(start).flatten();
    if let Err(error) = &started
        && may_log
    {
        error!(target: "urnic", %error, "cannot start the thread for connections: events wait");
    }
    started.is_ok()
}

#[derive(Default)]
struct Later {
    /// Times of the turns, earliest first, each with the turn's number in `of`.
    times: BinaryHeap<Reverse<(Instant, u64)>>,
    of: HashMap<u64, Weak<dyn Turn>>,
    number: u64,
}

impl Later {
    fn add(&mut self, at: Instant, of: Weak<dyn Turn>) {
        self.number += 1;
        self.times.push(Reverse((at, self.number)));
        self.of.insert(self.number, of);
    }

    fn next_in(&self, now: Instant) -> Option<Duration> {
        self.times.peek().map(|Reverse((at, _))| *at - now)
    }

    fn take_due(&mut self, now: Instant) -> Option<Weak<dyn Turn>> {
        let Reverse((at, number)) = *self.times.peek()?;
        if at > now {
            return None;
        }
        self.times.pop();
        self.of.remove(&number)
    }
}

fn run(requests: &Receiver<Request>) {
    let mut later = Later::default();
    loop {
        // One due turn, then one immediate turn.
        if let Some(of) = later.take_due(monotonic_now()) {
            turn(&of);
        }
        let received = match later.next_in(monotonic_now()) {
            Some(timeout) => requests.recv_timeout(timeout),
            None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(Request { of, at: None }) => turn(&of),
            Ok(Request { of, at: Some(at) }) => later.add(at, of),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn turn(of: &Weak<dyn Turn>) {
    if let Some(of) = of.upgrade() {
        of.turn();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use urnic_engine::verbs::Alarm;

    use super::*;

    struct Wakeup(Sender<Instant>);

    impl Turn for Wakeup {
        fn turn(self: Arc<Self>) {
            let _the_test_has_ended = self.0.send(monotonic_now());
        }
    }

    #[test]
    fn turns_come_at_once_or_when_it_is_time() {
        let (sender, turns) = unbounded();
        let (bell, begin) = (Arc::new(Wakeup(sender)), monotonic_now());
        request_at(&bell, begin + Duration::from_millis(40));
        request_at(&bell, begin + Duration::from_millis(20));
        request(&bell);
        let wait = || turns.recv_timeout(Duration::from_secs(10)).unwrap() - begin;
        let (first, second, third) = (wait(), wait(), wait());
        assert!(first < second, "{first:?} {second:?}");
        assert!(second >= Duration::from_millis(20) && third >= Duration::from_millis(40));
        request_at(&bell, begin);
        drop(bell);
        // At most the turn that was already requested: a dropped object has none.
        assert!(turns.try_iter().count() <= 1);
    }

    #[test]
    fn requests_wait_until_the_thread_can_be_started() {
        let bell = Arc::new(Wakeup(unbounded().0));
        let of: Weak<dyn Turn> = Arc::downgrade(&(Arc::clone(&bell) as Arc<dyn Turn>));
        let request = || Request { of: Weak::clone(&of), at: None };
        let (mut channel, mut thread) = (None, None);
        let begin = monotonic_now();
        let mut logs = Vec::new();
        for after in [Duration::ZERO, LOG_PAUSE - Duration::from_nanos(1), LOG_PAUSE] {
            send_by(&mut channel, request(), begin + after, |_refused, may_log| {
                logs.push(may_log);
                false
            });
        }
        assert_eq!(logs, [true, false, true], "each request tries; not each logs");
        send_by(&mut channel, request(), begin + LOG_PAUSE, |requests, _| {
            thread = Some(requests);
            true
        });
        let late = begin + 3 * LOG_PAUSE;
        send_by(&mut channel, request(), late, |_, _| panic!("the thread was started twice"));
        assert_eq!(thread.take().unwrap().try_iter().count(), 5);
    }

    /// Requests its next turn in each turn, until it is stopped.
    struct Busy {
        is_stopped: AtomicBool,
        turns: AtomicUsize,
        /// Requests each turn for a time that is past; otherwise an immediate one.
        is_timed: bool,
    }

    impl Busy {
        fn new(is_timed: bool) -> Arc<Self> {
            Arc::new(Self {
                is_stopped: AtomicBool::new(false),
                turns: AtomicUsize::new(0),
                is_timed,
            })
        }

        fn ask(self: &Arc<Self>) {
            if self.is_timed { request_at(self, monotonic_now()) } else { request(self) }
        }
    }

    impl Turn for Busy {
        fn turn(self: Arc<Self>) {
            self.turns.fetch_add(1, Ordering::Relaxed);
            if !self.is_stopped.load(Ordering::Relaxed) {
                self.ask();
            }
        }
    }

    #[test]
    fn due_and_requested_turns_do_not_starve_each_other() {
        let (sender, turns) = unbounded();
        let bell = Arc::new(Wakeup(sender));
        for is_timed in [false, true] {
            let busy = Busy::new(is_timed);
            // More than one request always waits.
            (0..3).for_each(|_| busy.ask());
            for number in 0..20 {
                let is_timed = number % 2 == 0;
                if is_timed {
                    request_at(&bell, monotonic_now())
                } else {
                    request(&bell)
                }
                let served = turns.recv_timeout(Duration::from_secs(10));
                assert!(served.is_ok(), "turn {number} beside {is_timed}");
            }
            busy.is_stopped.store(true, Ordering::Relaxed);
            assert!(busy.turns.load(Ordering::Relaxed) > 0);
        }
    }

    /// Arms an alarm in each turn, as ids, links and sockets do.
    struct Armed {
        alarm: Alarm,
        waker: OwnWaker,
        turns: Sender<Instant>,
    }

    impl Turn for Armed {
        fn turn(self: Arc<Self>) {
            self.alarm.arm(self.waker.of(&self));
            let _the_test_has_ended = self.turns.send(monotonic_now());
        }
    }

    #[test]
    fn an_object_that_is_armed_at_each_turn_has_one_waker() {
        let (sender, turns) = unbounded();
        let armed =
            Arc::new(Armed { alarm: Alarm::new(), waker: OwnWaker::default(), turns: sender });
        let wait = || turns.recv_timeout(Duration::from_secs(10)).unwrap();
        for _ in 0..50 {
            request(&armed);
            wait();
        }
        // One ring, one turn: a turn that was requested twice would come before the next requested
        // one.
        armed.alarm.ring();
        wait();
        request(&armed);
        wait();
        assert_eq!(turns.try_iter().count(), 0);
        // The thread may not have dropped its reference yet after the last turn.
        let until = monotonic_now() + Duration::from_secs(10);
        while Arc::strong_count(&armed) > 1 {
            assert!(monotonic_now() < until, "the waker keeps it");
            thread::yield_now();
        }
    }

    struct Timed(Timer, Sender<Instant>);

    impl Turn for Timed {
        fn turn(self: Arc<Self>) {
            let _the_test_has_ended = self.1.send(monotonic_now());
        }
    }

    #[test]
    fn a_timer_keeps_the_earlier_time() {
        let (sender, turns) = unbounded();
        let timed = Arc::new(Timed(Timer::default(), sender));
        let begin = monotonic_now();
        let [never, soon] = [3_600_000, 300].map(|ms| begin + Duration::from_millis(ms));
        timed.0.set(&timed, never);
        timed.0.set(&timed, soon);
        // One turn is enough for both.
        timed.0.set(&timed, soon + Duration::from_millis(1));
        let is_in_time = monotonic_now() < soon;
        let turn = turns.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(turn >= soon, "{:?}", turn - begin);
        // A paused test requested more than one turn.
        let second = turns.recv_timeout(Duration::from_millis(50));
        assert!(second.is_err() || !is_in_time);
        // A time that is past does not suppress a new request.
        let again = monotonic_now() + Duration::from_millis(1);
        timed.0.set(&timed, again);
        assert!(turns.recv_timeout(Duration::from_secs(10)).unwrap() >= again);
    }
}
