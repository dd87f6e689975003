//! The table of a connection's life on a port, under virtual time, with a peer made of bytes.
//!
//! One file because its cells are those of one table.

use std::net::SocketAddr;

use urnic_engine::mpa::startup::{Fallback, Offer, Revision, StartupConfig};
use urnic_engine::port::{ConnectParams, LowerLayer};
use urnic_engine::stream::life::{Expiry, LifeTimes, Notice, Outcome, Peer, Stage, Timer};
use urnic_engine::stream::{StartupFailure, StreamError, StreamEvent};
use urnic_engine::tcp::Flags;
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{QpState, SendWr, WcStatus};
use urnic_netdev::Device;

use crate::hostile::scene::{BASE, MOMENT, PEER, Scene};
use urnic_testkit::octets::{
    CRC, ENHANCED, REPLY_KEY, REQUEST_KEY, SEND, empty_write, read_request, send, startup,
};

/// RFC 6581 §9: one Read each way; the peer wants an RTR, which is a Write.
const WANTS_RTR: [u8; 4] = [0x80, 1, 0x80, 1];
/// Long enough for an exchange, shorter than any timer of the table.
const SOON: Duration = Duration::from_secs(5);
/// Tolerance around a timer's end.
const SLACK: Duration = Duration::from_millis(500);
const LOST: StreamEvent = StreamEvent::Failed(StreamError::ConnectionLost);

#[test]
fn every_transition_of_the_life_cycle_table_occurs() {
    for stage in Stage::ALL {
        for peer in Peer::ALL {
            Cell::enter(stage, peer).check();
        }
    }
}

/// A connection in a stage, and the peer's next action.
struct Cell {
    scene: Scene,
    stage: Stage,
    peer: Peer,
    /// Number of events before the stage.
    before: usize,
}

impl Cell {
    fn enter(stage: Stage, peer: Peer) -> Self {
        let scene = match stage {
            Stage::Opening => opening(),
            Stage::AwaitingReply => Scene::connecting(revision_1()),
            Stage::AwaitingRequest => {
                let mut scene = Scene::new();
                scene.open();
                scene
            }
            Stage::Answering => asked(peer),
            Stage::Streaming => rejected(peer),
            Stage::Leaving => {
                let mut scene = rejected(peer);
                disconnect(&mut scene);
                scene
            }
            Stage::AwaitingRtr => {
                let mut scene = Scene::new();
                scene.open();
                scene.request(&startup(REQUEST_KEY, CRC | ENHANCED, 2, &WANTS_RTR));
                scene.accept();
                scene
            }
            Stage::AwaitingFirstFpdu => Scene::started(StartupConfig::default()),
            Stage::Silenced => {
                let mut scene = Scene::started(StartupConfig::default());
                scene.post_send();
                disconnect(&mut scene);
                scene
            }
            Stage::TimeWait => {
                let mut scene = Scene::ready();
                disconnect(&mut scene);
                scene.peer.send_fin(scene.now.as_nanos());
                scene.run(MOMENT);
                assert_eq!(told(&scene.events), [StreamEvent::PeerClosed]);
                assert!(scene.closed.is_some(), "told when TIME-WAIT begins");
                assert_eq!(scene.qp.state(), QpState::Error);
                scene
            }
            _ => full(stage, peer),
        };
        let before = scene.events.len();
        Self { scene, stage, peer, before }
    }

    /// Returns the application's events since then, except bytes of streaming mode.
    fn told(&self) -> Vec<StreamEvent> {
        let told = self.scene.events[self.before..].iter();
        told.filter(|event| **event != StreamEvent::StreamingBytes).cloned().collect()
    }

    fn events_of(&self, told: Notice) -> Vec<StreamEvent> {
        match told {
            Notice::Nothing => vec![],
            // A reset in answer to the SYN (RFC 9293 §3.10.7.3).
            Notice::StartupFailed if self.stage == Stage::Opening => {
                vec![StreamEvent::StartupFailed(StartupFailure::Refused)]
            }
            Notice::StartupFailed => {
                vec![StreamEvent::StartupFailed(StartupFailure::ConnectionLost)]
            }
            Notice::PeerClosed => vec![StreamEvent::PeerClosed],
            // The peer's close comes first if it broke the connection.
            Notice::Failed if self.peer == Peer::Closes => vec![StreamEvent::PeerClosed, LOST],
            Notice::Failed => vec![LOST],
        }
    }

