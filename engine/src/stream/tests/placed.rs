//! Completions that confirm placement at the peer: their time, the requests sent for them, and
//! their fate if the peer cannot answer.

use super::*;
use crate::verbs::{CompletionLevel, PostError, QpRules};
use crate::wire::rdmap::Opcode;

const PLACED: CompletionLevel = CompletionLevel::Placed;

/// A pair whose first end wants confirmations; each with its depths.
fn pair(rules: [QpRules; 2], depths: [(u16, u16); 2]) -> [End; 2] {
    pair_with(rules, depths, [PLACED, Default::default()])
}

fn pair_with(
    rules: [QpRules; 2],
    depths: [(u16, u16); 2],
    levels: [CompletionLevel; 2],
) -> [End; 2] {
    let mut ends = [End::new(1), End::new(2)];
    for ((end, rules), completion) in ends.iter_mut().zip(rules).zip(levels) {
        let config = QpConfig {
            send_depth: 64,
            recv_depth: 16,
            rules,
            completion,
            ..QpConfig::new(&end.cq)
        };
        end.qp = end.pd.create_qp(config).unwrap();
    }
    let [a, b] = &mut ends;
    let [asked, answer] = depths.map(|(ird, ord)| Offer { private_data: b"", ird, ord });
    let config = StartupConfig::default();
    a.layered.initiate(Instant::ZERO, &a.qp, &config, &asked).unwrap();
    b.layered.respond(Instant::ZERO, &config).unwrap();
    pass(a, b);
    b.layered.accept(&b.qp, &answer).unwrap();
    pass(b, a);
    ends
}

fn usual() -> [End; 2] {
    pair([QpRules::InfiniBand; 2], [(4, 4); 2])
}

/// A pair in which both ends want confirmations.
fn both() -> [End; 2] {
    pair_with([QpRules::InfiniBand; 2], [(4, 4); 2], [PLACED; 2])
}

impl End {
    fn write_to(&self, peer: &Self, id: u64, len: usize) -> SendWr {
        SendWr::write(WrId(id), peer.memory.remote(0), [self.memory.sge(0..len)])
    }

    fn delivered(&self, opcode: Opcode) -> u64 {
        self.layered.rdma_counters().messages_by_opcode[opcode.bits() as usize]
    }

    fn confirmations(&self) -> u64 {
        self.layered.rdma_tx_counters().confirmations
    }
}

const fn success(id: u64) -> (u64, WcStatus) {
    (id, WcStatus::Success)
}

#[test]
fn write_completes_at_placement_not_at_acceptance() {
    let [mut a, mut b] = usual();
    a.memory.copy_in(0, &[7; 5000]);
    a.qp.post_send(a.write_to(&b, 1, 5000)).unwrap();
    let octets = a.write(1 << 20, usize::MAX);
    assert!(a.write(1, usize::MAX).is_empty());
    assert_eq!((a.statuses(), a.qp.sends_outstanding()), (vec![], 1));
    b.layered.handle_bytes(Instant::ZERO, &octets[..octets.len() - 1]);
    pass(&mut b, &mut a);
    assert_eq!(a.statuses(), [], "the confirmation has not arrived");
    b.layered.handle_bytes(Instant::ZERO, &octets[octets.len() - 1..]);
    let mut there = [0; 5000];
    b.memory.copy_out(0, &mut there);
    assert_eq!(there, [7; 5000]);
    pass(&mut b, &mut a);
    assert_eq!((a.statuses(), a.qp.sends_outstanding()), (vec![success(1)], 0));
    assert_eq!((b.statuses(), a.confirmations()), (vec![], 1));
}

