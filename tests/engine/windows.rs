//! Memory windows: bound in the order of the send queue, refused in their turn.

use urnic_engine::mem::{Access, BindError, Refusal};
use urnic_engine::port::LowerLayer;
use urnic_engine::stream::{StreamError, StreamEvent};
use urnic_engine::time::Duration;
use urnic_engine::types::{Stag, TaggedOffset, WrId};
use urnic_engine::verbs::{
    Cq, Mr, MrPart, Mw, MwBind, MwType, Qp, RecvWr, RemoteBuffer, SendOp, SendWr, WcOpcode,
    WcStatus,
};
use urnic_engine::wire::terminate::TerminateCode;
use urnic_testkit::counting::Census;
use urnic_testkit::pair::{Pair, Setup, all_access, content, fill};

const LAYERS: [LowerLayer; 2] = [LowerLayer::Optimized, LowerLayer::Layered];
const LEN: usize = 10_000;
const OK: WcStatus = WcStatus::Success;

fn pair(lower_layer: LowerLayer) -> Pair {
    let mut pair = Pair::connect(Setup { lower_layer, ..Setup::default() });
    let a = pair.a.qp.clone();
    begin(&mut pair, &a);
    pair
}

/// Lets the initiator send first (RFC 5044 §7.1.2 (4)), because the responder's requests wait for
/// that.
fn begin(pair: &mut Pair, a: &Qp) {
    let nowhere = RemoteBuffer { stag: Stag(1), to: TaggedOffset(0) };
    a.post_send(SendWr::write(WrId(0), nowhere, []).unsignaled()).unwrap();
    rest(pair);
}

/// Connects another queue pair at each end.
fn another(pair: &mut Pair) -> (Qp, Qp) {
    let (a, b) = (pair.a.another_qp(), pair.b.another_qp());
    pair.connect_another(&a, &b);
    begin(pair, &a);
    (a, b)
}

fn rest(pair: &mut Pair) {
    pair.run_for(Duration::from_secs(5), |_| false);
}

fn drained(cq: &Cq) -> Vec<(u64, WcStatus)> {
    std::iter::from_fn(|| cq.poll()).map(|wc| (wc.wr_id.0, wc.status)).collect()
}

/// Returns memory to which windows may be bound.
fn showable(pair: &Pair) -> Mr {
    pair.b.pd.reg_mr(LEN, Access::LOCAL_WRITE | Access::MW_BIND).unwrap()
}

fn binding(id: u64, bind: MwBind) -> SendWr {
    SendWr::new(WrId(id), SendOp::BindMw { bind }, [])
}

/// An application binds a window, and sends its key to the peer at once: the peer's Write is
/// accepted.
#[test]
fn a_send_behind_a_binding_may_carry_its_key() {
    for (lower_layer, mw_type) in LAYERS.into_iter().zip([MwType::One, MwType::Two]) {
        let mut pair = pair(lower_layer);
        let (memory, note) = (showable(&pair), pair.b.pd.reg_mr(64, all_access()).unwrap());
        let source = pair.a.pd.reg_mr(LEN, all_access()).unwrap();
        let octets = fill(&source, 9);
        let inbox = pair.a.pd.reg_mr(64, all_access()).unwrap();
        pair.a.qp.post_recv(RecvWr::new(WrId(1), [inbox.sge(0..64)])).unwrap();
        let mw = pair.b.pd.alloc_mw(mw_type).unwrap();
        let bind = mw.bind(&memory, 100..LEN, Access::REMOTE_WRITE);
        assert_eq!(mw.stag(), bind.stag);
        let told = RemoteBuffer { stag: bind.stag, to: TaggedOffset(0) };
        note.copy_in(0, &told.to_octets());
        pair.b.qp.post_send(binding(1, bind)).unwrap();
        pair.b.qp.post_send(SendWr::send(WrId(2), [note.sge(0..RemoteBuffer::LEN)])).unwrap();
        rest(&mut pair);
        assert_eq!(drained(&pair.b.cq), [(1, OK), (2, OK)]);
        assert_eq!(drained(&pair.a.cq), [(1, OK)]);
        let remote = RemoteBuffer::from_octets(&content(&inbox)).unwrap();
        let write = SendWr::write(WrId(3), remote, [source.sge(0..LEN - 100)]);
        pair.a.qp.post_send(write).unwrap();
        rest(&mut pair);
        assert_eq!(drained(&pair.a.cq), [(3, OK)]);
        assert!(content(&memory)[100..] == octets[..LEN - 100], "{mw_type:?}");
        assert!(content(&memory)[..100] == [0; 100]);
    }
}

