//! Closes descriptors that a peer sent, without blocking the device's thread: `close(2)` may block
//! as long as the peer likes (a TCP socket that lingers, a file of a FUSE file system). Any message
//! may carry descriptors; closing a socket with unread messages closes theirs, too.
//!
//! 1. Each descriptor is received as a [`PeerFd`]. Its drop determines the kind of the descriptor,
//!    by calls that no file system answers.
//! 2. Memory and eventfds are closed at once: their `close` never blocks.
//! 3. All others go to a thread, started for the first one, which closes one after the other.
//! 4. While [`CLOSES_MAX`] wait for that thread, the device reads no message and accepts no peer. A
//!    message that was read before may exceed the limit by its own descriptors.
//! 5. If the thread cannot be started, each new descriptor retries, and so does the device while
//!    [`CLOSES_MAX`] wait.
//!
//! The thread ends after the last handle to its [`Closer`] is dropped and its queue is empty.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tracing::debug;

use crate::TRACE;
use crate::peer::limits::CLOSES_MAX;
use crate::sys::descriptor::{block_signals, closes_at_once, end_lingering, has_unread};

/// Handle to the thread that closes descriptors of a device's peers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closer {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: Arc<AtomicUsize>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// `None` until the first descriptor arrives, and while the thread cannot be started.
    thread: Option<Sender<OwnedFd>>,
    unsent: Vec<OwnedFd>,
}

