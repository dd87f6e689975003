//! RDMA over a foreign byte stream: here a pipe that cuts bytes anywhere.

use std::collections::VecDeque;

use proptest::prelude::*;
use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::{Offer, RtrKinds, StartupConfig};
use urnic_engine::stream::carrier::ByteStream;
use urnic_engine::stream::{Fragments, Scratch, StreamEvent};
use urnic_engine::time::{Duration, Instant};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Cq, Mr, Qp, QpConfig, RecvWr, Rnic, RnicConfig, SendWr, Wc, WcStatus};

const OFFER: Offer<'static> = Offer { private_data: b"", ird: 4, ord: 4 };
const LEN: usize = 60_000;

struct End {
    layered: ByteStream,
    memory: Mr,
    cq: Cq,
    qp: Qp,
    events: Vec<StreamEvent>,
    /// Bytes that this end has written and the other has not read.
    pipe: VecDeque<u8>,
    closed: bool,
}

impl End {
    fn new(seed: u64) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(64).unwrap());
        let config = QpConfig { send_depth: 16, recv_depth: 16, ..QpConfig::new(&cq) };
        let qp = pd.create_qp(config).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = pd.reg_mr(4 * LEN, access).unwrap();
        let octets: Vec<u8> = (0..LEN).map(|i| (i * 3 + (i >> 8)) as u8 ^ seed as u8).collect();
        memory.copy_in(0, &octets);
        let layered = ByteStream::new(&rnic);
        let (events, pipe) = (Vec::new(), VecDeque::new());
        Self { layered, memory, cq, qp, events, pipe, closed: false }
    }

    /// Writes at most `len_max` bytes to the pipe. Returns their number.
    fn write(&mut self, emss: usize, len_max: usize) -> usize {
        let mut octets = Vec::new();
        let (mut scratch, mut fragments) = (Scratch::default(), Fragments::new());
        self.layered.octets_to_send(&mut scratch, emss, len_max, &mut fragments);
        for fragment in &fragments {
            let at = octets.len();
            octets.resize(at + fragment.len(), 0);
            fragment.copy_out(0, &mut octets[at..]);
        }
        drop(fragments);
        octets.truncate(len_max);
        self.layered.handle_sent(octets.len());
        self.pipe.extend(&octets);
        self.closed |= self.layered.wants_close();
        octets.len()
    }

    fn collect(&mut self) {
        self.events.extend(std::iter::from_fn(|| self.layered.poll_event()));
    }

    fn octets(&self, from: usize, len: usize) -> Vec<u8> {
        let mut octets = vec![0; len];
        self.memory.copy_out(from, &mut octets);
        octets
    }
}

/// Moves bytes both ways, in runs of the given lengths, until nothing moves.
fn pump(ends: &mut [End; 2], emss: usize, runs: &mut impl Iterator<Item = usize>) {
    let mut idle = 0;
    while idle < 3 {
        let mut moved = 0;
        for from in [0, 1] {
            moved += ends[from].write(emss, runs.next().unwrap());
            let take = runs.next().unwrap().min(ends[from].pipe.len());
            let octets: Vec<u8> = ends[from].pipe.drain(..take).collect();
            moved += octets.len();
            ends[1 - from].layered.handle_bytes(Instant::ZERO, &octets);
            ends[1 - from].collect();
            let request = |event: &StreamEvent| matches!(event, StreamEvent::Request(_));
            if let Some(at) = ends[1 - from].events.iter().position(request) {
                let end = &mut ends[1 - from];
                end.events.remove(at);
                end.layered.accept(&end.qp, &OFFER).unwrap();
            }
        }
        idle = if moved == 0 { idle + 1 } else { 0 };
    }
}

fn started(
    config: [StartupConfig; 2],
    emss: usize,
    runs: &mut impl Iterator<Item = usize>,
) -> [End; 2] {
    let mut ends = [End::new(1), End::new(2)];
    let [a, b] = &mut ends;
    a.layered.initiate(Instant::ZERO, &a.qp, &config[0], &OFFER).unwrap();
    b.layered.respond(Instant::ZERO, &config[1]).unwrap();
    pump(&mut ends, emss, runs);
    for end in &mut ends {
        end.collect();
        let established = |event: &StreamEvent| matches!(event, StreamEvent::Established(_));
        assert!(end.events.iter().any(established), "{:?}", end.events);
    }
    ends
}

fn statuses(cq: &Cq) -> Vec<(u64, WcStatus, u32)> {
    std::iter::from_fn(|| cq.poll())
        .map(|Wc { wr_id, status, byte_len, .. }| (wr_id.0, status, byte_len))
        .collect()
}