    fn is_gone(&self) -> bool {
        self.scene.victim.port.connection_count() == 0
    }

    fn check(mut self) {
        let cell = format!("{:?} {:?}", self.stage, self.peer);
        match self.stage.meets(self.peer) {
            Outcome::Lasts => {
                let before = self.before;
                self.act(Duration::from_secs(1000));
                let told = &self.scene.events[before..];
                let unrelated = |event: &&StreamEvent| {
                    !matches!(event, StreamEvent::Established(_) | StreamEvent::Request(_))
                };
                assert_eq!(told.iter().find(unrelated), None, "{cell}");
                assert!(!self.is_gone(), "{cell}");
            }
            Outcome::Expires(timer) => {
                let duration = duration_of(timer);
                self.act(duration - SLACK);
                assert!(!self.is_gone() && self.told().is_empty(), "{cell}: {:?}", self.told());
                self.scene.run(2 * SLACK);
                self.expired(&cell);
            }
            Outcome::Tells(told) => {
                self.act(SOON);
                assert_eq!(self.told(), self.events_of(told), "{cell}");
                assert!(!self.is_gone(), "{cell}");
            }
            Outcome::Ends(told) => {
                self.act(SOON);
                assert_eq!(self.told(), self.events_of(told), "{cell}");
                self.has_ended(&cell);
            }
        }
    }

    fn expired(&mut self, cell: &str) {
        let expected: &[StreamEvent] = match self.stage.row().expiry {
            Expiry::Nothing => &[],
            Expiry::FailStartup => &[StreamEvent::StartupFailed(StartupFailure::Timeout)],
            Expiry::GiveUp => &[LOST],
            Expiry::Reset if self.stage.row().lost == Notice::Failed => &[LOST],
            Expiry::Reset => &[],
        };
        assert_eq!(self.told(), expected, "{cell}");
        match self.stage.row().expiry {
            Expiry::Nothing => assert!(self.is_gone(), "{cell}"),
            Expiry::Reset => {
                let unheard = self.scene.peer.deaf;
                assert!(self.scene.peer.reset_received || unheard, "{cell}");
                self.has_ended(cell);
            }
            // The rest lingers, and is reset: a stage of its own.
            Expiry::FailStartup | Expiry::GiveUp => {
                self.scene.run(duration_of(Timer::Linger) + SLACK);
                self.has_ended(cell);
            }
        }
    }

    /// Asserts that the end was reported, and that nothing is left of the connection except
    /// possibly its addresses.
    fn has_ended(&mut self, cell: &str) {
        assert!(self.scene.closed.is_some(), "{cell}: the end is told");
        if self.scene.connection.is_some() && self.scene.qp.state() != QpState::Init {
            assert_eq!(self.scene.qp.state(), QpState::Error, "{cell}");
        }
        assert_eq!(self.scene.victim.port.bytes_held(), 0, "{cell}");
        let id = self.scene.connection.unwrap();
        assert!(self.scene.victim.port.counters(id).is_err(), "{cell}: the name means nothing");
        self.scene.run(duration_of(Timer::TimeWait) + SLACK);
        assert!(self.is_gone(), "{cell}");
    }

    /// Lets the peer act for this time.
    fn act(&mut self, duration: Duration) {
        let scene = &mut self.scene;
        let now_ns = scene.now.as_nanos();
        let closed = matches!(self.stage, Stage::PeerClosed | Stage::BothClosed | Stage::TimeWait);
        match self.peer {
            Peer::Acts => return self.go_on(duration),
            Peer::IsSilent => scene.peer.deaf = true,
            Peer::AnswersProbes => {}
            // The peer has closed already, or cannot yet.
            Peer::Closes if closed || self.stage == Stage::Opening => {}
            Peer::Closes => scene.peer.send_fin(now_ns),
            Peer::Resets if self.stage == Stage::Opening => {
                scene.peer.refuses = true;
                scene.peer.deaf = false;
            }
            Peer::Resets => {
                let seq = scene.peer.seq_of(scene.peer.sent + u64::from(closed));
                scene.peer.send_flags(now_ns, seq, Flags::RST | Flags::ACK);
            }
        }
        scene.run(duration);
    }

