//! A server after many sessions, one after the other, is in the same state as after few.

use std::time::Duration;

use urnic_testkit::counting::live_bytes;

use super::limits;
use super::scene::{By, scene};
use crate::protocol::Session;
use crate::server::peers::Sizes;
use crate::server::places::Taken;

/// Sessions in a round. The test compares the first round after tables have reached their size with
/// the last.
const ROUND: usize = 1000;
/// Bytes that a session may leave: two steering tags that are remembered so that they are not
/// reused soon (at most `STAGS_RETIRED_MAX` of them).
const LEFT_MAX: i64 = 40;

/// Work of one round, and the heap after it.
#[derive(Debug)]
struct Round {
    polls: usize,
    live: i64,
}

fn one_behind_the_other(by: By, rounds: usize) {
    scene(
        by,
        Duration::from_secs(600),
        limits(),
        |clients| {
            for _ in 0..rounds {
                for number in 0..ROUND {
                    let client = clients.open(Session::Memory, 64, 0).unwrap();
                    if number % 2 == 0 {
                        client.connection.abort();
                    }
                    // Otherwise the drop resets the connection: nothing waits for TIME-WAIT.
                }
                clients.step();
            }
        },
        |serving| {
            let mut seen: Vec<Round> = Vec::new();
            for _ in 0..rounds {
                let polls = serving.server.peers.polls().all;
                serving.step();
                serving.until_true(|server| server.accounts.taken().0 == Taken::default());
                // Other tests need the reasons of failed sessions.
                serving.server.outcomes.reported = Default::default();
                let polls = serving.server.peers.polls().all - polls;
                seen.push(Round { polls, live: live_bytes() });
            }
            let (first, last) = (&seen[1], &seen[rounds - 1]);
            assert_eq!(serving.server.accounts.taken(), (Taken::default(), 0));
            serving.until_true(|server| server.peers.sizes() == Sizes::default());
            let left = last.live - first.live;
            let most = LEFT_MAX * i64::try_from(ROUND * rounds).unwrap();
            assert!(left <= most, "{by:?}: {left} bytes are left: {seen:?}");
            assert!(last.polls <= 2 * first.polls, "{by:?}: {seen:?}");
        },
    );
}

#[test]
fn sequential_sessions_leave_nothing() {
    one_behind_the_other(By::KernelTcp, 5);
    one_behind_the_other(By::Link, 5);
}
