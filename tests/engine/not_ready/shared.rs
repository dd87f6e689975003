//! Queue pairs that share a receive queue.

use urnic_engine::limits::QP_DEPTH_MAX;
use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::stream::carrier::ByteStream;
use urnic_engine::time::Duration;
use urnic_engine::types::TaggedOffset;
use urnic_engine::types::{QpNum, WrId};
use urnic_engine::verbs::{
    MrPart, PostError, Qp, QpConfig, QpRules, QpState, QueueError, RecvWr, SendWr, Srq, WcStatus,
};
use urnic_netdev::impair::ImpairConfig;
use urnic_testkit::octets;
use urnic_testkit::pair::{End, Pair, Setup};
use urnic_testkit::waker::counting;

use super::{pause, setup};

/// Two connections; both queue pairs of `b` take their receives from one queue.
struct Shared {
    pair: Pair,
    /// Queue pairs of the senders; `b` are those of the receivers.
    a: [Qp; 2],
    b: [Qp; 2],
    srq: Srq,
}

fn shared(rules: QpRules) -> Shared {
    shared_over(setup(), rules)
}

fn shared_over(setup: Setup, rules: QpRules) -> Shared {
    let mut pair = Pair::connect(setup);
    let srq = pair.b.pd.create_srq(64).unwrap();
    let config = QpConfig { rules, srq: Some(srq.clone()), ..QpConfig::new(&pair.b.cq) };
    let a = [(); 2].map(|()| pair.a.another_qp());
    let b = [(); 2].map(|()| pair.b.pd.create_qp(config.clone()).unwrap());
    for (a, b) in a.iter().zip(&b) {
        pair.connect_another(a, b);
    }
    Shared { pair, a, b, srq }
}

impl Shared {
    fn post(&self, id: u64) {
        self.srq.post_recv(RecvWr::new(WrId(id), [])).unwrap();
    }

    /// Returns the request id, queue pair number and status of the completions.
    fn received(&mut self) -> Vec<(u64, QpNum, WcStatus)> {
        pause(&mut self.pair);
        let cq = &self.pair.b.cq;
        std::iter::from_fn(|| cq.poll()).map(|wc| (wc.wr_id.0, wc.qp, wc.status)).collect()
    }

    fn send(&self, from: usize) {
        self.a[from].post_send(SendWr::send(WrId(0), []).unsignaled()).unwrap();
    }

    fn numbers(&self) -> [QpNum; 2] {
        self.b.each_ref().map(Qp::number)
    }
}

const OK: WcStatus = WcStatus::Success;
const BOTH: [QpRules; 2] = [QpRules::Iwarp, QpRules::IwarpWait];

#[test]
fn messages_of_two_queue_pairs_take_the_oldest_receive() {
    for rules in BOTH {
        let mut shared = shared(rules);
        let [one, two] = shared.numbers();
        (0..6).for_each(|id| shared.post(id));
        assert_eq!((shared.srq.len(), shared.srq.depth()), (6, 64));
        for from in [0, 1, 1] {
            shared.send(from);
            assert_eq!(shared.received().len(), 1);
        }
        (6..8).for_each(|id| shared.post(id));
        shared.send(1);
        shared.send(0);
        shared.send(0);
        let mut last = shared.received();
        last.sort_unstable_by_key(|(id, ..)| *id);
        let ids: Vec<_> = last.iter().map(|(id, _, status)| (*id, *status)).collect();
        assert_eq!(ids, [(3, OK), (4, OK), (5, OK)]);
        let of = |qp| last.iter().filter(|(_, number, _)| *number == qp).count();
        assert_eq!((of(one), of(two)), (2, 1));
        assert_eq!(shared.srq.len(), 2);
    }
}

