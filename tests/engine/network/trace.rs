//! `tracing` events of ports and TCP: decisions, with addresses and reasons, but not one per frame.

use std::cell::Cell;
use std::fmt::Debug;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber};
use urnic_engine::time::Duration;
use urnic_netdev::{RxChecksum, RxFrame};
use urnic_testkit::pair::B;

use crate::network::scene::Scene;
use crate::network::wire::Verdict;

/// Collects the fields of the events of one target, one line for each.
#[derive(Clone)]
struct Lines(&'static str, Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == self.0
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.1.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Returns the events of ports while `run` runs.
fn told(run: impl FnOnce()) -> Vec<String> {
    told_by("urnic::port", run)
}

/// Returns the events with `target` while `run` runs.
fn told_by(target: &'static str, run: impl FnOnce()) -> Vec<String> {
    // With one subscriber in the process, `tracing` asks the subscriber of the thread that first
    // reaches a place in the code. That may be another test's thread, which has none, and then the
    // events of that place are lost.
    static OTHERS: LazyLock<[Dispatch; 2]> =
        LazyLock::new(|| ["", ""].map(|target| Dispatch::new(Lines(target, Arc::default()))));
    LazyLock::force(&OTHERS);
    let lines = Lines(target, Arc::default());
    tracing::subscriber::with_default(lines.clone(), run);
    let lines = lines.1.lock().unwrap();
    lines.clone()
}

fn count(lines: &[String], message: &str) -> usize {
    lines.iter().filter(|line| line.contains(message)).count()
}

#[test]
fn a_connection_tells_when_it_opens_and_closes_and_nothing_for_each_frame() {
    let session = |len| {
        told(|| {
            let mut scene = Scene::new();
            scene.connect(IpAddr::V4(B));
            assert!(scene.write_within(len, Duration::from_secs(5)));
            let id = scene.id();
            scene.link.a.port.abort(id);
            scene.run_for(Duration::from_secs(1), |_| false);
        })
    };
    let lines = session(10_000);
    for message in ["connection opened", "connection closed"] {
        assert_eq!(count(&lines, message), 2, "{lines:?}");
    }
    assert_eq!(count(&lines, "neighbour resolved"), 1, "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("10.0.0.2:7174")), "{lines:?}");
    assert_eq!(session(1_000_000).len(), lines.len(), "a hundred times the frames");
}

#[test]
fn log_lines_of_dropped_frames_are_rate_limited() {
    let lines = told(|| {
        let mut scene = Scene::new();
        let mut frame = [0; 60];
        frame[..6].copy_from_slice(&scene.link.b.port.config().mac);
        frame[12..15].copy_from_slice(&[8, 0, 0x4f]);
        let checksum = RxChecksum::Unverified;
        for _ in 0..1000 {
            let frame = RxFrame::whole(&frame, checksum, None);
            scene.link.b.port.handle_frame(scene.link.now(), &frame);
        }
        assert_eq!(scene.link.b.port.drops().malformed, 1000);
    });
    assert_eq!(count(&lines, "frame dropped"), 10, "{lines:?}");
    assert_eq!(count(&lines, "reason=Malformed dropped=512"), 1, "{lines:?}");
}

#[test]
fn a_link_tells_when_it_changes() {
    let lines = told(|| {
        let mut scene = Scene::new();
        let now = scene.link.now();
        for up in [true, false, false, true] {
            scene.link.a.port.handle_link(now, up);
        }
    });
    assert_eq!(count(&lines, "link changed"), 2, "{lines:?}");
}

#[test]
fn a_connection_of_tcp_tells_its_states_and_nothing_for_each_segment() {
    let session = |len| {
        told_by("urnic::tcp", || {
            let mut scene = Scene::new();
            scene.connect(IpAddr::V4(B));
            assert!(scene.write_within(len, Duration::from_secs(5)));
            let (a, b) = (scene.id(), scene.b.connection.unwrap());
            scene.link.a.port.disconnect(a).unwrap();
            scene.link.b.port.disconnect(b).unwrap();
            scene.run_for(Duration::from_secs(1), |_| false);
        })
    };
    let lines = session(10_000);
    for change in [
        "from=SynSent to=Established trigger=SynsAcknowledged",
        "from=SynReceived to=Established trigger=SynsAcknowledged",
        "from=Established to=FinWait1 trigger=FinSent",
    ] {
        assert!(count(&lines, change) > 0, "{change}: {lines:#?}");
    }
    let names_it = |line: &&String| line.contains("_port=7174");
    assert_eq!(lines.iter().filter(names_it).count(), lines.len(), "{lines:#?}");
    assert_eq!(session(1_000_000).len(), lines.len(), "a hundred times the frames");
}

#[test]
fn loss_recovery_is_logged() {
    let lines = told_by("urnic::tcp", || {
        let mut scene = Scene::new();
        let (passed, lose) = (Rc::new(Cell::new(0)), 40..42);
        let seen = Rc::clone(&passed);
        scene.behind_a(move |_| {
            seen.set(seen.get() + 1);
            if lose.contains(&seen.get()) { Verdict::Lose } else { Verdict::Pass }
        });
        scene.connect(IpAddr::V4(B));
        assert!(scene.write_within(300_000, Duration::from_secs(5)));
        assert!(passed.get() > 60, "{}", passed.get());
        // From now on nothing passes.
        scene.behind_a(|_| Verdict::Lose);
        assert!(!scene.write_within(10_000, Duration::from_secs(5)));
    });
    for message in ["losses found", "tail loss probe", "retransmission timeout"] {
        assert!(count(&lines, message) > 0, "{message}: {lines:#?}");
    }
}
