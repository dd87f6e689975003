//! `urnic ibgate`.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use urnic::device::{DeviceError, Kind};
use urnic::monotonic_now;
use urnic_ipoib::device::IpoibDevice;
use urnic_ipoib::ibsim::Node;
use urnic_ipoib::link::LinkState;
use urnic_ipoib::wire::reports::Change;
use urnic_netdev::interface::Name;
use urnic_netdev::tap::{Tap, TapConfig};
use urnic_netdev::{Device, Medium};

use crate::device::{DeviceSpec, awaited};
use crate::ib::{GROUPS_MAX, Gate, GateSummary, Rules, stays_on_link};
use crate::interrupt::Interrupt;
use crate::{report, units};

/// Route between the kernel and a link of InfiniBand
///
/// Makes a TUN interface of the kernel, joins a link of InfiniBand, and routes between the two:
/// programs on the kernel's own stack and ports on the fabric reach each other, by IPv4 and IPv6.
/// Give the kernel a route to the link's network through the interface, and the ports (gw=, gw6=)
/// the gate's address as router to the kernel's network.
///
/// The interface has the link's MTU, and a carrier while the link is up, that is while the port is
/// in the broadcast group. If the gate cannot forward a datagram, it sends ICMP to the sender: hop
/// limit reached, no route, a neighbour that does not answer, too long. The gate answers pings
/// itself.
///
/// Runs until it is interrupted, then prints the counts of datagrams.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The gate's port and its addresses on the link: 'ib:sim=NAME,node=NODE,ip=ADDRESS/LENGTH';
    /// also ip6=ADDRESS/LENGTH gw=ADDRESS gw6=ADDRESS pkey=HEX scope=HEX peer=UID
    #[arg(long, value_name = "DEVICE")]
    dev: DeviceSpec,

    /// The TUN interface; if it does not exist, it is made, and removed when the command ends
    #[arg(long, value_name = "INTERFACE", default_value = "ibgate")]
    tun: Name,

    /// A multicast group whose datagrams always go from the link to the kernel; may be given
    /// several times. Not needed for groups that programs of this machine join on the interface,
    /// nor for datagrams from the kernel
    #[arg(long, value_name = "ADDRESS")]
    group: Vec<IpAddr>,

    /// A DHCP server (IPv4) that the kernel reaches: the gate relays broadcast requests of the
    /// link's ports to it, and its answers to the ports. It gives addresses of the link's network,
    /// and the gate's as router
    #[arg(long, value_name = "ADDRESS")]
    dhcp_relay: Option<Ipv4Addr>,

    /// How long to wait for ibsim, in seconds or with a unit
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::seconds)]
    timeout: Duration,

    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,

    /// Print the result as JSON
    #[arg(long, help_heading = crate::demo::OUTPUT)]
    json: bool,

    /// Print nothing
    #[arg(long, help_heading = crate::demo::OUTPUT, conflicts_with = "json")]
    quiet: bool,
}

const EXAMPLES: &str = "\
Example, make the interface once for a user (takes root, CAP_NET_ADMIN):
  sudo ip tuntap add dev ibgate mode tun user $USER
  sudo ip link set ibgate mtu 2044 up

Exit status: 0 when stopped, 2 if there is no such node, or the interface cannot be opened.

Example, the kernel pings a port; 'urnic ibswitch --help' shows how to start the fabric:
  urnic ibgate --dev ib:sim=fabric,node=Hca2,ip=10.9.0.9/24,ip6=fd00::9/64 &
  ip addr add 10.8.0.1 dev ibgate
  ip route add 10.9.0.0/24 dev ibgate src 10.8.0.1
  ip addr add fd08::1 dev ibgate nodad
  ip route add fd00::/64 dev ibgate src fd08::1
  DEV=ib:sim=fabric,node=Hca3,ip=10.9.0.3/24,gw=10.9.0.9
  urnic serve --dev $DEV --listen 10.9.0.3 &
  ping -c 3 10.9.0.3
  urnic put file.tar 10.9.0.3            The kernel's TCP to ours.

Example, ports get their addresses from dnsmasq on this machine ('--dev ib:…,dhcp' at the ports):
  GATE=ib:sim=fabric,node=Hca2,ip=10.9.0.9/24
  urnic ibgate --dev $GATE --dhcp-relay 10.8.0.1 &
  ip addr add 10.8.0.1 dev ibgate
  ip route add 10.9.0.0/24 dev ibgate src 10.8.0.1
  dnsmasq --port=0 --no-ping --dhcp-option=option:router,10.9.0.9 \\
    --dhcp-range=10.9.0.50,10.9.0.99,255.255.255.0,1h";