#[test]
fn requests_sent_together_share_one_confirmation() {
    let [mut a, mut b] = usual();
    for id in 0..16 {
        a.qp.post_send(a.write_to(&b, id, 100)).unwrap();
    }
    pass(&mut a, &mut b);
    // More are posted while the confirmation is in flight: they share the next one.
    pass(&mut b, &mut a);
    assert_eq!(a.statuses(), (0..16).map(success).collect::<Vec<_>>());
    a.qp.post_send(a.write_to(&b, 16, 100)).unwrap();
    pass(&mut a, &mut b);
    for id in 17..20 {
        a.qp.post_send(a.write_to(&b, id, 100)).unwrap();
        pass(&mut a, &mut b);
    }
    assert_eq!(b.delivered(Opcode::ReadRequest), 2, "one at a time");
    for _ in 0..2 {
        pass(&mut b, &mut a);
        pass(&mut a, &mut b);
    }
    assert_eq!(a.statuses(), (16..20).map(success).collect::<Vec<_>>());
    assert_eq!((b.delivered(Opcode::ReadRequest), a.confirmations()), (3, 3));
}

#[test]
fn a_long_queue_is_confirmed_before_its_end() {
    let [mut a, mut b] = usual();
    for id in 0..16 {
        a.qp.post_send(a.write_to(&b, id, 100_000)).unwrap();
    }
    for _ in 0..8 {
        let octets = a.write(100_000, usize::MAX);
        b.layered.handle_bytes(Instant::ZERO, &octets);
        pass(&mut b, &mut a);
    }
    let early = a.statuses();
    assert!((3..9).contains(&early.len()), "{early:?}");
    pass(&mut a, &mut b);
    pass(&mut b, &mut a);
    pass(&mut a, &mut b);
    pass(&mut b, &mut a);
    assert_eq!(early.len() + a.statuses().len(), 16);
}

/// An application that signals one Write of many continues while the rest are in flight.
#[test]
fn long_backlog_is_confirmed_before_later_requests_are_sent() {
    let [mut a, mut b] = usual();
    for id in 0..48 {
        let wr = a.write_to(&b, id, 64);
        a.qp.post_send(if id == 39 { wr } else { wr.unsignaled() }).unwrap();
    }
    // Room for the first forty and the request after them, not for the rest.
    let first = a.write(40 * 84 + 52, usize::MAX);
    b.layered.handle_bytes(Instant::ZERO, &first);
    pass(&mut b, &mut a);
    assert_eq!((a.statuses(), a.confirmations()), (vec![success(39)], 1));
    pass(&mut a, &mut b);
    pass(&mut b, &mut a);
    assert_eq!((a.statuses(), a.confirmations()), (vec![], 1), "nothing else asks for one");
}

#[test]
fn application_read_responses_confirm_too() {
    let [mut a, mut b] = usual();
    a.qp.post_send(a.write_to(&b, 1, 100)).unwrap();
    let read = SendWr::read(WrId(2), b.memory.remote(0), a.memory.sge(200..300));
    a.qp.post_send(read).unwrap();
    pass(&mut a, &mut b);
    assert_eq!(a.statuses(), []);
    pass(&mut b, &mut a);
    assert_eq!((a.statuses(), a.confirmations()), (vec![success(1), success(2)], 0));
    let atomic = SendOp::FetchAdd { remote: b.memory.remote(0), add: 1, mask: 0 };
    a.qp.post_send(a.write_to(&b, 3, 0)).unwrap();
    a.qp.post_send(SendWr::new(WrId(4), atomic, [])).unwrap();
    pass(&mut a, &mut b);
    pass(&mut b, &mut a);
    assert_eq!((a.statuses(), a.confirmations()), (vec![success(3), success(4)], 0));
}

/// The last part of a Read waits for a unit of ORD. The first part confirms the Writes before the
/// Read.
#[test]
fn reads_and_confirmations_share_slots_without_a_separate_one() {
    for (depths, most) in [([(0, 1), (1, 0)], 1), ([(0, 2), (2, 0)], 2), ([(0, 4), (2, 0)], 2)] {
        let [mut a, mut b] = pair([QpRules::IwarpWait; 2], depths);
        for id in 0..5 {
            a.qp.post_send(a.write_to(&b, 2 * id, 100)).unwrap();
            let read = SendWr::read(WrId(2 * id + 1), b.memory.remote(0), a.memory.sge(200..300));
            a.qp.post_send(if id == 3 { read.fenced() } else { read }).unwrap();
        }
        a.qp.post_send(a.write_to(&b, 10, 100)).unwrap();
        for _ in 0..20 {
            let before = b.delivered(Opcode::ReadRequest);
            pass(&mut a, &mut b);
            assert!(b.delivered(Opcode::ReadRequest) - before <= most);
            pass(&mut b, &mut a);
        }
        assert_eq!(a.statuses(), (0..11).map(success).collect::<Vec<_>>(), "{depths:?}");
        assert!(a.confirmations() >= 1);
    }
}

