//! Ports, the links between them, and the clock.

use std::io::{self, Write};
use std::num::NonZeroUsize;

use urnic_engine::poll::Poller;
use urnic_engine::port::{Port, PortConfig};
use urnic_engine::stream::SendPath;
use urnic_engine::tcp::KeepAliveTimes;
use urnic_engine::time::{Duration, Instant};
use urnic_engine::verbs::{Rnic, RnicConfig};
use urnic_netdev::Device;
use urnic_netdev::impair::{Impair, ImpairConfig, ImpairCounters};
use urnic_netdev::memory::{self, Link, LinkConfig, MemoryDevice};
use urnic_netdev::record::{CaptureWriter, Directions, Recorder};

use crate::address::{address_v4, address_v6};
use crate::fabric::{self, Subnet};
use crate::guess::Guesser;
use crate::plan::{Change, Event, LinkPlan, NodePlan, Plan};
use crate::switch::Switch;

pub(crate) type Sink = Box<dyn Write + Send>;

/// A sent frame is impaired, then recorded, then put on the link.
type NodeDevice = Impair<Box<dyn Device>>;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) rnic: Rnic,
    pub(crate) poller: Poller<NodeDevice>,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    links: Vec<Link>,
    switch: Option<Switch>,
    subnet: Option<Subnet>,
    relisten: Vec<usize>,
    paused_until: Vec<Instant>,
    changes: std::vec::IntoIter<Change>,
    next_change: Option<Change>,
    now: Instant,
    pub(crate) steps: u64,
}

impl World {
    /// Records the frames that nodes send to `capture`.
    pub(crate) fn new(plan: &Plan, capture: Option<&CaptureWriter<Sink>>) -> Self {
        let Joined { devices, links, switch, subnet } = join(plan);
        let nodes = devices
            .into_iter()
            .zip(&plan.nodes)
            .enumerate()
            .map(|(index, (device, node))| {
                let device: Box<dyn Device> = match capture {
                    None => device,
                    Some(writer) => {
                        let name = format!("node {index}");
                        Box::new(Recorder::new(device, writer, &name, Directions::Sent))
                    }
                };
                let seed = plan.seed.wrapping_mul(64).wrapping_add(index as u64);
                make_node(node, index, seed, plan.link.is_fabric, device)
            })
            .collect();
        let mut changes = plan.changes.clone().into_iter();
        let next_change = changes.next();
        let relisten = Vec::new();
        let paused_until = vec![Instant::ZERO; plan.nodes.len()];
        let (now, steps) = (Instant::ZERO, 0);
        Self {
            nodes,
            links,
            switch,
            subnet,
            relisten,
            paused_until,
            changes,
            next_change,
            now,
            steps,
        }
    }

    pub(crate) const fn now(&self) -> Instant {
        self.now
    }

    pub(crate) fn port(&mut self, node: usize) -> &mut Port {
        &mut self.nodes[node].poller.port
    }

    pub(crate) fn impair_counters(&self) -> impl Iterator<Item = &ImpairCounters> {
        self.nodes.iter().map(|node| node.poller.device.counters())
    }

    pub(crate) fn fall_silent(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.silence(node));
    }

    pub(crate) fn silence(&mut self, node: usize) {
        let device = &mut self.nodes[node].poller.device;
        let config = ImpairConfig { outage: true, ..*device.config() };
        device.set_config(config);
    }

    pub(crate) fn last_pause_end(&self) -> Instant {
        self.paused_until.iter().copied().max().unwrap_or(Instant::ZERO)
    }

    pub(crate) fn next_relisten(&mut self) -> Option<usize> {
        self.relisten.pop()
    }

    pub(crate) fn frames_forged(&self) -> u64 {
        let guesser = self.switch.as_ref().and_then(|switch| switch.guesser.as_ref());
        guesser.map_or(0, |guesser| guesser.forged)
    }

    pub(crate) fn frames_astray(&self) -> u64 {
        self.switch.as_ref().map_or(0, |switch| switch.movers.astray)
    }

    /// Returns the number of frames moved.
    pub(crate) fn poll(&mut self) -> usize {
        self.steps += 1;
        self.apply_changes();
        let now = self.now;
        let nodes = self.nodes.iter_mut().zip(&self.paused_until);
        let awake = nodes.filter(|(_, until)| **until <= now);
        let moved: usize = awake.map(|(node, _)| node.poller.poll(now)).sum();
        moved + self.switch.as_mut().map_or(0, |switch| switch.poll(now.as_nanos()))
    }

    /// `false` if there is neither an event nor `wakeup`. Call only after [`poll`](Self::poll) has
    /// moved nothing and no work was posted since.
    pub(crate) fn advance(&mut self, wakeup: Option<Instant>) -> bool {
        let now = self.now;
        let ports = self.nodes.iter_mut().zip(&self.paused_until).filter_map(|(node, until)| {
            if *until > now { Some(*until) } else { node.poller.next_wakeup() }
        });
        let switch = self.switch.as_ref().and_then(Switch::next_arrival_ns);
        let change = self.next_change.map(|change| change.at_ns);
        let virtual_ns = [switch, change].into_iter().flatten().map(Instant::from_nanos);
        match ports.chain(virtual_ns).chain(wakeup).min() {
            Some(next) => {
                // Advance by at least 1 ns, so that an event that is due already makes progress.
                self.now = next.max(self.now.plus_nanos(1));
                true
            }
            None => false,
        }
    }

    fn apply_changes(&mut self) {
        while let Some(Change { what, .. }) =
            self.next_change.filter(|change| change.at_ns <= self.now.as_nanos())
        {
            match what {
                Event::Impair(node, config) => {
                    self.nodes[node].poller.device.set_config(config);
                }
                Event::Link(up) => self.links.iter().for_each(|link| link.set_link_up(up)),
                Event::Mtu(mtu) => self.links.iter().for_each(|link| link.set_mtu(mtu)),
                Event::Latency(ns) => self.links.iter().for_each(|link| link.set_latency(ns)),
                Event::ListenAgain(node) => self.relisten.push(node),
                Event::Pause(node, length_ns) => {
                    self.paused_until[node] = self.now.plus_nanos(length_ns);
                }
                Event::Move(node, announces) => {
                    if let Some(switch) = &mut self.switch {
                        switch.move_node(self.now.as_nanos(), node, announces);
                    }
                }
                Event::Crowd(node, hosts) => {
                    if let Some(switch) = &mut self.switch {
                        switch.crowd(self.now.as_nanos(), node, hosts);
                    }
                }
                Event::Fabric(event) => {
                    if let Some(subnet) = &self.subnet {
                        subnet.apply(self.now.as_nanos(), event);
                    }
                }
            }
            self.next_change = self.changes.next();
        }
    }
}

