//! Threads of the library, in applications that do not expect any.
#![expect(unsafe_code, reason = "signal masks and scheduling are the kernel's")]

use std::io;
use std::mem::MaybeUninit;
use std::thread;

use crossbeam::channel::bounded;

/// Runs `body` in a thread with the settings of the library's threads, which threads that `body`
/// starts inherit. Waits for the result only, not for the end of the thread: see
/// [`fork`](crate::fork).
///
/// * All signals are blocked, so that threads of the application that wait for signals get them.
/// * The scheduler gives the thread a core soon after a wake-up, for short slices: applications
///   that poll memory leave no core idle.
pub(crate) fn run_as_own<R: Send + 'static>(
    body: impl FnOnce() -> R + Send + 'static,
) -> io::Result<R> {
    let (result, results) = bounded(1);
    let own = move || {
        block_signals();
        ask_for_short_slices();
        let _the_caller_waits = result.send(body());
    };
    thread::Builder::new().name("urnic-start".to_owned()).spawn(own)?;
    results.recv().map_err(|_panic| io::Error::other("a thread of the library panicked"))
}

fn block_signals() {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: memory for a set, which this fills in.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set that was filled in; only this thread's mask is changed. The call cannot fail
    // with these arguments.
    let _done =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
}

/// `struct sched_attr` of the kernel, in its first version.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// A tenth of a millisecond: the shortest slice that Linux accepts.
const SLICE_NS: u64 = 100_000;

fn ask_for_short_slices() {
    // SAFETY: asks for this thread's own nice value; no memory is passed.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attr = SchedAttr {
        size: u32::try_from(size_of::<SchedAttr>()).unwrap_or(0),
        policy: 0,
        flags: 0,
        nice,
        priority: 0,
        runtime: SLICE_NS,
        deadline: 0,
        period: 0,
    };
    // SAFETY: a structure of the size in its field `size`, which is only read. Kernels before 6.12
    // ignore the slice, and others may refuse it: then slices have the default length.
    let _as_always = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_the_library_block_all_signals_and_so_do_those_they_start() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        let [own, child] =
            run_as_own(move || [blocked(), thread::spawn(blocked).join().unwrap()]).unwrap();
        // KILL and STOP cannot be blocked; two more are of C's library.
        let of_programs = !((1 << 8) | (1 << 18) | (1 << 31) | (1 << 32));
        assert_eq!((own & of_programs, own), (of_programs, child));
        assert_eq!(blocked() & (1 << 1), 0, "and SIGINT still reaches this thread");
    }
}
