//! Kind of a peer's descriptor, determined by calls that no file system of the peer answers.
#![expect(
    unsafe_code,
    reason = "fcntl, ioctl and setsockopt on descriptors, and a thread's signals"
)]

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Memory is of memfd_create(2), tmpfs or hugetlbfs: no call on it waits for another process.
pub(crate) fn is_memory(file: BorrowedFd<'_>) -> bool {
    seals(file).is_some()
}

/// `F_GET_SEALS`; `None` if the descriptor is not a memory file.
pub(crate) fn seals(file: BorrowedFd<'_>) -> Option<libc::c_int> {
    // SAFETY: a query on an open descriptor.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    (seals >= 0).then_some(seals)
}

/// The kernel alone creates the link in /proc. Without /proc the file type decides.
pub(crate) fn is_event(descriptor: BorrowedFd<'_>) -> bool {
    match fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())) {
        Ok(link) => link.as_os_str() == "anon_inode:[eventfd]",
        Err(_) => is_anonymous(descriptor),
    }
}

/// Returns true if the descriptor is neither of a file system nor a socket or pipe.
fn is_anonymous(descriptor: BorrowedFd<'_>) -> bool {
    let mut status = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let fd = descriptor.as_raw_fd();
    // SAFETY: the descriptor is open, the path a string, and the kernel writes one `statx` to a
    // live one.
    let asked =
        unsafe { libc::statx(fd, c"".as_ptr(), flags, libc::STATX_TYPE, status.as_mut_ptr()) };
    // SAFETY: a C struct of integers, for which all zeroes are valid.
    let status = unsafe { status.assume_init() };
    asked == 0 && libc::mode_t::from(status.stx_mode) & libc::S_IFMT == 0
}

/// Closing waits for no other process, even if this is the last reference.
pub(crate) fn closes_at_once(descriptor: BorrowedFd<'_>) -> bool {
    is_memory(descriptor) || is_event(descriptor)
}

/// Returns true if a stream socket has unread bytes, and so perhaps descriptors.
pub(crate) fn has_unread(stream: BorrowedFd<'_>) -> bool {
    let mut octets: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int to the given address, which is that of a live one.
    let asked = unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut octets) };
    asked != 0 || octets != 0
}

/// Makes `close` of a descriptor return at once, if it is a socket.
pub(crate) fn end_lingering(descriptor: BorrowedFd<'_>) {
    let none = libc::linger { l_onoff: 0, l_linger: 0 };
    let len = libc::socklen_t::try_from(size_of_val(&none)).expect("a few bytes");
    // SAFETY: the kernel reads `len` bytes from the address of a live struct, which has that
    // length.
    let _no_socket = unsafe {
        libc::setsockopt(
            descriptor.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const none).cast(),
            len,
        )
    };
}

pub(crate) fn block_signals() {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: initialises the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: a set that was just initialised; the thread's former set is not requested.
    let _cannot_fail =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::peer::tell::event;
    use crate::sys::shared_mapping::sealed_memory;

    #[test]
    fn memory_and_event_descriptors_are_recognised() {
        let memory = sealed_memory(c"test", 4096).unwrap();
        let event = event().unwrap();
        assert!(is_memory(memory.as_fd()) && !is_event(memory.as_fd()));
        assert!(is_event(event.as_fd()) && !is_memory(event.as_fd()));
        assert!(is_anonymous(event.as_fd()) && !is_anonymous(memory.as_fd()));
        let (stream, _far) = UnixStream::pair().unwrap();
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
        let file = File::open("/proc/self/exe").unwrap();
        let others = [stream.as_fd(), file.as_fd(), epoll.as_ref().unwrap().as_fd()];
        for other in others {
            assert!(!closes_at_once(other) && !is_memory(other) && !is_event(other));
        }
        assert!(!is_anonymous(stream.as_fd()) && !is_anonymous(file.as_fd()));
    }
}
