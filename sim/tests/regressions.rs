//! Defects that the simulator has found, each as the smallest plan that shows it.

use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::port::LowerLayer;
use urnic_engine::tcp::CongestionKind;
use urnic_netdev::impair::ImpairConfig;
use urnic_sim::plan::{
    Change, Ending, Event, FlowPlan, Kind, LinkPlan, NodePlan, Op, SidePlan, Start,
};
use urnic_sim::{Plan, Scenario};

/// Returns a plan of one connection over a perfect link, with this work at the initiator and at the
/// responder.
pub(crate) fn plan(initiator: &[Op], responder: &[Op]) -> Plan {
    let node = NodePlan {
        window_bytes: 1 << 20,
        out_of_order_placement: true,
        piece_blocks: usize::MAX,
        congestion: CongestionKind::Cubic,
        sack: true,
        timestamps: true,
        user_timeout_ns: 100_000_000_000,
        keepalive_ns: None,
        impair: ImpairConfig::default(),
    };
    let side = |work: &[Op]| SidePlan {
        startup: StartupConfig { immediates: true, ..StartupConfig::default() },
        lower_layer: LowerLayer::Optimized,
        depths: [4, 4],
        placed: false,
        work: work.to_vec(),
        send_depth: 1,
        receives_posted: 8,
        poll_period_ns: 0,
        pause_ns: None,
    };
    Plan {
        seed: 1,
        scenario: Scenario::Clean,
        nodes: vec![node; 2],
        link: LinkPlan {
            mtu: 1500,
            latency_ns: 1000,
            rate_bits_per_second: None,
            queue_frames: 1024,
            super_frames: false,
            is_fabric: false,
        },
        flows: vec![FlowPlan {
            nodes: [0, 1],
            ipv6: false,
            listener: 0,
            start: Start::At(0),
            sides: [side(initiator), side(responder)],
            ending: Ending::CloseBoth,
            rejects: 0,
            waits: false,
            shares: false,
            is_hostile: false,
        }],
        changes: Vec::new(),
        silence: None,
        shared: None,
        idlers: Vec::new(),
        guesses: None,
        sabotage: None,
    }
}

/// Seed 5: everything before it was acknowledged, so no acknowledgment came to complete it.
#[test]
fn local_invalidation_completes_with_nothing_in_flight() {
    let send = Op::new(Kind::Send, 3);
    let invalidate = Op::new(Kind::LocalInvalidate, 0);
    let outcome = urnic_sim::run(&plan(&[send, invalidate, send], &[send])).unwrap();
    assert_eq!(outcome.map(|outcome| outcome.runs), Ok(1));
}

/// Seed 57772: only with its timestamps the segment exceeded the reduced path MTU, and the check
/// without them never cut it.
#[test]
fn a_segment_that_only_its_options_make_too_large_is_cut() {
    // 1216 bytes of payload are an FPDU of 1240 and a datagram of 1292.
    let work = [Op::new(Kind::Send, 1216), Op::new(Kind::Send, 3)];
    let mut plan = plan(&work, &[Op::new(Kind::Send, 3)]);
    plan.nodes[0].impair = ImpairConfig { path_mtu: Some(1280), ..ImpairConfig::default() };
    let outcome = urnic_sim::run(&plan).unwrap();
    assert_eq!(outcome.map(|outcome| outcome.runs), Ok(1));
}

/// Acknowledgments of short segments confirmed a size on the way up that long segments do not have. Segments
/// cut for it were never made smaller, and the connection ended at its user timeout.
#[test]
fn a_size_that_only_short_segments_confirmed_is_given_up() {
    let outcome = urnic_sim::run(&Plan::of_seed(402_263, Some(Scenario::BlackHole))).unwrap();
    assert_eq!(outcome.map(|outcome| outcome.runs), Ok(1));
}

/// A LID change without a notice was found after a minute. So were the changed queue pair of a
/// neighbour after the port was away, and that of a seldom used one.
#[test]
fn hosts_on_a_fabric_find_each_other_in_time() {
    for seed in [212, 873, 2070] {
        let outcome = urnic_sim::run(&Plan::of_seed(seed, Some(Scenario::Ipoib))).unwrap();
        assert_eq!(outcome.map(|outcome| outcome.runs), Ok(1), "seed {seed}");
    }
}

/// A run that hangs does not pass.
#[test]
fn a_link_that_stays_down_is_a_failure() {
    let send = Op::new(Kind::Send, 3);
    let mut plan = plan(&[send], &[send]);
    plan.changes = vec![Change { at_ns: 0, what: Event::Link(false) }];
    assert!(urnic_sim::run(&plan).unwrap().is_err());
}
