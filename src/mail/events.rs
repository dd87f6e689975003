//! Events of an endpoint's interface, for the application.

use std::net::IpAddr;

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};

use crate::clock::monotonic_now;
use urnic_engine::limits::{ADDRESS_WAITERS_MAX, ENDPOINT_EVENTS_MAX};
use urnic_engine::port::PortEvent;
use urnic_engine::time::Instant;

/// Event of an endpoint's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointEvent {
    /// The link is down. Connections wait for its return as long as their user timeout allows.
    LinkDown,
    /// The link is up again.
    LinkUp,
    /// DHCP has given the endpoint an address.
    AddressAcquired {
        /// The address.
        address: IpAddr,
        /// Length of the network prefix in bits.
        prefix_len: u8,
    },
    /// The lease has ended, or another address replaces it. Connections of the address are over.
    AddressLost {
        /// The address.
        address: IpAddr,
    },
    /// DHCP has asked for [`ADDRESS_PATIENCE_NS`](urnic_engine::limits::ADDRESS_PATIENCE_NS) in
    /// vain, and continues.
    AddressOverdue,
}

impl EndpointEvent {
    /// `None` if the event belongs to a connection.
    pub(crate) const fn of(event: &PortEvent) -> Option<Self> {
        Some(match event {
            PortEvent::LinkDown => Self::LinkDown,
            PortEvent::LinkUp => Self::LinkUp,
            PortEvent::AddressAcquired { address, prefix_len } => {
                Self::AddressAcquired { address: *address, prefix_len: *prefix_len }
            }
            PortEvent::AddressLost { address } => Self::AddressLost { address: *address },
            PortEvent::AddressOverdue => Self::AddressOverdue,
            PortEvent::Incoming { .. } | PortEvent::Stream { .. } | PortEvent::Closed { .. } => {
                return None;
            }
        })
    }
}

/// New events replace the oldest that the application has not taken.
#[derive(Clone, Debug)]
pub(crate) struct EventFeed {
    sender: Sender<EndpointEvent>,
    receiver: Receiver<EndpointEvent>,
}

impl EventFeed {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = bounded(ENDPOINT_EVENTS_MAX);
        Self { sender, receiver }
    }

    pub(crate) fn push(&self, mut event: EndpointEvent) {
        while let Err(TrySendError::Full(refused)) = self.sender.try_send(event) {
            event = refused;
            let _oldest = self.receiver.try_recv();
        }
    }

    pub(crate) const fn receiver(&self) -> &Receiver<EndpointEvent> {
        &self.receiver
    }
}

#[derive(Debug, Default)]
pub(crate) struct AddressWaiters {
    waiting: Vec<(Instant, Sender<Option<IpAddr>>)>,
}

impl AddressWaiters {
    /// Adds a caller. At [`ADDRESS_WAITERS_MAX`], drops the one with the earliest deadline.
    pub(crate) fn add(&mut self, until: Instant, reply: Sender<Option<IpAddr>>) {
        let now = monotonic_now();
        self.waiting.retain(|(until, _)| *until > now);
        if self.waiting.len() >= ADDRESS_WAITERS_MAX
            && let Some(first) = (0..self.waiting.len()).min_by_key(|i| self.waiting[*i].0)
        {
            self.waiting.swap_remove(first);
        }
        self.waiting.push((until, reply));
    }

    pub(crate) fn tell(&mut self, address: IpAddr) {
        for (_, reply) in self.waiting.drain(..) {
            // The caller may no longer wait.
            let _gone = reply.try_send(Some(address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_events_are_replaced_by_later_ones() {
        let feed = EventFeed::new();
        for _ in 0..ENDPOINT_EVENTS_MAX {
            feed.push(EndpointEvent::LinkDown);
        }
        feed.push(EndpointEvent::LinkUp);
        let taken: Vec<_> = feed.receiver().try_iter().collect();
        assert_eq!(taken.len(), ENDPOINT_EVENTS_MAX);
        assert_eq!(taken.last(), Some(&EndpointEvent::LinkUp));
    }

    #[test]
    fn address_waiters_are_limited_and_all_are_answered() {
        let mut waiters = AddressWaiters::default();
        let later = monotonic_now().plus_nanos(1 << 40);
        let receivers: Vec<_> = (0..=ADDRESS_WAITERS_MAX as u64)
            .map(|i| {
                let (reply, receiver) = bounded(1);
                waiters.add(later.plus_nanos(i), reply);
                receiver
            })
            .collect();
        waiters.tell(IpAddr::from([10, 0, 0, 9]));
        let told = receivers.iter().filter(|receiver| receiver.try_recv().is_ok()).count();
        assert_eq!(told, ADDRESS_WAITERS_MAX);
        assert!(receivers[0].try_recv().is_err(), "the first whose time is up was let go");
    }
}
