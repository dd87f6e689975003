//! Devices: all of them for `--help`, and the usable ones on this machine.

use std::fs::{self, OpenOptions};
use std::io;
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use serde::Serialize;
use urnic_netdev::OpenError;
use urnic_netdev::interface::{Control, Name, names};
use urnic_netdev::packet::PacketSocket;
use urnic_netdev::published::Publisher;
use urnic_netdev::tap::Tap;
use urnic_netdev::xdp::XdpSocket;

use crate::report;

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
  all          ip6=ADDRESS/LENGTH gw=ADDRESS gw6=ADDRESS mac=xx:xx:xx:xx:xx:xx vlan=N dhcp \
               congestion=cubic|dctcp|reno
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

#[derive(Debug, Serialize)]
pub(crate) struct Found {
    devices: Vec<Device>,
    interfaces: Vec<Interface>,
    machine: Machine,
}

#[derive(Debug, Serialize)]
struct Device {
    device: &'static str,
    usable: bool,
    offloads: &'static str,
    /// Missing right or feature.
    missing: Option<String>,
    /// How to get it.
    remedy: Option<String>,
}

#[derive(Debug, Serialize)]
struct Interface {
    name: String,
    up: bool,
    running: bool,
    mtu: Option<usize>,
    driver: Option<String>,
}

#[derive(Debug, Serialize)]
struct Machine {
    cores: usize,
    crc32c_instruction: bool,
    sha256_instruction: bool,
    huge_pages_free: Option<u64>,
}

pub(crate) fn look() -> Found {
    Found {
        devices: vec![
            kernel(),
            tap(),
            packet(),
            xdp(),
            shared("vhost-user"),
            shared("virtio-user"),
            published(),
            ib(),
        ],
        interfaces: interfaces(),
        machine: machine(),
    }
}

const fn kernel() -> Device {
    Device {
        device: "kernel",
        usable: true,
        offloads: "those of the kernel's TCP",
        missing: None,
        remedy: None,
    }
}

/// Needs a socket and an event, and no privilege.
fn shared(device: &'static str) -> Device {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let tried = eventfd(0, flags).map_err(io::Error::from);
    judged(device, SHARED, tried, "an eventfd", "ulimit -n 1024")
}

fn published() -> Device {
    let tried = Publisher::new().allocate(1);
    let remedy = "use a kernel from 5.1 on, or --dev vhost-user:PATH,…";
    judged("shm", PUBLISHED, tried, "memory that others can only read", remedy)
}

fn ib() -> Device {
    let is_missing = !has_simulator();
    Device {
        device: "ib",
        usable: !is_missing,
        offloads: "none: datagrams of 2044 bytes, or what the fabric's broadcast group says",
        missing: is_missing.then(|| "no ibsim runs in this network namespace".to_owned()),
        remedy: is_missing
            .then(|| "IBSIM_SOCKNAME=sim ibsim -s -n NETFILE, then opensm".to_owned()),
    }
}

/// The abstract control socket of a running simulator exists. The kernel shows the NUL at the end
/// of its name as '@', like the NUL at its beginning.
fn has_simulator() -> bool {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    sockets.lines().any(|line| line.ends_with(":ctl@"))
}

/// Builds an entry, with the reason and the remedy if the trial failed.
fn judged<T>(
    device: &'static str,
    offloads: &'static str,
    tried: io::Result<T>,
    what: &str,
    remedy: &'static str,
) -> Device {
    let missing = tried.err().map(|error| format!("{what}: {error}"));
    let usable = missing.is_none();
    Device { device, usable, offloads, missing, remedy: (!usable).then(|| remedy.to_owned()) }
}

fn tap() -> Device {
    let device = of_kernel("tap", VNET, Tap::check_rights());
    let own = own_taps();
    if device.usable || own.is_empty() || !has_tun() {
        return device;
    }
    let missing =
        device.missing.map(|missing| format!("{missing}; you may use {}", own.join(", ")));
    Device { usable: true, missing, ..device }
}

fn has_tun() -> bool {
    OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok()
}

