//! Every kind of ready-to-receive message with every pair of depths that a peer may announce, for
//! every kind of queue pair at either end: work completes, and no value of the peer reaches an
//! assertion.

use super::*;
use crate::mpa::startup::{Revision, RtrKind, RtrKinds};
use crate::rdmap::read::Requester;
use crate::verbs::{CompletionLevel, QpRules, WcOpcode};

/// IRD and ORD that a peer may announce; 0x3FFF: not negotiated.
const DEPTHS: [u16; 6] = [0, 1, 2, 16, 0x3FFE, 0x3FFF];
const NOT_NEGOTIATED: u16 = 0x3FFF;
/// Position of the enhanced word in a startup frame (RFC 6581 §9).
const WORD: Range<usize> = 20..24;

const KINDS: [RtrKinds; 3] = [RtrKinds::WRITE, RtrKinds::READ, RtrKinds::SEND];
const QPS: [(CompletionLevel, QpRules); 4] = [
    (CompletionLevel::Taken, QpRules::IwarpWait),
    (CompletionLevel::Taken, QpRules::InfiniBand),
    (CompletionLevel::Placed, QpRules::IwarpWait),
    (CompletionLevel::Placed, QpRules::InfiniBand),
];

fn end(seed: u64, (completion, rules): (CompletionLevel, QpRules)) -> End {
    let mut end = End::new(seed);
    let config = QpConfig { completion, rules, ..QpConfig::new(&end.cq) };
    end.qp = end.pd.create_qp(config).unwrap();
    end
}

/// The word of a startup frame with A set, one kind, and these depths.
fn word(kinds: RtrKinds, ird: u16, ord: u16) -> [u8; 4] {
    let send = if kinds.contains(RtrKinds::SEND) { 0x4000 } else { 0 };
    let write = if kinds.contains(RtrKinds::WRITE) { 0x8000 } else { 0 };
    let read = if kinds.contains(RtrKinds::READ) { 0x4000 } else { 0 };
    let [a, b] = (0x8000 | send | ird).to_be_bytes();
    let [c, d] = (write | read | ord).to_be_bytes();
    [a, b, c, d]
}

/// Settings of one startup.
#[derive(Clone, Copy, Debug)]
struct Case {
    config: StartupConfig,
    qps: [(CompletionLevel, QpRules); 2],
    /// Depths requested by the two applications.
    asked: [(u16, u16); 2],
    /// Depths word of the Request in place of the initiator's.
    request: Option<[u8; 4]>,
    /// Depths word of the Reply in place of the responder's.
    reply: Option<[u8; 4]>,
}

impl Case {
    /// Both ends after the startup and the first message of the initiator.
    fn start(&self) -> [End; 2] {
        let [mut a, mut b] = [end(1, self.qps[0]), end(2, self.qps[1])];
        self.connect(&mut a, &mut b);
        [a, b]
    }

    /// RFC 6581 §9.1: the Reply wants more Reads than can be served; §9.2: it names only a Read,
    /// and accepts none.
    fn is_hopeless(&self) -> bool {
        self.reply.is_some_and(|[a, b, c, d]| {
            let ird = u16::from_be_bytes([a, b]) & NOT_NEGOTIATED;
            let ord = u16::from_be_bytes([c, d]) & NOT_NEGOTIATED;
            let reads_only = a & 0x40 == 0 && c & 0xC0 == 0x40;
            ord == 0x3FFE || (reads_only && ird == 0)
        })
    }

    fn connect(&self, a: &mut End, b: &mut End) {
        let [asked, answer] = self.asked.map(|(ird, ord)| Offer { private_data: b"", ird, ord });
        a.layered.initiate(Instant::ZERO, &a.qp, &self.config, &asked).unwrap();
        b.layered.respond(Instant::ZERO, &self.config).unwrap();
        pass_changed(a, b, self.request);
        b.layered.accept(&b.qp, &answer).unwrap();
        pass_changed(b, a, self.reply);
        exchange(a, b);
    }
}

