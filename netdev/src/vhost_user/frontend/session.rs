//! Session of a frontend with a backend: negotiates features, hands over memory and queues. The
//! thread of the first device runs it ([`turn`](Session::turn)) and never blocks: the session sends
//! a request, and continues when the backend's answer arrives ([`Awaits`]).
//!
//! 1. `GET_FEATURES`. The backend must support Virtio 1.0.
//! 2. `GET_PROTOCOL_FEATURES` and `SET_PROTOCOL_FEATURES`, if the backend has protocol features.
//! 3. `GET_QUEUE_NUM`, if the backend has the protocol feature `MQ`.
//! 4. `GET_MAX_MEM_SLOTS`, if the frontend shares published memory.
//! 5. `SET_OWNER`, `SET_FEATURES` and `SET_MEM_TABLE`, then for each virtqueue its size, base,
//!    events and addresses, without waiting. Each pair gets its queues under its lock, and its
//!    device can send frames from then on.
//! 6. The session runs when the backend has acknowledged the memory, or at once without
//!    `REPLY_ACK`. From then on the only answers are those to `ADD_MEM_REG` ([`Announced`]).
//!
//! Racy cases:
//!
//! - *A device sends frames before the backend has set up its queue.* They wait in the queue.
//! - *The first `ADD_MEM_REG` is sent before the memory is acknowledged.* The backend answers in
//!   order, so the first answer is that to `SET_MEM_TABLE`.
//! - *The backend breaks a queue.* The queue's device, in its own thread, marks its pair as broken.
//!   The next `turn` ends the session.
//! - *The session ends while other devices send.* Its drop takes the queues from each pair under
//!   its lock. Those devices then report that the link is down.
//!
//! No loom model: the threads of this process share only what a pair's lock protects, and the other
//! process is not trusted to follow any order. `tests` plays backends, hostile ones too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use tracing::debug;

use super::announced::{Announced, Backend, announced};
use super::arena::{Arena, QUEUE_SIZE};
use super::pair::{Queues, SharedPair};
use super::request;
use crate::TRACE;
use crate::peer::channel::{Channel, ChannelError, Message};
use crate::published::Publisher;
use crate::published::announced::UnexpectedAnswer;
use crate::vhost_user::message::{
    MemoryRegion, PROTOCOL_CONFIGURE_MEM_SLOTS, PROTOCOL_MQ, PROTOCOL_REPLY_ACK, Request,
};
use crate::vhost_user::offload::{
    self, EVENT_INDEX, INDIRECT, MQ, MRG_RXBUF, OFFLOADS, PROTOCOL_FEATURES, VERSION_1,
};

#[derive(Debug)]
pub(super) struct Session {
    channel: Channel,
    pairs: Vec<Arc<SharedPair>>,
    wants: u64,
    features: u64,
    protocol: u64,
    publisher: Option<Publisher>,
    /// Regions announced to the backend. `None` until step 4, and if memory is not shared.
    announced: Option<Announced>,
    awaits: Awaits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    Features,
    ProtocolFeatures,
    QueueCount,
    SlotCount,
    Memory,
    /// Answers to `ADD_MEM_REG` only: the set-up is complete.
    Nothing,
}

/// Reasons why the session ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("it does not support Virtio 1.0 (features {0:#x})")]
    Legacy(u64),
    #[error("it has {0} queue pairs")]
    Queues(u64),
    #[error("it refuses the memory")]
    Memory,
    #[error("it does not accept memory to read in place while it runs")]
    Sharing,
    #[error("it sends an answer without a request")]
    UnexpectedAnswer,
    #[error("it broke a queue")]
    Broken,
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

    /// Returns the remedy, if nothing was negotiated.
    pub(super) const fn remedy(&self) -> &'static str {
        match self {
            Self::Queues(_) => "ask for at most that many, with queues=N",
            Self::Sharing => "leave share out, or use a backend of urnic",
            Self::Legacy(_) => "use a backend that supports Virtio 1.0",
            _ => "start the backend first (`--dev vhost-user:PATH,…`)",
        }
    }
}

