//! The end of the process: completed work is still sent, and peers see an orderly close.
//!
//! The kernel's TCP sends what it has accepted even after the process has ended, with two
//! exceptions: it stops if the peer sends something in the meantime, such as credits, and it does
//! not close connections that a child has too. The TCP of urnic ends with the process.
#![expect(unsafe_code, reason = "a handler for the exit is registered with C's library")]

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::thread::gettid;
use tracing::debug;

use crate::event_queue::locked;
use crate::process;
use crate::thread::run_as_own;

/// Maximum time that the end of a process waits for its peers.
const DRAINED_FOR: Duration = Duration::from_secs(1);

/// Time that the closing thread may need beyond that.
const GRACE: Duration = Duration::from_millis(200);

/// The thread that closes connections at the end of the process. It is created long before: a
/// signal handler that calls `exit` may have interrupted an allocation, and any allocation would
/// then deadlock.
#[derive(Debug, Default)]
struct Closer {
    step: Mutex<Step>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Parked,
    /// The process is about to end.
    Wanted,
    /// The connections are closed.
    Done,
}

impl Closer {
    fn set(&self, step: Step) {
        *locked(&self.step) = step;
        self.changed.notify_all();
    }

    /// Body of the thread: waits for the end of the process, and closes.
    fn run(&self) {
        let parked = locked(&self.step);
        drop(self.changed.wait_while(parked, |step| *step == Step::Parked));
        if let Some(process) = process::existing()
            && let Err(error) = process.network.endpoint.finish(DRAINED_FOR)
        {
            debug!(target: "urnic", %error, "connections were reset at the end of the process");
        }
        self.set(Step::Done);
    }

    /// Makes the thread close the connections, and waits for it up to a limit. Allocates nothing.
    fn close(&self) {
        self.set(Step::Wanted);
        let waiting = locked(&self.step);
        let limit = DRAINED_FOR + GRACE;
        let waited = self.changed.wait_timeout_while(waiting, limit, |step| *step != Step::Done);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// The closer of this process; a forked child makes its own together with its network.
static CLOSER: AtomicPtr<Closer> = AtomicPtr::new(ptr::null_mut());

/// Makes the end of the process wait for its connections, unless the process ends by a signal or by
/// `_exit`. Called for each network that a process opens.
pub(crate) fn prepare() {
    static PREPARED: Once = Once::new();
    // It lives as long as the process, as its thread does.
    let closer: &'static Closer = Box::leak(Box::default());
    let start = || thread::Builder::new().name("urnic-exit".to_owned()).spawn(|| closer.run());
    let is_started = run_as_own(start).flatten().is_ok();
    CLOSER.store(
        if is_started { ptr::from_ref(closer).cast_mut() } else { ptr::null_mut() },
        Ordering::Release,
    );
    PREPARED.call_once(|| {
        // SAFETY: the handler is a function of this library, which applications do not unload: the
        // endpoint's thread runs in it.
        let _no_memory = unsafe { libc::atexit(at_exit) };
    });
}

/// Id of the thread that ends the process; 0 before.
static ENDING: AtomicI32 = AtomicI32::new(0);

/// Parks the calling thread for ever if the process is ending, unless this thread ends it.
///
/// Applications destroy their channels, return from `main`, and leave threads that wait at those
/// channels to the end of the process. Such a thread must not see an error while the exit handler
/// waits for peers: it would report the error and exit with another code. The ending thread itself
/// goes on, because an exit handler of the application may run after this library's.
pub(crate) fn wait_if_under_way() {
    let own = gettid().as_raw_nonzero().get();
    while ![0, own].contains(&ENDING.load(Ordering::Acquire)) {
        thread::park();
    }
}

/// Runs at exit. Nothing may wait here for ever, and nothing may allocate: a signal handler may
/// have called `exit` in the middle of an allocation. The ending thread cannot close connections
/// itself, because its thread-local values are destroyed.
extern "C" fn at_exit() {
    ENDING.store(gettid().as_raw_nonzero().get(), Ordering::Release);
    // A child that has not opened the network has no such thread.
    if process::existing().is_none() {
        return;
    }
    // SAFETY: NULL, or a value that stays for the life of the process.
    if let Some(closer) = unsafe { CLOSER.load(Ordering::Acquire).as_ref() } {
        closer.close();
    }
}