impl Queue {
    fn send(&mut self, start: impl FnOnce() -> io::Result<Sender<OwnedFd>>) {
        if self.unsent.is_empty() {
            return;
        }
        if self.thread.is_none() {
            self.thread = start().ok();
        }
        let Some(thread) = &self.thread else {
            let waiting = self.unsent.len();
            debug!(target: TRACE, waiting, "no thread to close a peer's descriptors");
            return;
        };
        while let Some(descriptor) = self.unsent.pop() {
            if let Err(unsent) = thread.send(descriptor) {
                self.unsent.push(unsent.0);
                self.thread = None;
                return;
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for descriptor in self.unsent.drain(..) {
            // Leaked on purpose: the device's thread must not close it.
            let _kept_open = descriptor.into_raw_fd();
        }
    }
}

impl Closer {
    pub(crate) fn is_full(&self) -> bool {
        let is_full = self.inner.waiting.load(Relaxed) >= CLOSES_MAX;
        if is_full {
            self.queue().send(|| start(&self.inner.waiting));
        }
        is_full
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.inner.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, descriptor: OwnedFd) {
        if !closes_at_once(descriptor.as_fd()) {
            self.close_later(descriptor);
        }
    }

    fn close_later(&self, descriptor: OwnedFd) {
        self.close_later_by(descriptor, || start(&self.inner.waiting));
    }

    #[cold]
    fn close_later_by(
        &self,
        descriptor: OwnedFd,
        start: impl FnOnce() -> io::Result<Sender<OwnedFd>>,
    ) {
        self.inner.waiting.fetch_add(1, Relaxed);
        let mut queue = self.queue();
        queue.unsent.push(descriptor);
        queue.send(start);
    }

    /// Ends a connection. The peer sees the end at once.
    pub(crate) fn close_stream(&self, stream: UnixStream) {
        // After shutdown the kernel queues no further messages, so the unread ones are final.
        let _was_not_connected = stream.shutdown(Shutdown::Both);
        if has_unread(stream.as_fd()) {
            self.close_later(stream.into());
        }
    }

    /// Waiting connections may have messages with descriptors, too.
    pub(crate) fn close_listener(&self, listener: UnixListener) {
        // After shutdown the kernel refuses connections, so the loop ends.
        let _cannot_fail = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        loop {
            match listener.accept() {
                Ok((stream, _)) => self.close_stream(stream),
                // No connection waits.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.close_later(listener.into()),
            }
        }
    }

    /// Returns a closer whose thread never closes anything.
    #[cfg(test)]
    pub(crate) fn stuck() -> Self {
        let closer = Self::default();
        let (sender, receiver) = channel();
        Box::leak(Box::new(receiver));
        closer.queue().thread = Some(sender);
        closer
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.inner.waiting.load(Relaxed)
    }
}

fn start(waiting: &Arc<AtomicUsize>) -> io::Result<Sender<OwnedFd>> {
    let (sender, receiver) = channel();
    let waiting = Arc::clone(waiting);
    thread::Builder::new().name("urnic-closer".into()).spawn(move || run(&receiver, &waiting))?;
    Ok(sender)
}

fn run(receiver: &Receiver<OwnedFd>, waiting: &AtomicUsize) {
    // Signals are for the application's threads.
    block_signals();
    for descriptor in receiver {
        end_lingering(descriptor.as_fd());
        drop(descriptor);
        waiting.fetch_sub(1, Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct PeerFd {
    /// `None` only during drop.
    descriptor: Option<OwnedFd>,
    closer: Closer,
}

impl PeerFd {
    pub(crate) const fn new(descriptor: OwnedFd, closer: Closer) -> Self {
        Self { descriptor: Some(descriptor), closer }
    }
}

impl AsFd for PeerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl Drop for PeerFd {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            self.closer.close(descriptor);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use rustix::net::sockopt::set_socket_linger;

    use super::*;
    pub(crate) use crate::peer::limits::CLOSES_MAX;
    use crate::peer::tell::event;
    use crate::sys::shared_mapping::sealed_memory;

    /// Duration for which the `close` of a [`lingering`] socket blocks.
    pub(crate) const LINGER: Duration = Duration::from_secs(60);

    /// Returns a socket with unread bytes in flight, and its peer, which does not read: `close`
    /// waits for the peer.
    pub(crate) fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while io::Write::write(&mut near, &[1; 1 << 16]).is_ok() {}
        near.set_nonblocking(false).unwrap();
        set_socket_linger(&near, Some(LINGER)).unwrap();
        (near.into(), far)
    }

    #[test]
    fn memory_and_events_are_closed_at_once_and_all_else_is_counted() {
        let closer = Closer::stuck();
        let received = |descriptor| drop(PeerFd::new(descriptor, closer.clone()));
        received(sealed_memory(c"test", 4096).unwrap());
        received(event().unwrap());
        assert_eq!(closer.waiting(), 0);
        received(File::open("/dev/null").unwrap().into());
        received(UnixStream::pair().unwrap().0.into());
        received(rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap());
        assert_eq!(closer.waiting(), 3);
        while !closer.is_full() {
            received(File::open("/dev/null").unwrap().into());
        }
        assert_eq!(closer.waiting(), CLOSES_MAX);
    }

    #[test]
    fn without_a_thread_nothing_is_closed() {
        let closer = Closer::default();
        let (near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        closer.close_later_by(near.into(), || Err(io::ErrorKind::WouldBlock.into()));
        let reads = || io::Read::read(&mut &far, &mut [0]);
        assert_eq!(reads().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(closer.waiting(), 1);
        drop(closer);
        assert_eq!(reads().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn failed_thread_start_is_retried_at_the_next_close() {
        let no_thread = || Err(io::ErrorKind::WouldBlock.into());
        for count in [1, CLOSES_MAX] {
            let closer = Closer::default();
            for _ in 0..count {
                closer.close_later_by(File::open("/dev/null").unwrap().into(), no_thread);
            }
            assert_eq!((closer.waiting(), closer.is_full()), (count, count == CLOSES_MAX));
            if count < CLOSES_MAX {
                drop(PeerFd::new(File::open("/dev/null").unwrap().into(), closer.clone()));
            }
            until(|| closer.waiting() == 0);
            assert!(!closer.is_full());
        }
    }

    /// Waits for another thread, for less than [`LINGER`].
    #[expect(clippy::disallowed_methods, reason = "another thread closes")]
    pub(crate) fn until(done: impl Fn() -> bool) {
        let begun = std::time::Instant::now();
        while !done() {
            assert!(begun.elapsed() < LINGER, "waited for a close");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_thread_closes_what_it_gets_and_ends() {
        let closer = Closer::default();
        let (near, far) = UnixStream::pair().unwrap();
        drop(PeerFd::new(near.into(), closer.clone()));
        let mut octets = [0];
        assert_eq!(io::Read::read(&mut &far, &mut octets).unwrap(), 0, "closed");
        until(|| closer.waiting() == 0);
        let of_thread = Arc::clone(&closer.inner.waiting);
        drop(closer);
        until(|| Arc::strong_count(&of_thread) == 1);
    }

    #[test]
    fn a_connection_with_unread_messages_is_closed_by_the_thread() {
        let closer = Closer::stuck();
        let (near, far) = UnixStream::pair().unwrap();
        closer.close_stream(near);
        assert_eq!(closer.waiting(), 0, "nothing was unread");
        drop(far);
        let (near, mut far) = UnixStream::pair().unwrap();
        io::Write::write_all(&mut far, b"unread").unwrap();
        closer.close_stream(near);
        assert_eq!(closer.waiting(), 1);
        let mut octets = [0];
        assert_eq!(io::Read::read(&mut far, &mut octets).unwrap(), 0, "the peer sees the end");
        io::Write::write_all(&mut far, b"late").unwrap_err();
    }

    #[test]
    fn a_listener_is_closed_with_all_that_wait_there() {
        let closer = Closer::stuck();
        let path = std::env::temp_dir().join(format!("urnic-closer-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut waiting: Vec<_> = (0..3).map(|_| UnixStream::connect(&path).unwrap()).collect();
        io::Write::write_all(&mut waiting[1], b"unread").unwrap();
        closer.close_listener(listener);
        assert_eq!(closer.waiting(), 1, "of the one with an unread message");
        for far in &mut waiting {
            assert_eq!(io::Read::read(far, &mut [0]).unwrap(), 0, "the peer sees the end");
        }
        UnixStream::connect(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn closing_a_lingering_socket_blocks_nobody() {
        let closer = Closer::default();
        let (socket, _far) = lingering();
        drop(PeerFd::new(socket, closer.clone()));
        // The thread does not block either.
        until(|| closer.waiting() == 0);
    }
}