impl Session {
    pub(super) fn begin(
        channel: Channel,
        pairs: &[Arc<SharedPair>],
        offloads: bool,
        publisher: Option<&Publisher>,
    ) -> Result<Self, SessionError> {
        let mut wants = VERSION_1 | PROTOCOL_FEATURES | MRG_RXBUF | EVENT_INDEX;
        if offloads {
            wants |= OFFLOADS;
        }
        if pairs.len() > 1 {
            wants |= MQ;
        }
        if publisher.is_some() {
            wants |= INDIRECT;
        }
        let session = Self {
            channel,
            pairs: pairs.to_vec(),
            wants,
            features: 0,
            protocol: 0,
            publisher: publisher.cloned(),
            announced: None,
            awaits: Awaits::Features,
        };
        session.ask(&Request::GetFeatures)?;
        Ok(session)
    }

    pub(super) fn is_running(&self) -> bool {
        self.awaits == Awaits::Nothing
    }

    pub(super) fn turn(&mut self) -> Result<(), SessionError> {
        if self.pairs.iter().any(|pair| pair.lock().is_broken) {
            return Err(SessionError::Broken);
        }
        while let Some(message) = self.channel.receive()? {
            self.handle(&message)?;
        }
        let Self { channel, pairs, announced: Some(announced), .. } = self else { return Ok(()) };
        Ok(announced.turn(&mut Backend { channel, pairs })?)
    }

    #[inline]
    pub(super) fn is_outdated(&self) -> bool {
        self.announced.as_ref().is_some_and(Announced::is_outdated)
    }

    fn handle(&mut self, message: &Message) -> Result<(), SessionError> {
        let word = message.body.as_slice().try_into().map(u64::from_ne_bytes);
        let (true, true, Ok(word)) =
            (message.header.is_reply(), message.header.request == self.awaits.request(), word)
        else {
            return Err(SessionError::UnexpectedAnswer);
        };
        match self.awaits {
            Awaits::Features => {
                if word & VERSION_1 == 0 {
                    return Err(SessionError::Legacy(word));
                }
                self.features = offload::consistent(word & self.wants);
                if word & PROTOCOL_FEATURES == 0 {
                    self.count_slots()
                } else {
                    self.awaits = Awaits::ProtocolFeatures;
                    self.ask(&Request::GetProtocolFeatures)
                }
            }
            Awaits::ProtocolFeatures => {
                let of_sharing =
                    self.publisher.as_ref().map_or(0, |_| PROTOCOL_CONFIGURE_MEM_SLOTS);
                self.protocol = word & (PROTOCOL_REPLY_ACK | PROTOCOL_MQ | of_sharing);
                self.say(&Request::SetProtocolFeatures(self.protocol))?;
                if self.protocol & PROTOCOL_MQ == 0 {
                    return self.count_slots();
                }
                self.awaits = Awaits::QueueCount;
                self.ask(&Request::GetQueueCount)
            }
            Awaits::QueueCount => {
                if self.pairs.len() > 1 && word < self.pairs.len() as u64 {
                    return Err(SessionError::Queues(word));
                }
                self.count_slots()
            }
            Awaits::SlotCount => {
                // One slot is taken by the memory of the queues.
                let slots = word.saturating_sub(1);
                self.announced =
                    self.publisher.as_ref().map(|publisher| announced(publisher, slots));
                self.agree()
            }
            Awaits::Memory if word == 0 => {
                self.awaits = Awaits::Nothing;
                Ok(())
            }
            Awaits::Memory => Err(SessionError::Memory),
            Awaits::Nothing => {
                if word != 0 {
                    debug!(target: TRACE, word, "a backend refused published memory: it is copied");
                }
                let Self { channel, pairs, announced, .. } = self;
                let announced = announced.as_mut().ok_or(SessionError::UnexpectedAnswer)?;
                let answered = announced.answer(word == 0, &mut Backend { channel, pairs });
                answered.map_err(|UnexpectedAnswer| SessionError::UnexpectedAnswer)
            }
        }
    }

