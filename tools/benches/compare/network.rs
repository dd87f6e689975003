//! Interfaces to measure on: TAPs on a bridge in the bench's own network namespace, and a veth pair
//! into a second one.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use urnic_netdev::Device;
use urnic_netdev::packet::{PacketConfig, PacketSocket};
use urnic_netdev::published::Publisher;
use urnic_netdev::shm::{Shm, ShmConfig};
use urnic_netdev::tap::{Tap, TapConfig};
use urnic_netdev::vhost_user::{VhostUser, VhostUserConfig, VirtioUser};
use urnic_netdev::xdp::{XdpConfig, XdpSocket};

/// The link between two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Two TAP interfaces on a bridge.
    Taps {
        /// IP MTU.
        mtu: usize,
        /// With `virtio_net_hdr`: super-frames, partial checksums.
        vnet: bool,
    },
    /// Packet sockets on the ends of a veth pair of their own.
    Packet {
        /// IP MTU.
        mtu: usize,
        /// Super-frames, partial checksums.
        vnet: bool,
    },
    /// AF_XDP sockets in copy mode on the ends of that pair.
    Xdp,
    /// The two ends of a vhost-user device: the near side is the frontend, unless `turned`.
    Shared {
        /// IP MTU.
        mtu: usize,
        /// The near side is the backend.
        turned: bool,
    },
    /// The two ends of a vhost-user device whose frontend, at the near side, shares its memory.
    Sharing {
        /// IP MTU.
        mtu: usize,
    },
    /// The two ends of an `shm` device.
    Published {
        /// IP MTU.
        mtu: usize,
    },
    /// Packet sockets on the two interfaces that `urnic impair` joins, for one of several flows.
    Impaired {
        /// Number of the flow, from 0.
        flow: u8,
    },
    /// The kernel's TCP over the veth pair.
    Kernel,
}

impl Link {
    /// Returns the numbers of both hosts, from which their addresses are made.
    pub(crate) const fn hosts(self) -> [u8; 2] {
        match self {
            Self::Impaired { flow } => [2 * flow + 1, 2 * flow + 2],
            _ => [1, 2],
        }
    }
}

/// The Ethernet address of a side's stack.
pub(crate) const fn mac(host: u8) -> [u8; 6] {
    [2, 0, 10, 77, 0, host]
}

/// The IP address of a side's stack.
pub(crate) const fn address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host)
}

/// The kernel's addresses on the veth pair.
pub(crate) const VETH: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 78, 0, 2))];

/// Runs `ip` of iproute2.
pub(crate) fn ip(arguments: &str) -> Result<()> {
    run(Command::new("ip").args(arguments.split_whitespace()))
}