    /// Lets the peer do the next step of the protocol.
    fn go_on(&mut self, duration: Duration) {
        let scene = &mut self.scene;
        match self.stage {
            Stage::Opening => {
                scene.peer.deaf = false;
                scene.run(SOON);
                assert!(scene.peer.is_established());
            }
            Stage::AwaitingReply => {
                scene.reply(&startup(REPLY_KEY, CRC, 1, b""));
                scene.run(duration);
            }
            Stage::AwaitingRequest => {
                scene.request(&startup(REQUEST_KEY, CRC, 1, b""));
                scene.run(duration);
            }
            Stage::AwaitingRtr | Stage::AwaitingFirstFpdu => {
                scene.send(&empty_write());
                scene.run(duration);
                assert_eq!(scene.qp.state(), QpState::Rts);
            }
            Stage::Silenced => {
                scene.send(&empty_write());
                assert_eq!(scene.completed().status, WcStatus::Success);
                assert_eq!(scene.answers().last().unwrap()[..2], SEND);
                assert!(scene.peer.fin_received, "closed once the work was done");
            }
            // As long as FPDUs keep coming, slowly.
            Stage::Draining | Stage::HalfClosed => {
                for _ in 0..10 {
                    scene.send(&empty_write());
                    scene.run(duration_of(Timer::CloseSilence) - SLACK);
                }
            }
            Stage::BothClosed => {
                scene.peer.deaf = false;
                scene.run(duration);
            }
            // Late bytes are accepted and dropped, and change nothing.
            Stage::Leaving | Stage::Failed => {
                for _ in 0..10 {
                    let at = scene.now;
                    scene.send(&empty_write());
                    scene.run((duration / 10).saturating_sub(scene.now - at));
                }
            }
            Stage::Answering
            | Stage::Streaming
            | Stage::Running
            | Stage::PeerClosed
            | Stage::TimeWait => scene.run(duration),
        }
    }
}

/// Returns a scene in a stage of full operation.
fn full(stage: Stage, peer: Peer) -> Scene {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    // A Read is not answered after the peer has closed: there, the open request is a Send too.
    let sends = matches!(peer, Peer::AnswersProbes | Peer::Closes);
    if peer == Peer::AnswersProbes || (stage == Stage::Draining && sends) {
        scene.peer.window = 0;
        scene.send(&empty_write());
    }
    match stage {
        Stage::PeerClosed => close_peer(&mut scene),
        Stage::Draining if sends => {
            scene.post_send();
            disconnect(&mut scene);
        }
        Stage::Draining => {
            scene.post_read(700);
            disconnect(&mut scene);
        }
        Stage::HalfClosed => disconnect(&mut scene),
        Stage::BothClosed => {
            close_peer(&mut scene);
            scene.peer.deaf = true;
            disconnect(&mut scene);
        }
        Stage::Failed => {
            // A second Send without a buffer.
            scene.send_all(&[send(1, b""), send(2, b"")]);
            assert!(scene.events.iter().any(|event| matches!(event, StreamEvent::Failed(_))));
        }
        _ => assert_eq!(stage, Stage::Running),
    }
    scene
}

fn close_peer(scene: &mut Scene) {
    scene.peer.send_fin(scene.now.as_nanos());
    scene.run(MOMENT);
    assert_eq!(scene.events.last(), Some(&StreamEvent::PeerClosed));
}

fn disconnect(scene: &mut Scene) {
    let connection = scene.connection.unwrap();
    scene.victim.port.disconnect(connection).unwrap();
    scene.run(MOMENT);
}

