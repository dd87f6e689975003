//! ESP between an interface and IP: policies, associations, and the two paths of packets.
//!
//! 1. The caller gathers each packet that it sends into a buffer with room at both ends, with complete
//!    checksums, and calls [`Esp::outbound`]: the packet is sealed there. A connection cuts its
//!    segments by [`Esp::overhead`].
//! 2. The caller passes each received IP packet, reassembled, to [`Esp::inbound`]. An opened packet is
//!    in a buffer of the caller, and is handled like one that was received in clear, with its
//!    transport checksum unverified.
//! 3. After either call, and at [`Esp::poll_timeout`], the caller drains [`Esp::poll_transmit`] and
//!    [`Esp::poll_event`]; events are for a key exchange, which adds and removes associations.

mod inbound;
mod outbound;
mod timers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use crate::association::{Association, AssociationError, Opener, Purpose, Sealer, Status};
use crate::counters::Counters;
use crate::limits::{ASSOCIATIONS_MAX, EVENTS_MAX, RESERVED_SPIS_MAX};
use crate::overhead::Overhead;
use crate::policy::{Action, Direction, Policy, Spd, TooManyPolicies};
use crate::selector::Selector;
use crate::waiting::Waiting;
use crate::wire::esp::SPI_RESERVED_MAX;
use crate::wire::ip::Flow;

pub use inbound::Inbound;
pub use outbound::Outbound;

/// Settings of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Action for packets that no policy is for.
    pub unmatched: Action,
    /// Port at which ESP in UDP is received; `None` if UDP is never ESP.
    pub udp_port: Option<u16>,
}

/// Discards what no policy is for (RFC 4301 §5), and receives no ESP in UDP.
impl Default for Config {
    fn default() -> Self {
        Self { unmatched: Action::Discard, udp_port: None }
    }
}

/// Something that a key exchange must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A packet needs an association that does not exist.
    Acquire {
        /// Policy and ends.
        purpose: Purpose,
        /// Selector of the policy.
        selector: Selector,
        /// The packet.
        flow: Flow,
    },
    /// A limit of an association's lifetime is reached.
    Expire {
        /// Direction of the association.
        direction: Direction,
        /// Its SPI.
        spi: u32,
        /// Its policy and ends.
        purpose: Purpose,
        /// False: a new association is due. True: the association has ended and was removed.
        hard: bool,
    },
}

/// Policies, associations, and the packets between them.
#[derive(Debug)]
pub struct Esp {
    config: Config,
    spd: Spd,
    /// Associations of received packets by SPI. Keys come from this host, so a tree is no risk.
    inbound: BTreeMap<u32, Opener>,
    /// SPIs that were given to a key exchange.
    reserved: BTreeSet<u32>,
    /// Associations of sent packets, the newest last.
    outbound: BTreeMap<Purpose, Vec<Sealer>>,
    outbound_count: usize,
    waiting: Waiting,
    /// Associations whose NAT-keepalive is due.
    keepalives: VecDeque<Purpose>,
    events: VecDeque<Event>,
    /// Time before which no timer expires.
    deadline_ns: Option<u64>,
    counters: Counters,
}

