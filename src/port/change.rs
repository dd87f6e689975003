//! What changes under a port while it runs: the link, the device's MTU, its addresses.

use std::net::IpAddr;

use urnic_netdev::Capabilities;

use crate::port::host::LeaseNews;
use crate::port::{Port, PortEvent};
use crate::time::Instant;

impl Port {
    /// The device's link is up or down. Connections wait for its return as long as their user
    /// timeout allows, and send again at once what was lost when it comes.
    ///
    /// Calling it with what it said before costs nothing.
    pub fn handle_link(&mut self, now: Instant, up: bool) {
        if up == self.link_up {
            return;
        }
        self.link_up = up;
        self.events.push_back(if up { PortEvent::LinkUp } else { PortEvent::LinkDown });
        if !up {
            return;
        }
        for slot in self.slots() {
            self.connections[slot as usize].optimized.tcp.retransmit_now(now);
            self.after_input(slot);
        }
        self.host.touch();
    }

    /// The device can do something else now than when the port was made: its MTU has changed, say.
    /// Connections follow at once. The medium stays what it was.
    ///
    /// Calling it with what it said before costs nothing.
    pub fn set_capabilities(&mut self, now: Instant, capabilities: Capabilities) {
        if capabilities == self.capabilities {
            return;
        }
        let before = self.capabilities.mtu;
        self.capabilities = Capabilities { medium: self.capabilities.medium, ..capabilities };
        let mtu = capabilities.mtu;
        if mtu == before {
            return;
        }
        self.host.set_mtu(&self.config, mtu);
        for slot in self.slots() {
            let connection = &mut self.connections[slot as usize];
            let tcp = &mut connection.optimized.tcp;
            connection.path.on_device(now, tcp, before, mtu);
            self.after_input(slot);
        }
    }

    /// What the device can do, as the port knows it.
    #[must_use]
    pub const fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Takes over what DHCP has brought about.
    pub(super) fn take_lease_news(&mut self) {
        let Some(news) = self.host.take_lease_news() else { return };
        let lost = self.config.ipv4.take();
        self.config.gateway_v4 = None;
        if let LeaseNews::Acquired { address, prefix_len, router } = news {
            self.config.ipv4 = Some((address, prefix_len));
            self.config.gateway_v4 = router;
        }
        self.host.set_addresses(&self.config);
        // A lease that was renewed is no news.
        if lost == self.config.ipv4 {
            return;
        }
        if let Some((address, _)) = lost {
            self.abandon_address(IpAddr::V4(address));
            self.events.push_back(PortEvent::AddressLost { address: IpAddr::V4(address) });
        }
        if let Some((address, prefix_len)) = self.config.ipv4 {
            let address = IpAddr::V4(address);
            self.events.push_back(PortEvent::AddressAcquired { address, prefix_len });
        }
    }

    /// RFC 2131 §4.4.5: an address whose lease has ended is not used any more, not even for a
    /// reset.
    fn abandon_address(&mut self, address: IpAddr) {
        for slot in self.slots() {
            let connection = &mut self.connections[slot as usize];
            if connection.tuple.local().ip() == address {
                connection.optimized.tcp.vanish();
                connection.optimized.stream.connection_lost();
                self.after_input(slot);
            }
        }
    }

    fn slots(&self) -> Vec<u32> {
        let slot = |(slot, _)| u32::try_from(slot).expect("bounded by CONNECTIONS_MAX");
        self.connections.iter().map(slot).collect()
    }
}