/// The gate then checks its interface, and if it must stop.
const LOOK_NS: u64 = 100_000_000;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Kind::Ib(port) = args.dev.kind() else {
        bail!("--dev {}: a gate has a port of InfiniBand: ib:sim=NAME,node=NODE,ip=…", args.dev);
    };
    let network = &port.network;
    ensure!(
        !network.dhcp,
        "--dev {}: a gate is a router, whose address is known to others: give it one by ip=",
        args.dev
    );
    ensure!(
        network.ip.is_some() || network.ip6.is_some(),
        "--dev {}: a gate has an address on its link: add ip=ADDRESS/LENGTH",
        args.dev
    );
    if let Some(server) = args.dhcp_relay {
        let of_host = !server.is_unspecified() && !server.is_multicast() && !server.is_broadcast();
        ensure!(of_host, "--dhcp-relay {server}: not the address of a server");
        ensure!(
            network.ip.is_some(),
            "--dhcp-relay {server}: the gate needs an IPv4 address on the link: add ip=ADDRESS/LENGTH"
        );
    }
    ensure!(args.group.len() <= GROUPS_MAX, "--group: at most {GROUPS_MAX} groups");
    if let Some(other) = args.group.iter().find(|group| !group.is_multicast()) {
        bail!("--group {other}: no multicast address: such are 239.1.2.3 and ff15::1234");
    }
    if let Some(of_link) = args.group.iter().find(|group| stays_on_link(**group)) {
        bail!(
            "--group {of_link}: a group of one link, which no router forwards: name one like 239.1.2.3 or ff15::1234"
        );
    }
    let interrupt = Interrupt::default();
    interrupt.watch()?;
    let patience = args.duration.map_or(args.timeout, |duration| duration.min(args.timeout));
    let is_over = || interrupt.has_come();
    let mut link = awaited(patience, DeviceError::is_absent_peer, is_over, || port.open())?;
    let now_ns = monotonic_now().as_nanos();
    for group in &args.group {
        link.join_group(now_ns, *group);
    }
    let settings = TapConfig { medium: Medium::Ip, ..TapConfig::new(args.tun) };
    let tun = Tap::open(&settings).context("--tun")?;
    // The carrier comes only when the link is up; if setting it fails now, it is tried again.
    let _later = tun.set_carrier(false);
    let groups = args.group.iter().copied().collect();
    let (ipv4, ipv6, dhcp_server) = (network.ip, network.ip6, args.dhcp_relay);
    let mut gate = Gate::new(link, tun, Rules { ipv4, ipv6, groups, dhcp_server });
    let start_ns = monotonic_now().as_nanos();
    carry(&mut gate, args, start_ns, &interrupt)?;
    let elapsed = Duration::from_nanos(monotonic_now().as_nanos() - start_ns);
    let (is_up, mtu) = (gate.link().link_up(), gate.link().capabilities().mtu);
    let counters = *gate.link().link().counters();
    let [to_link, to_kernel] = gate.directions();
    let summary = GateSummary::of(
        elapsed.as_secs_f64(),
        (is_up, mtu, &counters),
        gate.groups_refused(),
        (to_link, to_kernel, gate.icmp(), gate.dhcp()),
    );
    if args.json {
        report::print_json(&summary)?;
    } else if !args.quiet {
        report::print(&summary.text())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn carry(
    gate: &mut Gate<IpoibDevice<Node>, Tap>,
    args: &Args,
    start_ns: u64,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let end_ns = args.duration.map_or(u64::MAX, |time| {
        start_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    });
    let says = !args.json && !args.quiet;
    let mut told = None;
    while !interrupt.has_come() {
        let now_ns = monotonic_now().as_nanos();
        if now_ns >= end_ns {
            break;
        }
        let taken = gate.turn(now_ns);
        while let Some(change) = gate.poll_group_change() {
            match change {
                Change::Joins(group) => gate.link().join_group(now_ns, group),
                Change::Leaves(group) => gate.link().leave_group(now_ns, group),
            }
        }
        while let Some(datagram) = gate.link().poll_undeliverable() {
            gate.tell_undeliverable(now_ns, &datagram);
        }
        let state = gate.link().link().state();
        if told != Some(state) {
            // The carrier of a deleted interface cannot be set: it is set for the next one of this
            // name.
            if follow(gate, state) {
                told = Some(state);
                if says {
                    report::print(&line(args.tun, state))?;
                }
            }
        }
        if taken == 0 {
            wait(gate, now_ns, end_ns)?;
        }
    }
    Ok(())
}

fn follow(gate: &mut Gate<IpoibDevice<Node>, Tap>, state: LinkState) -> bool {
    if let LinkState::Up { mtu, .. } = state {
        // Without the right to set the MTU, the gate fragments or refuses datagrams.
        let _other_mtu = gate.tun().set_mtu(mtu);
    }
    gate.tun().set_carrier(matches!(state, LinkState::Up { .. })).is_ok()
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

fn line(tun: Name, state: LinkState) -> String {
    match state {
        LinkState::Up { mtu, .. } => {
            format!("{tun}: the link is up, with datagrams of {mtu} bytes")
        }
        LinkState::Down(why) => format!("{tun}: the link is down: {why}"),
    }
}

fn wait(gate: &mut Gate<IpoibDevice<Node>, Tap>, now_ns: u64, end_ns: u64) -> anyhow::Result<()> {
    let due_ns = gate.link().next_arrival_ns().unwrap_or(u64::MAX);
    let for_ns = LOOK_NS.min(end_ns - now_ns).min(due_ns.saturating_sub(now_ns));
    let has_room = gate.room() > 0;
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::try_from(for_ns).unwrap_or(0) };
    let (gate_link, gate_tun) = gate.devices();
    // While the link is full, datagrams stay in the kernel's queue.
    let tun = gate_tun.readiness().filter(|_| has_room);
    let mut descriptors: Vec<_> =
        gate_link.readiness().into_iter().chain(tun).map(readable).collect();
    match poll(&mut descriptors, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("waiting for datagrams"),
    }
}