/// Returns a scene with a Request. If the peer only answers probes, its window is closed for the
/// answer.
fn asked(peer: Peer) -> Scene {
    let mut scene = Scene::new();
    scene.open();
    if peer == Peer::AnswersProbes {
        scene.peer.window = 0;
    }
    scene.request(&startup(REQUEST_KEY, CRC, 1, b""));
    scene
}

fn rejected(peer: Peer) -> Scene {
    let mut scene = asked(peer);
    let connection = scene.connection.unwrap();
    scene.victim.port.reject(connection, &Offer::default()).unwrap();
    scene.run(MOMENT);
    scene
}

/// Returns settings that match a Reply of the older revision.
fn revision_1() -> StartupConfig {
    StartupConfig { revision: Revision::One, ..StartupConfig::default() }
}

/// Returns a scene whose SYN is not answered.
fn opening() -> Scene {
    let mut scene = Scene::new();
    scene.peer.deaf = true;
    let startup = StartupConfig { fallback: Fallback::empty(), ..revision_1() };
    let params = ConnectParams { startup, ..ConnectParams::default() };
    let remote = SocketAddr::from((PEER, 40_000));
    let id = scene.victim.port.connect(scene.now, remote, &scene.qp, &params).unwrap();
    scene.connection = Some(id);
    scene.run(MOMENT);
    scene
}

/// Returns the events of a stage's end, without those of a successful startup.
fn told(events: &[StreamEvent]) -> Vec<StreamEvent> {
    let good = |event: &&StreamEvent| {
        !matches!(event, StreamEvent::Request(_) | StreamEvent::Established(_))
    };
    events.iter().filter(good).cloned().collect()
}

fn duration_of(timer: Timer) -> Duration {
    let times = LifeTimes::default();
    times.of(timer).unwrap_or(match timer {
        // Nine probes without an answer.
        Timer::Probes => 10 * times.probe,
        _ => Duration::from_secs(60),
    })
}

#[test]
fn a_request_that_crosses_our_fin_is_answered_by_a_reset() {
    let mut scene = Scene::ready();
    scene.post_receive(100);
    disconnect(&mut scene);
    assert!(scene.peer.fin_received && !scene.peer.reset_received);
    let source = (scene.tags.all.stag().0, BASE);
    scene.send(&read_request(1, (1, 0), 8, source));
    assert!(scene.peer.reset_received, "the peer must not wait for an answer");
    assert_eq!(told(&scene.events), [LOST]);
    assert!(scene.closed.is_some());
    assert_eq!(scene.received().status, WcStatus::WrFlushErr);
}

#[test]
fn error_after_the_own_fin_is_reported_by_a_reset() {
    let mut scene = Scene::ready();
    disconnect(&mut scene);
    scene.send(&send(1, b"no buffer"));
    assert!(scene.peer.reset_received, "no Terminate can be sent any more");
    assert!(matches!(told(&scene.events)[..], [StreamEvent::Failed(_)]), "{:?}", scene.events);
    assert!(scene.closed.is_some());
}

#[test]
fn receives_may_be_posted_after_our_half_close() {
    // RFC 5041 §6.2.1: reception goes on.
    let mut scene = Scene::ready();
    disconnect(&mut scene);
    assert_eq!(scene.qp.state(), QpState::Closing);
    scene.post_receive(100);
    scene.send(&send(1, b"late, and in time"));
    assert_eq!(scene.received().status, WcStatus::Success);
    assert!(scene.qp.post_send(SendWr::send(WrId(1), [])).is_err(), "nothing new is sent");
    scene.ends_in_order();
}

#[test]
fn a_half_close_lasts_as_long_as_fpdus_keep_coming() {
    let mut scene = Scene::ready();
    disconnect(&mut scene);
    let silence = duration_of(Timer::CloseSilence);
    for _ in 0..20 {
        scene.run(silence - SLACK);
        scene.send(&empty_write());
        assert!(scene.closed.is_none());
    }
    // Half an FPDU does not count.
    let fpdu = scene.fpdu(&empty_write());
    scene.run(silence / 2);
    scene.send_octets(&fpdu[..8]);
    scene.run(silence / 2 + SLACK);
    assert!(scene.closed.is_some());
    assert_eq!(told(&scene.events), [LOST]);
}

