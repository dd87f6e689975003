//! Address and TCP port of a server, checked against the device.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use urnic::{Error, Listener, PortError, monotonic_now};

use crate::device::DeviceSpec;
use crate::host::Host;
use crate::report;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// The address from DHCP; `None` if the addresses were given.
    With(Option<IpAddr>),
    /// The process was asked to stop meanwhile.
    Stopped,
}

/// Fails if `local` is not an address of the device.
pub(crate) fn check_address(spec: &DeviceSpec, local: IpAddr) -> anyhow::Result<()> {
    let Some(own) = spec.addresses() else { return Ok(()) };
    let is_own = own.iter().any(|address| {
        *address == local || (local.is_unspecified() && address.is_ipv4() == local.is_ipv4())
    });
    // The address from DHCP is not known yet.
    if is_own || (spec.uses_dhcp() && local.is_ipv4()) {
        return Ok(());
    }
    let own: Vec<_> = own.iter().map(ToString::to_string).collect();
    let has = if own.is_empty() { "one from DHCP".into() } else { own.join(" and ") };
    bail!("--listen: {local} is no address of the device, which has {has} (--dev {spec})")
}

/// Waits for an address by DHCP, until `stop`. Prints a message if none comes in time.
pub(crate) fn await_address(host: &Host, stop: &Arc<AtomicBool>) -> anyhow::Result<Opened> {
    if !host.options.dev.uses_dhcp() {
        return Ok(Opened::With(None));
    }
    let started = monotonic_now();
    let mut told = false;
    while !stop.load(Ordering::Relaxed) {
        match host.endpoint.wait_address(ADDRESS_INTERVAL) {
            Ok(address) => {
                // Events that led to the address are out of date.
                while host.endpoint.next_event(Duration::ZERO)?.is_some() {}
                return Ok(Opened::With(Some(address)));
            }
            Err(Error::Timeout) => {}
            Err(error) => return Err(error).context("waiting for an address"),
        }
        if !told && monotonic_now() - started >= host.options.timeout {
            report::complain(&format!(
                "no DHCP server has given an address on {} for {:?}: still asking",
                host.options.dev, host.options.timeout
            ));
            told = true;
        }
    }
    Ok(Opened::Stopped)
}

pub(super) fn open(host: &Host, local: SocketAddr) -> anyhow::Result<Listener> {
    let mut attempts = PORT_ATTEMPTS;
    loop {
        let mut at = local;
        if local.port() == 0 && !host.options.dev.is_kernel() {
            at.set_port(any_port());
        }
        match host.endpoint.listen(at, host.options.listen_params()) {
            Ok(listener) => return Ok(listener),
            Err(Error::Port(PortError::PortTaken(_))) if at != local && attempts > 0 => {
                attempts -= 1;
            }
            Err(Error::Port(PortError::PortTaken(_))) => {
                bail!("{local} is taken by another program: choose another port")
            }
            Err(Error::Port(PortError::NoSuchAddress(_))) => bail!(
                "{} is no address of this machine: 'ip address' lists them, 0.0.0.0 is all",
                local.ip()
            ),
            Err(error) => return Err(error).with_context(|| format!("listening at {local}")),
        }
    }
}

/// Draws a dynamic port (RFC 6335 §6), a different one each time.
fn any_port() -> u16 {
    const FIRST: u16 = 49_152;
    let drawn = RandomState::new().build_hasher().finish();
    let offset = u16::try_from(drawn % u64::from(u16::MAX - FIRST + 1));
    FIRST + offset.unwrap_or_default()
}

const PORT_ATTEMPTS: usize = 16;
const ADDRESS_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_devices_or_all_of_its_kind() {
        let is_right = |dev: &str, local: &str| {
            check_address(&dev.parse().unwrap(), local.parse().unwrap()).is_ok()
        };
        let v4 = "tap:t,ip=10.0.0.2/24";
        assert!(is_right(v4, "10.0.0.2") && is_right(v4, "0.0.0.0"));
        assert!(!is_right(v4, "10.0.0.3") && !is_right(v4, "127.0.0.1"));
        assert!(!is_right(v4, "::") && !is_right(v4, "fd00::2"));
        let v6 = "packet:t,ip6=fd00::2/64";
        assert!(is_right(v6, "fd00::2") && is_right(v6, "::"));
        assert!(!is_right(v6, "0.0.0.0") && !is_right(v6, "fd00::3"));
        let leased = "xdp:t,dhcp,ip6=fd00::2/64";
        assert!(is_right(leased, "10.0.0.9") && is_right(leased, "fd00::2"));
        assert!(!is_right(leased, "fd00::3"));
        assert!(is_right("kernel", "192.0.2.1"), "the kernel itself tells");
    }

    #[test]
    fn any_port_is_a_dynamic_one_and_not_always_the_same() {
        let drawn: Vec<_> = (0..8).map(|_| any_port()).collect();
        assert!(drawn.iter().all(|port| *port >= 49_152), "{drawn:?}");
        assert!(drawn.iter().any(|port| *port != drawn[0]), "{drawn:?}");
    }
}
