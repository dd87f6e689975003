//! Session of a backend: maps the frontend's memory and sets up its queues on request, by the rules
//! of QEMU's `docs/interop/vhost-user.rst`. A failed request is reported if the frontend asked for
//! a reply (`REPLY_ACK`), and ends the session otherwise.
//!
//! The session runs in the thread of the first device. Each change of memory or set-up is made
//! under the lock of the virtqueue pair:
//!
//! 1. The session stops the queue: it publishes the returned chains, and keeps the index of the
//!    next chain. A device that finds the queue stopped reports that the link is down.
//! 2. The session changes the set-up.
//! 3. The session starts each stopped queue whose set-up is complete, at the kept index.
//!
//! A device never holds a reference to shared memory without the lock, so no thread accesses the
//! old memory after step 1.
//!
//! Racy cases:
//!
//! - *A device transmits while its queue is set up anew.* It waits for the lock, then finds the
//!   queue stopped or running with the new set-up.
//! - *The frontend writes its memory during any step.* Each value is loaded once and checked in
//!   that copy.
//!
//! No loom model: all shared state of this process is under that lock, and the frontend is not
//! trusted to follow any order. `tests` plays frontends, hostile ones too.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use tracing::{debug, warn};

use super::pair::SharedPair;
use crate::TRACE;
use crate::peer::channel::Message;
use crate::peer::closer::PeerFd;
use crate::peer::header::MessageError;
use crate::sys::descriptor::{is_event, is_memory};
use crate::sys::shared_mapping::{cannot_shrink, has_huge_pages, set_nonblocking};
use crate::vhost_user::VhostUserConfig;
use crate::vhost_user::message::{
    MemoryRegion, PROTOCOL_CONFIGURE_MEM_SLOTS, PROTOCOL_MQ, PROTOCOL_REPLY_ACK, Request,
};
use crate::vhost_user::offload::{
    EVENT_INDEX, INDIRECT, MQ, MRG_RXBUF, OFFLOADS, PROTOCOL_FEATURES, VERSION_1,
};
use crate::virtqueue::{MemoryTable, Region, TableError};

#[derive(Debug)]
pub(super) struct Session {
    pairs: Vec<Arc<SharedPair>>,
    offers: u64,
    sealed: bool,
    memory_max: u64,
    protocol: u64,
    /// Regions of the current memory table. A change builds a new table from the same mappings.
    regions: Vec<(MemoryRegion, Region)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Nothing,
    Word(u64),
    State(u8, u16),
}

impl Reply {
    pub(super) fn body(&self) -> Option<[u8; 8]> {
        match *self {
            Self::Nothing => None,
            Self::Word(word) => Some(word.to_ne_bytes()),
            Self::State(index, base) => {
                let mut body = [0; 8];
                body[..4].copy_from_slice(&u32::from(index).to_ne_bytes());
                body[4..].copy_from_slice(&u32::from(base).to_ne_bytes());
                Some(body)
            }
        }
    }
}

