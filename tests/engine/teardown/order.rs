//! Both ends end in every way and order, at any time, over good and bad links.

use urnic_engine::port::{ConnectionId, ListenParams};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{QpState, SendWr};
use urnic_netdev::impair::ImpairConfig;

use crate::teardown::duo::{Duo, LINK, Queues};
use urnic_testkit::pair::TCP_PORT;

/// Way in which an end ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Disconnects,
    Aborts,
    /// Disconnects only after the peer has closed, if it does.
    FollowsItsPeer,
}

const ENDS: [End; 3] = [End::Disconnects, End::Aborts, End::FollowsItsPeer];
/// Number of Sends posted at each side; `READS` is that of Reads.
const SENDS: u64 = 5;
const READS: u64 = 2;
/// Time of a side's action after the other's, in microseconds: at once, during the work, after it.
const PAUSES_US: [u64; 5] = [0, 150, 1000, 5000, 1_000_000];

#[test]
fn every_order_of_closes_gives_one_event_and_leaves_nothing() {
    let mut seed = 0;
    for first in ENDS {
        for second in ENDS {
            for pause_us in PAUSES_US {
                for side in [0, 1] {
                    for loss in [0.0, 0.1] {
                        seed += 1;
                        Run::new(loss, seed).check(side, [first, second], pause_us);
                    }
                }
            }
        }
    }
}

struct Run {
    duo: Duo,
    queues: [Queues; 2],
    ids: [ConnectionId; 2],
}

impl Run {
    fn new(loss: f64, seed: u64) -> Self {
        let impair = ImpairConfig { loss, ..ImpairConfig::default() };
        let mut duo = Duo::new(LINK, impair, seed);
        duo.port(1).listen(TCP_PORT, ListenParams::default()).unwrap();
        let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
        for side in [0, 1] {
            for id in 0..SENDS {
                queues[side].post_receive(id, &duo.sides[side].memory, 20_000);
            }
        }
        let ids = duo.connect([&queues[0], &queues[1]]);
        for side in [0, 1] {
            let remote = duo.sides[1 - side].memory.remote(0);
            let memory = &duo.sides[side].memory;
            for id in 0..SENDS {
                queues[side].post_send(id, memory, 20_000);
            }
            for id in SENDS..SENDS + READS {
                let read = SendWr::read(WrId(id), remote, memory.sge(0..100_000));
                queues[side].qp.post_send(read).unwrap();
            }
        }
        Self { duo, queues, ids }
    }

    fn check(mut self, side: usize, ends: [End; 2], pause_us: u64) {
        let what = format!("{ends:?} from {side}, {pause_us} µs apart");
        self.duo.run(Duration::from_micros(pause_us));
        self.end(side, ends[0]);
        self.duo.run(Duration::from_micros(pause_us));
        self.end(1 - side, ends[1]);
        // Two ends that wait for each other's close would wait for ever.
        if matches!(ends, [End::FollowsItsPeer, End::FollowsItsPeer]) {
            self.end(side, End::Disconnects);
        }
        let ids = self.ids;
        self.duo.until(|duo| {
            for side in [0, 1] {
                let closed = duo.sides[side].saw(ids[side], |e| *e == StreamEvent::PeerClosed);
                if closed {
                    // A connection that is over no longer has an id.
                    let _over = duo.port(side).disconnect(ids[side]);
                }
            }
            duo.sides.iter().all(|side| side.closed.len() == 1)
        });
        let told = self.duo.sides.each_ref().map(|side| side.events.len());
        self.duo.ends_empty();
        assert_eq!(told, self.duo.sides.each_ref().map(|side| side.events.len()), "{what}");
        for side in [0, 1] {
            self.is_told_in_order(side, &what);
            let (queues, all) = (&self.queues[side], 0..SENDS + READS);
            let sent: Vec<u64> = queues.sent().into_iter().map(|(id, _)| id).collect();
            assert_eq!(sent, all.collect::<Vec<_>>(), "{what}: each request completes once");
            let received: Vec<u64> = queues.received().into_iter().map(|(id, _)| id).collect();
            assert_eq!(received, (0..SENDS).collect::<Vec<_>>(), "{what}");
            assert_eq!(queues.qp.state(), QpState::Error, "{what}");
        }
    }

    fn end(&mut self, side: usize, end: End) {
        let id = self.ids[side];
        match end {
            End::Disconnects => {
                // The peer may have ended it.
                let _over = self.duo.port(side).disconnect(id);
            }
            End::Aborts => self.duo.port(side).abort(id),
            End::FollowsItsPeer => {}
        }
    }

    /// Asserts that `PeerClosed` comes first, then a failure if there is one, each of them once.
    fn is_told_in_order(&self, side: usize, what: &str) {
        let events = self.duo.sides[side].events.iter().map(|(_, event)| event);
        let ranks: Vec<u32> = events
            .map(|event| match event {
                StreamEvent::Request(_) => 0,
                StreamEvent::Established(_) => 1,
                StreamEvent::PeerClosed => 2,
                StreamEvent::Failed(_) | StreamEvent::Terminated(_) => 3,
                other => panic!("{what}: {other:?}"),
            })
            .collect();
        assert!(ranks.is_sorted_by(|a, b| a < b), "{what}: {:?}", self.duo.sides[side].events);
    }
}
