//! A fabric of InfiniBand in memory, with nodes that are hosts of one link of IPoIB.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use urnic_ipoib::device::IpoibDevice;
use urnic_ipoib::link::LinkConfig;
use urnic_ipoib::memory::{Fabric, FabricConfig, MemoryPort};
use urnic_ipoib::wire::address::{Guid, PKey, Qpn};
use urnic_ipoib::wire::datagram;
use urnic_netdev::{Capabilities, Device, RxFrame, TransmitError, TxFrame};

use crate::address::{address_v4, address_v6};
use crate::plan::{FabricEvent, LinkPlan};

/// Each further process has the next number.
const QPN_FIRST: u32 = 0x100;

#[derive(Debug)]
pub(crate) struct Subnet {
    fabric: Fabric,
    /// Restarts of each node's process.
    starts: Vec<Arc<AtomicU32>>,
}

impl Subnet {
    pub(crate) fn new(link: &LinkPlan, nodes: usize, seed: u64) -> (Self, Vec<Host>) {
        let mtu_octets = link.mtu + datagram::HEADER_LEN;
        let fabric = Fabric::new(FabricConfig { mtu_octets, latency_ns: link.latency_ns });
        let starts: Vec<_> = (0..nodes).map(|_| Arc::default()).collect();
        let hosts = starts.iter().enumerate().map(|(node, ordered)| {
            let port = fabric.plug(guid(node), &[PKey(0xffff)]);
            let device = IpoibDevice::new(port, settings(node, seed, 0));
            let ordered = Arc::clone(ordered);
            Host { device, fabric: fabric.clone(), node, seed, started: 0, ordered }
        });
        let hosts = hosts.collect();
        (Self { fabric, starts }, hosts)
    }

    pub(crate) fn apply(&self, now_ns: u64, event: FabricEvent) {
        match event {
            FabricEvent::Manager => self.fabric.restart_manager(),
            FabricEvent::Silent(is_silent) => self.fabric.set_silent(is_silent),
            FabricEvent::Busy(answers) => self.fabric.set_busy(answers),
            FabricEvent::Mute(answers) => self.fabric.set_mute(answers),
            FabricEvent::Cable(node, is_in) => self.fabric.set_link(now_ns, guid(node), is_in),
            FabricEvent::Lid(node) => self.fabric.move_port(guid(node)),
            FabricEvent::QueuePair(node) => {
                self.starts[node].fetch_add(1, Ordering::Relaxed);
            }
            FabricEvent::Calm => {
                self.fabric.set_silent(false);
                self.fabric.set_busy(0);
                self.fabric.set_mute(0);
                for node in 0..self.starts.len() {
                    self.fabric.set_link(now_ns, guid(node), true);
                }
            }
        }
    }
}

pub(crate) fn guid(node: usize) -> Guid {
    Guid(0x10_0000 + node as u64)
}

fn settings(node: usize, seed: u64, start: u32) -> LinkConfig {
    let mut octets = [0; 32];
    octets[..8].copy_from_slice(&seed.to_le_bytes());
    octets[8..12].copy_from_slice(&start.to_le_bytes());
    octets[12] = address_v4(node).octets()[3];
    LinkConfig {
        ipv4: Some((address_v4(node), 24)),
        ipv6: Some((address_v6(node), 64)),
        ..LinkConfig::new(Qpn::from_bits(QPN_FIRST + start), octets)
    }
}

/// Its link may restart at any time below its connections, without its queue pair and state.
#[derive(Debug)]
pub(crate) struct Host {
    device: IpoibDevice<MemoryPort>,
    fabric: Fabric,
    node: usize,
    seed: u64,
    started: u32,
    ordered: Arc<AtomicU32>,
}

impl Device for Host {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        let ordered = self.ordered.load(Ordering::Relaxed);
        if ordered != self.started {
            self.started = ordered;
            let port = self.fabric.port(guid(self.node)).expect("it was plugged in");
            self.device = IpoibDevice::new(port, settings(self.node, self.seed, ordered));
        }
        self.device.receive(now_ns, burst, sink)
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        self.device.transmit(now_ns, frame)
    }

    fn transmit_room(&self) -> usize {
        self.device.transmit_room()
    }

    fn flush(&mut self, now_ns: u64) {
        self.device.flush(now_ns);
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.device.next_arrival_ns()
    }

    fn link_up(&self) -> bool {
        self.device.link_up()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.device.readiness()
    }
}
