//! The network in the namespace: a bridge that joins the guest, the host's kernel and the engine.
//!
//! ```text
//!   guest (siw)        host kernel         engine
//!   10.77.0.2          10.77.0.1           10.77.0.3
//!      tapg ────────────── br0 ────────────── tapu
//! ```

use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::guest::Guest;
use crate::process::Process;

/// The guest's address.
pub(crate) const GUEST: &str = "10.77.0.2";
const URNIC: &str = env!("CARGO_BIN_EXE_urnic");

/// The device of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The host kernel's TCP.
    Kernel,
    /// The engine's own TCP.
    Tap,
}

impl Device {
    pub(crate) const ALL: [Self; 2] = [Self::Kernel, Self::Tap];

    const fn option(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Tap => "tap:tapu,ip=10.77.0.3/24,mac=02:00:0a:4d:00:03",
        }
    }

    pub(crate) const fn address(self) -> &'static str {
        match self {
            Self::Kernel => "10.77.0.1",
            Self::Tap => "10.77.0.3",
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Tap => "tap",
        })
    }
}

/// Makes the network of the namespace.
pub(crate) fn network() -> anyhow::Result<()> {
    for command in [
        "link set lo up",
        "link add br0 type bridge forward_delay 0",
        "link set br0 address 02:00:0a:4d:00:01",
        "tuntap add dev tapg mode tap",
        "tuntap add dev tapu mode tap",
        "link set tapg master br0",
        "link set tapu master br0",
        "addr add 10.77.0.1/24 dev br0",
        "link set tapg up",
        "link set tapu up",
        "link set br0 up",
    ] {
        ip(command)?;
    }
    Ok(())
}

pub(crate) fn ip(arguments: &str) -> anyhow::Result<String> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().context("ip")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {arguments}: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Guest, network, and unused ports.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) guest: Guest,
    port: u16,
    settings: Settings,
}

/// Settings of the guest, which are applied again after it had to be rebooted.
#[derive(Clone, Copy, Debug)]
struct Settings {
    mtu: u32,
    /// Set for the build of siw that requests CRCs itself.
    asks_for_crc: bool,
    netem: Option<&'static str>,
}

impl Lab {
    pub(crate) const fn new(guest: Guest) -> Self {
        let settings = Settings { mtu: 1500, asks_for_crc: false, netem: None };
        Self { guest, port: 7200, settings }
    }

    /// Returns a TCP port that no other case uses: no case sees leftovers of another.
    pub(crate) const fn port(&mut self) -> u16 {
        self.port += 1;
        self.port
    }

    /// Starts `urnic rping` on a device.
    pub(crate) fn urnic(device: Device, arguments: &str) -> anyhow::Result<Process> {
        let device = ["rping", "--dev", device.option()];
        Process::start(URNIC, device.into_iter().chain(arguments.split_whitespace()))
    }

    /// Starts any command of urnic.
    pub(crate) fn command(arguments: &str) -> anyhow::Result<Process> {
        Process::start(URNIC, arguments.split_whitespace())
    }

    /// Starts a program of rdma-core on urnic's libraries.
    pub(crate) fn stock(line: &str) -> anyhow::Result<Process> {
        Process::start(URNIC, ["run", "--"].into_iter().chain(line.split_whitespace()))
    }

    /// Waits until a process listens.
    pub(crate) fn listens(device: Device, port: u16) -> anyhow::Result<()> {
        let began = Instant::now();
        while !listens(device, port)? {
            ensure!(began.elapsed() < Duration::from_secs(5), "nothing listens at port {port}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Starts `urnic rping -s` on a device, and waits until it accepts connections.
    pub(crate) fn serve(device: Device, port: u16, arguments: &str) -> anyhow::Result<Process> {
        let server = Self::urnic(device, &format!("-s -p {port} {arguments}"))?;
        let began = Instant::now();
        while !listens(device, port)? {
            if began.elapsed() > Duration::from_secs(5) {
                bail!("urnic rping does not listen: {:?}", server.finish(Duration::ZERO)?);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if device == Device::Tap {
            // The carrier comes before the listener.
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(server)
    }

    /// Sets the MTU of every interface.
    pub(crate) fn set_mtu(&mut self, mtu: u32) -> anyhow::Result<()> {
        for interface in ["tapg", "tapu", "br0"] {
            ip(&format!("link set {interface} mtu {mtu}"))?;
        }
        self.settings.mtu = mtu;
        self.guest.run(&format!("ip link set eth0 mtu {mtu}")).map(drop)
    }

    /// Reloads siw, the ordinary build or the build that requests CRCs itself.
    pub(crate) fn load_siw(&mut self, asks_for_crc: bool) -> anyhow::Result<()> {
        self.settings.asks_for_crc = asks_for_crc;
        self.guest.reload(asks_for_crc)
    }

    /// Puts the frames that the guest sends through netem, or removes netem.
    pub(crate) fn impair(&mut self, netem: Option<&'static str>) -> anyhow::Result<()> {
        self.settings.netem = netem;
        let command = match netem {
            Some(netem) => format!("add dev eth0 root netem {netem}"),
            None => "del dev eth0 root".to_owned(),
        };
        self.guest.run(&format!("/sbin/tc qdisc {command}")).map(drop)
    }

    /// Sets the guest's interface up, and kills programs of earlier cases.
    pub(crate) fn plug(&mut self) -> anyhow::Result<()> {
        self.guest.run("killall -q -9 rping rstream; ip link set eth0 up").map(drop)
    }

    /// Returns true if the two kernels still reach each other. If they do not, no peer under test
    /// is to blame.
    pub(crate) fn guest_answers(&mut self) -> bool {
        let pings = ["-c", "8", "-i", "0.3", "-w", "5", "-q", GUEST];
        self.plug().is_ok()
            && Command::new("ping").args(pings).output().is_ok_and(|ping| ping.status.success())
    }

    /// Reboots the guest and applies its settings again.
    pub(crate) fn reboot(&mut self) -> anyhow::Result<()> {
        self.guest.reboot()?;
        let Settings { mtu, asks_for_crc, netem } = self.settings;
        self.set_mtu(mtu)?;
        if asks_for_crc {
            self.load_siw(true)?;
        }
        if netem.is_some() {
            self.impair(netem)?;
        }
        Ok(())
    }
}

fn listens(device: Device, port: u16) -> anyhow::Result<bool> {
    match device {
        Device::Kernel => {
            let sockets = std::fs::read_to_string("/proc/net/tcp")?;
            Ok(sockets.contains(&format!(":{port:04X} 00000000:0000 0A")))
        }
        Device::Tap => Ok(ip("-brief link show tapu")?.contains("LOWER_UP")),
    }
}
