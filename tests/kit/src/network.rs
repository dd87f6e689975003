//! Interfaces for tests, made by `ip` of iproute2.
#![allow(dead_code, reason = "each device's tests use their part")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::isolate::quiet;
use crate::programs::program;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use urnic_netdev::tap::{Tap, TapConfig};
use urnic_netdev::xdp::XdpSocket;

/// Runs `ip` with these arguments, in the namespace of the calling thread.
///
/// # Panics
/// If it fails.
pub fn ip(arguments: &str) -> String {
    command("ip", arguments)
}

/// Runs a program with these arguments and returns its output. Ends the test as skipped if the
/// program is missing.
///
/// # Panics
/// If it fails.
pub fn command(name: &str, arguments: &str) -> String {
    let output = program(name).args(arguments.split_whitespace()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`{name} {arguments}`: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// A second network namespace. It ends with the process that made it, in whatever way that ends.
pub struct Namespace {
    /// Process in the namespace; it lives until its input ends.
    holder: Child,
    net: File,
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Namespace {
    pub fn new() -> Self {
        for needed in ["sh", "cat"] {
            let _ends_the_test = program(needed);
        }
        let mut holder = program("unshare")
            .args(["--net", "--", "sh", "-c", "echo ready; exec cat >/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        holder.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        let net = File::open(format!("/proc/{}/ns/net", holder.id())).unwrap();
        let namespace = Self { holder, net };
        namespace.run(|| {
            ip("link set lo up");
            quiet();
        });
        namespace
    }

    /// Returns the name of the namespace for `ip link set … netns`.
    pub fn id(&self) -> u32 {
        self.holder.id()
    }

    /// Runs `task` in the namespace. Descriptors opened there keep working elsewhere.
    pub fn run<R: Send>(&self, task: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(self.net.as_fd(), network).unwrap();
                task()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(mut input) = self.holder.stdin.take() {
            let _gone = input.flush();
        }
        let _ended = self.holder.wait();
    }
}

/// Attaches the interfaces to a new bridge called `name`.
pub fn bridge(name: &str, interfaces: &[&str]) {
    ip(&format!("link add name {name} type bridge forward_delay 0 stp_state 0 mcast_snooping 0"));
    ip(&format!("link set {name} up"));
    for interface in interfaces {
        ip(&format!("link set {interface} master {name}"));
    }
}

/// Makes a TAP called `name`, which is removed with the device.
pub fn tap(name: &str, mtu: usize, vnet_header: bool) -> Tap {
    let name = name.parse().unwrap();
    Tap::open(&TapConfig { mtu: Some(mtu), vnet_header, ..TapConfig::new(name) }).unwrap()
}

/// Makes two TAPs, `tap-a` and `tap-b`, on a bridge called `bridge0`; each with a header if
/// requested.
pub fn bridged_taps(mtu: usize, vnet_header: [bool; 2]) -> (Tap, Tap) {
    let (a, b) = (tap("tap-a", mtu, vnet_header[0]), tap("tap-b", mtu, vnet_header[1]));
    bridge("bridge0", &["tap-a", "tap-b"]);
    (a, b)
}

/// Waits until another process has made these interfaces. A command sets its interface up as the
/// last step.
///
/// # Panics
/// If they are not made in time.
#[expect(clippy::disallowed_methods, reason = "waits for another process, with a bound")]
pub fn await_up(names: &[&str]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !names.iter().all(|name| ip("link show up").contains(name)) {
        assert!(Instant::now() < deadline, "the interfaces are not made");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the reason why AF_XDP sockets cannot be used here, if there is one. A user namespace
/// does not give the right to load programs.
#[must_use]
pub fn xdp_refusal() -> Option<String> {
    XdpSocket::check_rights().err().map(|error| error.to_string())
}

/// Makes a veth pair: `veth-a` here and `veth-b` in `peer`, both up.
pub fn veth(mtu: usize, peer: &Namespace) {
    let id = peer.id();
    ip(&format!("link add veth-a mtu {mtu} type veth peer name veth-b mtu {mtu} netns {id}"));
    ip("link set veth-a up");
    peer.run(|| ip("link set veth-b up"));
}
