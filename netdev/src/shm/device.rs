//! The device, and how it connects to its peer.

use std::cell::Cell;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::debug;

use crate::peer::channel::Channel;
use crate::peer::meeting::Meeting;
use crate::peer::tell::Watch;
use crate::published::{Attached, Publisher};
use crate::shm::limits::{CHECK_INTERVAL_NS, CONTROL_INTERVAL_NS, MTU, RUNS_MAX};
use crate::shm::session::{Session, SessionError};
use crate::shm::{ShmConfig, ShmCounters};
use crate::sys::published;
use crate::{
    Capabilities, Device, Medium, OpenError, Refusals, RxFrame, TRACE, TransmitError, TxFrame, vnet,
};

/// One end of a link in shared memory. The peer reads runs of at least 256 bytes in memory of the
/// device's [`Publisher`] in place, after [`transmit`](Device::transmit) has returned: safe for a
/// transport that completes a request only after the peer has acknowledged its bytes; see
/// [`ShmCounters::frames_tx_referred_unread`].
#[derive(Debug)]
pub struct Shm {
    /// Declared before `meeting`, so that it is dropped first.
    session: Option<Session>,
    meeting: Meeting,
    config: ShmConfig,
    publisher: Publisher,
    _attached: Attached,
    watch: Watch,
    is_up: bool,
    control_due_ns: u64,
    /// [`readiness`](Device::readiness) has asked the peer for wake-ups.
    armed: Cell<bool>,
    counters: ShmCounters,
}

impl Shm {
    /// Opens one end. An end that connects requires a listening peer, and reconnects if the peer
    /// closes. An end that listens accepts one peer at a time. An [`OpenError`] names a remedy.
    pub fn open(config: &ShmConfig, publisher: &Publisher) -> Result<Self, OpenError> {
        OpenError::check_range("MTU of an shm device", config.mtu, MTU)?;
        let failed = |action: &str| {
            let action = action.to_owned();
            |source: io::Error| OpenError::Io { action, source }
        };
        // Checks this now: a session creates its outbox later, where no caller receives the error.
        published::memory(c"urnic shm", 1).map_err(|error| match error.kind() {
            io::ErrorKind::Unsupported => OpenError::Unavailable {
                what: "memory that a peer can only read (F_SEAL_FUTURE_WRITE)",
                remedy: "use Linux 5.1 or later".to_owned(),
            },
            _ => failed("make shared memory")(error),
        })?;
        let mut device = Self {
            session: None,
            meeting: Meeting::open(&config.path, config.listens, config.peer)?,
            config: config.clone(),
            _attached: publisher.attach(),
            publisher: publisher.clone(),
            watch: Watch::new().map_err(failed("make the events of an shm device"))?,
            is_up: false,
            control_due_ns: 0,
            armed: Cell::new(false),
            counters: ShmCounters::default(),
        };
        device.watch_meeting().map_err(failed("make the events of an shm device"))?;
        if !config.listens {
            device.agree_now().map_err(|error| {
                let remedy = "start the end that listens there first (one of the two has the option listen), with the same version and MTU";
                OpenError::no_peer(&config.path, &error, error.io(), remedy)
            })?;
        }
        debug!(target: TRACE, path = %config.path.display(), "shm device opened");
        Ok(device)
    }

    /// Returns the counters of the device.
    #[must_use]
    pub fn counters(&self) -> ShmCounters {
        let referred = self.session.as_ref().map_or(0, Session::referred);
        ShmCounters {
            frames_tx_referred_unread: referred as u64,
            peers_refused: self.meeting.refused(),
            ..self.counters
        }
    }

    #[cfg(test)]
    pub(super) fn be_stuck(&mut self) {
        self.meeting.be_stuck();
    }

    /// Wakes the device when a peer connects, unless none can be accepted now.
    fn watch_meeting(&self) -> io::Result<()> {
        self.watch.set_listener(self.meeting.readiness(), self.meeting.is_held())
    }

    fn connect(&mut self, channel: Channel) -> Result<(), SessionError> {
        let mtu = u32::try_from(self.config.mtu).expect("checked when it was opened");
        let session = Session::begin(channel, &self.publisher, mtu)?;
        // One peer at a time: further peers wait and must not wake the device.
        if let Some(listener) = self.meeting.readiness() {
            self.watch.remove(listener);
        }
        self.watch.add_socket(session.as_fd())?;
        self.session = Some(session);
        debug!(target: TRACE, path = %self.config.path.display(), "connected to a peer");
        Ok(())
    }

