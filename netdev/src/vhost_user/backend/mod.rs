//! Backend: network device for a frontend, with queues and buffers in the frontend's memory.

mod pair;
mod session;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use tracing::debug;

use crate::peer::channel::{Channel, ChannelError};
use crate::peer::header::Header;
use crate::peer::meeting::Meeting;
use crate::vhost_user::inbound::hand_over;
use crate::vhost_user::offload::{self, End, HEADER_LEN, MRG_RXBUF};
use crate::vhost_user::outbound::{Distance, put_octets};
use crate::vhost_user::{
    CHECK_INTERVAL_NS, CONTROL_INTERVAL_NS, FRAME_LEN_MAX, MESSAGES_MAX, RingCounters,
    VhostUserConfig,
};
use crate::virtqueue::{CHAIN_LEN_MAX, Chain, Direction, Run};
use crate::{Capabilities, Device, OpenError, Refusals, RxFrame, TRACE, TransmitError, TxFrame};
use pair::{Pair, SharedPair};
use session::Session;

/// One virtqueue pair of a backend. Transmitted frames are copied once into the frontend's buffers.
/// Heads of received frames are copied, so that the frontend cannot change them.
// The alignment keeps two devices out of each other's cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub struct VhostUser {
    shared: Arc<SharedPair>,
    /// The device of the first virtqueue pair serves it for all of them.
    control: Option<Control>,
    capabilities: Capabilities,
    is_up: bool,
    control_due_ns: u64,
    /// [`readiness`](Device::readiness) has asked the frontend for events.
    armed: Cell<bool>,
    distance: Distance,
    /// Number of waiting chains when the last frame did not fit.
    starved: Option<u16>,
    /// Most chains that a frame has taken since the link came up.
    chains_per_frame: usize,
    stage: Box<[u8]>,
    runs: Vec<Run>,
    heads: Vec<(u16, u32)>,
}

impl VhostUser {
    /// Opens a backend of one virtqueue pair. An [`OpenError`] names a remedy.
    pub fn open(config: &VhostUserConfig) -> Result<Self, OpenError> {
        let mut queues = Self::open_queues(config, 1)?;
        Ok(queues.pop().expect("one was asked for"))
    }

    /// Opens a backend of several virtqueue pairs, each for a thread of its own. The first device
    /// serves the control socket: dropping it stops all devices. An [`OpenError`] names a remedy.
    pub fn open_queues(config: &VhostUserConfig, queues: usize) -> Result<Vec<Self>, OpenError> {
        config.check(queues)?;
        let failed = |source: io::Error| OpenError::Io {
            action: "make the events of a vhost-user device".to_owned(),
            source,
        };
        let pairs: Vec<_> =
            (0..queues).map(|_| SharedPair::new()).collect::<io::Result<_>>().map_err(failed)?;
        let meeting = Meeting::open(&config.path, config.listens, config.peer)?;
        let mut control =
            Control { meeting, pairs: pairs.clone(), config: config.clone(), peer: None };
        control.watch_meeting().map_err(failed)?;
        if !config.listens {
            control.connect().map_err(|error| {
                let remedy = "start the process that listens there first";
                OpenError::no_peer(&config.path, &error, Some(&error), remedy)
            })?;
        }
        debug!(target: TRACE, path = %config.path.display(), queues, "vhost-user backend opened");
        let mut control = Some(control);
        Ok(pairs.into_iter().map(|shared| Self::on(shared, control.take(), config.mtu)).collect())
    }

    fn on(shared: Arc<SharedPair>, control: Option<Control>, mtu: usize) -> Self {
        Self {
            shared,
            control,
            capabilities: offload::capabilities(End::Backend, 0, mtu),
            is_up: false,
            control_due_ns: 0,
            armed: Cell::new(false),
            distance: Distance::default(),
            starved: None,
            chains_per_frame: 1,
            stage: vec![0; FRAME_LEN_MAX].into_boxed_slice(),
            runs: Vec::with_capacity(CHAIN_LEN_MAX),
            heads: Vec::with_capacity(CHAIN_LEN_MAX),
        }
    }

    /// Returns the counters of this virtqueue pair.
    #[must_use]
    pub fn counters(&self) -> RingCounters {
        let peers_refused = self.control.as_ref().map_or(0, |control| control.meeting.refused());
        RingCounters { peers_refused, ..self.shared.lock().counters }
    }

    #[cfg(test)]
    pub(super) fn be_stuck(&mut self) {
        self.control.as_mut().expect("the first device").meeting.be_stuck();
    }

    /// Polls the socket if that is due or the socket is readable.
    fn look_at_control(&mut self, now_ns: u64) {
        let mut is_due = now_ns >= self.control_due_ns;
        if self.armed.replace(false) {
            is_due |= self.shared.watch.take();
            let pair = self.shared.lock();
            for vring in [&pair.to_driver, &pair.from_driver] {
                if let Some(queue) = &vring.queue {
                    queue.suppress(&pair.table);
                }
            }
        }
        if is_due && let Some(control) = &mut self.control {
            self.control_due_ns = now_ns.saturating_add(CONTROL_INTERVAL_NS);
            control.turn();
        }
    }
}

