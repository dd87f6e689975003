//! Exit of the process: closes connections, so that completed work is still sent and peers see an
//! orderly close.
//!
//! Without this, data could be lost. The kernel's TCP sends what it has accepted even after the
//! process has ended, with two exceptions: it stops if the peer sends something in the meantime,
//! such as credits, and it does not close connections that a child has too. urnic's own TCP ends
//! with the process.
//!
//! 1. When the process opens its network, [`prepare`] starts the closing thread, which parks, and
//!    registers an exit handler with C's library.
//! 2. `exit`, or the return from `main`, runs the handler. It stores the ID of the ending thread.
//! 3. The handler wakes the closing thread, and waits for it, at most [`DRAINED_FOR`] plus
//!    [`GRACE`].
//! 4. The closing thread closes all connections of the endpoint ([`DRAINED_FOR`] at most), and
//!    wakes the handler.
//! 5. The handler returns. C's library ends the process, and with it all threads.
//!
//! A process that ends by a signal or by `_exit` runs no handler.
//!
//! Racy cases:
//!
//! - *Another thread waits for events during steps 2 to 5.* Before its call would return an error,
//!   [`wait_if_under_way`] parks it until the process has ended.
//! - *A signal handler calls `exit` and has interrupted an allocation.* The exit handler allocates
//!   nothing, and the closing thread exists already. If the closing thread has to allocate, it
//!   waits for the interrupted thread; the limit of step 3 ends the wait.
//! - *Another thread is opening the network.* `existing` of [`process`](crate::process) finds no
//!   process, and the handler returns at once.
//! - *A forked child exits.* The child has the handler but not the closing thread. Unless it opened
//!   a network of its own, and with it started its own closing thread, the handler returns at once.
//!
//! No loom model: loom has neither exit handlers nor time limits. Tests end processes at each step.
#![expect(unsafe_code, reason = "a handler for the exit is registered with C's library")]

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::thread::gettid;
use tracing::debug;
use urnic::Error;

use crate::event_queue::locked;
use crate::thread::run_as_own;

/// Maximum time that the exit of a process waits for its peers.
const DRAINED_FOR: Duration = Duration::from_secs(1);

/// Time that the closing thread may need beyond [`DRAINED_FOR`].
const GRACE: Duration = Duration::from_millis(200);

pub(crate) trait Connections {
    /// Closes the connections in order; resets connections that are not closed within `limit`.
    fn finish(&self, limit: Duration) -> Result<(), Error>;
}

/// Returns the connections of this process, unless another thread is opening the network.
type Existing = fn() -> Option<Arc<dyn Connections>>;

/// The thread that closes connections at the end of the process. It is created long before: `exit`
/// must not allocate, since a signal handler may have interrupted an allocation.
#[derive(Debug)]
struct Closer {
    existing: Existing,
    step: Mutex<Step>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Parked,
    Wanted,
    Done,
}

impl Closer {
    fn set(&self, step: Step) {
        *locked(&self.step) = step;
        self.changed.notify_all();
    }

    fn run(&self) {
        let parked = locked(&self.step);
        drop(self.changed.wait_while(parked, |step| *step == Step::Parked));
        if let Some(connections) = (self.existing)()
            && let Err(error) = connections.finish(DRAINED_FOR)
        {
            debug!(target: "urnic", %error, "connections were reset at the end of the process");
        }
        self.set(Step::Done);
    }

    /// Allocates nothing.
    fn close(&self) {
        self.set(Step::Wanted);
        let waiting = locked(&self.step);
        let limit = DRAINED_FOR + GRACE;
        let waited = self.changed.wait_timeout_while(waiting, limit, |step| *step != Step::Done);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// NULL if the thread could not be started; the parent's in a child without its own network.
static CLOSER: AtomicPtr<Closer> = AtomicPtr::new(ptr::null_mut());

/// Called for each network that a process opens.
pub(crate) fn prepare(existing: Existing) {
    static PREPARED: Once = Once::new();
    let closer: &'static Closer =
        Box::leak(Box::new(Closer { existing, step: Mutex::default(), changed: Condvar::new() }));
    let start = move || thread::Builder::new().name("urnic-exit".to_owned()).spawn(|| closer.run());
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

/// Parks the calling thread for ever if the process is exiting, unless it is the ending thread.
///
/// Some applications return from `main` while threads still wait at their channels. Such a thread
/// would report an error and exit with another code. The ending thread continues, because an exit
/// handler of the application may call this library.
pub(crate) fn wait_if_under_way() {
    let own = gettid().as_raw_nonzero().get();
    while ![0, own].contains(&ENDING.load(Ordering::Acquire)) {
        thread::park();
    }
}

/// The ending thread cannot close connections itself: its thread-local values are destroyed.
extern "C" fn at_exit() {
    ENDING.store(gettid().as_raw_nonzero().get(), Ordering::Release);
    // SAFETY: NULL, or a value that stays for the life of the process.
    let Some(closer) = (unsafe { CLOSER.load(Ordering::Acquire).as_ref() }) else { return };
    // A child that has not opened the network has no such thread.
    if (closer.existing)().is_some() {
        closer.close();
    }
}