#[test]
fn confirmation_slot_is_negotiated_besides_ord() {
    // An application that wants no Reads gets none, but its Writes are confirmed.
    let [mut a, mut b] = pair([QpRules::InfiniBand; 2], [(0, 0); 2]);
    let read = SendWr::read(WrId(1), b.memory.remote(0), a.memory.sge(200..300));
    assert_eq!(a.qp.post_send(read), Err(PostError::OrdZero));
    a.qp.post_send(a.write_to(&b, 1, 100)).unwrap();
    pass(&mut a, &mut b);
    assert_eq!(a.statuses(), []);
    pass(&mut b, &mut a);
    assert_eq!((a.statuses(), a.confirmations()), (vec![success(1)], 1));
    let Some(StreamEvent::Established(terms)) = a.layered.poll_event() else { panic!("no terms") };
    assert_eq!(terms.ord, 0, "what the program is told");

    // One that wants two has two at a time, besides a confirmation.
    let [mut a, mut b] = pair([QpRules::InfiniBand; 2], [(2, 2); 2]);
    a.qp.post_send(a.write_to(&b, 1, 100)).unwrap();
    pass(&mut a, &mut b);
    for id in 2..5 {
        let read = SendWr::read(WrId(id), b.memory.remote(0), a.memory.sge(200..300));
        a.qp.post_send(read).unwrap();
    }
    pass(&mut a, &mut b);
    assert_eq!(b.delivered(Opcode::ReadRequest), 3);
    pass(&mut b, &mut a);
    pass(&mut a, &mut b);
    pass(&mut b, &mut a);
    assert_eq!(a.statuses(), (1..5).map(success).collect::<Vec<_>>());
}

// spec: DDP-5.4-1, RDMAP-5.5-14
#[test]
fn without_remote_reads_completion_means_acceptance_by_tcp() {
    let [mut a, b] = pair([QpRules::IwarpWait; 2], [(0, 0); 2]);
    a.qp.post_send(a.write_to(&b, 1, 100)).unwrap();
    a.write(1 << 20, usize::MAX);
    assert_eq!((a.statuses(), a.confirmations()), (vec![success(1)], 0));
}

#[test]
fn unsignaled_requests_are_done_at_acceptance() {
    let [mut a, mut b] = usual();
    for id in 0..3 {
        a.qp.post_send(a.write_to(&b, id, 100).unsignaled()).unwrap();
    }
    pass(&mut a, &mut b);
    assert_eq!((a.qp.sends_outstanding(), a.confirmations()), (0, 0));
    // But not before a waiting one.
    a.qp.post_send(a.write_to(&b, 3, 100)).unwrap();
    a.qp.post_send(a.write_to(&b, 4, 100).unsignaled()).unwrap();
    a.qp.post_send(SendWr::new(
        WrId(5),
        SendOp::LocalInvalidate { stag: crate::types::Stag(0) },
        [],
    ))
    .unwrap();
    pass(&mut a, &mut b);
    assert_eq!((a.qp.sends_outstanding(), a.statuses()), (3, vec![]));
    pass(&mut b, &mut a);
    assert_eq!((a.qp.sends_outstanding(), a.statuses()), (0, vec![success(3), success(5)]));
}

#[test]
fn unsendable_request_fails_after_earlier_placed_ones() {
    let [mut a, mut b] = usual();
    a.qp.post_send(a.write_to(&b, 1, 100)).unwrap();
    let read = SendWr::read(WrId(2), b.memory.remote(0), a.memory.sge(200..300)).inaccessible();
    a.qp.post_send(read).unwrap();
    a.qp.post_send(a.write_to(&b, 3, 100)).unwrap();
    pass(&mut a, &mut b);
    pass(&mut b, &mut a);
    pass(&mut a, &mut b);
    let failed = [success(1), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)];
    assert_eq!(a.statuses(), failed);
}