#[test]
fn startup_closed_locally_ends_whatever_the_reply() {
    let mut scene = Scene::connecting(revision_1());
    disconnect(&mut scene);
    let failed = StreamEvent::StartupFailed(StartupFailure::ConnectionLost);
    assert_eq!(scene.events, std::slice::from_ref(&failed));
    assert_eq!(scene.qp.state(), QpState::Error, "nothing can be posted that never would go out");
    scene.reply(&startup(REPLY_KEY, CRC, 1, b""));
    assert_eq!(scene.events, [failed]);
    assert_eq!(scene.qp.state(), QpState::Error);
    scene.run(duration_of(Timer::Linger));
    assert!(scene.closed.is_some() && scene.peer.reset_received);
}

#[test]
fn a_startup_that_is_closed_is_not_tried_again() {
    let mut scene = Scene::new();
    let (params, remote) = (ConnectParams::default(), SocketAddr::from((PEER, 40_000)));
    assert!(!params.startup.fallback.is_empty());
    let id = scene.victim.port.connect(scene.now, remote, &scene.qp, &params).unwrap();
    scene.connection = Some(id);
    scene.run(MOMENT);
    disconnect(&mut scene);
    let failed = StreamEvent::StartupFailed(StartupFailure::ConnectionLost);
    assert_eq!(scene.events, [failed]);
    assert_eq!(scene.qp.state(), QpState::Error);
}

/// Bytes that either end sent before the startup cannot be repeated on another connection.
#[test]
fn a_startup_behind_streaming_octets_is_not_tried_again() {
    for (we_speak, peer_speaks, retries) in
        [(false, false, true), (true, false, false), (false, true, false)]
    {
        let mut scene = Scene::new();
        let remote = SocketAddr::from((PEER, 40_000));
        let port = &mut scene.victim.port;
        let id = port.open(scene.now, remote, LowerLayer::Optimized).unwrap();
        scene.connection = Some(id);
        scene.run(MOMENT);
        if we_speak {
            scene.victim.port.send_streaming(id, b"hello").unwrap();
        }
        if peer_speaks {
            scene.send_octets(b"hello");
        }
        scene.run(MOMENT);
        let (config, offer) = (StartupConfig::default(), Offer::default());
        let started = scene.victim.port.start_initiator(scene.now, id, &scene.qp, &config, &offer);
        started.unwrap();
        scene.run(MOMENT);
        // A peer of revision 1, which would be asked again in it.
        scene.reply(&startup(REPLY_KEY, CRC, 1, b""));
        let failed = |event: &StreamEvent| matches!(event, StreamEvent::StartupFailed(_));
        let has_failed = scene.events.iter().any(failed);
        assert_eq!(has_failed, !retries, "{we_speak} {peer_speaks} {:?}", scene.events);
    }
}

#[test]
fn the_time_for_a_reply_begins_when_tcp_is_established() {
    // RFC 9293 MUST-23: a SYN is repeated for three minutes.
    let mut scene = opening();
    scene.run(Duration::from_secs(100));
    assert!(scene.events.is_empty(), "{:?}", scene.events);
    scene.peer.deaf = false;
    while !scene.peer.is_established() {
        scene.run(MOMENT);
        assert!(scene.events.is_empty() && scene.now.as_nanos() < 180_000_000_000);
    }
    scene.run(duration_of(Timer::Reply) - SLACK);
    assert!(scene.events.is_empty(), "{:?}", scene.events);
    scene.run(2 * SLACK);
    assert_eq!(scene.events, [StreamEvent::StartupFailed(StartupFailure::Timeout)]);
}

