//! Devices of the commands: `--dev` explained and opened. The library parses it.

mod awaited;
mod state;

use std::time::Duration;

use anyhow::anyhow;
use urnic::device::DeviceError;
use urnic::{Endpoint, EndpointConfig, Rnic};

pub(crate) use awaited::awaited;
pub(crate) use state::{Problem, problem};
pub(crate) use urnic::device::DeviceSpec;

/// Opens the device and creates an endpoint on it. Waits for at most `patience` for the process at
/// its other end.
///
/// # Errors
/// If the device cannot be opened; the message says what to do.
pub(crate) fn open(
    spec: &DeviceSpec,
    rnic: &Rnic,
    config: &EndpointConfig,
    patience: Duration,
) -> anyhow::Result<Endpoint> {
    let opened =
        awaited(patience, DeviceError::is_absent_peer, || false, || spec.open(rnic, config));
    opened.map_err(|error| match error {
        DeviceError::Device(error) => anyhow!(error).context(format!("--dev {spec}")),
        DeviceError::Endpoint(error) => anyhow!(error).context("opening an endpoint"),
        other => other.into(),
    })
}

/// Devices, and the environment of commands on them, for `--help`.
pub(crate) const DEVICES: &str = "\
Devices (--dev):
  kernel                        the kernel's TCP sockets: no privilege, any address of this machine
  tap:NAME,ip=ADDRESS/LENGTH    a TAP interface, made if it is not there; urnic's TCP
  packet:IFACE,ip=ADDRESS/LEN   an interface of the kernel, by raw socket; urnic's TCP
  xdp:IFACE,ip=ADDRESS/LENGTH   a queue of an interface, by AF_XDP; urnic's TCP
  vhost-user:PATH,ip=ADDRESS/L  a device for a virtual machine or a process, by shared memory
  virtio-user:PATH,ip=ADDR/LEN  the driver of such a device; it connects to the socket PATH
  shm:PATH,ip=ADDRESS/LENGTH    memory that two processes of urnic let each other read: one copy
  ib:sim=NAME,node=NODE,ip=…    a node of a fabric that ibsim simulates, by IP over InfiniBand

Settings of devices, each after a comma:
  all          ip6=ADDRESS/LENGTH gw=ADDRESS gw6=ADDRESS mac=xx:xx:xx:xx:xx:xx vlan=N dhcp
  tap          mtu=N vnet=on|off queues=N
  packet       vnet=on|off queues=N
  xdp          queue=N zerocopy=on|off
  vhost-user   mtu=N vnet=on|off queues=N connect=on|off sealed=on|off memory=SIZE peer=UID
  virtio-user  mtu=N vnet=on|off queues=N listen=on|off share=on|off peer=UID
  shm          mtu=N listen=on|off peer=UID
  ib           pkey=HEX scope=HEX peer=UID, but not mac or vlan

With vnet (the default), super-frames of 64 KiB cross the interface. Each of N queues has a thread;
connections that this end opens go to the queues in turn. 'urnic info' lists the devices that can be
used here.

Environment:
  URNIC_LOG        as --log
  URNIC_TOP        1 is the same as --top
  XDG_RUNTIME_DIR  folder for the socket of --top; by default the folder for temporary files";