#[test]
fn a_queue_that_is_empty_ends_the_stream_or_has_messages_wait() {
    let mut ended = shared(QpRules::Iwarp);
    ended.send(0);
    assert!(ended.received().is_empty());
    assert_eq!(ended.b.each_ref().map(Qp::state), [QpState::Error, QpState::Rts]);
    // The other one is not affected.
    ended.post(7);
    ended.send(1);
    let two = ended.numbers()[1];
    assert_eq!(ended.received(), [(7, two, OK)]);

    let mut waiting = shared(QpRules::IwarpWait);
    let [one, two] = waiting.numbers();
    for from in [0, 1, 0, 1] {
        waiting.send(from);
    }
    assert!(waiting.received().is_empty());
    let mut received = Vec::new();
    for id in 0..4 {
        waiting.post(id);
        received.extend(waiting.received());
        assert_eq!(received.len() as u64, id + 1, "each post finds a message that waits");
    }
    assert_eq!(received.iter().filter(|(_, qp, _)| *qp == one).count(), 2);
    assert_eq!(received.iter().filter(|(_, qp, _)| *qp == two).count(), 2);
    assert!(received.iter().enumerate().all(|(index, (id, ..))| index as u64 == *id));
    // No stream needs a receive, so one posted now stays.
    waiting.post(9);
    assert!(waiting.received().is_empty());
    assert_eq!(waiting.srq.len(), 1);
}

#[test]
fn a_queue_pair_that_fails_flushes_what_it_has_taken_and_leaves_the_rest() {
    for rules in BOTH {
        let mut shared = shared(rules);
        let [one, two] = shared.numbers();
        (0..3).for_each(|id| shared.post(id));
        // Half a message takes a receive; the rest of the message never arrives.
        let source = shared.pair.a.pd.reg_mr(1 << 20, Access::LOCAL_WRITE).unwrap();
        let inbox = shared.pair.b.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        shared.srq.post_recv(RecvWr::new(WrId(3), [inbox.sge(0..8)])).unwrap();
        (4..6).for_each(|id| shared.post(id));
        for _ in 0..3 {
            shared.send(0);
        }
        assert_eq!(shared.received(), [(0, one, OK), (1, one, OK), (2, one, OK)]);
        let long = SendWr::send(WrId(0), [source.sge(0..9)]).unsignaled();
        shared.a[0].post_send(long).unwrap();
        assert_eq!(shared.received(), [(3, one, WcStatus::LocLenErr)]);
        assert_eq!(shared.srq.len(), 2, "the others are not the queue pair's");
        shared.send(1);
        assert_eq!(shared.received(), [(4, two, OK)]);
    }
}

#[test]
fn shared_queue_limit_is_reported_once_for_each_arming() {
    let mut shared = shared(QpRules::IwarpWait);
    let (calls, waker) = counting();
    let count = || calls.count();
    (0..8).for_each(|id| shared.post(id));
    for (round, limit) in [(1, 6), (2, 4)] {
        shared.srq.arm_limit(limit, &waker);
        assert_eq!(shared.srq.limit(), limit);
        while shared.srq.len() > limit {
            shared.send(0);
            assert_eq!(shared.received().len(), 1);
            assert_eq!(count(), round - 1, "as many as the limit are not fewer");
        }
        for _ in 0..2 {
            shared.post(9);
            shared.send(1);
            shared.send(0);
            assert_eq!(shared.received().len(), 2);
            assert_eq!((count(), shared.srq.limit()), (round, 0));
        }
        shared.post(9);
    }
    shared.srq.arm_limit(64, &waker);
    shared.srq.arm_limit(0, &waker);
    shared.send(0);
    assert_eq!((shared.received().len(), count()), (1, 2), "taken back");
}