#[test]
fn refused_write_never_completes_with_success() {
    let [mut a, mut b] = usual();
    let remote = crate::verbs::RemoteBuffer { to: TaggedOffset(1 << 40), ..b.memory.remote(0) };
    a.qp.post_send(SendWr::write(WrId(1), remote, [a.memory.sge(0..10)])).unwrap();
    a.qp.post_send(a.write_to(&b, 2, 100)).unwrap();
    pass(&mut a, &mut b);
    pass(&mut b, &mut a);
    assert_eq!(a.statuses(), [(1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)]);
}

/// An unsignaled Write is done when TCP has it. If the peer refuses it after that, the application
/// gets its completion all the same, and not that of another request.
#[test]
fn refused_unsignaled_write_raises_its_completion() {
    let [mut a, mut b] = usual();
    let beyond = crate::verbs::RemoteBuffer { to: TaggedOffset(1 << 40), ..b.memory.remote(0) };
    let refused = |a: &End| SendWr::write(WrId(2), beyond, [a.memory.sge(0..10)]).unsignaled();
    a.qp.post_send(a.write_to(&b, 1, 100).unsignaled()).unwrap();
    a.qp.post_send(refused(&a)).unwrap();
    // Another one to the same place: the peer refuses the first.
    a.qp.post_send(SendWr { id: WrId(4), ..refused(&a) }).unwrap();
    a.qp.post_send(a.write_to(&b, 3, 100).unsignaled()).unwrap();
    pass(&mut a, &mut b);
    assert_eq!((a.statuses(), a.qp.sends_outstanding()), (vec![], 0));
    pass(&mut b, &mut a);
    assert_eq!(a.statuses(), [(2, WcStatus::RemAccessErr)]);

    let [mut a, mut b] = usual();
    a.qp.post_send(refused(&a)).unwrap();
    a.qp.post_send(a.write_to(&b, 3, 100)).unwrap();
    pass(&mut a, &mut b);
    pass(&mut b, &mut a);
    assert_eq!(a.statuses(), [(2, WcStatus::RemAccessErr), (3, WcStatus::WrFlushErr)]);
}

#[test]
fn lost_connection_fails_unconfirmed_requests() {
    let [mut a, mut b] = usual();
    a.qp.post_send(a.write_to(&b, 1, 100)).unwrap();
    pass(&mut a, &mut b);
    pass(&mut b, &mut a);
    a.qp.post_send(a.write_to(&b, 2, 100)).unwrap();
    a.write(1 << 20, usize::MAX);
    a.layered.handle_loss();
    assert_eq!(a.statuses(), [success(1), (2, WcStatus::RetryExcErr)]);
}