fn link_config(link: &LinkPlan) -> LinkConfig {
    LinkConfig {
        mtu: link.mtu,
        latency_ns: link.latency_ns,
        rate_bits_per_second: link.rate_bits_per_second,
        queue_frames: link.queue_frames,
        super_frame_len_max: link.super_frames.then_some(NonZeroUsize::new(65_535)).flatten(),
        tx_checksum: link.super_frames,
        ..LinkConfig::default()
    }
}

struct Joined {
    devices: Vec<Box<dyn Device>>,
    links: Vec<Link>,
    switch: Option<Switch>,
    subnet: Option<Subnet>,
}

fn boxed<D: Device + 'static>(devices: impl IntoIterator<Item = D>) -> Vec<Box<dyn Device>> {
    devices.into_iter().map(|device| Box::new(device) as Box<dyn Device>).collect()
}

fn join(plan: &Plan) -> Joined {
    if plan.link.is_fabric {
        let (subnet, hosts) = Subnet::new(&plan.link, plan.nodes.len(), plan.seed);
        let (links, switch) = (Vec::new(), None);
        return Joined { devices: boxed(hosts), links, switch, subnet: Some(subnet) };
    }
    let config = link_config(&plan.link);
    if plan.nodes.len() == 2 {
        let (a, b) = memory::pair(config);
        let link = a.link();
        return Joined { devices: boxed([a, b]), links: vec![link], switch: None, subnet: None };
    }
    let pairs = plan.nodes.iter().map(|_| memory::pair(config));
    let (devices, ports): (Vec<_>, Vec<_>) = pairs.unzip();
    let links = devices.iter().map(MemoryDevice::link).collect();
    let guesser = plan.guesses.map(|guesses| Guesser::new(guesses, plan.seed));
    let switch = Some(Switch::new(ports, guesser));
    Joined { devices: boxed(devices), links, switch, subnet: None }
}

fn make_node(
    plan: &NodePlan,
    index: usize,
    seed: u64,
    is_on_fabric: bool,
    device: Box<dyn Device>,
) -> Node {
    let rnic = Rnic::new(RnicConfig { seed: seed.into() });
    let device = Impair::new(device, plan.impair, seed ^ 0x5eed);
    let mut config = PortConfig::for_ipv4(address_v4(index));
    config.ipv6 = Some((address_v6(index), 64));
    // RFC 4391 §8.
    config.interface_identifier =
        is_on_fabric.then(|| fabric::guid(index).interface_identifier(false));
    config.out_of_order_placement = plan.out_of_order_placement;
    config.piece_blocks = plan.piece_blocks;
    // Depends on the seed alone and draws nothing, so that the plans of old seeds do not change.
    config.send_path = if seed.is_multiple_of(3) { SendPath::Stage } else { SendPath::Auto };
    config.tcp.window_bytes = plan.window_bytes;
    config.tcp.congestion = plan.congestion;
    config.tcp.sack = plan.sack;
    config.tcp.timestamps = plan.timestamps;
    config.tcp.user_timeout = Duration::from_nanos(plan.user_timeout_ns);
    let idle = plan.keepalive_ns.map(Duration::from_nanos);
    config.tcp.keepalive = idle.map(KeepAliveTimes::after);
    let port = Port::new(&rnic, config, device.capabilities());
    Node { rnic, poller: Poller::new(port, device) }
}

pub(crate) fn capture(sink: Sink) -> io::Result<CaptureWriter<Sink>> {
    CaptureWriter::new(sink)
}
