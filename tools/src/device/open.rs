//! From a device's name to an endpoint on it.

use std::net::{IpAddr, UdpSocket};

use anyhow::{Context, bail};
use urnic::driver::{Endpoint, EndpointConfig};
use urnic::port::{Port, PortConfig};
use urnic::verbs::Rnic;
use urnic_netdev::Device;
use urnic_netdev::tap::{Tap, TapConfig};

use crate::device::spec::{DeviceSpec, Interface, Kind};

/// Opens the device and makes an endpoint on it.
///
/// # Errors
/// When the device cannot be had; the message says what to do.
pub(crate) fn open(
    spec: &DeviceSpec,
    rnic: &Rnic,
    config: &EndpointConfig,
) -> anyhow::Result<Endpoint> {
    match spec.kind() {
        Kind::Kernel => Endpoint::kernel(rnic, config).context("opening an endpoint"),
        Kind::Tap(tap) => {
            check_addresses(tap)?;
            let mut settings = TapConfig::new(tap.name);
            settings.mtu = tap.mtu;
            settings.vnet_header = tap.vnet.unwrap_or(true);
            let device = Tap::open(&settings).with_context(|| format!("--dev {spec}"))?;
            on_port(tap, device, rnic, config)
        }
        Kind::Packet(_) | Kind::Xdp(_) => {
            bail!("--dev {spec}: this build has no such device; use tap:NAME,… or kernel")
        }
    }
}

fn on_port<D: Device + Send + 'static>(
    interface: &Interface,
    device: D,
    rnic: &Rnic,
    config: &EndpointConfig,
) -> anyhow::Result<Endpoint> {
    let port = Port::new(rnic, identity(interface), device.capabilities());
    Endpoint::port(port, device, config).context("opening an endpoint")
}

/// Who we are on the interface. An Ethernet address that was not given is made from an IP address,
/// locally administered.
fn identity(interface: &Interface) -> PortConfig {
    let made = match (interface.ip, interface.ip6) {
        (Some((address, _)), _) => address.octets(),
        (None, Some((address, _))) => {
            let octets = address.octets();
            [octets[12], octets[13], octets[14], octets[15]]
        }
        (None, None) => [0; 4],
    };
    let [a, b, c, d] = made;
    PortConfig {
        mac: interface.mac.unwrap_or([0x02, 0x00, a, b, c, d]),
        ipv4: interface.ip,
        ipv6: interface.ip6,
        gateway_v4: interface.gw,
        gateway_v6: interface.gw6,
        ..PortConfig::for_ipv4(made.into())
    }
}

/// The kernel answers for its own addresses: with a RST to whatever TCP is not its own.
fn check_addresses(interface: &Interface) -> anyhow::Result<()> {
    let addresses = interface.ip.map(|(ip, _)| IpAddr::V4(ip));
    let addresses = addresses.into_iter().chain(interface.ip6.map(|(ip, _)| IpAddr::V6(ip)));
    for address in addresses {
        // A socket can be bound to the kernel's own addresses only.
        if UdpSocket::bind((address, 0)).is_ok() {
            bail!(
                "the kernel of this machine has the address {address} itself and would answer for \
                 it: give the device another address of the network, or take it from the kernel \
                 (`ip addr del`), or use --dev kernel"
            );
        }
    }
    Ok(())
}
