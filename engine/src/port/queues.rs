//! Several ports that are the queues of one interface, with one identity.
//!
//! At which queue a frame arrives is not the ports' choice. Each connection belongs to one port, its
//! owner; a segment that arrives at another queue is handed over to it. What one queue learns of
//! neighbours is told to all, and only the port that received a question answers it. The ports share
//! one table of owners, which is consulted only about segments of no connection here.
//!
//! Ports stay sans-IO: the program that turns the ports moves what [`Port::poll_handover`] gives to
//! [`Port::handle_handover`] of the port it is for. A frame that is handed over may be lost, as on
//! any wire.

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::sync::Arc;

use urnic_netdev::{RxChecksum, RxFrame};

use crate::limits::{HANDOVER_FRAMES_MAX, PORTS_MAX};
use crate::mem::TableLease;
use crate::port::connections::Connections;
use crate::port::drops::FrameDrop;
use crate::port::interface::framing::Opened;
use crate::port::tuple::Tuple;
use crate::port::{EPHEMERAL_FIRST, Port, PortError};
use crate::time::Instant;
use crate::verbs::calls::HeldCalls;

/// A frame that arrived at one queue of an interface and is for others of it. It has no VLAN tag.
#[derive(Clone, Debug)]
pub struct Handover {
    to: Recipient,
    frame: Vec<u8>,
    checksum: RxChecksum,
    segment_size: Option<NonZeroU16>,
}

/// The queues that a [`Handover`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// The port of this index, the owner: a segment, or news, of one of its connections.
    One(usize),
    /// All queues but the one that hands over: news of a neighbour.
    Others,
}

impl Handover {
    /// The queues it is for.
    #[must_use]
    pub const fn to(&self) -> Recipient {
        self.to
    }
}

/// What one of several queues of an interface has for the others.
#[derive(Debug, Default)]
pub(super) struct Handovers {
    outbox: VecDeque<Handover>,
    /// Whether the frame that is looked at was handed over already; it is not handed on.
    handed_over: bool,
}

impl Handovers {
    /// Queues a frame for others; `false` when there is no room.
    fn push(
        &mut self,
        to: Recipient,
        opened: &Opened<'_>,
        checksum: RxChecksum,
        segment_size: Option<NonZeroU16>,
    ) -> bool {
        if self.outbox.len() >= HANDOVER_FRAMES_MAX {
            return false;
        }
        let mut frame = Vec::new();
        opened.write(&mut frame);
        self.outbox.push_back(Handover { to, frame, checksum, segment_size });
        true
    }
}

/// The TCP ports that the queue at `index` of `count` opens connections from: no two queues can open
/// the same connection.
fn ephemeral_ports(index: usize, count: usize) -> RangeInclusive<u16> {
    let each = (u16::MAX - EPHEMERAL_FIRST) / u16::try_from(count).unwrap_or(u16::MAX).max(1);
    let first = EPHEMERAL_FIRST + each * u16::try_from(index).unwrap_or(0);
    first..=first + (each - 1)
}

const _: () = assert!(PORTS_MAX <= 1024, "each queue has some dozens of TCP ports");

impl Port {
    /// Makes ports that have no connections yet the queues of one interface, in this order. They must
    /// be of one [`Rnic`](crate::verbs::Rnic) and have the same addresses.
    ///
    /// # Errors
    /// [`PortError::NotOneInterface`] when they are not, or when there are more than
    /// [`PORTS_MAX`], or one asks for its address by DHCP, which the others would not have.
    pub fn join(ports: &mut [&mut Self]) -> Result<(), PortError> {
        let count = ports.len();
        if count < 2 {
            return Ok(());
        }
        let fits = ports.iter().all(|port| port.resembles(ports[0]));
        if !fits || count > PORTS_MAX {
            return Err(PortError::NotOneInterface);
        }
        let key = ports[0].rnic.shared.seed.port_keys().tables;
        Connections::join(key, ports.iter_mut().map(|port| &mut port.connections));
        for (index, port) in ports.iter_mut().enumerate() {
            port.source_ports.set_range(ephemeral_ports(index, count));
            port.handovers = Some(Handovers::default());
        }
        Ok(())
    }

    /// Whether the port can be a queue of one interface with another.
    fn resembles(&self, other: &Self) -> bool {
        let (a, b) = (&self.config, &other.config);
        let unused = self.connections.is_empty() && self.handovers.is_none();
        let same_link = (a.mac, a.vlan, self.interface.capabilities.medium)
            == (b.mac, b.vlan, other.interface.capabilities.medium);
        let same_addresses = (a.ipv4, a.ipv6, a.gateway_v4, a.gateway_v6)
            == (b.ipv4, b.ipv6, b.gateway_v4, b.gateway_v6);
        let same_rnic = Arc::ptr_eq(&self.rnic.shared, &other.rnic.shared);
        unused && same_link && same_addresses && same_rnic && !a.dhcp
    }

    /// The next frame for other queues of the interface.
    pub fn poll_handover(&mut self) -> Option<Handover> {
        self.handovers.as_mut()?.outbox.pop_front()
    }

    /// Takes a frame that another queue of the interface has handed over.
    pub fn handle_handover(&mut self, now: Instant, handover: &Handover) {
        let Handover { to, frame, checksum, segment_size } = handover;
        let (checksum, segment_size) = (*checksum, *segment_size);
        let framing = self.interface.framing.without_tag();
        if *to == Recipient::Others {
            if let Ok(opened) = framing.open(frame) {
                self.learn_from_other_queue(now, &opened, checksum);
            }
            return;
        }
        self.set_handed_over(true);
        let rnic = Arc::clone(&self.rnic.shared);
        let _until_the_lease_is_closed = HeldCalls::new();
        let mut lease = TableLease::new(&rnic.table);
        let whole = RxFrame { bytes: frame, checksum, segment_size };
        self.take_frame(now, framing, &whole, &mut lease);
        self.set_handed_over(false);
    }

    fn set_handed_over(&mut self, handed_over: bool) {
        if let Some(handovers) = &mut self.handovers {
            handovers.handed_over = handed_over;
        }
    }

    /// News of a neighbour that came to another queue, which answers it if it was a question.
    fn learn_from_other_queue(&mut self, now: Instant, opened: &Opened<'_>, checksum: RxChecksum) {
        if self.interface.neighbours.learn_from(now, &self.config, opened) {
            self.host.overhear(now, opened, checksum);
        }
        self.wake_for_neighbours();
    }

    /// Tells the other queues what was learned of a neighbour.
    pub(super) fn tell_other_queues(&mut self, opened: &Opened<'_>, checksum: RxChecksum) {
        let Some(handovers) = &mut self.handovers else { return };
        if !handovers.push(Recipient::Others, opened, checksum, None) {
            self.drop_frame(FrameDrop::Handover);
        }
    }

    /// Hands a frame to the queue that owns the connection; `false` when no other does, and the frame
    /// is for this port to look at.
    pub(super) fn hand_over(
        &mut self,
        tuple: &Tuple,
        opened: &Opened<'_>,
        checksum: RxChecksum,
        segment_size: Option<NonZeroU16>,
    ) -> bool {
        let Some(handovers) = &mut self.handovers else { return false };
        // A frame that came by another queue already is not sent round.
        if handovers.handed_over {
            return false;
        }
        let Some(owner) = self.connections.other_owner(tuple) else { return false };
        if handovers.push(Recipient::One(owner), opened, checksum, segment_size) {
            self.counters.handed_over += 1;
        } else {
            self.drop_frame(FrameDrop::Handover);
        }
        true
    }
}
