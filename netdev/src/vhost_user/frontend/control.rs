//! Control socket of a frontend: finds a backend, and handles its messages.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::debug;

use super::pair::SharedPair;
use super::session::{Session, SessionError};
use crate::peer::meeting::Meeting;
use crate::published::{Attached, Publisher};
use crate::vhost_user::VhostUserConfig;
use crate::{OpenError, TRACE};

#[derive(Debug)]
pub(super) struct Control {
    /// Declared before `meeting`, so that it is dropped first.
    session: Option<Session>,
    meeting: Meeting,
    pairs: Vec<Arc<SharedPair>>,
    config: VhostUserConfig,
    sharing: Option<(Publisher, Attached)>,
}

impl Control {
    /// Creates the control socket, without a backend.
    pub(super) fn open(
        config: &VhostUserConfig,
        pairs: &[Arc<SharedPair>],
        publisher: Option<&Publisher>,
    ) -> Result<Self, OpenError> {
        Ok(Self {
            session: None,
            meeting: Meeting::open(&config.path, config.listens, config.peer)?,
            pairs: pairs.to_vec(),
            config: config.clone(),
            sharing: publisher.map(|publisher| (publisher.clone(), publisher.attach())),
        })
    }

    #[cfg(test)]
    pub(super) fn be_stuck(&mut self) {
        self.meeting.be_stuck();
    }

    /// Wakes the first device when a backend connects, unless none can be accepted now.
    pub(super) fn watch_meeting(&self) -> io::Result<()> {
        self.pairs[0].watch.set_listener(self.meeting.readiness(), self.meeting.is_held())
    }

    fn connect(&mut self) -> Result<(), SessionError> {
        let channel = self.meeting.try_meet()?;
        if let Some(listener) = self.meeting.readiness() {
            self.pairs[0].watch.remove(listener);
        }
        let publisher = self.sharing.as_ref().map(|(publisher, _)| publisher);
        let offloads = self.config.offloads;
        let session = Session::begin(channel, &self.pairs, offloads, publisher)?;
        self.pairs[0].watch.add_socket(session.as_fd())?;
        self.session = Some(session);
        debug!(target: TRACE, path = %self.config.path.display(), "connected to a backend");
        Ok(())
    }

    /// Waits until the session's set-up is complete, at most 5 s.
    pub(super) fn agree_now(&mut self) -> Result<(), SessionError> {
        self.connect()?;
        let Some(session) = &mut self.session else { return Err(SessionError::UnexpectedAnswer) };
        for _ in 0..AGREE_TURNS {
            session.turn()?;
            if session.is_running() {
                return Ok(());
            }
            let mut descriptors = [PollFd::new(session, PollFlags::IN)];
            let _interrupted = poll(&mut descriptors, Some(&AGREE_TURN));
        }
        Err(io::Error::from(io::ErrorKind::TimedOut).into())
    }

    pub(super) const fn peers_refused(&self) -> u64 {
        self.meeting.refused()
    }

    /// Returns true if memory was published or withdrawn since the last turn of the session.
    #[inline]
    pub(super) fn is_outdated(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_outdated)
    }

    pub(super) fn turn(&mut self) {
        let outcome = match &mut self.session {
            Some(session) => session.turn(),
            None => match self.connect() {
                // A backend may connect later.
                Err(SessionError::Io(_)) => {
                    let _woken_later = self.watch_meeting();
                    return;
                }
                outcome => outcome,
            },
        };
        if let Err(error) = outcome {
            debug!(target: TRACE, %error, "disconnected from a backend");
            if let Some(session) = self.session.take() {
                // Another thread may close the socket much later: stop watching it now.
                self.pairs[0].watch.remove(session.as_fd());
            }
            let _woken_later = self.watch_meeting();
        }
    }
}

/// Polls for the end of the set-up, and the longest time of each: 5 s in total.
const AGREE_TURNS: usize = 500;
const AGREE_TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