/// Interfaces of its user, and without an owner.
fn own_taps() -> Vec<String> {
    let user = rustix::process::geteuid().as_raw();
    let is_own = |name: &Name| {
        let owner = fs::read_to_string(format!("/sys/class/net/{name}/owner")).ok();
        owner.and_then(|owner| owner.trim().parse::<i64>().ok()).is_some_and(|owner| {
            // The kernel shows -1 if there is no owner.
            owner == -1 || owner == i64::from(user)
        })
    };
    let names = names().unwrap_or_default().into_iter();
    names.filter(is_own).map(|name| name.to_string()).collect()
}

fn packet() -> Device {
    of_kernel("packet", VNET, PacketSocket::check_rights())
}

fn xdp() -> Device {
    let offloads =
        "none: every frame is of the MTU, with its checksum (on a veth: ethtool -K PEER tx off)";
    of_kernel("xdp", offloads, XdpSocket::check_rights())
}

fn of_kernel(device: &'static str, offloads: &'static str, tried: Result<(), OpenError>) -> Device {
    let (missing, remedy) = match tried {
        Ok(()) => (None, None),
        Err(OpenError::Permission { action, remedy }) => {
            (Some(format!("no permission to {action}")), Some(remedy))
        }
        Err(OpenError::Unavailable { what, remedy }) => {
            (Some(format!("{what} is not available")), Some(remedy))
        }
        Err(other) => (Some(other.to_string()), Some("see what the kernel says: `dmesg`".into())),
    };
    Device { device, usable: missing.is_none(), offloads, missing, remedy }
}

fn interfaces() -> Vec<Interface> {
    let Ok(control) = Control::new() else { return Vec::new() };
    names().unwrap_or_default().into_iter().map(|name| interface(&control, name)).collect()
}

fn interface(control: &Control, name: Name) -> Interface {
    let flags = control.flags(name).ok();
    Interface {
        name: name.to_string(),
        up: flags.is_some_and(|flags| flags.up()),
        running: flags.is_some_and(|flags| flags.running()),
        mtu: control.mtu(name).ok(),
        driver: control.driver(name).ok().map(|(driver, _)| driver).filter(|text| !text.is_empty()),
    }
}

fn machine() -> Machine {
    #[cfg(target_arch = "x86_64")]
    let (crc32c, sha256) = (is_x86_feature_detected!("sse4.2"), is_x86_feature_detected!("sha"));
    #[cfg(not(target_arch = "x86_64"))]
    let (crc32c, sha256) = (false, false);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    Machine {
        cores: thread::available_parallelism().map_or(1, std::num::NonZero::get),
        crc32c_instruction: crc32c,
        sha256_instruction: sha256,
        huge_pages_free: free.and_then(|count| count.trim().parse().ok()),
    }
}

impl Found {
    pub(crate) fn text(&self) -> String {
        let mut table = report::table(&["device", "usable", "offloads"]);
        for device in &self.devices {
            let usable = if device.usable { "yes" } else { "no" };
            report::row(&mut table, [device.device.into(), usable.into(), device.offloads.into()]);
        }
        let mut text = table.to_string();
        for device in &self.devices {
            if let (Some(missing), Some(remedy)) = (&device.missing, &device.remedy) {
                text.push_str(&format!("\n{}: {missing}\n    {remedy}", device.device));
            }
        }
        let mut table = report::table(&["interface", "state", "MTU", "driver"]);
        for interface in &self.interfaces {
            let state = match (interface.up, interface.running) {
                (true, true) => "up",
                (true, false) => "no carrier",
                _ => "down",
            };
            let mtu = interface.mtu.map_or_else(String::new, |mtu| mtu.to_string());
            let driver = interface.driver.clone().unwrap_or_default();
            report::row(&mut table, [interface.name.clone(), state.into(), mtu, driver]);
        }
        let Machine { cores, crc32c_instruction, sha256_instruction, .. } = self.machine;
        let with = |has| if has { "an instruction" } else { "no instruction" };
        format!(
            "{text}\n{table}\n{cores} cores; CRC32c has {}, SHA-256 {}",
            with(crc32c_instruction),
            with(sha256_instruction)
        )
    }
}

const VNET: &str = "super-frames of 64 KiB and checksums, both ways (vnet=on)";
const PUBLISHED: &str = "super-frames of 64 KiB and checksums";
const SHARED: &str = "super-frames of 64 KiB and checksums, if the peer agrees (vnet=on)";