    /// Waits for the peer's Hello, at most 5 s.
    fn agree_now(&mut self) -> Result<(), SessionError> {
        let channel = self.meeting.try_meet()?;
        self.connect(channel)?;
        for _ in 0..AGREE_TURNS {
            let Self { session: Some(session), counters, .. } = self else { break };
            session.turn(counters)?;
            if session.is_up() {
                self.is_up = true;
                return Ok(());
            }
            let mut descriptors = [PollFd::new(session, PollFlags::IN)];
            let _interrupted = poll(&mut descriptors, Some(&AGREE_TURN));
        }
        Err(io::Error::from(io::ErrorKind::TimedOut).into())
    }

    fn turn(&mut self) {
        let outcome = match &mut self.session {
            Some(session) => session.turn(&mut self.counters),
            None => match self.meeting.try_meet() {
                Ok(channel) => self.connect(channel),
                // A peer may connect later.
                Err(_) => {
                    let _woken_later = self.watch_meeting();
                    return;
                }
            },
        };
        if let Err(error) = outcome {
            self.end(&error);
        }
    }

    #[cold]
    fn end(&mut self, error: &SessionError) {
        if let Some(session) = self.session.take() {
            // Another thread may close the socket much later: stop watching it now.
            self.watch.remove(session.as_fd());
        }
        self.counters.sessions_ended += 1;
        let count = self.counters.sessions_ended;
        // An end that connects may reconnect to the same faulty peer endlessly.
        if self.is_up || count.is_power_of_two() {
            debug!(target: TRACE, %error, count, "disconnected from a peer");
        }
        self.is_up = false;
        let _woken_later = self.watch_meeting();
    }
}

impl Device for Shm {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            medium: Medium::Ethernet,
            mtu: self.config.mtu,
            segmentation_len_max: NonZeroUsize::new(
                vnet::SUPER_FRAME_LEN_MAX - vnet::HEADERS_LEN_MAX,
            ),
            tx_checksum: true,
            // The head may need a run, too.
            fragments_max: RUNS_MAX - 1,
            gather_len_min: 0,
            tx_digest: false,
        }
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        if self.armed.replace(false) || now_ns >= self.control_due_ns {
            let sessions_ended = self.counters.sessions_ended;
            self.turn();
            // Creating a session takes memory and time. After one has failed, wait longer.
            let is_useless = self.counters.sessions_ended != sessions_ended;
            let pause = if is_useless { CHECK_INTERVAL_NS } else { CONTROL_INTERVAL_NS };
            self.control_due_ns = now_ns.saturating_add(pause);
        }
        let Self { session: Some(session), counters, .. } = self else {
            self.is_up = false;
            return 0;
        };
        let mut count = 0;
        let outcome = session.receive(burst, counters, &mut |frame| {
            count += 1;
            sink(frame);
        });
        match outcome {
            Ok(count) => {
                self.is_up = session.is_up();
                count
            }
            Err(error) => {
                self.end(&error);
                count
            }
        }
    }

    fn transmit(&mut self, _now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        let Some(session) = &mut self.session else { return Err(TransmitError::LinkDown) };
        if !session.is_up() {
            return Err(TransmitError::LinkDown);
        }
        self.capabilities().check(frame)?;
        let Some(session) = &mut self.session else { return Err(TransmitError::LinkDown) };
        session.transmit(frame, &mut self.counters)
    }

    fn transmit_room(&self) -> usize {
        self.session.as_ref().map_or(1, Session::room)
    }

    fn flush(&mut self, _now_ns: u64) {
        if let Some(session) = &mut self.session {
            session.flush(&mut self.counters);
        }
    }

    fn link_up(&self) -> bool {
        self.is_up
    }

    fn check_interval_ns(&self) -> Option<u64> {
        Some(CHECK_INTERVAL_NS)
    }

    fn refusals(&self) -> Refusals {
        let counters = self.counters();
        Refusals {
            peers: counters.peers_refused,
            regions: counters.regions_refused,
            frames: counters.frames_refused,
            sessions_ended: counters.sessions_ended,
        }
    }

    /// The caller is about to sleep.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.armed.set(true);
        if self.session.as_ref().is_some_and(Session::arm) {
            return Some(self.watch.always());
        }
        Some(self.watch.as_fd())
    }
}

/// Polls for the peer's Hello, and the longest time of each: 5 s in total.
const AGREE_TURNS: usize = 500;
const AGREE_TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