#[test]
fn objects_foreign_to_a_shared_queue_are_refused() {
    let shared = shared(QpRules::IwarpWait);
    let (pd, srq) = (&shared.pair.b.pd, &shared.srq);
    let own = shared.b[0].post_recv(RecvWr::new(WrId(0), []));
    assert_eq!(own, Err(PostError::SharedReceives));
    let access = Access::LOCAL_WRITE;
    let foreign = shared.pair.b.rnic.alloc_pd().reg_mr(8, access).unwrap();
    let region = urnic_engine::mem::Region::anonymous(8).unwrap();
    let only = Some(shared.b[0].number());
    let part = MrPart { range: 0..8, base: TaggedOffset(0), access, only };
    let private = pd.reg_part(region, part).unwrap();
    for mr in [&foreign, &private] {
        let refused = srq.post_recv(RecvWr::new(WrId(0), [mr.sge(0..8)]));
        assert_eq!(refused, Err(PostError::NotAssociated));
    }
    let read_only = pd.reg_mr(8, Access::empty()).unwrap();
    let refused = srq.post_recv(RecvWr::new(WrId(0), [read_only.sge(0..8)]));
    assert_eq!(refused, Err(PostError::Scatter));
    (0..64).for_each(|id| shared.post(id));
    assert_eq!(srq.post_recv(RecvWr::new(WrId(0), [])), Err(PostError::Full));

    let other = shared.pair.b.rnic.alloc_pd();
    let config = QpConfig { srq: Some(srq.clone()), ..QpConfig::new(&shared.pair.b.cq) };
    assert_eq!(other.create_qp(config.clone()).err(), Some(QueueError::SrqNotAssociated));
    // On InfiniBand it may be of another domain.
    let config = QpConfig { rules: QpRules::InfiniBand, ..config };
    other.create_qp(config).unwrap();
    for depth in [0, QP_DEPTH_MAX + 1] {
        assert_eq!(pd.create_srq(depth).err(), Some(QueueError::SrqDepth(depth)));
    }
}

impl Shared {
    /// Sends a first message with the number `msn` on a third connection. Returns the state
    /// afterwards.
    fn lie(&self, rules: QpRules, msn: u32) -> QpState {
        let End { rnic, pd, .. } = &self.pair.b;
        let (now, cq) = (self.pair.link.now(), rnic.create_cq(64).unwrap());
        let srq = Some(self.srq.clone());
        let config = QpConfig { srq, rules, ..QpConfig::new(&cq) };
        let qp = pd.create_qp(config).unwrap();
        let mut stream = ByteStream::new(rnic);
        stream.respond(now, &StartupConfig::default()).unwrap();
        let request = octets::startup(octets::REQUEST_KEY, octets::CRC, 1, b"");
        stream.handle_bytes(now, &request);
        stream.accept(&qp, &Offer::default()).unwrap();
        stream.handle_bytes(now, &octets::fpdu(&octets::send(msn, b"x"), 0, false));
        assert!(cq.is_empty(), "it has taken no receive");
        qp.state()
    }
}

/// There are exactly as many receives as the messages of two honest peers need, and these get all
/// of them.
#[test]
fn two_queue_pairs_get_their_receives_beside_a_third_whose_peer_lies() {
    for rules in BOTH {
        for loss in [0.0, 0.03] {
            let impair = ImpairConfig { loss, ..ImpairConfig::default() };
            let mut shared = shared_over(Setup { impair, ..setup() }, rules);
            let numbers = shared.numbers();
            for round in 0..30_u32 {
                (0..8).for_each(|id| shared.post(id));
                for message in 0..8_u32 {
                    shared.send((message % 2) as usize);
                    if message % 3 == 0 {
                        let msn = 2 + (round * 8 + message) * 97 % 20_000;
                        let state = shared.lie(rules, msn);
                        assert_eq!(state, QpState::Error, "{msn}");
                    }
                }
                let mut got = Vec::new();
                shared.pair.run_for(Duration::from_secs(60), |pair| {
                    got.extend(std::iter::from_fn(|| pair.b.cq.poll()));
                    got.len() == 8
                });
                assert!(
                    got.iter().all(|wc| wc.status == OK && numbers.contains(&wc.qp)),
                    "{got:?}"
                );
                assert_eq!((got.len(), shared.srq.len()), (8, 0));
            }
        }
    }
}
