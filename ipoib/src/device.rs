//! An IPoIB link as a frame device: IP datagrams in and out.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;

use urnic_netdev::{Capabilities, Device, Medium, RxChecksum, RxFrame, TransmitError, TxFrame};

use crate::fabric::{Mads, Packets};
use crate::limits::{MADS_BURST, OWN_WAITING_MAX};
use crate::link::{Lease, Link, LinkConfig, LinkState, SendError};
use crate::wire::reports;

/// A link on a port of a fabric.
#[derive(Debug)]
pub struct IpoibDevice<F: Mads + Packets> {
    fabric: F,
    link: Link,
    /// No fabric returns datagrams to the interface's own addresses.
    own: VecDeque<Vec<u8>>,
    held: Option<Ipv4Addr>,
    now_ns: u64,
}

impl<F: Mads + Packets> IpoibDevice<F> {
    /// Creates the device of a link with these settings.
    #[must_use]
    pub fn new(fabric: F, config: LinkConfig) -> Self {
        let link = Link::new(config);
        Self { fabric, link, own: VecDeque::new(), held: None, now_ns: 0 }
    }

    /// Returns the link.
    #[must_use]
    pub const fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the port.
    #[must_use]
    pub const fn fabric(&self) -> &F {
        &self.fabric
    }

    /// Waits at most `for_ns` for an address by DHCP; `None` if none arrived. Afterwards the device
    /// is up only while it has this address (RFC 2131 §4.4.5).
    pub fn acquire(&mut self, for_ns: u64, now_ns: impl FnMut() -> u64) -> Option<Lease> {
        self.wait_for(for_ns, now_ns, |link| link.lease().is_some());
        let lease = self.link.lease().copied()?;
        self.held = Some(lease.address);
        Some(lease)
    }

    /// Waits at most `for_ns` for the link. Returns true if it is up.
    pub fn wait_up(&mut self, for_ns: u64, now_ns: impl FnMut() -> u64) -> bool {
        let is_up = |link: &Link| matches!(link.state(), LinkState::Up { .. });
        self.wait_for(for_ns, now_ns, is_up);
        is_up(&self.link)
    }

    fn wait_for(
        &mut self,
        for_ns: u64,
        mut now_ns: impl FnMut() -> u64,
        has_come: impl Fn(&Link) -> bool,
    ) {
        let end_ns = now_ns().saturating_add(for_ns);
        loop {
            let at_ns = now_ns();
            self.receive(at_ns, MADS_BURST, &mut |_| ());
            if has_come(&self.link) || at_ns >= end_ns {
                return;
            }
            self.fabric.wait(WAIT_NS);
        }
    }

    fn has_address(&self) -> bool {
        self.held.is_none() || self.held == self.link.leased_address()
    }

    /// Begins to receive a group.
    pub fn join_group(&mut self, now_ns: u64, group: IpAddr) {
        self.link.join_group(now_ns, group);
        self.push(now_ns);
    }

    /// Stops receiving a group.
    pub fn leave_group(&mut self, now_ns: u64, group: IpAddr) {
        self.link.leave_group(now_ns, group);
        self.push(now_ns);
    }

    /// Returns the next undeliverable datagram; see [`Link::poll_undeliverable`].
    pub fn poll_undeliverable(&mut self) -> Option<Vec<u8>> {
        self.link.poll_undeliverable()
    }

    /// Leaves this port's groups; otherwise the administrator would keep sending Reports.
    pub fn leave(&mut self, now_ns: u64) {
        self.link.leave_all(now_ns);
        self.push(now_ns);
    }

    fn turn(&mut self, now_ns: u64) {
        if let Some(port) = self.fabric.port_change(now_ns) {
            self.link.handle_port(now_ns, port);
        }
        for _ in 0..MADS_BURST {
            let Some((from, mad)) = self.fabric.receive_mad(now_ns) else { break };
            self.link.handle_mad(now_ns, from, &mad);
        }
        if self.link.poll_timeout().is_some_and(|due_ns| due_ns <= now_ns) {
            self.link.handle_timeout(now_ns);
        }
    }

