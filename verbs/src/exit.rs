//! The end of the process: what was completed still leaves, and peers are told.
//!
//! The kernel's TCP sends what it has taken also when its process is gone, though not to a peer that
//! sends something in the meantime, as credits, nor the close of connections that a child has too. The
//! TCP of urnic ends with the process.
#![expect(unsafe_code, reason = "a handler for the end is told to C's library")]

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::thread;
use std::time::Duration;

use rustix::thread::gettid;
use tracing::debug;

use crate::event_queue::locked;
use crate::process;

/// How long the end of a process waits for its peers, at most.
const DRAINED_FOR: Duration = Duration::from_secs(1);

/// How long its thread may need beyond that.
const GRACE: Duration = Duration::from_millis(200);

/// Has the end of the process wait for its connections. A process that ends by a signal, or by `_exit`,
/// does not.
pub(crate) fn prepare() {
    static PREPARED: Once = Once::new();
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

/// Nothing may wait here for ever: a handler of a signal may have called `exit` in the middle of
/// something. Nor may the ending thread work itself: its thread-local values are gone.
extern "C" fn at_exit() {
    ENDING.store(gettid().as_raw_nonzero().get(), Ordering::Release);
    let Some(process) = process::existing() else { return };
    let is_done = Arc::new((Mutex::new(false), Condvar::new()));
    let done = Arc::clone(&is_done);
    let finish = move || {
        if let Err(error) = process.network.endpoint.finish(DRAINED_FOR) {
            debug!(target: "urnic", %error, "connections were reset at the end of the process");
        }
        let (is_done, condition) = &*done;
        *locked(is_done) = true;
        condition.notify_all();
    };
    if thread::Builder::new().name("urnic-exit".to_owned()).spawn(finish).is_ok() {
        let (is_done, condition) = &*is_done;
        let limit = DRAINED_FOR + GRACE;
        drop(condition.wait_timeout_while(locked(is_done), limit, |is_done| !*is_done));
    }
}
