//! `rpoll` and `rselect`, on sockets and other descriptors together.
#![expect(unsafe_code, reason = "poll(2) and sets of descriptors are C's")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDNORM, POLLWRNORM, c_int, c_short, fd_set,
    nfds_t, pollfd, timeval,
};

use super::lookup;
use super::signal::{Sleeper, after, now};
use super::socket::{Phase, Socket};
use super::stream::End;
use crate::errno::Errno;

/// Spinning time before the sleep, as for calls that wait at one socket.
const SPIN: Duration = Duration::from_micros(20);

impl Socket {
    fn ready(&self, events: c_short) -> c_short {
        if !self.is_own() {
            return POLLNVAL;
        }
        let state = self.look();
        let (may_read, may_write) =
            (events & (POLLIN | POLLRDNORM), events & (POLLOUT | POLLWRNORM));
        match &state.phase {
            Phase::New | Phase::Opening(_) => 0,
            Phase::Listening { requests, .. } if requests.is_empty() => 0,
            Phase::Listening { .. } => may_read,
            Phase::Failed => may_read | may_write | POLLERR,
            Phase::Open(stream, _) => {
                let mut ready = 0;
                if stream.has_data() || !stream.readable {
                    ready |= may_read;
                }
                if stream.can_send() || !stream.writable {
                    ready |= may_write;
                }
                match stream.end {
                    // Applications take POLLHUP for the end of the readable data, too.
                    _ if stream.has_data() => ready,
                    None => ready,
                    Some(End::Disconnected) => ready | POLLHUP,
                    Some(End::Failed(_)) => ready | POLLERR,
                }
            }
        }
    }
}

fn poll(fds: &mut [pollfd], timeout_ms: c_int) -> Result<usize, Errno> {
    let count = nfds_t::try_from(fds.len()).map_err(|_| Errno::INVALID)?;
    // SAFETY: of `count` entries, which are this thread's.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), count, timeout_ms) };
    usize::try_from(ready).map_err(|_| std::io::Error::last_os_error().into())
}

struct Polled<'a> {
    fds: &'a mut [pollfd],
    sockets: Vec<Option<Arc<Socket>>>,
    /// Entries at the same indices as in `fds`; a socket's entry is ignored.
    others: Vec<pollfd>,
}

impl Polled<'_> {
    fn look(&mut self) -> Result<usize, Errno> {
        poll(&mut self.others, 0)?;
        let mut count = 0;
        for ((fd, socket), other) in self.fds.iter_mut().zip(&self.sockets).zip(&self.others) {
            fd.revents = match socket {
                Some(socket) => socket.ready(fd.events),
                None => other.revents,
            };
            count += usize::from(fd.revents != 0);
        }
        Ok(count)
    }

    fn sockets(&self) -> impl Iterator<Item = &Arc<Socket>> {
        self.sockets.iter().flatten().filter(|socket| socket.is_own())
    }

    fn sleep(&mut self, sleeper: &Sleeper, until: Option<Instant>) -> Result<(), Errno> {
        use std::os::fd::AsRawFd;
        let timeout_ms = until.map_or(-1, |until| {
            // Rounded up, so that it does not wake too early.
            let left = until.saturating_duration_since(now()) + Duration::from_micros(999);
            c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX)
        });
        let own = pollfd { fd: sleeper.fd().as_raw_fd(), events: POLLIN, revents: 0 };
        self.others.push(own);
        let slept = poll(&mut self.others, timeout_ms);
        self.others.pop();
        sleeper.clear();
        slept.map(drop)
    }
}

/// Returns the number of ready descriptors.
pub(super) fn wait(
    fds: &mut [pollfd],
    nonblocking: bool,
    until: Option<Instant>,
) -> Result<usize, Errno> {
    let sockets: Vec<_> = fds.iter().map(|fd| lookup(fd.fd).ok()).collect();
    let other = |(fd, socket): (&pollfd, &Option<_>)| pollfd {
        fd: if socket.is_some() { -1 } else { fd.fd },
        events: fd.events,
        revents: 0,
    };
    let others = fds.iter().zip(&sockets).map(other).collect();
    let mut polled = Polled { fds, sockets, others };
    let (began, mut sleeper) = (now(), None::<Sleeper>);
    loop {
        let count = polled.look()?;
        let is_late = || until.is_some_and(|until| until <= now());
        if count > 0 || nonblocking || is_late() {
            return Ok(count);
        }
        match &mut sleeper {
            None if now().saturating_duration_since(began) < SPIN => {
                if let Some(socket) = polled.sockets().next() {
                    socket.spin();
                }
            }
            None => {
                let mut made = Sleeper::new()?;
                for socket in polled.sockets() {
                    socket.watch(&mut made);
                    socket.arm();
                }
                sleeper = Some(made);
            }
            Some(sleeper) => {
                polled.sleep(sleeper, until)?;
                for socket in polled.sockets() {
                    socket.arm();
                }
            }
        }
    }
}

/// Read, write, exception.
pub(super) type Sets = [*mut fd_set; 3];

/// Events that `select` polls for, by set.
const ASKED: [c_short; 3] = [POLLIN, POLLOUT, 0];
/// Events that keep a descriptor in the set, by set.
const ANSWERS: [c_short; 3] = [POLLIN | POLLHUP, POLLOUT, !(POLLIN | POLLOUT | POLLHUP)];

