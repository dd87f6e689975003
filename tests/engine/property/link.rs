//! The link of a plan, and a start time at which its sequence numbers are about to wrap.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;

use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::poll::{Lockstep, Poller};
use urnic_engine::port::{ConnectParams, ListenParams, Port, PortConfig};
use urnic_engine::tcp;
use urnic_engine::time::Instant;
use urnic_engine::verbs::Rnic;
use urnic_netdev::impair::Impair;
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_netdev::{Capabilities, Device, Medium, RxChecksum, RxFrame};

use crate::property::end::End;
use crate::property::plan::Plan;
use urnic_testkit::pair::{A, B, TCP_PORT};

pub(crate) type Link = Lockstep<Impair<MemoryDevice>, Impair<MemoryDevice>>;

const ADDRESSES: [Ipv4Addr; 2] = [A, B];
/// Tick of the clock of initial sequence numbers (RFC 9293 §3.4.1).
const ISN_TICK_NS: u64 = 4000;

pub(crate) fn responder() -> SocketAddr {
    SocketAddr::from((ADDRESSES[1], TCP_PORT))
}

pub(crate) fn listen_params(plan: &Plan) -> ListenParams {
    let (startup, lower_layer) = (plan.startup[1], plan.lower_layer);
    ListenParams { startup, lower_layer, ..ListenParams::default() }
}

pub(crate) fn connect_params<'a>(plan: &Plan, offer: Offer<'a>) -> ConnectParams<'a> {
    ConnectParams { startup: plan.startup[0], offer, lower_layer: plan.lower_layer }
}

fn port(plan: &Plan, rnic: &Rnic, index: usize, capabilities: Capabilities) -> Port {
    let mut config = PortConfig::for_ipv4(ADDRESSES[index]);
    config.tcp.window_bytes = plan.window_bytes;
    config.out_of_order_placement = plan.out_of_order_placement;
    Port::new(rnic, config, capabilities)
}

/// Returns the two ports of a plan with its link between them, at its start time.
pub(crate) fn link(plan: &Plan, ends: &[End; 2]) -> Link {
    let link = &plan.link;
    let config = LinkConfig {
        mtu: link.mtu,
        latency_ns: link.latency_ns,
        super_frame_len_max: link.super_frames.then_some(NonZeroUsize::new(65_535)).flatten(),
        tx_checksum: link.super_frames,
        ..LinkConfig::default()
    };
    let (a, b) = memory::pair(config);
    let mut index = 0;
    let [a, b] = [a, b].map(|device| {
        let device = Impair::new(device, link.impair, plan.seed.wrapping_add(100 + index as u64));
        let port = port(plan, &ends[index].rnic, index, device.capabilities());
        index += 1;
        Poller::new(port, device)
    });
    let start = link.wrap.map_or(Instant::ZERO, |(end, octets)| {
        let isn = isn_at(plan, end, Instant::ZERO);
        let wanted = 0_u32.wrapping_sub(octets);
        let start = Instant::from_nanos(u64::from(wanted.wrapping_sub(isn.0)) * ISN_TICK_NS);
        assert_eq!(isn_at(plan, end, start).0, wanted);
        start
    });
    Lockstep::new(a, b).starting_at(start)
}

/// Returns the initial sequence number that an end would choose at `now`: that of a SYN, or of a
/// SYN-ACK.
fn isn_at(plan: &Plan, end: usize, now: Instant) -> tcp::SeqNum {
    let ends = [End::new(plan, 0), End::new(plan, 1)];
    let capabilities = Capabilities {
        medium: Medium::Ip,
        mtu: 1500,
        segmentation_len_max: None,
        tx_checksum: false,
        fragments_max: usize::MAX,
        gather_len_min: 0,
        tx_digest: false,
    };
    let mut ports = [0, 1].map(|index| port(plan, &ends[index].rnic, index, capabilities));
    let params = ConnectParams { startup: StartupConfig::default(), ..ConnectParams::default() };
    ports[0].connect(now, responder(), &ends[0].qp, &params).unwrap();
    let syn = first_frame(&mut ports[0], now);
    if end == 0 {
        return seq_of(&syn);
    }
    ports[1].listen(TCP_PORT, ListenParams::default()).unwrap();
    let frame = RxFrame::whole(&syn, RxChecksum::Unverified, None);
    ports[1].handle_frame(now, &frame);
    seq_of(&first_frame(&mut ports[1], now))
}

fn first_frame(port: &mut Port, now: Instant) -> Vec<u8> {
    let mut first = Vec::new();
    port.poll_transmit(now, 1, &mut |frame| {
        if first.is_empty() {
            first.resize(frame.len(), 0);
            frame.gather(&mut first);
        }
        Ok(())
    });
    first
}

fn seq_of(frame: &[u8]) -> tcp::SeqNum {
    tcp::Header::parse(&frame[20..]).unwrap().0.seq
}