fn moves_everything(config: [StartupConfig; 2], emss: usize, runs: &[usize]) {
    let mut runs = runs.iter().copied().cycle();
    let mut ends = started(config, emss, &mut runs);
    let len = LEN as u32;
    for (end, peer) in [(0, 1), (1, 0)] {
        let remote = ends[peer].memory.remote(0);
        let sink = ends[peer].memory.remote(LEN as u64);
        let (own, inbox) = (&ends[end].memory, &ends[peer].memory);
        let buffer = RecvWr::new(WrId(9), [inbox.sge(3 * LEN..4 * LEN)]);
        ends[peer].qp.post_recv(buffer).unwrap();
        ends[end].qp.post_send(SendWr::write(WrId(1), sink, [own.sge(0..LEN)])).unwrap();
        let read = SendWr::read(WrId(2), remote, own.sge(2 * LEN..3 * LEN));
        ends[end].qp.post_send(read).unwrap();
        ends[end].qp.post_send(SendWr::send(WrId(3), [own.sge(0..LEN)])).unwrap();
    }
    pump(&mut ends, emss, &mut runs);
    let content = [ends[0].octets(0, LEN), ends[1].octets(0, LEN)];
    for (end, peer) in [(0, 1), (1, 0)] {
        let mut done = statuses(&ends[end].cq);
        done.sort_unstable_by_key(|(id, ..)| *id);
        let ok = WcStatus::Success;
        assert_eq!(done, [(1, ok, len), (2, ok, len), (3, ok, len), (9, ok, len)]);
        assert!(ends[end].octets(LEN, LEN) == content[peer], "written");
        assert!(ends[end].octets(2 * LEN, LEN) == content[peer], "read");
        assert!(ends[end].octets(3 * LEN, LEN) == content[peer], "sent");
    }
    for end in &mut ends {
        end.layered.close(Instant::ZERO);
    }
    pump(&mut ends, emss, &mut runs);
    assert!(ends[0].closed && ends[1].closed);
    for end in &mut ends {
        end.layered.handle_end();
        end.collect();
        assert_eq!(end.events.last(), Some(&StreamEvent::PeerClosed));
    }
}

#[test]
fn octets_cut_anywhere_carry_every_operation() {
    let run = prop_oneof![1..20_usize, 1..3000_usize, 1..200_000_usize];
    let plan = (
        prop::collection::vec(run, 1..40),
        100..9000_usize,
        any::<[(bool, bool); 2]>(),
        any::<bool>(),
    );
    let config = ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() };
    let rng = proptest::test_runner::TestRng::deterministic_rng(Default::default());
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(config, rng);
    let result = runner.run(&plan, |(mut runs, emss, sides, peer_to_peer)| {
        // One long run in each round, so that the transfer ends soon.
        runs.push(50_000);
        let config = sides.map(|(markers, crc)| StartupConfig {
            markers,
            crc,
            peer_to_peer,
            rtr: RtrKinds::all(),
            ..StartupConfig::default()
        });
        moves_everything(config, emss, &runs);
        Ok(())
    });
    result.unwrap();
}

#[test]
fn octets_one_by_one_carry_every_operation() {
    let config = StartupConfig { markers: true, ..StartupConfig::default() };
    moves_everything([config; 2], 1460, &[1, 1, 1, 1, 1]);
}

#[test]
fn a_byte_stream_that_ends_in_the_middle_fails_the_work() {
    let mut runs = [1000].iter().copied().cycle();
    let mut ends = started([StartupConfig::default(); 2], 1460, &mut runs);
    let remote = ends[1].memory.remote(0);
    let sink = ends[0].memory.sge(2 * LEN..3 * LEN);
    ends[0].qp.post_send(SendWr::read(WrId(1), remote, sink)).unwrap();
    ends[0].write(1460, 100);
    ends[0].layered.handle_end();
    ends[0].collect();
    assert_eq!(statuses(&ends[0].cq), [(1, WcStatus::RetryExcErr, 0)]);
    let mut ends = started([StartupConfig::default(); 2], 1460, &mut runs);
    ends[0].layered.handle_loss();
    ends[0].collect();
    assert_eq!(
        ends[0].events.last(),
        Some(&StreamEvent::Failed(urnic_engine::stream::StreamError::ConnectionLost))
    );
}

#[test]
fn a_bad_crc_in_a_byte_stream_ends_it_with_a_terminate() {
    let mut runs = [100_000].iter().copied().cycle();
    let mut ends = started([StartupConfig::default(); 2], 1460, &mut runs);
    // The responder may only answer after a first good FPDU.
    ends[0].qp.post_send(SendWr::write(WrId(1), ends[1].memory.remote(0), [])).unwrap();
    pump(&mut ends, 1460, &mut runs);
    let source = ends[0].memory.sge(0..100);
    ends[0].qp.post_send(SendWr::write(WrId(2), ends[1].memory.remote(0), [source])).unwrap();
    ends[0].write(1460, 1000);
    let last = ends[0].pipe.len() - 1;
    ends[0].pipe[last] ^= 1;
    let before = ends[1].octets(0, 4 * LEN);
    pump(&mut ends, 1460, &mut runs);
    assert!(ends[1].octets(0, 4 * LEN) == before);
    let told = |event: &StreamEvent| {
        matches!(event, StreamEvent::Terminated(terminate)
            if terminate.code == urnic_engine::wire::terminate::TerminateCode::MPA_CRC)
    };
    assert!(ends[0].events.iter().any(told), "{:?}", ends[0].events);
    assert!(ends[1].closed, "the responder closes after its Terminate");
}

