//! The frontend's part of the protocol: features are agreed on, memory and queues handed over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use tracing::debug;

use super::pair::{Arena, QUEUE_SIZE, Queues, SharedPair};
use crate::TRACE;
use crate::peer::channel::{Channel, ChannelError, Message};
use crate::peer::header::Header;
use crate::vhost_user::message::{PROTOCOL_MQ, PROTOCOL_REPLY_ACK, Request};
use crate::vhost_user::offload::{
    self, EVENT_INDEX, MQ, MRG_RXBUF, OFFLOADS, PROTOCOL_FEATURES, VERSION_1,
};

/// A connection with a backend.
#[derive(Debug)]
pub(super) struct Session {
    channel: Channel,
    pairs: Vec<Arc<SharedPair>>,
    wants: u64,
    features: u64,
    protocol: u64,
    awaits: Awaits,
}

/// What the backend is to say next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    Features,
    ProtocolFeatures,
    QueueCount,
    /// That it has the memory.
    Memory,
    /// Nothing: it runs.
    Nothing,
}

/// Why the connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("it has no Virtio 1.0 (features {0:#x})")]
    Legacy(u64),
    #[error("it has {0} pairs of queues; fewer are asked for by queues=")]
    Queues(u64),
    #[error("it does not take the memory")]
    Memory,
    #[error("it says something that was not asked for")]
    Unasked,
    #[error("it broke a queue")]
    Broken,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Session {
    /// Begins with the question for features.
    pub(super) fn begin(
        channel: Channel,
        pairs: &[Arc<SharedPair>],
        offloads: bool,
    ) -> Result<Self, SessionError> {
        let mut wants = VERSION_1 | PROTOCOL_FEATURES | MRG_RXBUF | EVENT_INDEX;
        if offloads {
            wants |= OFFLOADS;
        }
        if pairs.len() > 1 {
            wants |= MQ;
        }
        let awaits = Awaits::Features;
        let pairs = pairs.to_vec();
        let session = Self { channel, pairs, wants, features: 0, protocol: 0, awaits };
        session.ask(&Request::GetFeatures)?;
        Ok(session)
    }

    /// Whether frames may flow.
    pub(super) fn is_running(&self) -> bool {
        self.awaits == Awaits::Nothing
    }

    /// Takes what the backend has said.
    pub(super) fn turn(&mut self) -> Result<(), SessionError> {
        if self.pairs.iter().any(|pair| pair.lock().is_broken) {
            return Err(SessionError::Broken);
        }
        while let Some(message) = self.channel.receive()? {
            self.handle(&message)?;
        }
        Ok(())
    }

    fn handle(&mut self, message: &Message) -> Result<(), SessionError> {
        let word = message.body.as_slice().try_into().map(u64::from_ne_bytes);
        let (true, true, Ok(word)) =
            (message.header.is_reply(), message.header.request == self.awaits.request(), word)
        else {
            return Err(SessionError::Unasked);
        };
        match self.awaits {
            Awaits::Features => {
                if word & VERSION_1 == 0 {
                    return Err(SessionError::Legacy(word));
                }
                self.features = offload::consistent(word & self.wants);
                if word & PROTOCOL_FEATURES == 0 {
                    self.agree()
                } else {
                    self.awaits = Awaits::ProtocolFeatures;
                    self.ask(&Request::GetProtocolFeatures)
                }
            }
            Awaits::ProtocolFeatures => {
                self.protocol = word & (PROTOCOL_REPLY_ACK | PROTOCOL_MQ);
                self.say(&Request::SetProtocolFeatures(self.protocol))?;
                if self.protocol & PROTOCOL_MQ == 0 {
                    return self.agree();
                }
                self.awaits = Awaits::QueueCount;
                self.ask(&Request::GetQueueCount)
            }
            Awaits::QueueCount => {
                if self.pairs.len() > 1 && word < self.pairs.len() as u64 {
                    return Err(SessionError::Queues(word));
                }
                self.agree()
            }
            Awaits::Memory if word == 0 => {
                self.awaits = Awaits::Nothing;
                Ok(())
            }
            Awaits::Memory => Err(SessionError::Memory),
            Awaits::Nothing => Err(SessionError::Unasked),
        }
    }

    /// Hands over memory and queues.
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
            let mut queues = Queues::new(&arena, &shared.watch, index, self.features)?;
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
        let (id, body) = request.encode();
        let len = u32::try_from(body.len()).expect("a few hundred octets");
        Ok(self.channel.send(Header::of_request(id, len, needs_reply), &body, files)?)
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
    /// The request that is to be answered.
    fn request(self) -> u32 {
        let request = match self {
            Self::Features => Request::GetFeatures,
            Self::ProtocolFeatures => Request::GetProtocolFeatures,
            Self::QueueCount => Request::GetQueueCount,
            Self::Memory => Request::SetMemoryTable(Vec::new()),
            Self::Nothing => return 0,
        };
        request.encode().0
    }
}
