//! Several ports that are one station: one per queue of an interface, with one identity.
//!
//! Which queue a frame arrives at is not the ports' choice. Each connection belongs to one port; a
//! segment that arrives at another is handed over to it. What is heard of neighbours is told to all,
//! and only the port that heard a question answers it. The group shares one table, of who has which
//! connection, that is asked only about segments of no connection here.
//!
//! Ports stay sans-IO: the owner of the ports moves what [`Port::poll_handover`] gives to
//! [`Port::handle_handover`] of the port it is for. Nothing is promised of a frame that is handed
//! over: it may be lost, as on any wire.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urnic_netdev::{RxChecksum, RxFrame};

use crate::limits::{HANDOVER_FRAMES_MAX, PORTS_MAX};
use crate::mem::TableLease;
use crate::port::connection::{Tuple, TupleHasher};
use crate::port::framing::Opened;
use crate::port::{EPHEMERAL_FIRST, Port, PortError};
use crate::time::Instant;

/// A frame that arrived at one port of a group and is for others of it. It has no VLAN tag.
#[derive(Clone, Debug)]
pub struct Handover {
    to: Recipient,
    frame: Vec<u8>,
    checksum: RxChecksum,
    segment_size: Option<NonZeroU16>,
}

/// Whom a [`Handover`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// The port at this place of the group: a segment, or news, of one of its connections.
    One(usize),
    /// All ports but the one that hands over: news of a neighbour.
    Others,
}

impl Handover {
    /// Whom it is for.
    #[must_use]
    pub const fn to(&self) -> Recipient {
        self.to
    }
}

/// Which port of a group has which connection.
type Owners = HashMap<Tuple, usize, BuildHasherDefault<TupleHasher>>;

/// A port's place in its group.
#[derive(Debug)]
pub(super) struct Membership {
    index: usize,
    owners: Arc<Mutex<Owners>>,
    outbox: VecDeque<Handover>,
    /// Whether the frame that is looked at was handed over already; it is not handed on.
    handed_over: bool,
}

impl Membership {
    fn owners(&self) -> MutexGuard<'_, Owners> {
        // A poisoned lock is still good: the table is changed in one step.
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a connection this port's; `false` when another port has it.
    pub(super) fn claim(&self, tuple: Tuple) -> bool {
        *self.owners().entry(tuple).or_insert(self.index) == self.index
    }

    pub(super) fn release(&self, tuple: &Tuple) {
        self.owners().remove(tuple);
    }

    /// The other port that has a connection.
    fn owner(&self, tuple: &Tuple) -> Option<usize> {
        self.owners().get(tuple).copied().filter(|owner| *owner != self.index)
    }

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

/// The TCP ports that the port at `index` of `count` opens connections from: no two ports of a
/// group can open the same connection.
fn ephemeral_ports(index: usize, count: usize) -> RangeInclusive<u16> {
    let each = (u16::MAX - EPHEMERAL_FIRST) / u16::try_from(count).unwrap_or(u16::MAX).max(1);
    let first = EPHEMERAL_FIRST + each * u16::try_from(index).unwrap_or(0);
    first..=first + (each - 1)
}

const _: () = assert!(PORTS_MAX <= 1024, "each port has some dozens of TCP ports");

impl Port {
    /// Makes ports that have no connections yet one station, in this order. They must be of one
    /// [`Rnic`](crate::verbs::Rnic) and have the same addresses.
    ///
    /// # Errors
    /// [`PortError::NotOneStation`] when they are not, or when there are more than
    /// [`PORTS_MAX`], or one asks for its address by DHCP, which the others would not have.
    pub fn join(ports: &mut [&mut Self]) -> Result<(), PortError> {
        let count = ports.len();
        if count < 2 {
            return Ok(());
        }
        let fits = ports.iter().all(|port| port.resembles(ports[0]));
        if !fits || count > PORTS_MAX {
            return Err(PortError::NotOneStation);
        }
        let owners = Arc::new(Mutex::new(Owners::default()));
        for (index, port) in ports.iter_mut().enumerate() {
            port.ephemeral_range = ephemeral_ports(index, count);
            port.ephemeral = *port.ephemeral_range.start();
            let owners = Arc::clone(&owners);
            let outbox = VecDeque::new();
            port.group = Some(Membership { index, owners, outbox, handed_over: false });
        }
        Ok(())
    }

    /// Whether the port can be of one station with another.
    fn resembles(&self, other: &Self) -> bool {
        let (a, b) = (&self.config, &other.config);
        let unused = self.connections.is_empty() && self.group.is_none();
        let same_link =
            (a.mac, a.vlan, self.capabilities.medium) == (b.mac, b.vlan, other.capabilities.medium);
        let same_addresses = (a.ipv4, a.ipv6, a.gateway_v4, a.gateway_v6)
            == (b.ipv4, b.ipv6, b.gateway_v4, b.gateway_v6);
        let same_rnic = Arc::ptr_eq(&self.rnic.shared, &other.rnic.shared);
        unused && same_link && same_addresses && same_rnic && !a.dhcp
    }

    /// The next frame for other ports of the group.
    pub fn poll_handover(&mut self) -> Option<Handover> {
        self.group.as_mut()?.outbox.pop_front()
    }

    /// Takes a frame that another port of the group has handed over.
    pub fn handle_handover(&mut self, now: Instant, handover: &Handover) {
        let Handover { to, frame, checksum, segment_size } = handover;
        let (checksum, segment_size) = (*checksum, *segment_size);
        let framing = self.framing.without_tag();
        if *to == Recipient::Others {
            if let Ok(opened) = framing.open(frame) {
                self.hear_from_sibling(now, &opened, checksum);
            }
            return;
        }
        self.set_handed_over(true);
        let rnic = Arc::clone(&self.rnic.shared);
        let mut lease = TableLease::new(&rnic.table);
        let whole = RxFrame { bytes: frame, checksum, segment_size };
        self.take_frame(now, framing, &whole, &mut lease);
        self.set_handed_over(false);
    }

    fn set_handed_over(&mut self, handed_over: bool) {
        if let Some(group) = &mut self.group {
            group.handed_over = handed_over;
        }
    }

    /// News of a neighbour that came to another port, which answers it if it was a question.
    fn hear_from_sibling(&mut self, now: Instant, opened: &Opened<'_>, checksum: RxChecksum) {
        if self.neighbours.learn_from(&self.config, opened) {
            self.host.overhear(now, opened, checksum);
        }
        self.wake_those_who_waited();
    }

    /// Tells the other ports what was heard of a neighbour.
    pub(super) fn tell_siblings(&mut self, opened: &Opened<'_>, checksum: RxChecksum) {
        if let Some(group) = &mut self.group {
            let told = group.push(Recipient::Others, opened, checksum, None);
            self.counters.drops.handover += u64::from(!told);
        }
    }

    /// Hands a frame to the other port that has the connection; `false` when there is none, and the
    /// frame is for this port to look at.
    pub(super) fn hand_over(
        &mut self,
        tuple: &Tuple,
        opened: &Opened<'_>,
        checksum: RxChecksum,
        segment_size: Option<NonZeroU16>,
    ) -> bool {
        let Some(group) = &mut self.group else { return false };
        // A frame that came by another port already is not sent round.
        if group.handed_over {
            return false;
        }
        let Some(owner) = group.owner(tuple) else { return false };
        if group.push(Recipient::One(owner), opened, checksum, segment_size) {
            self.counters.handed_over += 1;
        } else {
            self.counters.drops.handover += 1;
        }
        true
    }
}