    /// Asks for the number of memory regions that the backend accepts, if published memory is
    /// shared.
    fn count_slots(&mut self) -> Result<(), SessionError> {
        if self.publisher.is_none() {
            return self.agree();
        }
        let needs = PROTOCOL_CONFIGURE_MEM_SLOTS | PROTOCOL_REPLY_ACK;
        if self.protocol & needs != needs || self.features & INDIRECT == 0 {
            return Err(SessionError::Sharing);
        }
        self.awaits = Awaits::SlotCount;
        self.ask(&Request::GetMemorySlotsMax)
    }

    fn agree(&mut self) -> Result<(), SessionError> {
        if self.pairs.len() > 1 && (self.features & MQ == 0 || self.protocol & PROTOCOL_MQ == 0) {
            return Err(SessionError::Queues(1));
        }
        self.say(&Request::SetOwner)?;
        self.say(&Request::SetFeatures(self.features))?;
        let arena = Arena::new(self.pairs.len())?;
        let acknowledges = self.protocol & PROTOCOL_REPLY_ACK != 0;
        let table = Request::SetMemoryTable(vec![arena.region]);
        self.send(&table, acknowledges, &[arena.file.as_fd()])?;
        self.awaits = if acknowledges { Awaits::Memory } else { Awaits::Nothing };
        for (index, shared) in self.pairs.iter().enumerate() {
            let mut pair = shared.lock();
            shared.stop(&mut pair);
            let publisher = self.publisher.as_ref();
            let mut queues = Queues::new(&arena, &shared.watch, index, self.features, publisher)?;
            queues.to_driver.publish(&queues.table);
            self.hand_over(&queues, index)?;
            pair.queues = Some(queues);
        }
        let features = self.features;
        debug!(target: TRACE, features = format_args!("{features:#x}"), "features of a backend");
        Ok(())
    }

    fn hand_over(&self, queues: &Queues, pair: usize) -> Result<(), SessionError> {
        for (offset, vring) in [&queues.to_driver, &queues.from_driver].into_iter().enumerate() {
            let at = 2 * pair + offset;
            let index = u8::try_from(at).expect("at most 64 pairs");
            let has_descriptor = true;
            self.say(&Request::SetVringSize { index, size: QUEUE_SIZE })?;
            self.say(&Request::SetVringBase { index, base: 0 })?;
            let call = Request::SetVringCall { index, has_descriptor };
            self.send(&call, false, &[vring.call.as_fd()])?;
            self.say(&Request::SetVringAddresses { index, parts: Arena::parts(at) })?;
            let kick = Request::SetVringKick { index, has_descriptor };
            self.send(&kick, false, &[vring.kick.as_fd()])?;
        }
        if self.features & PROTOCOL_FEATURES != 0 {
            for offset in 0..2 {
                let index = u8::try_from(2 * pair + offset).expect("at most 64 pairs");
                self.say(&Request::SetVringEnable { index, enabled: true })?;
            }
        }
        Ok(())
    }

    fn ask(&self, request: &Request) -> Result<(), SessionError> {
        self.send(request, false, &[])
    }

    fn say(&self, request: &Request) -> Result<(), SessionError> {
        self.send(request, false, &[])
    }

    fn send(
        &self,
        request: &Request,
        needs_reply: bool,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), SessionError> {
        Ok(request::send(&self.channel, request, needs_reply, files)?)
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for shared in &self.pairs {
            let mut pair = shared.lock();
            shared.stop(&mut pair);
            pair.is_broken = false;
            pair.counters.sessions_ended += 1;
        }
    }
}

impl Awaits {
    fn request(self) -> u32 {
        let request = match self {
            Self::Features => Request::GetFeatures,
            Self::ProtocolFeatures => Request::GetProtocolFeatures,
            Self::QueueCount => Request::GetQueueCount,
            Self::SlotCount => Request::GetMemorySlotsMax,
            Self::Memory => Request::SetMemoryTable(Vec::new()),
            Self::Nothing => Request::AddMemoryRegion(MemoryRegion::default()),
        };
        request.encode().0
    }
}
