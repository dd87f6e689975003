//! Opening of a port of a simulated InfiniBand fabric.

use urnic_engine::limits::ADDRESS_PATIENCE_NS;
use urnic_engine::port::PortConfig;
use urnic_engine::verbs::Rnic;
use urnic_ipoib::device::IpoibDevice;
use urnic_ipoib::ibsim::Node;
use urnic_ipoib::link::LinkConfig;
use urnic_ipoib::wire::address::Qpn;

use super::{DeviceError, identity};
use crate::clock::monotonic_now;
use crate::config::EndpointConfig;
use crate::device::network::Network;
use crate::device::spec::IbPort;
use crate::handle::endpoint::Endpoint;
use crate::seed::random_octets;

impl IbPort {
    pub(super) fn endpoint(
        &self,
        rnic: &Rnic,
        config: &EndpointConfig,
    ) -> Result<Endpoint, DeviceError> {
        let mut device = self.open()?;
        let mut network = self.network.clone();
        if network.dhcp {
            // The link itself asks the server: RFC 4390 is specific to its kind.
            let lease = device.acquire(ADDRESS_PATIENCE_NS, || monotonic_now().as_nanos());
            let lease = lease.ok_or_else(|| DeviceError::NoLease { name: self.node.clone() })?;
            network.ip = Some((lease.address, lease.prefix_len));
            network.gw = lease.router;
            network.dhcp = false;
        }
        // RFC 4391 §8: the link-local address is made from the port's GUID.
        let port = PortConfig {
            interface_identifier: Some(device.fabric().guid().interface_identifier(false)),
            ..identity(&network, [0; 6], config)
        };
        Ok(Endpoint::on_queues(rnic, vec![device], port, config)?)
    }

    /// Opens the link alone, without an endpoint.
    ///
    /// # Errors
    /// If there is no such simulator, node, or place at it.
    pub fn open(&self) -> Result<IpoibDevice<Node>, DeviceError> {
        let node = Node::open(&self.simulator, &self.node, self.peer)?;
        let [a, b, c, ..] = random_octets()?;
        // 0 and 1 are for management, and the last one is for groups.
        let qpn = u32::from_be_bytes([0, a, b, c]).clamp(0x10, 0x00ff_fff0);
        let Network { ip, ip6, gw, gw6, dhcp, .. } = self.network;
        let link = LinkConfig {
            p_key: self.p_key,
            scope: self.scope,
            ipv4: ip,
            dhcp,
            ipv6: ip6,
            gateway_v4: gw,
            gateway_v6: gw6,
            ..LinkConfig::new(Qpn::from_bits(qpn), random_octets()?)
        };
        Ok(IpoibDevice::new(node, link))
    }
}
