//! Session with a peer: message exchange and the outboxes of both ends (protocol: `shm`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use tracing::debug;

use crate::TRACE;
use crate::peer::channel::{self, Channel, ChannelError};
use crate::published::Publisher;
use crate::shm::ShmCounters;
use crate::shm::announced::{Announced, Peer, announced};
use crate::shm::inbox::{Inbox, Refusal, RingFault};
use crate::shm::layout::{OUTBOX_LEN, PeerMemory};
use crate::shm::limits::{MAPPED_IN_ONE_GO, MESSAGES_MAX, REGIONS_MAX};
use crate::shm::message::{Message, ParseError};
use crate::shm::outbox::{ConsumedTooMuch, Outbox};
use crate::shm::regions::UsedNumber;
use crate::sys::read_mapping::{ReadError, ReadMapping};
use crate::{RxFrame, TransmitError, TxFrame};

#[derive(Debug)]
pub(super) struct Session {
    channel: Channel,
    mtu: u32,
    outbox: Outbox,
    announced: Announced,
    inbox: Option<Inbox>,
    /// Frames that the peer published before closing the socket are still received.
    is_closed: bool,
    /// Error found by `transmit` or `flush`; the next `receive` returns it.
    fault: Option<SessionError>,
}

/// Reasons why a session ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Message(#[from] ParseError),
    #[error("it sends Hello twice, or another message first")]
    Order,
    #[error("its MTU is {theirs}, and {ours} here: give both ends the same")]
    Mtu { theirs: u32, ours: u32 },
    #[error("its outbox is unusable: {0}")]
    Outbox(#[source] ReadError),
    #[error(transparent)]
    Number(#[from] UsedNumber),
    #[error(transparent)]
    Ring(#[from] RingFault),
    #[error(transparent)]
    Consumed(#[from] ConsumedTooMuch),
    #[error("the peer is gone")]
    Gone,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl SessionError {
    pub(super) const fn io(&self) -> Option<&io::Error> {
        match self {
            Self::Io(error) | Self::Channel(ChannelError::Io(error)) => Some(error),
            _ => None,
        }
    }
}

impl Session {
    pub(super) fn begin(
        channel: Channel,
        publisher: &Publisher,
        mtu: u32,
    ) -> Result<Self, SessionError> {
        let outbox = Outbox::new(publisher)?;
        let hello = Message::Hello { mtu, outbox_len: OUTBOX_LEN as u64 };
        hello.send(&channel, &[outbox.file.as_fd()])?;
        let announced = announced(publisher);
        Ok(Self { channel, mtu, outbox, announced, inbox: None, is_closed: false, fault: None })
    }

    pub(super) const fn is_up(&self) -> bool {
        self.inbox.is_some() && !self.is_closed && self.fault.is_none()
    }

    /// Handles the peer's messages, and sends due announcements.
    pub(super) fn turn(&mut self, counters: &mut ShmCounters) -> Result<(), SessionError> {
        self.listen(counters)?;
        if let Some(inbox) = &self.inbox {
            self.outbox.reap(&inbox.memory)?;
        }
        self.announce()
    }

    /// At most [`MESSAGES_MAX`]. Returns their number.
    fn listen(&mut self, counters: &mut ShmCounters) -> Result<usize, SessionError> {
        let (mut count, mut mapped) = (0, 0);
        while !self.is_closed && count < MESSAGES_MAX && mapped <= MAPPED_IN_ONE_GO as u64 {
            match self.channel.receive() {
                Ok(None) => break,
                Ok(Some(message)) => {
                    count += 1;
                    mapped += self.handle(&message, counters)?;
                }
                Err(error) if error.is_closed() => {
                    self.is_closed = true;
                    self.inbox.as_mut().ok_or(SessionError::Gone)?.close()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count)
    }

    fn handle(
        &mut self,
        message: &channel::Message,
        counters: &mut ShmCounters,
    ) -> Result<u64, SessionError> {
        let channel::Message { header, body, descriptors } = message;
        let parsed = Message::parse(*header, body, descriptors.len())?;
        match (parsed, &mut self.inbox, &descriptors[..]) {
            (Message::Hello { mtu, outbox_len }, None, [file]) => {
                if mtu != self.mtu {
                    return Err(SessionError::Mtu { theirs: mtu, ours: self.mtu });
                }
                if outbox_len != OUTBOX_LEN as u64 {
                    return Err(SessionError::Outbox(ReadError::Length));
                }
                let mapping =
                    ReadMapping::of(file.as_fd(), OUTBOX_LEN).map_err(SessionError::Outbox)?;
                self.inbox = Some(Inbox::new(PeerMemory::new(mapping)));
                Ok(0)
            }
            (Message::Publish { number, len }, Some(inbox), [file]) => {
                inbox.regions.number(number)?;
                inbox.regions.settle(inbox.next());
                if let Err(why) = inbox.regions.map(file.as_fd(), len) {
                    counters.regions_refused += 1;
                    note(counters.regions_refused, &why);
                    Message::Refuse { number }.send(&self.channel, &[])?;
                    return Ok(0);
                }
                Ok(len)
            }
            (Message::Withdraw { number, position }, Some(inbox), _) => {
                inbox.regions.withdraw(number, position);
                inbox.regions.settle(inbox.next());
                Ok(0)
            }
            (Message::Refuse { number }, Some(_), _) => {
                let (announced, mut peer) = self.announced();
                announced.refuse(number, &mut peer);
                Ok(0)
            }
            (Message::Wake, Some(_), _) => Ok(0),
            _ => Err(SessionError::Order),
        }
    }

    fn announce(&mut self) -> Result<(), SessionError> {
        if !self.is_up() {
            return Ok(());
        }
        let (announced, mut peer) = self.announced();
        match announced.turn(&mut peer) {
            // The next `listen` finds the closed socket, and lets the rest of the ring be received.
            Err(error) if error.is_closed() => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    /// Returns the announced regions, and the peer that knows them.
    const fn announced(&mut self) -> (&mut Announced, Peer<'_>) {
        let Self { channel, announced, outbox, .. } = self;
        let (written, consumed) = (outbox.written(), outbox.consumed());
        (announced, Peer { channel, readable: &mut outbox.readable, written, consumed })
    }

    /// Returns the number of frames read, including refused ones.
    pub(super) fn receive(
        &mut self,
        burst: usize,
        counters: &mut ShmCounters,
        sink: &mut dyn FnMut(RxFrame<'_>),
    ) -> Result<usize, SessionError> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let mut count = 0;
        // Polls of the socket left for frames whose region is unknown.
        let mut patience = PATIENCE;
        while count < burst {
            let Some(inbox) = &mut self.inbox else { return Ok(0) };
            let Some(header) = inbox.read()? else { break };
            if let Err(why) = inbox.hand_over(header, counters, sink) {
                // The announcement of the region may still be in the socket.
                if why == Refusal::Region && patience > 0 {
                    patience -= 1;
                    if self.listen(counters)? > 0 {
                        continue;
                    }
                }
                counters.frames_refused += 1;
                note(counters.frames_refused, &why);
            }
            if let Some(inbox) = &mut self.inbox {
                inbox.advance(header);
            }
            count += 1;
        }
        let Some(inbox) = &mut self.inbox else { return Ok(count) };
        if inbox.publish(&self.outbox.memory) {
            wake(&self.channel, counters);
        }
        self.outbox.reap(&inbox.memory)?;
        if inbox.is_drained() { Err(SessionError::Gone) } else { Ok(count) }
    }

    /// Puts a frame into the ring. The peer can read it after [`flush`](Self::flush).
    #[inline]
    pub(super) fn transmit(
        &mut self,
        frame: &TxFrame<'_>,
        counters: &mut ShmCounters,
    ) -> Result<(), TransmitError> {
        if !self.is_up() {
            return Err(TransmitError::LinkDown);
        }
        if !self.outbox.readable.is_current()
            && let Err(error) = self.announce()
        {
            return Err(self.end_later(error));
        }
        let Self { outbox, inbox: Some(inbox), .. } = self else {
            return Err(TransmitError::LinkDown);
        };
        if outbox.is_full()
            && let Err(error) = outbox.reap(&inbox.memory)
        {
            return Err(self.end_later(error.into()));
        }
        outbox.put(frame, counters)
    }

    /// Lets the peer read the frames in the ring. Wakes the peer if it asked for that.
    #[inline]
    pub(super) fn flush(&mut self, counters: &mut ShmCounters) {
        let Self { outbox, inbox: Some(inbox), channel, .. } = self else { return };
        if outbox.publish(&inbox.memory) {
            wake(channel, counters);
        }
        if let Err(error) = outbox.reap(&inbox.memory) {
            self.end_later(error.into());
        }
    }

    #[cold]
    fn end_later(&mut self, error: SessionError) -> TransmitError {
        self.fault = Some(error);
        TransmitError::LinkDown
    }

    pub(super) const fn referred(&self) -> usize {
        self.outbox.referred()
    }

    /// Returns the number of frames that certainly fit, or 1 if the link is down.
    pub(super) fn room(&self) -> usize {
        // The caller then calls `transmit`, which reports that the link is down.
        match &self.inbox {
            Some(inbox) if self.is_up() => self.outbox.room_now(&inbox.memory),
            _ => 1,
        }
    }

    /// Asks the peer for wake-ups. Returns true if the caller must not sleep: there is something to
    /// do.
    pub(super) fn arm(&self) -> bool {
        let Some(inbox) = &self.inbox else { return false };
        let (came, has_room) = (inbox.arm(&self.outbox.memory), self.outbox.arm(&inbox.memory));
        came || has_room || self.is_closed || self.fault.is_some()
    }
}

/// For frames whose region is unknown. Enough to handle the messages of a peer that publishes and
/// withdraws as many regions as it can.
const PATIENCE: usize = 4 * REGIONS_MAX / MESSAGES_MAX;

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Sends the wake-up on the non-blocking socket: the peer could make an `eventfd(2)` or a pipe
/// blocking, since both processes share the open file. If the socket is full, its unread messages
/// wake the peer.
#[cold]
fn wake(channel: &Channel, counters: &mut ShmCounters) {
    counters.events_sent += 1;
    let _awake_or_gone = Message::Wake.send(channel, &[]);
}

/// Traces refusals, which a peer can cause at any rate, at powers of two only.
#[cold]
pub(super) fn note(count: u64, what: &dyn std::fmt::Display) {
    if count.is_power_of_two() {
        debug!(target: TRACE, count, %what, "refused a peer's frame or region");
    }
}
