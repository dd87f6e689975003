//! The thread that moves connections on: those of rdma_cm's ids, and those of queue pairs that connect
//! without it. It is started when it is first needed, and again in a child that was forked.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use tracing::error;
use urnic::monotonic_now;
use urnic_engine::time::Instant;

use crate::event_queue::locked;
use crate::fork;
use crate::thread::run_as_own;

/// What is moved on.
pub(crate) trait Turn: Send + Sync {
    /// Looks what has happened, and does what follows from it. Called in one thread, and never again
    /// before it has returned.
    fn turn(self: Arc<Self>);
}

/// What is to have a turn, and not before when.
struct Request {
    of: Weak<dyn Turn>,
    at: Option<Instant>,
}

/// Asks for a turn. Any thread may; what is gone by then has none.
pub(crate) fn request<T: Turn + 'static>(of: &Arc<T>) {
    let of: Weak<T> = Arc::downgrade(of);
    send(Request { of, at: None });
}

/// Asks for a turn at some time.
fn request_at<T: Turn + 'static>(of: &Arc<T>, at: Instant) {
    let of: Weak<T> = Arc::downgrade(of);
    send(Request { of, at: Some(at) });
}

/// The next timed turn of one object: however often it is asked for, few are waiting.
#[derive(Debug, Default)]
pub(crate) struct Timer(Mutex<Option<Instant>>);

impl Timer {
    /// Asks for a turn at this time, unless there will be one before.
    pub(crate) fn set<T: Turn + 'static>(&self, of: &Arc<T>, at: Instant) {
        let mut set = locked(&self.0);
        let now = monotonic_now();
        if set.is_none_or(|set| set <= now || at < set) {
            *set = Some(at);
            request_at(of, at);
        }
    }
}

fn send(request: Request) {
    static TURNS: Mutex<Option<(u32, Sender<Request>)>> = Mutex::new(None);
    let generation = fork::generation();
    let mut turns = locked(&TURNS);
    let (_, sender) = match turns.take() {
        Some(turns) if turns.0 == generation => turns,
        // A child that was forked does not have the parent's thread.
        _ => (generation, start()),
    };
    let _the_thread_never_ends = sender.send(request);
    *turns = Some((generation, sender));
}

fn start() -> Sender<Request> {
    let (sender, requests) = unbounded();
    let body = move || run(&requests);
    let start = || thread::Builder::new().name("urnic-cm".to_owned()).spawn(body);
    if let Err(error) = run_as_own(start).flatten() {
        error!(target: "urnic", %error, "no thread for connections: their events will not come");
    }
    sender
}

fn run(requests: &Receiver<Request>) {
    // By time; the number keeps those of the same time apart.
    let mut later: BinaryHeap<Reverse<(Instant, u64)>> = BinaryHeap::new();
    let mut waiting = HashMap::<u64, Weak<dyn Turn>>::new();
    let mut number = 0;
    loop {
        let next = later.peek().map(|Reverse((at, _))| *at);
        let received = match next {
            Some(at) => requests.recv_timeout(at - monotonic_now()),
            None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(Request { of, at: None }) => turn(&of),
            Ok(Request { of, at: Some(at) }) => {
                number += 1;
                later.push(Reverse((at, number)));
                waiting.insert(number, of);
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(Reverse((_, number))) = later.pop()
                    && let Some(of) = waiting.remove(&number)
                {
                    turn(&of);
                }
            }
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
    use std::time::Duration;

    use super::*;

    struct Bell(Sender<Instant>);

    impl Turn for Bell {
        fn turn(self: Arc<Self>) {
            let _the_test_has_ended = self.0.send(monotonic_now());
        }
    }

    #[test]
    fn turns_come_at_once_or_when_it_is_time() {
        let (sender, turns) = unbounded();
        let (bell, begin) = (Arc::new(Bell(sender)), monotonic_now());
        request_at(&bell, begin + Duration::from_millis(40));
        request_at(&bell, begin + Duration::from_millis(20));
        request(&bell);
        let wait = || turns.recv_timeout(Duration::from_secs(10)).unwrap() - begin;
        let (first, second, third) = (wait(), wait(), wait());
        assert!(first < second, "{first:?} {second:?}");
        assert!(second >= Duration::from_millis(20) && third >= Duration::from_millis(40));
        request_at(&bell, begin);
        drop(bell);
        // At most what was on its way: what is gone has no turns.
        assert!(turns.try_iter().count() <= 1);
    }
}