#[test]
fn bindings_complete_in_order_and_only_if_signaled() {
    let mut pair = pair(LowerLayer::Optimized);
    let memory = showable(&pair);
    let mw = pair.b.pd.alloc_mw(MwType::One).unwrap();
    for id in 0..4 {
        let wr = binding(id, mw.bind(&memory, 0..10, Access::REMOTE_READ));
        pair.b.qp.post_send(if id == 1 { wr.unsignaled() } else { wr }).unwrap();
    }
    rest(&mut pair);
    assert_eq!(drained(&pair.b.cq), [(0, OK), (2, OK), (3, OK)]);
    assert!(!memory.invalidate_unless_bound());
    pair.b.qp.post_send(binding(4, mw.unbind())).unwrap();
    rest(&mut pair);
    assert_eq!(drained(&pair.b.cq), [(4, OK)]);
    assert!(memory.invalidate_unless_bound());
}

/// Makes a binding wrong. Returns memory that it needs for that.
type Wrong = fn(&Pair, &Mr, &mut MwBind) -> Option<Mr>;

const WRONG: [(BindError, Wrong); 10] = [
    (BindError::NoWindow, |_, _, bind| {
        bind.stag = Stag(bind.stag.0 ^ 0x100);
        None
    }),
    (BindError::NoRegion, |_, _, bind| {
        bind.mr = Stag(bind.mr.0 ^ 1);
        None
    }),
    (BindError::NoRegion, |_, memory, _| {
        assert!(memory.invalidate());
        None
    }),
    (BindError::NotAssociated, |pair, _, bind| {
        let other = pair.b.rnic.alloc_pd().reg_mr(LEN, all_access() | Access::MW_BIND).unwrap();
        bind.mr = other.stag();
        Some(other)
    }),
    (BindError::NotAssociated, |pair, memory, bind| {
        let region = urnic_engine::mem::Region::anonymous(LEN).unwrap();
        let (range, base) = (0..memory.len(), TaggedOffset(0));
        let access = Access::MW_BIND;
        let only = Some(pair.b.another_qp().number());
        let part = MrPart { range, base, access, only };
        let scoped = pair.b.pd.reg_part(region, part).unwrap();
        bind.mr = scoped.stag();
        Some(scoped)
    }),
    (BindError::AccessRights, |pair, _, bind| {
        let plain = pair.b.pd.reg_mr(LEN, all_access()).unwrap();
        bind.mr = plain.stag();
        Some(plain)
    }),
    (BindError::AccessRights, |pair, _, bind| {
        let read_only = Access::REMOTE_READ | Access::MW_BIND;
        let mr = pair.b.pd.reg_mr(LEN, read_only).unwrap();
        bind.mr = mr.stag();
        Some(mr)
    }),
    (BindError::BaseOrBounds, |_, _, bind| {
        bind.len += 1;
        None
    }),
    (BindError::BaseOrBounds, |_, _, bind| {
        bind.from = TaggedOffset(u64::MAX);
        None
    }),
    (BindError::BaseOrBounds, |_, _, bind| {
        bind.base = TaggedOffset(u64::MAX - 5);
        None
    }),
];

/// Each wrong binding fails with its error. Earlier requests complete, later ones are flushed.
#[test]
fn a_binding_that_is_not_allowed_fails_in_its_turn() {
    for mw_type in [MwType::One, MwType::Two] {
        for (error, wrong) in WRONG {
            let mut pair = pair(LowerLayer::Optimized);
            let memory = showable(&pair);
            let note = pair.b.pd.reg_mr(8, all_access()).unwrap();
            let mw = pair.b.pd.alloc_mw(mw_type).unwrap();
            let mut bind = mw.bind(&memory, 50..LEN, Access::REMOTE_WRITE);
            let _kept = wrong(&pair, &memory, &mut bind);
            pair.a.qp.post_recv(RecvWr::new(WrId(9), [])).unwrap();
            pair.b.qp.post_send(SendWr::send(WrId(1), [note.sge(0..0)])).unwrap();
            pair.b.qp.post_send(binding(2, bind).unsignaled()).unwrap();
            pair.b.qp.post_send(SendWr::send(WrId(3), [note.sge(0..0)])).unwrap();
            rest(&mut pair);
            let expected = [(1, OK), (2, WcStatus::MwBindErr), (3, WcStatus::WrFlushErr)];
            assert_eq!(drained(&pair.b.cq), expected, "{mw_type:?}, {error}");
            let failed = StreamEvent::Failed(StreamError::MwBind(error));
            assert!(pair.b.events.contains(&failed), "{error}: {:?}", pair.b.events);
            // RFC 5040 §7.1 (1): an error of that end that no segment caused.
            let told = pair.a.events.iter().any(|event| {
                matches!(event, StreamEvent::Terminated(terminate)
                    if terminate.code == TerminateCode::LOCAL_CATASTROPHIC)
            });
            assert!(told, "{:?}", pair.a.events);
        }
    }
}

