//! Frames in fragments of the device's memory: payload is placed directly from there, and unusable
//! fragments are copied first.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::net::IpAddr;
use std::num::NonZeroUsize;

use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ConnectParams, LowerLayer};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{QpConfig, QpRules, RecvWr, SendWr, WcStatus};
use urnic_netdev::impair::{Impair, ImpairConfig};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_testkit::fragments::InFragments;
use urnic_testkit::pair::{A, B, End, Pair, all_access, config, content, fill, v6};

const LEN: usize = 150_001;

type Device = InFragments<Impair<MemoryDevice>>;

/// Connects two ends on a link that finishes checksums and cuts super-frames.
fn connect(
    mtu: usize,
    run_len_max: usize,
    impair: ImpairConfig,
    startup: StartupConfig,
    seed: u64,
) -> Pair<Device> {
    connect_ends([End::new(1), End::new(2)], mtu, run_len_max, impair, startup, seed)
}

fn connect_ends(
    ends: [End; 2],
    mtu: usize,
    run_len_max: usize,
    impair: ImpairConfig,
    startup: StartupConfig,
    seed: u64,
) -> Pair<Device> {
    let link = LinkConfig {
        mtu,
        latency_ns: 10_000,
        super_frame_len_max: NonZeroUsize::new(65_000),
        tx_checksum: true,
        ..LinkConfig::default()
    };
    let (a, b) = memory::pair(link);
    let device = |device, number| {
        InFragments::new(Impair::new(device, impair, seed + number), seed + number, run_len_max)
    };
    let devices = [device(a, 10), device(b, 20)];
    let mut pair = Pair::new(ends, [config(A), config(B)], devices);
    let offer = Offer { private_data: b"", ird: 8, ord: 8 };
    let params = ConnectParams { startup, offer, lower_layer: LowerLayer::default() };
    // Over both versions of IP, alternately.
    let address = if seed.is_multiple_of(2) { IpAddr::V6(v6(B)) } else { B.into() };
    pair.establish(&params, address, &offer);
    pair
}

/// Asserts that a Write, a Read and a Send move every byte. Returns the bytes of frames that each
/// end first copied to contiguous memory.
fn move_every_octet(mut pair: Pair<Device>) -> [u64; 2] {
    let source = pair.a.pd.reg_mr(LEN, all_access()).unwrap();
    let expected = fill(&source, 7);
    let sink = pair.b.pd.reg_mr(LEN, all_access()).unwrap();
    let (cq_a, cq_b) = (pair.a.cq.clone(), pair.b.cq.clone());

    let write = SendWr::write(WrId(1), sink.remote(0), [source.sge(0..LEN)]);
    pair.a.qp.post_send(write).unwrap();
    assert_eq!(pair.wait(&cq_a).status, WcStatus::Success);
    assert!(content(&sink) == expected, "written octets");

    let back = pair.a.pd.reg_mr(LEN, all_access()).unwrap();
    pair.a.qp.post_send(SendWr::read(WrId(2), sink.remote(0), back.sge(0..LEN))).unwrap();
    assert_eq!(pair.wait(&cq_a).status, WcStatus::Success);
    assert!(content(&back) == expected, "read octets");

    let inbox = pair.b.pd.reg_mr(LEN, all_access()).unwrap();
    let buffer = RecvWr::new(WrId(3), [inbox.sge(0..2000), inbox.sge(2000..LEN)]);
    pair.b.qp.post_recv(buffer).unwrap();
    pair.a.qp.post_send(SendWr::send(WrId(4), [source.sge(0..LEN)])).unwrap();
    assert_eq!(pair.wait(&cq_b).status, WcStatus::Success);
    assert!(content(&inbox) == expected, "sent octets");
    [&pair.link.a.port, &pair.link.b.port].map(|port| port.port_counters().rx_bytes_gathered)
}

#[test]
fn payload_is_placed_without_an_intermediate_copy() {
    for mtu in [576, 1500, 9000, 65_535] {
        // Runs of a few bytes take long; one MTU is enough for them.
        let shortest = if mtu == 1500 { 3 } else { 50 };
        for run_len_max in [shortest, 100, 1500, 70_000] {
            for markers in [false, true] {
                let startup = StartupConfig { markers, ..StartupConfig::default() };
                let impair = ImpairConfig::default();
                for seed in [1, 2] {
                    // IPv6 links have no smaller MTU.
                    let mtu = mtu.max(if seed == 2 { 1280 } else { 0 });
                    let pair = connect(mtu, run_len_max, impair, startup, seed);
                    let what =
                        format!("MTU {mtu}, runs of {run_len_max}, markers {markers}, {seed}");
                    assert_eq!(move_every_octet(pair), [0, 0], "{what}");
                }
            }
        }
    }
}

#[test]
fn send_without_a_receive_waits_with_its_octets() {
    let rules = QpRules::IwarpWait;
    let end = |seed| End::with_config(seed, 64, |cq| QpConfig { rules, ..QpConfig::new(cq) });
    let (impair, startup) = (ImpairConfig::default(), StartupConfig::default());
    let mut pair = connect_ends([end(1), end(2)], 1500, 300, impair, startup, 1);
    let source = pair.a.pd.reg_mr(5000, all_access()).unwrap();
    let expected = fill(&source, 3);
    pair.a.qp.post_send(SendWr::send(WrId(1), [source.sge(0..5000)])).unwrap();
    pair.run_for(urnic_engine::time::Duration::from_millis(50), |_| false);
    let inbox = pair.b.pd.reg_mr(5000, all_access()).unwrap();
    pair.b.qp.post_recv(RecvWr::new(WrId(2), [inbox.sge(0..5000)])).unwrap();
    let cq = pair.b.cq.clone();
    assert_eq!(pair.wait(&cq).status, WcStatus::Success);
    assert!(content(&inbox) == expected);
}

#[test]
fn payload_that_cannot_be_placed_in_place_is_copied_and_not_lost() {
    let no_crc = StartupConfig { crc: false, ..StartupConfig::default() };
    let markers = StartupConfig { markers: true, ..StartupConfig::default() };
    let mut all = 0;
    for seed in 0..12 {
        for startup in [StartupConfig::default(), no_crc, markers] {
            let impair = ImpairConfig {
                loss: 0.03,
                reorder: 0.05,
                duplicate: 0.02,
                ..ImpairConfig::default()
            };
            let gathered = move_every_octet(connect(1500, 900, impair, startup, 101 * seed));
            all += gathered.iter().sum::<u64>();
        }
    }
    assert!(all > LEN as u64, "what comes beyond a gap: {all}");
}