// spec: MPA2-5-3
#[test]
fn a_responder_is_established_at_its_reply_and_sends_after_the_rtr() {
    // RFC 6581 §9.2: work may be posted at once; RFC 5044 §7.1.2 (4): it waits for the RTR.
    let Cell { mut scene, .. } = Cell::enter(Stage::AwaitingRtr, Peer::Acts);
    assert!(scene.events.iter().any(|event| matches!(event, StreamEvent::Established(_))));
    scene.post_send();
    scene.run(SOON);
    assert!(scene.answers().is_empty());
    scene.send(&empty_write());
    assert_eq!(scene.answers()[0][..2], SEND);
}

#[test]
fn work_posted_after_a_peer_closed_without_any_fpdu_fails() {
    let mut scene = Scene::started(StartupConfig::default());
    close_peer(&mut scene);
    scene.post_send();
    scene.run(MOMENT);
    assert_eq!(scene.completed().status, WcStatus::RetryExcErr);
    assert_eq!(scene.events.last(), Some(&LOST));
}

#[test]
fn probes_stop_with_the_first_fpdu() {
    let mut scene = Scene::ready();
    scene.peer.deaf = true;
    scene.run(Duration::from_secs(10_000));
    assert!(scene.closed.is_none(), "an idle connection is left alone");
}

#[test]
fn an_abort_in_time_wait_changes_nothing() {
    let mut scene = Cell::enter(Stage::TimeWait, Peer::Acts).scene;
    let id = scene.connection.unwrap();
    scene.victim.port.abort(id);
    scene.run(MOMENT);
    assert_eq!(scene.victim.port.connection_count(), 1);
    assert!(!scene.peer.reset_received);
    assert!(scene.victim.port.disconnect(id).is_err());
    scene.run(duration_of(Timer::TimeWait));
    assert_eq!(scene.victim.port.connection_count(), 0);
}

#[test]
fn an_abort_right_after_the_last_fin_changes_nothing() {
    // RFC 9293 MUST-13: TIME-WAIT has begun, though that is not reported yet.
    let mut scene = Scene::ready();
    disconnect(&mut scene);
    scene.peer.send_fin(scene.now.as_nanos());
    scene.now = scene.now + Duration::from_millis(1);
    // Only the frame is handled: the port was not polled since.
    let (now, victim) = (scene.now, &mut scene.victim);
    let taken = victim.port.handle_burst(now, |sink| {
        victim.device.receive(now.as_nanos(), 1, &mut |frame| sink(&frame))
    });
    assert_eq!(taken, 1);
    let id = scene.connection.unwrap();
    scene.victim.port.abort(id);
    scene.run(MOMENT);
    assert_eq!(scene.victim.port.connection_count(), 1);
    assert_eq!(told(&scene.events), [StreamEvent::PeerClosed]);
    assert!(scene.closed.is_some() && !scene.peer.reset_received);
}

#[test]
fn rejected_peers_that_stay_hold_no_backlog_entries() {
    // RFC 5044 §7.1.2 (6) lets them stay.
    let mut scene = Scene::new();
    let mut rejected = Vec::new();
    for index in 0..2 * urnic_engine::limits::LISTEN_BACKLOG_MAX as u16 + 1 {
        scene.peer.pose_as((PEER, 20_000 + index));
        scene.peer.sent = 0;
        scene.peer.received.clear();
        scene.peer.acknowledged = 0;
        scene.open();
        scene.request(&startup(REQUEST_KEY, CRC, 1, b""));
        let asked = matches!(scene.events.pop(), Some(StreamEvent::Request(_)));
        assert!(asked, "peer {index} is answered");
        let connection = scene.connection.unwrap();
        scene.victim.port.reject(connection, &Offer::default()).unwrap();
        scene.run(MOMENT);
        rejected.push(connection);
    }
    // After this end closes, they have some time to close, too.
    scene.peer.deaf = true;
    assert_eq!(scene.victim.port.connection_count(), rejected.len());
    for connection in rejected {
        scene.victim.port.disconnect(connection).unwrap();
    }
    scene.run(duration_of(Timer::Linger) - SLACK);
    assert!(scene.closed.is_none());
    scene.run(2 * SLACK);
    assert_eq!(scene.victim.port.connection_count(), 0);
}