/// A window of type 2 is bound once, then invalidated, and never bound to nothing. One of type 1 is
/// never invalidated.
#[test]
fn each_type_has_its_own_way_to_end() {
    let fails = |mw_type, requests: &dyn Fn(&Mr, &Mw) -> [SendOp; 2]| {
        let mut pair = pair(LowerLayer::Optimized);
        let memory = showable(&pair);
        let mw = pair.b.pd.alloc_mw(mw_type).unwrap();
        for (id, op) in (0..).zip(requests(&memory, &mw)) {
            pair.b.qp.post_send(SendWr::new(WrId(id), op, [])).unwrap();
        }
        rest(&mut pair);
        let statuses = drained(&pair.b.cq);
        let failure = pair.b.events.iter().find_map(|event| match event {
            StreamEvent::Failed(error) => Some(*error),
            _ => None,
        });
        assert_eq!(statuses[0], (0, OK), "{failure:?}");
        (statuses[1].1, failure)
    };
    let read = Access::REMOTE_READ;
    let bind = |mr: &Mr, mw: &Mw, len| SendOp::BindMw { bind: mw.bind(mr, 0..len, read) };
    assert_eq!(
        fails(MwType::Two, &|mr, mw| [bind(mr, mw, 8), bind(mr, mw, 8)]),
        (WcStatus::MwBindErr, Some(StreamError::MwBind(BindError::StillBound)))
    );
    let nothing = SendOp::LocalInvalidate { stag: Stag(1) };
    assert_eq!(
        fails(MwType::Two, &|mr, mw| [nothing, bind(mr, mw, 0)]),
        (WcStatus::MwBindErr, Some(StreamError::MwBind(BindError::Empty)))
    );
    let invalidate = |stag| SendOp::LocalInvalidate { stag };
    assert_eq!(
        fails(MwType::One, &|mr, mw| [bind(mr, mw, 8), invalidate(mw.stag())]),
        (WcStatus::LocQpOpErr, Some(StreamError::LocalInvalidate(Refusal::WindowOfTypeOne)))
    );
    assert_eq!(
        fails(MwType::Two, &|mr, mw| [bind(mr, mw, 8), invalidate(mr.stag())]),
        (WcStatus::LocQpOpErr, Some(StreamError::LocalInvalidate(Refusal::WindowsBound)))
    );
    assert_eq!(
        fails(MwType::Two, &|mr, mw| [bind(mr, mw, 8), invalidate(mw.stag())]),
        (WcStatus::Success, None)
    );
}

