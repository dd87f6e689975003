//! The work of a turn does not depend on the number of sessions.

use std::time::Duration;

use super::limits;
use super::scene::{By, scene};
use crate::protocol::{Session, Welcome};
use crate::server::Limits;
use crate::server::peers::{LOOKS_MAX, PollCounts};
use crate::server::places::Places;

/// Idle sessions.
const IDLE: usize = 1000;
/// Longer than the test takes, so that no session times out.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Limits with room for all sessions.
fn roomy() -> Limits {
    let places =
        Places { peers_max: IDLE + 100, peers_per_source_max: IDLE + 100, ..limits().places };
    Limits { places, ..limits() }
}

#[test]
fn turn_polls_only_the_busy_session_among_a_thousand() {
    const ROUNDS: usize = 200;
    scene(
        By::Link,
        TIMEOUT,
        roomy(),
        |clients| {
            let idle = clients.idle(IDLE);
            let mut busy = clients.open(Session::Echo, 64, 16).unwrap();
            clients.step();
            for round in 0..ROUNDS {
                clients.echo(&mut busy, &[round.to_le_bytes()[0]; 64], 4);
            }
            clients.step();
            drop(idle);
        },
        |serving| {
            serving.step();
            serving.serve_for(Duration::from_millis(20));
            let first = serving.server.peers.polls();
            let mut last = first;
            serving.step_with(|server| {
                let now = server.peers.polls();
                let (all, due) = (now.all - last.all, now.due - last.due);
                // Four receives and four sends of this session, and of previous rounds.
                assert!(all - due <= 16, "{all} visits in a turn, {due} of them were due");
                assert!(due <= LOOKS_MAX, "{due} looks in a turn");
                last = now;
            });
            let worked = last.all - first.all - (last.due - first.due);
            // At most one for each completion; completions that come together need one.
            assert!((ROUNDS..=2 * 4 * ROUNDS).contains(&worked), "{worked}");
        },
    );
}

#[test]
fn ping_pong_session_is_polled_alone_in_each_turn() {
    scene(
        By::Link,
        TIMEOUT,
        roomy(),
        |clients| {
            let idle = clients.idle(IDLE);
            let target = clients.host.pd.reg_mr(64, urnic::Access::REMOTE_WRITE).unwrap();
            let ping_pong = clients.open(Session::PingPong(target.remote(0)), 64, 0).unwrap();
            clients.step();
            drop(ping_pong);
            clients.step();
            drop(idle);
        },
        |serving| {
            serving.step();
            serving.serve_for(Duration::from_millis(20));
            let PollCounts { all, due, .. } = serving.server.peers.polls();
            for _ in 0..100 {
                serving.server.turn().unwrap();
            }
            let now = serving.server.peers.polls();
            assert_eq!((now.all - all) - (now.due - due), 100);
            serving.step();
            serving.until_true(|server| server.peers.sizes().watching == 0);
        },
    );
}

#[test]
fn memory_polls_are_spread_over_turns_and_none_is_left_out() {
    scene(
        By::Link,
        TIMEOUT,
        roomy(),
        |clients| {
            let idle = clients.idle(IDLE);
            clients.step();
            clients.step();
            drop(idle);
        },
        |serving| {
            serving.step();
            let first = serving.server.peers.polls();
            let mut last = first;
            let started = urnic::monotonic_now();
            serving.until_true(|server| {
                let now = server.peers.polls();
                assert!(now.due - last.due <= LOOKS_MAX, "{now:?} after {last:?}");
                last = now;
                now.due - first.due >= 3 * IDLE
            });
            // Each timer expires once a second.
            let seconds = (urnic::monotonic_now() - started).as_secs_f64();
            assert!(seconds > 1.9, "{seconds} s for 3 looks at each");
            assert_eq!(serving.server.peers.sizes().due_queue, IDLE, "each is due again");
            serving.step();
        },
    );
}

/// One more peer is admitted or refused without polling the others.
#[test]
fn admission_polls_no_other_session() {
    scene(
        By::Link,
        TIMEOUT,
        roomy(),
        |clients| {
            let idle = clients.idle(IDLE);
            clients.step();
            let more = clients.idle(10);
            for _ in 0..10 {
                let refused = clients.open(Session::Memory, 2 << 20, 0).unwrap_err();
                assert!(format!("{refused:#}").contains("--size"), "{refused:#}");
            }
            clients.step();
            let Welcome { len, .. } = more[0].welcome;
            assert_eq!(len, 64);
            drop(idle);
        },
        |serving| {
            serving.step();
            serving.serve_for(Duration::from_millis(20));
            let before = serving.server.peers.polls();
            serving.step();
            let now = serving.server.peers.polls();
            let polls = (now.all - before.all) - (now.due - before.due);
            // When it is accepted, and when its connection is open.
            assert!(polls <= 20, "{polls} visits for 10 peers");
            assert_eq!(serving.server.accounts.taken().0.peers, IDLE + 10);
        },
    );
}