impl Device for VhostUser {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        self.look_at_control(now_ns);
        let Self { shared, stage, runs, .. } = self;
        let mut pair = shared.lock();
        let mtu = self.capabilities.mtu;
        self.capabilities = offload::capabilities(End::Backend, pair.features, mtu);
        self.is_up = pair.is_up();
        if !self.is_up {
            self.chains_per_frame = 1;
        }
        let mut count = 0;
        while count < burst {
            // vhost-user.rst, "Ring states": of a queue that is started but disabled, a network
            // device "must process and discard any TX packets".
            let taken = if self.is_up {
                take_frame(&mut pair, stage, runs, sink)
            } else {
                discard_frame(&mut pair, runs)
            };
            if taken.is_none() {
                break;
            }
            count += 1;
        }
        let Pair { table, from_driver, counters, .. } = &mut *pair;
        if let Some(queue) = &mut from_driver.queue
            && queue.publish(table)
        {
            from_driver.tell();
            counters.events_sent += 1;
        }
        count
    }

    fn transmit(&mut self, _now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        let Self { shared, runs, heads, distance, .. } = self;
        let mut pair = shared.lock();
        if !pair.is_up() {
            return Err(TransmitError::LinkDown);
        }
        self.capabilities.check(frame)?;
        let header = offload::encode(End::Backend, pair.features, frame)?;
        match put_frame(&mut pair, header, frame, runs, heads, distance) {
            Err(TransmitError::Full) => {
                let Pair { table, to_driver, .. } = &mut *pair;
                let waiting = to_driver.queue.as_mut().map(|queue| queue.waiting(table));
                self.starved = waiting.and_then(Result::ok);
                Err(TransmitError::Full)
            }
            outcome => {
                self.starved = None;
                self.chains_per_frame = self.chains_per_frame.max(heads.len());
                outcome
            }
        }
    }

    fn transmit_room(&self) -> usize {
        let mut pair = self.shared.lock();
        let Pair { table, to_driver, .. } = &mut *pair;
        let Some(queue) = &mut to_driver.queue else { return 1 };
        match queue.waiting(table) {
            Ok(waiting) if self.starved == Some(waiting) || waiting == 0 => 0,
            // A Linux guest's buffers hold at most a page, a urnic frontend's hold any frame.
            Ok(waiting) => (usize::from(waiting) / self.chains_per_frame).max(1),
            // The fault is reported when the queue is used.
            Err(_) => 1,
        }
    }

    fn flush(&mut self, _now_ns: u64) {
        let mut pair = self.shared.lock();
        let Pair { table, to_driver, counters, .. } = &mut *pair;
        if let Some(queue) = &mut to_driver.queue
            && queue.publish(table)
        {
            to_driver.tell();
            counters.events_sent += 1;
        }
    }

    fn link_up(&self) -> bool {
        self.is_up
    }

    fn check_interval_ns(&self) -> Option<u64> {
        Some(CHECK_INTERVAL_NS)
    }

    fn refusals(&self) -> Refusals {
        self.counters().refusals()
    }

    /// The caller is about to sleep: asks the frontend for an event.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        let mut pair = self.shared.lock();
        let has_no_kick = pair.has_no_kick();
        let Pair { table, to_driver, from_driver, .. } = &mut *pair;
        if let (Some(to_driver), Some(from_driver)) = (&mut to_driver.queue, &from_driver.queue) {
            if has_no_kick {
                return None;
            }
            self.armed.set(true);
            let waits = match to_driver.waiting(table) {
                Ok(0) => to_driver.arm(table, 0),
                Ok(waiting) if self.starved == Some(waiting) => to_driver.arm(table, waiting),
                _ => false,
            };
            if from_driver.arm(table, 0) || waits {
                return Some(self.shared.watch.always());
            }
        }
        self.armed.set(true);
        Some(self.shared.watch.as_fd())
    }
}

/// Takes the next chain of the driver, with its buffers in `runs`.
#[inline]
fn take_chain(pair: &mut Pair, runs: &mut Vec<Run>) -> Option<Chain> {
    let queue = pair.from_driver.queue.as_mut()?;
    runs.clear();
    match queue.take(&pair.table, Direction::ToDevice, runs) {
        Ok(chain) => chain,
        Err(fault) => {
            pair.end(true, fault);
            None
        }
    }
}

fn discard_frame(pair: &mut Pair, runs: &mut Vec<Run>) -> Option<()> {
    let Chain { head, .. } = take_chain(pair, runs)?;
    let Pair { table, from_driver, counters, .. } = pair;
    from_driver.queue.as_mut()?.give_back(table, head, 0);
    counters.chains_discarded += 1;
    Some(())
}