    fn push(&mut self, now_ns: u64) {
        while let Some((to, mad)) = self.link.poll_mad(now_ns) {
            self.fabric.send_mad(now_ns, to, &mad);
        }
        while let Some(packet) = self.link.poll_packet() {
            self.fabric.send_packet(now_ns, &packet);
            self.link.recycle(packet);
        }
    }
}

/// Leaves the link, and waits briefly for the administrator's answers.
impl<F: Mads + Packets> Drop for IpoibDevice<F> {
    fn drop(&mut self) {
        self.leave(self.now_ns);
        for _ in 0..LEAVE_WAITS_MAX {
            if self.link.is_idle() || !self.fabric.wait(LEAVE_WAIT_NS) {
                break;
            }
            self.now_ns += LEAVE_WAIT_NS;
            while let Some((from, mad)) = self.fabric.receive_mad(self.now_ns) {
                self.link.handle_mad(self.now_ns, from, &mad);
            }
            self.push(self.now_ns);
        }
    }
}

const WAIT_NS: u64 = 5_000_000;
/// When the device is dropped.
const LEAVE_WAIT_NS: u64 = 20_000_000;
const LEAVE_WAITS_MAX: usize = 25;

impl<F: Mads + Packets> Device for IpoibDevice<F> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            medium: Medium::Ip,
            mtu: self.link.mtu(),
            segmentation_len_max: None,
            tx_checksum: false,
            fragments_max: usize::MAX,
            gather_len_min: 0,
            tx_digest: false,
        }
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        self.now_ns = now_ns;
        self.turn(now_ns);
        let mut received = 0;
        let mut hand = |bytes: &[u8]| {
            sink(RxFrame::whole(bytes, RxChecksum::Unverified, None));
            received += 1;
        };
        let own = burst.min(self.own.len());
        for datagram in self.own.drain(..own) {
            hand(&datagram);
        }
        let has_address = self.has_address();
        let link = &mut self.link;
        self.fabric.receive_packets(now_ns, burst - own, &mut |packet| {
            let datagram = link.handle_packet(now_ns, packet);
            if let Some(datagram) = datagram.filter(|_| has_address) {
                hand(datagram);
            }
        });
        self.push(now_ns);
        received
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        // Groups that the host joins while the link is down are joined when it comes up.
        if reports::may_be_report(frame.head) && frame.len() <= self.link.mtu() {
            let mut report = vec![0; frame.len()];
            frame.gather(&mut report);
            self.link.note_reports(now_ns, &report);
        }
        if !self.link_up() {
            return Err(TransmitError::LinkDown);
        }
        self.capabilities().check(frame)?;
        let gather = |place: &mut [u8]| {
            frame.gather(place);
        };
        let destination = crate::link::destination(frame.head);
        if destination.is_some_and(|to| self.link.owns(to)) {
            if self.own.len() >= OWN_WAITING_MAX {
                return Err(TransmitError::Full);
            }
            let mut datagram = vec![0; frame.len()];
            gather(&mut datagram);
            self.own.push_back(datagram);
            return Ok(());
        }
        let sent = self.link.send(now_ns, frame.head, frame.len(), gather);
        self.push(now_ns);
        sent.map_err(|error| match error {
            SendError::Down => TransmitError::LinkDown,
            SendError::TooLong => TransmitError::TooLong,
            SendError::Refused => TransmitError::Refused,
        })
    }

    fn transmit_room(&self) -> usize {
        self.fabric.room()
    }

    fn flush(&mut self, now_ns: u64) {
        self.push(now_ns);
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        let own = (!self.own.is_empty()).then_some(0);
        let due = [own, self.fabric.next_arrival_ns(), self.link.poll_timeout()];
        due.into_iter().flatten().min()
    }

    fn link_up(&self) -> bool {
        matches!(self.link.state(), LinkState::Up { .. }) && self.has_address()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.fabric.readiness()
    }
}

#[cfg(test)]
impl<F: Mads + Packets> IpoibDevice<F> {
    pub(crate) fn link_packet(&mut self, now_ns: u64, packet: &[u8]) {
        let _for_the_host = self.link.handle_packet(now_ns, packet);
        self.push(now_ns);
    }
}