/// Reasons why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("features that were not offered")]
    Features,
    #[error("queue {0}, which does not exist")]
    Queue(u8),
    #[error("a queue of {0} entries")]
    Size(u16),
    #[error("an event that is no eventfd")]
    Event,
    #[error("memory that can be taken away, which sealed=on refuses")]
    Unsealed,
    #[error("memory of huge pages, which the host may be out of; sealed=on refuses it")]
    HugePages,
    #[error("memory that is not of memfd_create, tmpfs or hugetlbfs")]
    NoMemory,
    #[error("more than {0} bytes of memory: memory=SIZE allows more")]
    TooMuch(u64),
    #[error("memory that was not added")]
    NoRegion,
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Session {
    pub(super) fn new(pairs: &[Arc<SharedPair>], config: &VhostUserConfig) -> Self {
        let mut offers = VERSION_1 | PROTOCOL_FEATURES | MRG_RXBUF | INDIRECT | EVENT_INDEX;
        if config.offloads {
            offers |= OFFLOADS;
        }
        if pairs.len() > 1 {
            offers |= MQ;
        }
        let (sealed, memory_max) = (config.sealed, config.memory_max);
        Self { pairs: pairs.to_vec(), offers, sealed, memory_max, protocol: 0, regions: Vec::new() }
    }

    const fn protocol_offers() -> u64 {
        PROTOCOL_MQ | PROTOCOL_REPLY_ACK | PROTOCOL_CONFIGURE_MEM_SLOTS
    }

    /// Executes a request. A [`Refusal`] ends the session, unless the frontend asked for a reply.
    pub(super) fn handle(&mut self, message: Message) -> Result<Reply, Refusal> {
        let Message { header, body, descriptors } = message;
        let request = Request::parse(header, &body, descriptors.len())?;
        let wants_word = header.needs_reply() && self.protocol & PROTOCOL_REPLY_ACK != 0;
        match self.apply(&request, descriptors) {
            Ok(Reply::Nothing) if wants_word => Ok(Reply::Word(0)),
            Ok(reply) => Ok(reply),
            Err(refusal) if wants_word => {
                debug!(target: TRACE, %refusal, ?request, "request of a frontend refused");
                Ok(Reply::Word(1))
            }
            Err(refusal) => Err(refusal),
        }
    }

    fn apply(&mut self, request: &Request, mut files: Vec<PeerFd>) -> Result<Reply, Refusal> {
        match *request {
            Request::GetFeatures => return Ok(Reply::Word(self.offers)),
            Request::SetFeatures(features) => self.set_features(features)?,
            Request::SetOwner => {}
            // Obsolete request: "it was used to stop all rings".
            Request::ResetOwner => self.pairs.iter().for_each(|pair| pair.lock().stop()),
            Request::SetMemoryTable(ref regions) => {
                let mut mapped = Vec::with_capacity(regions.len());
                for (region, file) in regions.iter().zip(&files) {
                    self.add(&mut mapped, region, file.as_fd())?;
                }
                self.use_regions(mapped)?;
            }
            Request::AddMemoryRegion(region) => {
                let file = files.pop().expect("counted by Request::parse");
                let mut regions = self.regions.clone();
                self.add(&mut regions, &region, file.as_fd())?;
                self.use_regions(regions)?;
            }
            Request::RemoveMemoryRegion(region) => {
                // At most one region matches, since regions do not overlap.
                let is_it = |(known, _): &(MemoryRegion, Region)| {
                    (known.guest, known.user, known.len) == (region.guest, region.user, region.len)
                };
                let at = self.regions.iter().position(is_it).ok_or(Refusal::NoRegion)?;
                let mut regions = self.regions.clone();
                regions.remove(at);
                self.use_regions(regions)?;
            }
            Request::SetVringSize { index, .. }
            | Request::SetVringAddresses { index, .. }
            | Request::SetVringBase { index, .. }
            | Request::GetVringBase { index }
            | Request::SetVringKick { index, .. }
            | Request::SetVringCall { index, .. }
            | Request::SetVringEnable { index, .. } => {
                return self.set_up_queue(index, request, files.pop());
            }
            // The backend never uses the error event.
            Request::SetVringError { .. } => {}
            Request::GetProtocolFeatures => return Ok(Reply::Word(Self::protocol_offers())),
            Request::SetProtocolFeatures(features) => {
                if features & !Self::protocol_offers() != 0 {
                    return Err(Refusal::Features);
                }
                self.protocol = features;
            }
            Request::GetQueueCount => return Ok(Reply::Word(self.pairs.len() as u64)),
            Request::GetMemorySlotsMax => {
                return Ok(Reply::Word(MemoryTable::REGIONS_MAX as u64));
            }
        }
        Ok(Reply::Nothing)
    }

    fn set_up_queue(
        &self,
        index: u8,
        request: &Request,
        file: Option<PeerFd>,
    ) -> Result<Reply, Refusal> {
        let shared = self.pairs.get(usize::from(index / 2)).ok_or(Refusal::Queue(index))?;
        // The driver receives from queue 0 of a pair, and transmits to queue 1.
        let is_from_driver = index % 2 == 1;
        let event = event_of(file)?;
        let mut pair = shared.lock();
        let table = Arc::clone(&pair.table);
        let vring = pair.vring(is_from_driver);
        match *request {
            Request::SetVringSize { size, .. } if !size.is_power_of_two() => {
                return Err(Refusal::Size(size));
            }
            Request::SetVringSize { size, .. } => {
                vring.stop(&table);
                vring.size = size;
            }
            Request::SetVringAddresses { parts, .. } => {
                vring.stop(&table);
                vring.parts = Some(parts);
            }
            Request::SetVringBase { base, .. } => {
                vring.stop(&table);
                vring.base = base;
            }
            Request::GetVringBase { .. } => {
                // "The back-end must [...] stop the ring": nothing accesses the ring after the
                // reply.
                vring.stop(&table);
                vring.forget_kick(&shared.watch);
                return Ok(Reply::State(index, vring.base));
            }
            Request::SetVringKick { .. } => vring.set_kick(&shared.watch, event)?,
            Request::SetVringEnable { enabled, .. } => vring.is_enabled = enabled,
            // `SetVringCall`, the last request handled here.
            _ => vring.call = event,
        }
        pair.start();
        Ok(Reply::Nothing)
    }

    fn set_features(&self, features: u64) -> Result<(), Refusal> {
        if features & !self.offers != 0 {
            return Err(Refusal::Features);
        }
        for pair in &self.pairs {
            let mut pair = pair.lock();
            if pair.features != features {
                pair.stop();
            }
            pair.features = features;
            // "If VHOST_USER_F_PROTOCOL_FEATURES has not been negotiated, the ring starts directly
            // in the enabled state."
            if features & PROTOCOL_FEATURES == 0 {
                pair.to_driver.is_enabled = true;
                pair.from_driver.is_enabled = true;
            }
            pair.start();
        }
        debug!(target: TRACE, features = format_args!("{features:#x}"), "frontend's features");
        Ok(())
    }

    fn add(
        &self,
        regions: &mut Vec<(MemoryRegion, Region)>,
        region: &MemoryRegion,
        file: BorrowedFd<'_>,
    ) -> Result<(), Refusal> {
        let added = self.map(regions, region, file);
        if let Err(why) = &added
            && let Some(first) = self.pairs.first()
        {
            let counters = &mut first.lock().counters;
            counters.regions_refused += 1;
            let count = counters.regions_refused;
            // A frontend can offer regions at any rate.
            if count.is_power_of_two() {
                warn!(target: TRACE, count, %why, "refused a region of a frontend's memory");
            }
        }
        regions.push((*region, added?));
        Ok(())
    }

    fn map(
        &self,
        others: &[(MemoryRegion, Region)],
        region: &MemoryRegion,
        file: BorrowedFd<'_>,
    ) -> Result<Region, Refusal> {
        let mapped: u64 = others.iter().map(|(_, region)| region.mapped_bytes()).sum();
        let left = self.memory_max.saturating_sub(mapped);
        if region.len > left {
            return Err(Refusal::TooMuch(self.memory_max));
        }
        // First: calls on a file of a FUSE file system would wait for the frontend, which may serve
        // it.
        if !is_memory(file) {
            return Err(Refusal::NoMemory);
        }
        if self.sealed && has_huge_pages(file) {
            return Err(Refusal::HugePages);
        }
        if !cannot_shrink(file) {
            if self.sealed {
                return Err(Refusal::Unsealed);
            }
            debug!(target: TRACE, "a frontend's memory is not sealed: it can be taken away");
        }
        let numbers = [region.guest, region.user, region.len, region.offset];
        // A region that begins within a page, or is read-only, is mapped with the bytes before it.
        let region = Region::map(numbers, file)?;
        if region.mapped_bytes() > left {
            return Err(Refusal::TooMuch(self.memory_max));
        }
        Ok(region)
    }

    /// Replaces the regions, and restarts the queues. After an error the earlier ones remain in
    /// use, because a frontend that gets the error continues with them.
    fn use_regions(&mut self, regions: Vec<(MemoryRegion, Region)>) -> Result<(), Refusal> {
        let mut table = MemoryTable::default();
        for (_, region) in &regions {
            table.insert(region.clone())?;
        }
        self.regions = regions;
        let table = Arc::new(table);
        for pair in &self.pairs {
            let mut pair = pair.lock();
            pair.stop();
            pair.table = Arc::clone(&table);
            pair.start();
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for shared in &self.pairs {
            let mut pair = shared.lock();
            pair.counters.sessions_ended += 1;
            pair.stop();
            pair.table = Arc::default();
            pair.features = 0;
            for is_from_driver in [false, true] {
                let vring = pair.vring(is_from_driver);
                vring.forget_kick(&shared.watch);
                *vring = super::pair::Vring::default();
            }
        }
    }
}

/// Checks an event of the frontend (another file could block), and makes it non-blocking. Limit: a
/// frontend that makes the eventfd blocking again, and fills it, can block this process.
fn event_of(file: Option<PeerFd>) -> Result<Option<PeerFd>, Refusal> {
    if let Some(file) = &file {
        if !is_event(file.as_fd()) {
            return Err(Refusal::Event);
        }
        set_nonblocking(file.as_fd());
    }
    Ok(file)
}