/// A window of type 2 belongs to the queue pair that bound it, one of type 1 to the domain.
#[test]
fn a_window_of_type_2_is_good_at_its_own_queue_pair_only() {
    for mw_type in [MwType::One, MwType::Two] {
        let mut pair = pair(LowerLayer::Optimized);
        let (a, b) = another(&mut pair);
        let memory = showable(&pair);
        let source = pair.a.pd.reg_mr(8, all_access()).unwrap();
        let mw = pair.b.pd.alloc_mw(mw_type).unwrap();
        let bind = mw.bind(&memory, 0..8, Access::REMOTE_WRITE);
        b.post_send(binding(1, bind)).unwrap();
        rest(&mut pair);
        assert_eq!(drained(&pair.b.cq), [(1, OK)]);
        let remote = RemoteBuffer { stag: bind.stag, to: TaggedOffset(0) };
        let write = |id| SendWr::write(WrId(id), remote, [source.sge(0..8)]);
        a.post_send(write(2)).unwrap();
        rest(&mut pair);
        assert_eq!(drained(&pair.a.cq), [(2, OK)]);
        pair.b.events.clear();
        if mw_type == MwType::Two {
            // Nor can another queue pair invalidate it.
            let op = SendOp::LocalInvalidate { stag: bind.stag };
            pair.b.qp.post_send(SendWr::new(WrId(3), op, [])).unwrap();
            rest(&mut pair);
            assert_eq!(drained(&pair.b.cq), [(3, WcStatus::LocQpOpErr)]);
            a.post_send(write(4)).unwrap();
            rest(&mut pair);
            assert_eq!(drained(&pair.a.cq), [(4, OK)]);
            // It ends with its queue pair, whose number another one may get.
            pair.b.pd.unbind_at(&b);
            assert!(memory.invalidate_unless_bound());
        } else {
            pair.a.qp.post_send(write(3)).unwrap();
            rest(&mut pair);
            assert_eq!(drained(&pair.a.cq), [(3, OK)]);
            pair.b.pd.unbind_at(&b);
            assert!(!memory.invalidate_unless_bound());
        }
    }
}

/// The Terminate says that the key is not of the peer's stream.
#[test]
fn a_peer_that_uses_a_window_of_another_stream_is_refused() {
    let mut pair = pair(LowerLayer::Optimized);
    let (_, b) = another(&mut pair);
    let memory = showable(&pair);
    let source = pair.a.pd.reg_mr(8, all_access()).unwrap();
    fill(&source, 3);
    let mw = pair.b.pd.alloc_mw(MwType::Two).unwrap();
    let bind = mw.bind(&memory, 0..8, Access::REMOTE_WRITE);
    b.post_send(binding(1, bind)).unwrap();
    rest(&mut pair);
    let remote = RemoteBuffer { stag: bind.stag, to: TaggedOffset(0) };
    pair.a.qp.post_send(SendWr::write(WrId(2), remote, [source.sge(0..8)])).unwrap();
    rest(&mut pair);
    assert!(content(&memory)[..8] == [0; 8]);
    let code = TerminateCode::DDP_TAGGED_STAG_NOT_ASSOCIATED;
    let told =
        pair.a.events.iter().any(
            |event| matches!(event, StreamEvent::Terminated(terminate) if terminate.code == code),
        );
    assert!(told, "{:?}", pair.a.events);
}

#[test]
fn a_region_with_windows_is_not_given_up_by_accident() {
    let mut pair = pair(LowerLayer::Optimized);
    let memory = showable(&pair);
    let mws = [MwType::One, MwType::Two].map(|mw_type| pair.b.pd.alloc_mw(mw_type).unwrap());
    for mw in &mws {
        let wr = binding(0, mw.bind(&memory, 0..8, Access::REMOTE_READ));
        pair.b.qp.post_send(wr).unwrap();
    }
    rest(&mut pair);
    for mw in mws {
        assert!(!memory.invalidate_unless_bound());
        drop(mw);
    }
    assert!(memory.invalidate_unless_bound());
    assert!(!memory.invalidate(), "it was valid until then");
}

/// Binding and invalidating are ordinary work requests: no allocation for each.
#[test]
fn bindings_allocate_nothing() {
    let mut pair = pair(LowerLayer::Optimized);
    let memory = showable(&pair);
    let cq = pair.b.cq.clone();
    let [one, two] = [MwType::One, MwType::Two].map(|mw_type| pair.b.pd.alloc_mw(mw_type).unwrap());
    let round = |pair: &mut Pair| {
        let read = Access::REMOTE_READ;
        pair.b.qp.post_send(binding(0, one.bind(&memory, 0..8, read))).unwrap();
        let bind = two.bind(&memory, 0..8, read);
        pair.b.qp.post_send(binding(1, bind)).unwrap();
        let op = SendOp::LocalInvalidate { stag: bind.stag };
        pair.b.qp.post_send(SendWr::new(WrId(2), op, [])).unwrap();
        for id in 0..3 {
            let wc = pair.wait(&cq);
            assert_eq!((wc.wr_id.0, wc.status), (id, OK));
            assert_eq!(wc.opcode == WcOpcode::LocalInvalidate, id == 2);
        }
    };
    for _ in 0..1000 {
        round(&mut pair);
    }
    let census = Census::begin();
    for _ in 0..1000 {
        round(&mut pair);
    }
    assert_eq!(census.end(), 0);
}
