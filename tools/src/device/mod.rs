//! The devices a command can use: `--dev` read, explained and opened.

mod open;
mod spec;
mod state;

pub(crate) use open::open;
pub(crate) use spec::DeviceSpec;
pub(crate) use state::{Problem, problem};

/// What `--help` says of devices.
pub(crate) const DEVICES: &str = "\
Devices (--dev):
  kernel                        the kernel's TCP sockets: no privilege, any address of this machine
  tap:NAME,ip=ADDRESS/LENGTH    a TAP interface, made if it is not there; TCP is ours
  packet:IFACE,ip=ADDRESS/LEN   an interface of the kernel, by raw socket; TCP is ours
  xdp:IFACE,ip=ADDRESS/LENGTH   a queue of an interface, by AF_XDP; TCP is ours
  More, separated by commas: ip6=ADDRESS/LENGTH gw=ADDRESS gw6=ADDRESS mac=xx:xx:xx:xx:xx:xx
  vlan=N dhcp; tap: mtu=N vnet=on|off queues=N; packet: vnet=on|off queues=N; xdp: queue=N
  zerocopy=on|off. With vnet, super-frames of 64 KiB cross the interface (the default); each of N
  queues has a thread, and connections take turns; 'urnic info' tells which devices can be used here.";