impl Esp {
    /// Creates a processor without policies and associations.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            spd: Spd::new(config.unmatched),
            config,
            inbound: BTreeMap::new(),
            reserved: BTreeSet::new(),
            outbound: BTreeMap::new(),
            outbound_count: 0,
            waiting: Waiting::default(),
            keepalives: VecDeque::new(),
            events: VecDeque::new(),
            deadline_ns: None,
            counters: Counters::default(),
        }
    }

    /// Adds a policy.
    ///
    /// # Errors
    /// If there are too many.
    pub fn add_policy(&mut self, policy: Policy) -> Result<(), TooManyPolicies> {
        self.spd.add(policy)
    }

    /// Removes a policy; returns it if there was one.
    pub fn remove_policy(&mut self, direction: Direction, selector: &Selector) -> Option<Policy> {
        self.spd.remove(direction, selector)
    }

    /// Returns the policies of a direction, in their order.
    #[must_use]
    pub fn policies(&self, direction: Direction) -> &[Policy] {
        self.spd.policies(direction)
    }

    /// Reserves an SPI for an association that a key exchange is making.
    ///
    /// # Errors
    /// If the SPI is in use, or too many are reserved.
    pub fn reserve_spi(&mut self, spi: u32) -> Result<(), AssociationError> {
        if spi <= SPI_RESERVED_MAX {
            return Err(AssociationError::ReservedSpi);
        }
        if self.inbound.contains_key(&spi) || self.reserved.contains(&spi) {
            return Err(AssociationError::SpiInUse);
        }
        if self.reserved.len() >= RESERVED_SPIS_MAX {
            return Err(AssociationError::TooMany);
        }
        self.reserved.insert(spi);
        Ok(())
    }

    /// Adds an association for received packets. Older ones of the same policy stay, so that
    /// packets in flight during a rekeying are received.
    ///
    /// # Errors
    /// See [`AssociationError`].
    pub fn add_inbound(
        &mut self,
        now_ns: u64,
        association: &Association,
    ) -> Result<(), AssociationError> {
        if self.inbound.contains_key(&association.spi) {
            return Err(AssociationError::SpiInUse);
        }
        if self.inbound.len() >= ASSOCIATIONS_MAX {
            return Err(AssociationError::TooMany);
        }
        let opener = Opener::new(association, now_ns)?;
        self.expect(opener.deadline());
        self.reserved.remove(&association.spi);
        self.inbound.insert(association.spi, opener);
        Ok(())
    }

    /// Adds an association for packets to send. It replaces older ones of its policy, which stay
    /// until they are removed. Packets that wait for it are due at once
    /// ([`poll_transmit`](Self::poll_transmit)).
    ///
    /// Numbers begin at 1, and with AES-GCM no number may be used twice under one key: add the
    /// association to one processor only, and never the same key again, not even after a crash.
    ///
    /// # Errors
    /// See [`AssociationError`].
    pub fn add_outbound(
        &mut self,
        now_ns: u64,
        association: &Association,
    ) -> Result<(), AssociationError> {
        if self.outbound_count >= ASSOCIATIONS_MAX {
            return Err(AssociationError::TooMany);
        }
        let (spi, purpose) = (association.spi, association.purpose());
        if self.outbound.get(&purpose).is_some_and(|all| all.iter().any(|one| one.spi() == spi)) {
            return Err(AssociationError::SpiInUse);
        }
        let sealer = Sealer::new(association, now_ns)?;
        self.expect(sealer.deadline());
        self.outbound.entry(purpose).or_default().push(sealer);
        self.outbound_count += 1;
        self.waiting.release(&purpose);
        Ok(())
    }

    /// Removes an association for received packets, or the reservation of its SPI. Returns false
    /// if there is none.
    pub fn remove_inbound(&mut self, spi: u32) -> bool {
        self.reserved.remove(&spi) | self.inbound.remove(&spi).is_some()
    }

    /// Removes an association for packets to send. Later packets ask for a new one and wait: no
    /// connection ends. Returns false if there is none.
    pub fn remove_outbound(&mut self, spi: u32, destination: IpAddr) -> bool {
        let before = self.outbound_count;
        let is_it = |purpose: &Purpose, sealer: &Sealer| {
            purpose.destination == destination && sealer.spi() == spi
        };
        self.outbound.retain(|purpose, sealers| {
            let count = sealers.len();
            sealers.retain(|sealer| !is_it(purpose, sealer));
            self.outbound_count -= count - sealers.len();
            !sealers.is_empty()
        });
        self.outbound_count < before
    }

    /// Returns the state of all associations of a direction.
    #[must_use]
    pub fn status(&self, direction: Direction) -> Vec<Status> {
        match direction {
            Direction::In => self.inbound.values().map(Opener::status).collect(),
            Direction::Out => self.outbound.values().flatten().map(Sealer::status).collect(),
        }
    }

    /// Returns the lengths that ESP adds to packets of a flow that this host sends; `None` if they
    /// are sent in clear, or there is no association yet.
    #[must_use]
    pub fn overhead(&self, now_ns: u64, flow: &Flow) -> Option<Overhead> {
        let (Action::Protect(template), _) = self.spd.decide(Direction::Out, flow) else {
            return None;
        };
        let sealers = self.outbound.get(&outbound::purpose(&template, flow))?;
        let can = |sealer: &&Sealer| sealer.is_for(flow) && !sealer.has_ended(now_ns, 0);
        sealers.iter().rev().find(can).map(Sealer::overhead)
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn raise(&mut self, event: Event) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Lowers the time of [`poll_timeout`](Self::poll_timeout) to at most this.
    fn expect(&mut self, deadline_ns: Option<u64>) {
        self.deadline_ns = self.deadline_ns.into_iter().chain(deadline_ns).min();
    }
}

#[cfg(test)]
mod tests;
