//! The end of the process: what was completed still leaves, and peers are told.
//!
//! The kernel's TCP sends what it has taken also when its process is gone, though not to a peer that
//! sends something in the meantime, as credits, nor the close of connections that a child has too. The
//! TCP of urnic ends with the process.
#![expect(unsafe_code, reason = "a handler for the end is told to C's library")]

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

/// How long the end of a process waits for its peers, at most.
const DRAINED_FOR: Duration = Duration::from_secs(1);

/// How long its thread may need beyond that.
const GRACE: Duration = Duration::from_millis(200);

/// The thread that closes connections at the end of the process. It is made long before: a signal handler that calls
/// `exit` may have interrupted an allocation, and whatever allocates then waits for ever.
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
    /// Connections are closed.
    Done,
}

impl Closer {
    fn set(&self, step: Step) {
        *locked(&self.step) = step;
        self.changed.notify_all();
    }

    /// The thread: waits for the end, and closes.
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

    /// Has the thread close, and waits for it, not for ever. It allocates nothing.
    fn close(&self) {
        self.set(Step::Wanted);
        let waiting = locked(&self.step);
        let limit = DRAINED_FOR + GRACE;
        let waited = self.changed.wait_timeout_while(waiting, limit, |step| *step != Step::Done);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// This process's; a child that was forked makes another with its own network.
static CLOSER: AtomicPtr<Closer> = AtomicPtr::new(ptr::null_mut());

/// Has the end of the process wait for its connections. A process that ends by a signal, or by `_exit`,
/// does not. Called for each network that a process opens.
pub(crate) fn prepare() {
    static PREPARED: Once = Once::new();
    // It stays for the life of the process, as its thread does.
    let closer: &'static Closer = Box::leak(Box::default());
    let start = || thread::Builder::new().name("urnic-exit".to_owned()).spawn(|| closer.run());
    let is_started = run_as_own(start).flatten().is_ok();
    CLOSER.store(
        if is_started { ptr::from_ref(closer).cast_mut() } else { ptr::null_mut() },
        Ordering::Release,
    );
    PREPARED.call_once(|| {
        // SAFETY: the handler is a function of this library, which programs do not unload: the
        // endpoint's thread runs in it.
        let _no_memory = unsafe { libc::atexit(at_exit) };
    });
}

/// The thread that ends the process, once there is one.
static ENDING: AtomicI32 = AtomicI32::new(0);

/// Ends the calling thread's part if the process is about to end: it does not return then.
///
/// Programs destroy their channels, return from `main`, and leave threads that wait at those channels
/// to the end of the process. Such a thread is not to see an error while the end waits for peers: it
/// would report it, and exit with another code. The thread that ends the process itself, in a handler of
/// the program's that runs after this library's, goes on.
pub(crate) fn wait_if_under_way() {
    let own = gettid().as_raw_nonzero().get();
    while ![0, own].contains(&ENDING.load(Ordering::Acquire)) {
        thread::park();
    }
}

/// Nothing may wait here for ever, and nothing may allocate: a handler of a signal may have called `exit` in the
/// middle of something. Nor may the ending thread work itself: its thread-local values are gone.
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