fn pass_changed(from: &mut End, to: &mut End, word: Option<[u8; 4]>) {
    let mut octets = from.write(1, usize::MAX);
    if let Some(word) = word {
        octets[WORD].copy_from_slice(&word);
    }
    to.layered.handle_bytes(Instant::ZERO, &octets);
}

/// Passes everything that either end has to send to the other.
fn exchange(a: &mut End, b: &mut End) {
    for _ in 0..8 {
        pass(a, b);
        pass(b, a);
    }
}

/// IRD and ORD of an end in full operation.
fn established(end: &mut End) -> Option<(u16, u16)> {
    let events = std::iter::from_fn(|| end.layered.poll_event());
    events.fold(None, |found, event| match event {
        StreamEvent::Established(terms) => Some((terms.ird, terms.ord)),
        StreamEvent::Request(_) => found,
        _ => None,
    })
}

/// Checks that Sends, Writes and `reads` concurrent Reads of `from` all complete.
fn work(from: &mut End, to: &mut End, reads: u16, case: &Case) {
    assert_eq!(to.qp.writes_delivered(), 0, "no ready-to-receive message is one: {case:x?}");
    let mut expected = vec![(1, WcStatus::Success), (2, WcStatus::Success)];
    to.qp.post_recv(RecvWr::new(WrId(9), [to.memory.sge(0..64)])).unwrap();
    from.qp.post_send(SendWr::send(WrId(1), [from.memory.sge(0..10)])).unwrap();
    let remote = to.memory.remote(100);
    from.qp.post_send(SendWr::write(WrId(2), remote, [from.memory.sge(0..10)])).unwrap();
    for id in 100..100 + u64::from(reads.min(3)) {
        let sink = from.memory.sge(500..510);
        from.qp.post_send(SendWr::read(WrId(id), remote, sink)).unwrap();
        expected.push((id, WcStatus::Success));
    }
    from.qp.post_send(SendWr::write(WrId(6), remote, [from.memory.sge(0..10)])).unwrap();
    expected.push((6, WcStatus::Success));
    exchange(from, to);
    assert_eq!(from.statuses(), expected, "{case:x?}");
    assert_eq!(to.qp.writes_delivered(), 2, "{case:x?}");
    let received = to.cq.poll().map(|wc| (wc.opcode, wc.status, wc.byte_len));
    assert_eq!(received, Some((WcOpcode::Recv, WcStatus::Success, 10)), "{case:x?}");
    assert!(to.cq.poll().is_none(), "{case:x?}");
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let asked = [(0, 0), (0, 1), (4, 4), (128, 128)];
    for kinds in KINDS {
        for (ird, ord) in DEPTHS.iter().flat_map(|ird| DEPTHS.map(|ord| (*ird, ord))) {
            for asked in asked {
                let config = StartupConfig {
                    peer_to_peer: true,
                    rtr: RtrKinds::all(),
                    ..StartupConfig::default()
                };
                for qp in QPS {
                    let (usual, ample) = (QPS[0], (64, 16));
                    let (word, none) = (Some(word(kinds, ird, ord)), None);
                    let (qps, depths) = ([qp, usual], [asked, ample]);
                    all.push(Case { config, qps, asked: depths, request: none, reply: word });
                    let (qps, depths) = ([usual, qp], [ample, asked]);
                    all.push(Case { config, qps, asked: depths, request: word, reply: none });
                }
            }
        }
    }
    all
}

#[test]
fn every_kind_and_every_depth_of_a_peer_lets_work_complete() {
    let mut ready = 0;
    for case in cases() {
        let [mut a, mut b] = case.start();
        let [Some((ird, ord)), Some((peer_ird, peer_ord))] = [&mut a, &mut b].map(established)
        else {
            assert!(case.is_hopeless(), "{case:x?}");
            assert_eq!(a.layered.setup(), Setup::Over, "{case:x?}");
            continue;
        };
        ready += 1;
        let said = case.reply.map_or(u16::MAX, ird_of);
        assert!(ord <= said && ord <= case.asked[0].1.max(1), "{case:x?}: {ord}");
        work(&mut a, &mut b, ord.min(peer_ird), &case);
        work(&mut b, &mut a, peer_ord.min(ird), &case);
    }
    assert!(ready > 1000, "{ready} connections were made");
}