/// Such a peer cannot confirm, so requests complete as without confirmations. A Read fails: it gets
/// no answer.
#[test]
fn closing_peer_gets_no_further_confirmation_reads() {
    let [mut a, b] = usual();
    a.qp.post_send(a.write_to(&b, 1, 100)).unwrap();
    a.write(1 << 20, usize::MAX);
    a.qp.post_send(a.write_to(&b, 2, 100)).unwrap();
    a.write(1 << 20, usize::MAX);
    a.layered.handle_end();
    assert_eq!(a.statuses(), [success(1), success(2)]);
    a.qp.post_send(a.write_to(&b, 3, 100)).unwrap();
    a.write(1 << 20, usize::MAX);
    assert_eq!((a.statuses(), a.confirmations()), (vec![success(3)], 1));

    let [mut a, mut b] = usual();
    a.qp.post_send(a.write_to(&b, 1, 100)).unwrap();
    pass(&mut a, &mut b);
    let read = SendWr::read(WrId(2), b.memory.remote(0), a.memory.sge(200..300));
    a.qp.post_send(read).unwrap();
    pass(&mut a, &mut b);
    a.layered.handle_end();
    assert_eq!(a.statuses(), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
}

/// The Writes to such a peer still arrive and are placed. The missing confirmation is no reason to
/// reset the connection.
#[test]
fn confirmation_read_to_a_closed_peer_causes_no_reset() {
    let [mut a, mut b] = usual();
    a.qp.post_send(a.write_to(&b, 1, 100).unsignaled()).unwrap();
    pass(&mut a, &mut b);
    a.memory.copy_in(0, &[7; 100]);
    a.qp.post_send(a.write_to(&b, 2, 100)).unwrap();
    b.layered.close(Instant::ZERO);
    assert!(b.layered.wants_close());
    b.layered.handle_shutdown(Instant::ZERO);
    pass(&mut a, &mut b);
    assert!(!b.layered.wants_reset() && b.write(1, usize::MAX).is_empty());
    let mut there = [0; 100];
    b.memory.copy_out(0, &mut there);
    assert_eq!(there, [7; 100]);
    // A Read of bytes must get them.
    let read = SendWr::read(WrId(3), b.memory.remote(0), a.memory.sge(200..300));
    a.qp.post_send(read).unwrap();
    pass(&mut a, &mut b);
    assert!(b.layered.wants_reset());
}

#[test]
fn an_end_that_closes_waits_for_its_confirmations() {
    let [mut a, mut b] = usual();
    a.qp.post_send(a.write_to(&b, 1, 100)).unwrap();
    a.layered.close(Instant::ZERO);
    pass(&mut a, &mut b);
    assert!(!a.layered.wants_close());
    pass(&mut b, &mut a);
    assert_eq!(a.statuses(), [success(1)]);
    assert!(a.layered.wants_close());
}

#[test]
fn a_send_completes_when_it_is_in_a_receive() {
    let [mut a, mut b] = usual();
    a.qp.post_send(SendWr::send(WrId(1), [a.memory.sge(0..10)])).unwrap();
    pass(&mut a, &mut b);
    pass(&mut b, &mut a);
    assert_eq!(a.statuses(), [], "it waits for a receive");
    // Reads of the application wait behind it, too: Responses come in the order of Requests.
    let read = SendWr::read(WrId(2), b.memory.remote(0), a.memory.sge(200..300));
    a.qp.post_send(read).unwrap();
    a.qp.post_send(SendWr::send(WrId(3), [a.memory.sge(0..10)])).unwrap();
    pass(&mut a, &mut b);
    pass(&mut b, &mut a);
    assert_eq!(a.statuses(), []);
    b.qp.post_recv(RecvWr::new(WrId(10), [b.memory.sge(0..10)])).unwrap();
    for _ in 0..2 {
        pass(&mut b, &mut a);
        pass(&mut a, &mut b);
    }
    assert_eq!((b.statuses(), a.statuses()), (vec![success(10)], vec![success(1), success(2)]));
    b.qp.post_recv(RecvWr::new(WrId(11), [b.memory.sge(0..10)])).unwrap();
    pass(&mut b, &mut a);
    assert_eq!((b.statuses(), a.statuses()), (vec![success(11)], vec![success(3)]));
}

/// InfiniBand's acknowledgment of a Send arrives before the reply that the Send caused. Both ends
/// want confirmations here, so that answers, replies and confirmations alternate in each way.
#[test]
fn a_send_completes_before_the_reply_that_it_caused() {
    let [mut a, mut b] = both();
    for round in 0..50 {
        a.qp.post_recv(RecvWr::new(WrId(1000 + round), [a.memory.sge(0..10)])).unwrap();
        b.qp.post_recv(RecvWr::new(WrId(2000 + round), [b.memory.sge(0..10)])).unwrap();
        a.qp.post_send(SendWr::send(WrId(round), [a.memory.sge(10..20)])).unwrap();
        pass(&mut a, &mut b);
        assert!(b.statuses().contains(&success(2000 + round)), "the Send has arrived");
        b.qp.post_send(SendWr::send(WrId(3000 + round), [b.memory.sge(10..20)])).unwrap();
        pass(&mut b, &mut a);
        assert_eq!(a.statuses(), [success(round), success(1000 + round)]);
    }
}
