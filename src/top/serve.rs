//! A shown endpoint: its socket, and the thread that answers there.

use std::fs::{self, Permissions};
use std::io;
use std::mem;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tracing::debug;

use super::audience::Audience;
use super::folder::{folder, make};
use super::json::line;
use super::limits::{ANSWER_AGE_MAX, WORKER_TIME_MAX};
use crate::clock::{monotonic_now, time_left};
use crate::error::Error;
use crate::handle::endpoint::Endpoint;
use crate::handle::watch::Watch;
use crate::mail::wakeup::Wakeup;
use urnic_engine::time::Instant;
use urnic_netdev::local_peer::check_peer;

/// An endpoint that is shown to other processes of its user, until this is dropped.
#[derive(Debug)]
pub struct Shown {
    path: PathBuf,
    stop: Arc<Wakeup>,
    thread: Option<JoinHandle<()>>,
    /// A child of this process has no such thread and does not own the socket.
    process: u32,
}

impl Shown {
    /// Shows the counters of `endpoint` in [`folder`].
    ///
    /// # Errors
    /// [`Error::Top`] if the folder or the socket cannot be created, [`Error::System`].
    pub fn start(endpoint: &Endpoint) -> Result<Self, Error> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let name = if number == 0 { format!("{process}") } else { format!("{process}.{number}") };
        let folder = folder();
        let failed = |error: &io::Error| failed(&folder, error);
        make(&folder).map_err(|error| failed(&error))?;
        let path = folder.join(name);
        let listener = listen(&path).map_err(|error| failed(&error))?;
        let stop = Wakeup::new()?;
        let mut room = Room {
            listener,
            stop: Arc::clone(&stop),
            watch: endpoint.watch(),
            begin: monotonic_now(),
            last: None,
            audience: Audience::default(),
            is_resting: false,
        };
        let mut shown = Self { path, stop, thread: None, process };
        let thread = thread::Builder::new().name("urnic-top".to_owned()).spawn(move || room.run());
        shown.thread = Some(thread.map_err(|error| failed(&error))?);
        Ok(shown)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if process::id() != self.process {
            return;
        }
        self.stop.ring();
        if let Some(thread) = mem::take(&mut self.thread) {
            // A thread that panicked has logged that itself.
            let _panicked = thread.join();
        }
        // An error is harmless: the file has been removed already.
        let _gone = fs::remove_file(&self.path);
    }
}

fn failed(folder: &Path, error: &io::Error) -> Error {
    Error::Top { folder: folder.to_owned(), reason: error.to_string() }
}

/// A socket listens before it gets its name: one that refuses belongs to a process that has ended.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let new =
        path.with_file_name(format!("new-{}", path.file_name().unwrap_or_default().display()));
    // An earlier process may have had this PID.
    for left_over in [&new, path] {
        match fs::remove_file(left_over) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let listener = UnixListener::bind(&new)?;
    listener.set_nonblocking(true)?;
    fs::set_permissions(&new, Permissions::from_mode(0o600))?;
    fs::rename(&new, path)?;
    Ok(listener)
}

struct Room {
    listener: UnixListener,
    stop: Arc<Wakeup>,
    watch: Watch,
    begin: Instant,
    /// The latest answer, and its time.
    last: Option<(Instant, Arc<str>)>,
    audience: Audience,
    /// No reader is admitted for a while.
    is_resting: bool,
}

impl Room {
    fn run(&mut self) {
        while self.wait() {
            self.is_resting = false;
            while !self.audience.is_full() {
                match self.listener.accept() {
                    Ok((stream, _)) => self.admit(stream),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        // Otherwise a waiting reader would be reported continuously.
                        self.is_resting = error.kind() != io::ErrorKind::WouldBlock;
                        break;
                    }
                }
            }
            self.audience.write(monotonic_now());
        }
    }

    fn admit(&mut self, stream: UnixStream) {
        // The folder keeps other users out, unless it was opened to them later.
        if check_peer(&stream, None).is_ok() {
            let answer = self.answer();
            self.audience.admit(monotonic_now(), stream, answer);
        }
    }

    /// Returns false if the thread must end.
    fn wait(&self) -> bool {
        let mut polled = vec![PollFd::new(&self.stop, PollFlags::IN)];
        if !self.audience.is_full() && !self.is_resting {
            polled.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        polled.extend(self.audience.streams().map(|one| PollFd::new(one, PollFlags::OUT)));
        let now = monotonic_now();
        let rest = self.is_resting.then(|| now + REST);
        let until = [rest, self.audience.deadline()].into_iter().flatten().min();
        let left = until.map(|until| time_left(now, until));
        match poll(&mut polled, left.as_ref()) {
            Ok(_) => polled[0].revents().is_empty(),
            Err(rustix::io::Errno::INTR) => true,
            Err(error) => {
                debug!(target: "urnic", %error, "the endpoint is no longer shown");
                false
            }
        }
    }

    fn answer(&mut self) -> Arc<str> {
        let now = monotonic_now();
        if let Some((made, answer)) = &self.last
            && now - *made < ANSWER_AGE_MAX
        {
            return Arc::clone(answer);
        }
        let seen = self.watch.look(WORKER_TIME_MAX);
        let now = monotonic_now();
        let answer: Arc<str> = line(&seen, now - self.begin).into();
        self.last = Some((now, Arc::clone(&answer)));
        answer
    }
}

/// Time without admissions after one has failed.
const REST: Duration = Duration::from_millis(100);
