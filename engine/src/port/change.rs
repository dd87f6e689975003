//! Changes under a running port: the link, the device's MTU, its addresses.

use std::net::IpAddr;

use tracing::debug;
use urnic_netdev::Capabilities;

use crate::limits::ADDRESS_PATIENCE_NS;
use crate::port::host::LeaseChange;
use crate::port::{Port, PortEvent, TRACE};
use crate::time::Instant;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LeaseWatch {
    /// Nothing to report: the port has an address, or does not use DHCP.
    #[default]
    Quiet,
    /// Time at which the missing address is reported.
    Until(Instant),
    /// The missing address was reported.
    Told,
}

impl LeaseWatch {
    pub(super) const fn poll_timeout(self) -> Option<Instant> {
        if let Self::Until(at) = self { Some(at) } else { None }
    }
}

/// A device that completes the CRCs of FPDUs must complete checksums, too: they cover the CRCs.
pub(super) const fn leaves_digests(capabilities: &Capabilities) -> bool {
    capabilities.tx_digest && capabilities.tx_checksum
}

impl Port {
    /// Reports that the device's link is up or down. Connections wait for its return as long as
    /// their user timeout allows, and then retransmit at once what was lost. Costs nothing without
    /// a change.
    pub fn handle_link(&mut self, now: Instant, up: bool) {
        if up == self.interface.link_up {
            return;
        }
        self.interface.link_up = up;
        debug!(target: TRACE, up, "link changed");
        self.events.push_back(if up { PortEvent::LinkUp } else { PortEvent::LinkDown });
        if !up {
            return;
        }
        for slot in self.connections.slots() {
            self.connections[slot].carrier.tcp.retransmit_now(now);
            self.connections.after_input(slot);
        }
        self.host.touch();
    }

    /// Reports changed capabilities of the device, such as its MTU; the medium cannot change. Costs
    /// nothing without a change.
    pub fn set_capabilities(&mut self, now: Instant, capabilities: Capabilities) {
        if capabilities == self.interface.capabilities {
            return;
        }
        let before = self.interface.capabilities.mtu;
        self.interface.capabilities =
            Capabilities { medium: self.interface.capabilities.medium, ..capabilities };
        self.scratch.leave_digests(leaves_digests(&capabilities));
        let mtu = capabilities.mtu;
        if mtu == before {
            return;
        }
        debug!(target: TRACE, before, mtu, "MTU of the device changed");
        self.host.set_mtu(&self.config, mtu);
        for slot in self.connections.slots() {
            let connection = &mut self.connections[slot];
            let tcp = &mut connection.carrier.tcp;
            connection.path.on_device(now, tcp, before, mtu);
            self.connections.after_input(slot);
        }
    }

    pub(super) fn apply_lease_change(&mut self) {
        let Some(lease_change) = self.host.apply_lease_change() else { return };
        let lost = self.config.ipv4.take();
        self.config.gateway_v4 = None;
        if let LeaseChange::Acquired { address, prefix_len, router } = lease_change {
            self.config.ipv4 = Some((address, prefix_len));
            self.config.gateway_v4 = router;
        }
        self.host.set_addresses(&self.config);
        // A renewed lease changes nothing.
        if lost == self.config.ipv4 {
            return;
        }
        if let Some((address, _)) = lost {
            debug!(target: TRACE, %address, "address lost");
            self.abandon_address(IpAddr::V4(address));
            self.events.push_back(PortEvent::AddressLost { address: IpAddr::V4(address) });
        }
        if let Some((address, prefix_len)) = self.config.ipv4 {
            let address = IpAddr::V4(address);
            debug!(target: TRACE, %address, prefix_len, "address acquired");
            self.events.push_back(PortEvent::AddressAcquired { address, prefix_len });
        }
    }

    pub(super) fn watch_lease(&mut self, now: Instant) {
        self.lease_watch = match self.lease_watch {
            _ if !self.config.dhcp || self.config.ipv4.is_some() => LeaseWatch::Quiet,
            LeaseWatch::Quiet => LeaseWatch::Until(now.plus_nanos(ADDRESS_PATIENCE_NS)),
            LeaseWatch::Until(at) if at <= now => {
                debug!(target: TRACE, "no DHCP server has given an address");
                self.events.push_back(PortEvent::AddressOverdue);
                LeaseWatch::Told
            }
            unchanged => unchanged,
        };
    }

    /// The address is not used any longer, not even for a reset (RFC 2131 §4.4.5).
    pub(super) fn abandon_address(&mut self, address: IpAddr) {
        for slot in self.connections.slots() {
            let connection = &mut self.connections[slot];
            if connection.tuple().local().ip() == address {
                connection.carrier.tcp.vanish();
                connection.carrier.stream.connection_lost();
                self.connections.after_input(slot);
            }
        }
        for number in self.connections.in_time_wait() {
            let record = self.connections.time_wait(number);
            if record.is_some_and(|record| record.tuple().local().ip() == address) {
                self.connections.end_time_wait(number);
            }
        }
    }
}