/// Returns true if an interface of this name exists and is up.
pub(crate) fn is_up(name: &str) -> bool {
    let shown = Command::new("ip").args(["link", "show", "up", "dev", name]).output();
    shown.is_ok_and(|shown| shown.status.success() && !shown.stdout.is_empty())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// The second namespace, with the far end of the veth pair. It disappears when the bench ends, in
/// any way.
#[derive(Debug)]
pub(crate) struct Far {
    holder: Child,
    namespace: File,
}

impl Far {
    /// Makes the bridge, the second namespace and the veth pair.
    pub(crate) fn new() -> Result<Self> {
        ip("link set lo up")?;
        for which in ["all", "default"] {
            // A kernel without IPv6 has no such file: then there is nothing to disable.
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            let _absent = std::fs::write(path, "1");
        }
        // The host's packet filter, if loaded, sees frames on a bridge: this takes a seventh of the
        // cost of a small frame, and is not compared here.
        for filter in ["arptables", "ip6tables", "iptables"] {
            let _absent =
                std::fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{filter}"), "0");
        }
        ip("link add bridge0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0")?;
        ip("link set bridge0 up")?;
        ip("link add veth-c type veth peer name veth-d")?;
        ip("link set veth-c up")?;
        ip("link set veth-d up")?;
        for which in ["ip", "ip6", "arp"] {
            // Bridged frames need not pass the packet filter, which may be absent.
            let path = format!("/proc/sys/net/bridge/bridge-nf-call-{which}tables");
            let _absent = std::fs::write(path, "0");
        }
        // A mount of /sys of its own, where other programs find the interfaces.
        let script = "mount -t sysfs sysfs /sys; echo ready; exec cat >/dev/null";
        let mut holder = Command::new("unshare")
            .args(["--net", "--mount", "--", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        holder.stdout.as_mut().context("a pipe")?.read_exact(&mut [0; 6])?;
        let namespace = File::open(format!("/proc/{}/ns/net", holder.id()))?;
        let far = Self { holder, namespace };
        let id = far.holder.id();
        ip(&format!("link add veth-a type veth peer name veth-b netns {id}"))?;
        ip(&format!("address add {}/24 dev veth-a", VETH[0]))?;
        ip("link set veth-a up")?;
        run(far.command("ip").args([
            "address",
            "add",
            &format!("{}/24", VETH[1]),
            "dev",
            "veth-b",
        ]))?;
        run(far.command("ip").args(["link", "set", "veth-b", "up"]))?;
        Ok(far)
    }

    /// Returns a program that will run in the far namespace.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.holder.id().to_string(), "-n", "-m", "--", program]);
        command
    }

    /// Runs `task` in the far namespace.
    pub(crate) fn run<R: Send>(&self, task: impl FnOnce() -> R + Send) -> Result<R> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| self.enter().map(|()| task()));
            inside.join().expect("the task does not panic")
        })
    }

    /// Moves the calling thread into the far namespace.
    pub(crate) fn enter(&self) -> Result<()> {
        Ok(move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Moves an interface of this namespace there, and gives it an address.
    pub(crate) fn adopt(&self, name: &str, address: IpAddr) -> Result<()> {
        ip(&format!("link set {name} netns {}", self.holder.id()))?;
        run(self.command("ip").args(["address", "add", &format!("{address}/24"), "dev", name]))?;
        run(self.command("ip").args(["link", "set", name, "up"]))
    }

    /// Turns segmentation and receive offloads of the veth pair on or off.
    pub(crate) fn offloads(&self, on: bool) -> Result<()> {
        let state = if on { "on" } else { "off" };
        let arguments = |name| ["-K", name, "tso", state, "gso", state, "gro", state];
        run(Command::new("ethtool").args(arguments("veth-a")))?;
        run(self.command("ethtool").args(arguments("veth-b")))
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ended = self.holder.wait();
    }
}

/// A device of any kind.
pub(crate) type AnyDevice = Box<dyn Device + Send>;

/// One end of a link of frames.
pub(crate) struct End {
    pub(crate) device: AnyDevice,
    /// Publishes memory that the other end may read.
    pub(crate) publisher: Option<Publisher>,
}

/// Returns both ends of a link of frames, with the publishers of their memory.
pub(crate) fn ends(far: &Far, link: Link) -> Result<(End, End)> {
    let publisher = matches!(link, Link::Sharing { .. }).then(Publisher::new);
    let (near, there) = match link {
        Link::Published { mtu } => return published(mtu),
        Link::Sharing { mtu } => {
            let (backend, frontend) = shared(mtu, publisher.as_ref())?;
            (frontend, backend)
        }
        _ => devices(far, link)?,
    };
    Ok((End { device: near, publisher }, End { device: there, publisher: None }))
}

/// Returns both ends of a link of frames.
pub(crate) fn devices(far: &Far, link: Link) -> Result<(AnyDevice, AnyDevice)> {
    match link {
        Link::Taps { mtu, vnet } => {
            let (a, b) = taps(mtu, vnet)?;
            Ok((Box::new(a), Box::new(b)))
        }
        Link::Packet { mtu, vnet } => {
            for name in ["veth-c", "veth-d"] {
                ip(&format!("link set {name} mtu {mtu}"))?;
            }
            Ok((packet("veth-c", 1, vnet)?, packet("veth-d", 2, vnet)?))
        }
        Link::Shared { mtu, turned } => {
            let (backend, frontend) = shared(mtu, None)?;
            Ok(if turned { (backend, frontend) } else { (frontend, backend) })
        }
        Link::Published { .. } | Link::Sharing { .. } => {
            let (near, there) = ends(far, link)?;
            Ok((near.device, there.device))
        }
        Link::Impaired { .. } => {
            let [near_host, far_host] = link.hosts();
            let there = far.run(|| packet(IMPAIRED[1], far_host, true))?;
            Ok((packet(IMPAIRED[0], near_host, true)?, there?))
        }
        Link::Xdp => {
            let open = |name: &str, host| -> Result<XdpSocket> {
                ip(&format!("link set {name} mtu 1500"))?;
                let addresses = [IpAddr::V4(address(host))];
                let config = XdpConfig::new(name.parse()?, &addresses);
                let config = XdpConfig { mac: Some(mac(host)), ..config };
                // The kernel needs some time to release the socket of the last case.
                let mut opened = XdpSocket::open(&config);
                for _ in 0..20 {
                    if opened.is_ok() {
                        break;
                    }
                    pause();
                    opened = XdpSocket::open(&config);
                }
                Ok(opened?)
            };
            Ok((Box::new(open("veth-c", 1)?), Box::new(open("veth-d", 2)?)))
        }
        Link::Kernel => anyhow::bail!("the kernel's TCP is no device"),
    }
}

fn packet(name: &str, host: u8, super_frames: bool) -> Result<AnyDevice> {
    let addresses = [IpAddr::V4(address(host))];
    let config = PacketConfig::new(name.parse()?, &addresses);
    let config = PacketConfig { mac: Some(mac(host)), super_frames, ..config };
    Ok(Box::new(PacketSocket::open(&config)?))
}

/// Returns backend and frontend of a vhost-user device, connected; the frontend shares memory if
/// there is a publisher.
fn shared(mtu: usize, publisher: Option<&Publisher>) -> Result<(AnyDevice, AnyDevice)> {
    let path = std::env::temp_dir().join(format!("urnic-compare-{}", std::process::id()));
    let config = VhostUserConfig { mtu, ..VhostUserConfig::backend(path.clone()) };
    let mut backend = VhostUser::open(&config)?;
    let config = VhostUserConfig { mtu, ..VhostUserConfig::frontend(path) };
    let publisher = publisher.cloned();
    let opening = thread::spawn(move || {
        let mut queues = match publisher {
            Some(publisher) => VirtioUser::open_sharing(&config, 1, &publisher)?,
            None => VirtioUser::open_queues(&config, 1)?,
        };
        queues.pop().context("a queue")
    });
    let mut now_ns = 0;
    while !(opening.is_finished() && backend.link_up()) {
        // The interval at which it checks its socket.
        now_ns += 10_000_000;
        backend.receive(now_ns, 1, &mut |_| ());
        thread::yield_now();
    }
    let frontend = opening.join().expect("it does not panic")?;
    Ok((Box::new(backend), Box::new(frontend)))
}

/// Returns both ends of an `shm` device, connected.
fn published(mtu: usize) -> Result<(End, End)> {
    let path = std::env::temp_dir().join(format!("urnic-compare-shm-{}", std::process::id()));
    let publishers = [Publisher::new(), Publisher::new()];
    let config = ShmConfig { path, listens: true, mtu, peer: None };
    let mut there = Shm::open(&config, &publishers[1])?;
    let (config, publisher) = (ShmConfig { listens: false, ..config }, publishers[0].clone());
    let opening = thread::spawn(move || Shm::open(&config, &publisher));
    let mut now_ns = 0;
    while !(opening.is_finished() && there.link_up()) {
        now_ns += 10_000_000;
        there.receive(now_ns, 1, &mut |_| ());
        thread::yield_now();
    }
    let near = opening.join().expect("it does not panic")?;
    let [of_near, of_there] = publishers.map(Some);
    let near = End { device: Box::new(near), publisher: of_near };
    Ok((near, End { device: Box::new(there), publisher: of_there }))
}

/// The interfaces that `urnic impair` joins; the second is in the far namespace.
pub(crate) const IMPAIRED: [&str; 2] = ["imp-a", "imp-b"];

#[expect(clippy::disallowed_methods, reason = "nothing tells when the kernel is done")]
pub(crate) fn pause() {
    thread::sleep(std::time::Duration::from_millis(50));
}

/// Makes two TAP interfaces on the bridge, which disappear when they are dropped.
fn taps(mtu: usize, vnet: bool) -> Result<(Tap, Tap)> {
    let tap = |name: &str| -> Result<Tap> {
        let config =
            TapConfig { mtu: Some(mtu), vnet_header: vnet, ..TapConfig::new(name.parse()?) };
        let tap = Tap::open(&config)?;
        ip(&format!("link set {name} master bridge0"))?;
        Ok(tap)
    };
    Ok((tap("tap-a")?, tap("tap-b")?))
}
