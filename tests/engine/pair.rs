//! Two ports on a memory link: every operation, every byte.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::num::NonZeroUsize;

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::port::LowerLayer;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{RecvWr, SendWr, WcStatus};
use urnic_netdev::impair::ImpairConfig;
use urnic_netdev::memory::LinkConfig;
use urnic_testkit::pair::{Pair, Setup, all_access, content, fill};

const LEN: usize = 100_001;

fn move_every_octet(setup: Setup) {
    let mut pair = Pair::connect(setup);
    let source = pair.a.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
    let expected = fill(&source, 7);
    let sink = pair.b.pd.reg_mr(LEN, all_access()).unwrap();
    let (cq_a, cq_b) = (pair.a.cq.clone(), pair.b.cq.clone());

    let write = SendWr::write(WrId(1), sink.remote(0), [source.sge(0..LEN)]);
    pair.a.qp.post_send(write).unwrap();
    let wc = pair.wait(&cq_a);
    assert_eq!((wc.wr_id, wc.status), (WrId(1), WcStatus::Success), "{setup:?}");
    assert!(content(&sink) == expected, "written octets with {setup:?}");

    let back = pair.a.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
    pair.a.qp.post_send(SendWr::read(WrId(2), sink.remote(0), back.sge(0..LEN))).unwrap();
    let wc = pair.wait(&cq_a);
    assert_eq!((wc.wr_id, wc.status), (WrId(2), WcStatus::Success), "{setup:?}");
    assert!(content(&back) == expected, "read octets with {setup:?}");

    let inbox = pair.b.pd.reg_mr(5000, Access::LOCAL_WRITE).unwrap();
    let buffer = RecvWr::new(WrId(3), [inbox.sge(0..2000), inbox.sge(2000..5000)]);
    pair.b.qp.post_recv(buffer).unwrap();
    pair.a.qp.post_send(SendWr::send(WrId(4), [source.sge(0..4321)])).unwrap();
    let wc = pair.wait(&cq_b);
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (WrId(3), WcStatus::Success, 4321));
    assert!(content(&inbox)[..4321] == expected[..4321], "sent octets with {setup:?}");
}

// spec: DDP-5.2-5
#[test]
fn a_write_a_read_and_a_send_move_every_octet() {
    for markers in [false, true] {
        for mtu in [576, 1500, 9000] {
            let startup = StartupConfig { markers, ..StartupConfig::default() };
            let link = LinkConfig { mtu, latency_ns: 10_000, ..LinkConfig::default() };
            move_every_octet(Setup { link, startup, ..Setup::default() });
        }
    }
}

#[test]
fn ipv6_moves_every_octet_and_finds_its_neighbour() {
    for mtu in [1280, 9000] {
        let link = LinkConfig { mtu, latency_ns: 10_000, ..LinkConfig::default() };
        let impair = ImpairConfig { loss: 0.01, resegment: 0.1, ..ImpairConfig::default() };
        move_every_octet(Setup { link, impair, ipv6: true, ..Setup::default() });
    }
}

#[test]
fn super_frames_and_partial_checksums_move_every_octet() {
    for markers in [false, true] {
        for mtu in [1500, 9000, 65_535] {
            let startup = StartupConfig { markers, ..StartupConfig::default() };
            let link = LinkConfig {
                mtu,
                super_frame_len_max: NonZeroUsize::new(65_000),
                tx_checksum: true,
                ..LinkConfig::default()
            };
            move_every_octet(Setup { link, startup, ..Setup::default() });
        }
    }
}

#[test]
fn a_layered_stream_moves_every_octet_over_a_bad_link() {
    for seed in 0..5 {
        let startup = StartupConfig { markers: seed % 2 == 0, ..StartupConfig::default() };
        let impair = ImpairConfig { loss: 0.02, reorder: 0.05, ..ImpairConfig::default() };
        let lower_layer = LowerLayer::Layered;
        move_every_octet(Setup { startup, impair, lower_layer, seed, ..Setup::default() });
    }
}

#[test]
fn an_impaired_link_moves_every_octet() {
    for seed in 0..20 {
        let startup = StartupConfig { markers: seed % 2 == 0, ..StartupConfig::default() };
        let link = LinkConfig { latency_ns: 10_000, ..LinkConfig::default() };
        let impair = ImpairConfig {
            loss: 0.02,
            reorder: 0.05,
            duplicate: 0.02,
            corrupt: 0.01,
            resegment: 0.1,
            coalesce: 0.1,
            ..ImpairConfig::default()
        };
        move_every_octet(Setup { link, startup, impair, seed, ..Setup::default() });
    }
}