#[test]
fn a_startup_over_a_silent_byte_stream_times_out() {
    for initiates in [true, false] {
        let mut end = End::new(1);
        let config = StartupConfig::default();
        if initiates {
            end.layered.initiate(Instant::ZERO, &end.qp, &config, &OFFER).unwrap();
        } else {
            end.layered.respond(Instant::ZERO, &config).unwrap();
        }
        let deadline = end.layered.poll_timeout().unwrap();
        assert!(deadline <= Instant::ZERO + Duration::from_secs(60));
        end.layered.handle_timeout(deadline);
        end.write(1460, 1000);
        end.collect();
        assert!(matches!(end.events[..], [StreamEvent::StartupFailed(_)]), "{:?}", end.events);
        assert!(end.closed);
    }
}

#[test]
fn a_silenced_end_of_a_byte_stream_is_closed_within_a_bound() {
    // RFC 5044 §7.1.2 (4): nothing is written before the initiator's first FPDU.
    let mut runs = [1000].iter().copied().cycle();
    let mut ends = started([StartupConfig::default(); 2], 1460, &mut runs);
    let end = &mut ends[1];
    assert_eq!(end.layered.poll_timeout(), None);
    end.qp.post_send(SendWr::send(WrId(1), [])).unwrap();
    let told_at = Instant::ZERO + Duration::from_secs(1);
    end.layered.close(told_at);
    assert_eq!(end.write(1460, 1000), 0);
    assert!(!end.closed);
    let deadline = told_at.plus_nanos(urnic_engine::limits::MPA_FIRST_FPDU_TIMEOUT_NS);
    assert_eq!(end.layered.poll_timeout(), Some(deadline));
    end.layered.handle_timeout(deadline);
    assert_eq!(end.write(1460, 1000), 0);
    assert!(end.closed);
    assert_eq!(statuses(&end.cq), [(1, WcStatus::RetryExcErr, 0)]);
    // The peer has some time to close, too; then the byte stream must be ended.
    end.layered.handle_shutdown(deadline);
    let lingers_until = deadline.plus_nanos(urnic_engine::limits::LINGER_NS);
    assert_eq!(end.layered.poll_timeout(), Some(lingers_until));
    assert!(!end.layered.wants_reset());
    end.layered.handle_timeout(lingers_until);
    assert!(end.layered.wants_reset());
    assert_eq!(end.layered.poll_timeout(), None);
}

#[test]
fn octets_behind_a_rejection_are_the_callers_and_do_no_harm() {
    let mut ends = [End::new(1), End::new(2)];
    let [a, b] = &mut ends;
    let config = StartupConfig::default();
    a.layered.initiate(Instant::ZERO, &a.qp, &config, &OFFER).unwrap();
    b.layered.respond(Instant::ZERO, &config).unwrap();
    a.write(1460, 1000);
    let request: Vec<u8> = a.pipe.drain(..).collect();
    b.layered.handle_bytes(Instant::ZERO, &request);
    b.layered.reject(&Offer::default()).unwrap();
    b.write(1460, 1000);
    let mut answer: Vec<u8> = b.pipe.drain(..).collect();
    answer.extend([7; 200_000]);
    a.layered.handle_bytes(Instant::ZERO, &answer);
    a.collect();
    assert!(matches!(a.events[0], StreamEvent::Rejected(_)), "{:?}", a.events[0]);
}

#[test]
fn the_byte_stream_is_closed_after_the_last_octet_of_a_response() {
    let mut runs = std::iter::repeat(5000);
    let mut ends = started([StartupConfig::default(); 2], 1448, &mut runs);
    let [a, b] = &mut ends;
    let remote = b.memory.remote(0);
    a.qp.post_send(SendWr::read(WrId(1), remote, a.memory.sge(LEN..LEN + 20_700))).unwrap();
    while a.write(1448, 5000) > 0 {}
    let octets: Vec<u8> = a.pipe.drain(..).collect();
    b.layered.handle_bytes(Instant::ZERO, &octets);
    b.layered.close(Instant::ZERO);
    let mut total = 0;
    while !b.closed {
        let len = b.write(1448, 100);
        assert!(len > 0, "neither written nor closed");
        total += len;
    }
    assert!(total > 20_700, "{total}");
    assert_eq!(b.write(1448, 5000), 0, "closed before the last octet");
}