/// The IRD of a word.
fn ird_of(word: [u8; 4]) -> u16 {
    u16::from_be_bytes([word[0], word[1]]) & NOT_NEGOTIATED
}

/// MPA revision 1 has no ready-to-receive message, and the applications agree on the depths.
#[test]
fn without_the_rtr_message_work_completes_too() {
    for revision in [Revision::One, Revision::Two] {
        for depth in [0, 1, 2, 16, 128] {
            for (initiator, responder) in
                QPS.into_iter().flat_map(|one| QPS.map(|other| (one, other)))
            {
                let config = StartupConfig { revision, ..StartupConfig::default() };
                let qps = [initiator, responder];
                let asked = [(depth, depth); 2];
                let case = Case { config, qps, asked, request: None, reply: None };
                let [mut a, mut b] = case.start();
                work(&mut a, &mut b, depth, &case);
                work(&mut b, &mut a, depth, &case);
            }
        }
    }
}

/// If a bug has lost the stream's units of ORD, the stream fails, but its worker does not panic.
#[test]
fn rtr_read_without_a_read_slot_fails_the_stream() {
    let [mut a, _] = started();
    let full = a.full();
    full.tx.messages.requester = Requester::new(0);
    full.tx.messages.set_rtr(RtrKind::ReadZero);
    let stream = a.write(1, usize::MAX);
    assert_eq!(last_terminate(&stream).code.to_string(), "0/0/00");
}

/// RFC 6581 §9.1, §9.2: the peer learns the reason. The attempt did not use the queue pair: with
/// InfiniBand's rules, another attempt may use it and its posted work.
#[test]
fn an_attempt_that_the_reply_ends_leaves_the_queue_pair_as_its_rules_say() {
    let replies = [(word(RtrKinds::empty(), 4, 4), "2/0/07"), (word(KINDS[0], 4, 200), "2/0/06")];
    for (reply, code) in replies {
        for (rules, markers) in [(QpRules::IwarpWait, false), (QpRules::InfiniBand, true)] {
            let peer_to_peer = StartupConfig { peer_to_peer: true, ..StartupConfig::default() };
            let config = StartupConfig { rtr: RtrKinds::all(), markers, ..peer_to_peer };
            let qps = [(CompletionLevel::Placed, rules), QPS[0]];
            let (request, asked) = (None, [(4, 4); 2]);
            let case = Case { config, qps, asked, request, reply: Some(reply) };
            let [mut a, mut b] = [end(1, qps[0]), end(2, qps[1])];
            a.qp.post_recv(RecvWr::new(WrId(7), [])).unwrap();
            case.connect(&mut a, &mut b);
            let notice =
                std::iter::from_fn(|| b.layered.poll_event()).find_map(|event| match event {
                    StreamEvent::Terminated(terminate) => Some(terminate.code.to_string()),
                    _ => None,
                });
            assert_eq!(notice.as_deref(), Some(code), "{case:x?}");
            assert!(a.layered.wants_close(), "{case:x?}");
            if rules == QpRules::IwarpWait {
                assert_eq!(a.qp.state(), QpState::Error);
                assert_eq!(a.statuses(), [(7, WcStatus::WrFlushErr)]);
                continue;
            }
            assert_eq!((a.qp.state(), a.statuses()), (QpState::Init, vec![]));
            let case = Case { reply: None, ..case };
            (a.layered, b) = (ByteStream::new(&a.rnic), end(3, qps[1]));
            case.connect(&mut a, &mut b);
            b.qp.post_send(SendWr::send(WrId(1), [])).unwrap();
            exchange(&mut a, &mut b);
            assert_eq!(
                (a.statuses(), b.statuses()),
                (vec![(7, WcStatus::Success)], vec![(1, WcStatus::Success)])
            );
        }
    }
}