/// Hands the driver's next frame to `sink`, and returns its chain. An invalid chain or frame is
/// refused, but counts towards the burst, since a driver can make any number of them available.
fn take_frame(
    pair: &mut Pair,
    stage: &mut [u8],
    runs: &mut Vec<Run>,
    sink: &mut dyn FnMut(RxFrame<'_>),
) -> Option<()> {
    let Chain { head, len } = take_chain(pair, runs)?;
    let Pair { table, from_driver, counters, .. } = pair;
    match len {
        Err(fault) => {
            counters.chains_refused += 1;
            note(counters.chains_refused, &fault);
        }
        Ok(len) if len <= HEADER_LEN || len > stage.len() => {
            counters.frames_refused += 1;
            note(counters.frames_refused, &"a frame of invalid length");
        }
        Ok(len) => hand_over(table, runs, len, stage, counters, sink),
    }
    from_driver.queue.as_mut()?.give_back(table, head, 0);
    Some(())
}

fn put_frame(
    pair: &mut Pair,
    mut header: [u8; HEADER_LEN],
    frame: &TxFrame<'_>,
    runs: &mut Vec<Run>,
    heads: &mut Vec<(u16, u32)>,
    distance: &mut Distance,
) -> Result<(), TransmitError> {
    let Pair { table, to_driver, counters, features, .. } = pair;
    let Some(queue) = to_driver.queue.as_mut() else { return Err(TransmitError::LinkDown) };
    runs.clear();
    heads.clear();
    let frame_len = frame.len();
    let mut left = HEADER_LEN + frame_len;
    while left > 0 {
        if !heads.is_empty() && *features & MRG_RXBUF == 0 {
            // Without merging, each buffer must have room for any frame.
            queue.put_back(1);
            return Err(TransmitError::TooLong);
        }
        match queue.take(table, Direction::ToDriver, runs) {
            Err(fault) => {
                pair.end(false, fault);
                return Err(TransmitError::LinkDown);
            }
            Ok(None) => {
                queue.put_back(u16::try_from(heads.len()).expect("no more than the ring has"));
                return Err(TransmitError::Full);
            }
            Ok(Some(Chain { head, len: Ok(len) })) if len > 0 && heads.len() < CHAIN_LEN_MAX => {
                let now = len.min(left);
                heads.push((head, u32::try_from(now).expect("no more than a frame")));
                left -= now;
            }
            // Too many runs, or invalid buffers: return the chains of the frame; the frame is lost.
            Ok(Some(Chain { head, len })) => {
                counters.chains_refused += 1;
                if let Err(fault) = len {
                    note(counters.chains_refused, &fault);
                }
                heads.push((head, 0));
                for (head, _) in heads.drain(..) {
                    queue.give_back(table, head, 0);
                }
                return Err(TransmitError::Refused);
            }
        }
    }
    let count = u16::try_from(heads.len()).expect("no more than the ring has");
    header[HEADER_LEN - 2..].copy_from_slice(&count.to_le_bytes());
    put_octets(table, runs, &header, frame, frame_len, distance);
    for (head, len) in &*heads {
        queue.give_back(table, *head, *len);
    }
    counters.frames_tx += 1;
    counters.copied_tx_bytes += frame_len as u64;
    Ok(())
}

/// Traces refusals, which a peer can cause at any rate, at powers of two only.
#[cold]
fn note(count: u64, what: &dyn std::fmt::Display) {
    if count.is_power_of_two() {
        debug!(target: TRACE, count, %what, "refused a frontend's frame or chain");
    }
}

#[derive(Debug)]
struct Control {
    /// Declared before `meeting`, so that they are dropped first.
    peer: Option<(Channel, Session)>,
    meeting: Meeting,
    pairs: Vec<Arc<SharedPair>>,
    config: VhostUserConfig,
}

impl Control {
    /// Wakes the first device when a frontend connects, unless none can be accepted now.
    fn watch_meeting(&self) -> io::Result<()> {
        self.pairs[0].watch.set_listener(self.meeting.readiness(), self.meeting.is_held())
    }

    fn connect(&mut self) -> io::Result<()> {
        let channel = self.meeting.try_meet()?;
        // One peer at a time: further peers wait and must not wake the device.
        if let Some(listener) = self.meeting.readiness() {
            self.pairs[0].watch.remove(listener);
        }
        self.pairs[0].watch.add_socket(channel.as_fd())?;
        let session = Session::new(&self.pairs, &self.config);
        self.peer = Some((channel, session));
        debug!(target: TRACE, path = %self.config.path.display(), "frontend connected");
        Ok(())
    }

    fn turn(&mut self) {
        if self.peer.is_none() && self.connect().is_err() {
            let _woken_later = self.watch_meeting();
            return;
        }
        let Some((channel, session)) = &mut self.peer else { return };
        if let Err(error) = serve(channel, session) {
            debug!(target: TRACE, %error, "frontend disconnected");
            // Another thread may close the socket much later: stop watching it now.
            self.pairs[0].watch.remove(channel.as_fd());
            self.peer = None;
            let _woken_later = self.watch_meeting();
        }
    }
}

/// Reasons why a session with a frontend ends.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Refused(#[from] session::Refusal),
}

fn serve(channel: &mut Channel, session: &mut Session) -> Result<(), SessionError> {
    for _ in 0..MESSAGES_MAX {
        let Some(message) = channel.receive()? else { break };
        let request = message.header.request;
        if let Some(body) = session.handle(message)?.body() {
            channel.send(Header::of_reply(request, 8), &body, &[])?;
        }
    }
    Ok(())
}