/// Reduces each set to its descriptors with events, and returns the number of entries left.
///
/// # Safety
/// The sets are NULL or sets of the application.
pub(super) unsafe fn select(
    count: c_int,
    sets: Sets,
    timeout: Option<timeval>,
) -> Result<usize, Errno> {
    if !(0..=c_int::try_from(libc::FD_SETSIZE).unwrap_or(0)).contains(&count) {
        return Err(Errno::INVALID);
    }
    let mut fds = Vec::new();
    for fd in 0..count {
        let has = |set: *mut fd_set| {
            // SAFETY: a set of the application, by this function's contract; the descriptor is
            // below its size.
            !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
        };
        let in_sets = sets.map(has);
        if in_sets.contains(&true) {
            let asked = in_sets.iter().zip(ASKED).filter(|(is_in, _)| **is_in);
            let events = asked.fold(0, |events, (_, asked)| events | asked);
            fds.push((in_sets, pollfd { fd, events, revents: 0 }));
        }
    }
    let until = match timeout {
        None => None,
        Some(time) => {
            let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::INVALID)?;
            let micros = u64::try_from(time.tv_usec).map_err(|_| Errno::INVALID)?;
            after(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
        }
    };
    let mut polled: Vec<_> = fds.iter().map(|(_, fd)| *fd).collect();
    wait(&mut polled, false, until)?;
    if polled.iter().any(|fd| fd.revents & POLLNVAL != 0) {
        return Err(Errno(libc::EBADF));
    }
    let mut found = 0;
    for (index, set) in sets.into_iter().enumerate().filter(|(_, set)| !set.is_null()) {
        // SAFETY: a set of the application, by this function's contract.
        unsafe { libc::FD_ZERO(set) };
        for ((in_sets, _), fd) in fds.iter().zip(&polled) {
            if in_sets[index] && fd.revents & ANSWERS[index] != 0 {
                // SAFETY: as above; the descriptor is below its size.
                unsafe { libc::FD_SET(fd.fd, set) };
                found += 1;
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::{AsRawFd, OwnedFd};

    use super::*;

    const NOW: timeval = timeval { tv_sec: 0, tv_usec: 0 };

    fn set(fds: &[c_int]) -> fd_set {
        // SAFETY: all bits of a set may be zero.
        let mut set = unsafe { std::mem::zeroed::<fd_set>() };
        for fd in fds {
            // SAFETY: a set, and a descriptor below its size.
            unsafe { libc::FD_SET(*fd, &raw mut set) };
        }
        set
    }

    /// Calls `select` with these descriptors to read and to write; returns the ready ones.
    fn ready(reads: &[c_int], writes: &[c_int], time: timeval) -> Result<[Vec<c_int>; 2], Errno> {
        let (mut read, mut write) = (set(reads), set(writes));
        let count = reads.iter().chain(writes).max().unwrap_or(&-1) + 1;
        let sets = [&raw mut read, &raw mut write, std::ptr::null_mut()];
        // SAFETY: two sets, and NULL.
        let found = unsafe { select(count, sets, Some(time)) }?;
        // SAFETY: a set, and a descriptor below its size.
        let is_in = |set: &fd_set, fd: c_int| unsafe { libc::FD_ISSET(fd, set) };
        let of = |set: &fd_set| (0..1000).filter(|fd| is_in(set, *fd)).collect::<Vec<_>>();
        let sets = [of(&read), of(&write)];
        assert_eq!(found, sets[0].len() + sets[1].len());
        Ok(sets)
    }

    #[test]
    fn select_reports_other_descriptors_as_the_kernel_does() {
        let (empty_read, empty_write) = std::io::pipe().unwrap();
        let (full_read, mut full_write) = std::io::pipe().unwrap();
        full_write.write_all(b"x").unwrap();
        let [a, b, c, d] = [
            OwnedFd::from(empty_read),
            empty_write.into(),
            full_read.into(),
            full_write.try_clone().unwrap().into(),
        ];
        let [er, ew, fr, fw] = [&a, &b, &c, &d].map(AsRawFd::as_raw_fd);
        assert_eq!(ready(&[er, fr], &[ew, fw], NOW), Ok([vec![fr], vec![ew.min(fw), ew.max(fw)]]));
        assert_eq!(ready(&[er], &[], NOW), Ok([vec![], vec![]]), "the set is cleared");
        // All writers are gone: the end can be read.
        drop(b);
        assert_eq!(ready(&[er], &[], NOW), Ok([vec![er], vec![]]));
        // No reader: an error, which ends the wait of a writer.
        drop(c);
        assert_eq!(ready(&[], &[fw], NOW).unwrap()[1], [fw]);
    }

    #[test]
    fn select_refuses_what_the_kernel_refuses() {
        let none = [std::ptr::null_mut(); 3];
        for count in [-1, c_int::try_from(libc::FD_SETSIZE).unwrap() + 1] {
            // SAFETY: no sets.
            assert_eq!(unsafe { select(count, none, Some(NOW)) }, Err(Errno::INVALID));
        }
        // SAFETY: no sets.
        assert_eq!(unsafe { select(0, none, Some(NOW)) }, Ok(0));
        for time in [timeval { tv_sec: -1, tv_usec: 0 }, timeval { tv_sec: 0, tv_usec: -1 }] {
            assert_eq!(ready(&[], &[], time), Err(Errno::INVALID));
        }
        // Far above the descriptors of this process, which other tests open, too.
        assert_eq!(ready(&[1000], &[], NOW), Err(Errno(libc::EBADF)));
    }
}
