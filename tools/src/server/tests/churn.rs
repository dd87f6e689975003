//! Sessions that come and go, in all ways: no session is lost, none gets data of another, and all
//! their resources are released.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use urnic::{Access, SendWr, WrId};

use super::limits;
use super::scene::{By, Clients, Serving, scene};
use crate::client::{Client, Unverified};
use crate::protocol::{Control, Session};
use crate::server::Limits;
use crate::server::accounts::Accounts;
use crate::server::peers::Sizes;
use crate::server::places::{Places, Taken};
use crate::transfer::Folder;

/// Limits with room for a hundred, and a folder for files.
fn roomy(folder: &tempfile::TempDir) -> Limits {
    let places = Places { peers_max: 100, peers_per_source_max: 100, ..limits().places };
    Limits { places, folder: Some(Folder::open(folder.path()).unwrap()), ..limits() }
}

/// Checks that no peer, and no resource of a peer, is left.
fn nothing_is_left(serving: &mut Serving<'_, '_>) {
    serving.until_true(|server| {
        let nothing = Sizes { due_queue: 0, ..Sizes::default() };
        // The thread of a file may take a moment to end.
        server.peers.sizes() == nothing
            && Accounts::taken(&mut server.accounts).0 == Taken::default()
    });
    assert_eq!(serving.server.accounts.taken(), (Taken::default(), 0));
    assert_eq!(serving.server.peers.completions().queues(), 1, "the others have gone, too");
}

/// Posts messages that the server has not handled when the connection is reset.
fn reset_with_work_under_way(clients: &Clients<'_>) {
    let client = clients.open(Session::Echo, 64, 16).unwrap();
    let memory = clients.host.pd.reg_mr(64, Access::empty()).unwrap();
    for _ in 0..8 {
        client.post(SendWr::send(WrId(1), [memory.sge(0..64)])).unwrap();
    }
    for _ in 0..4 {
        clients.host.endpoint.turn(Duration::ZERO).unwrap();
    }
    client.connection.abort();
}

/// Puts a file with a wrong digest: the server answers that the file differs.
fn put_what_is_wrong<'a>(clients: &'a Clients<'_>, name: &str) -> Client<'a> {
    let session = Session::Put { name: name.to_owned(), force: false };
    let mut client = clients.open(session, 0, 0).unwrap();
    client.send(&Control::Commit { sha256: [0; 32] }).unwrap();
    assert!(client.wait_control().unwrap_err().is::<Unverified>());
    client
}

fn come_and_go(clients: &Clients<'_>, round: u8, begun: &AtomicUsize) {
    let mut echoes: Vec<_> = (0..6).map(|_| clients.open(Session::Echo, 64, 16).unwrap()).collect();
    let idle = clients.idle(3);
    let target = clients.host.pd.reg_mr(64, Access::REMOTE_WRITE).unwrap();
    let ping_pong = clients.open(Session::PingPong(target.remote(0)), 64, 0).unwrap();
    begun.fetch_add(6 + 3 + 1, Ordering::Relaxed);
    reset_with_work_under_way(clients);
    for (echo, number) in echoes.iter_mut().zip(0..) {
        clients.echo(echo, &[round ^ (number << 5); 64], 4);
    }
    let refused = clients.open(Session::Memory, 2 << 20, 0).unwrap_err();
    assert!(format!("{refused:#}").contains("--size"), "{refused:#}");
    drop(put_what_is_wrong(clients, &format!("wrong-{round}")));
    begun.fetch_add(2, Ordering::Relaxed);
    drop(ping_pong);
    crate::client::close_all(idle).unwrap();
    // Some with work in flight, some without; the others go on.
    for mut echo in echoes.drain(..3) {
        clients.echo(&mut echo, &[round; 64], 2);
    }
    reset_with_work_under_way(clients);
    begun.fetch_add(1, Ordering::Relaxed);
    for (echo, number) in echoes.iter_mut().zip(0..) {
        clients.echo(echo, &[round | (number << 5); 64], 4);
    }
    crate::client::close_all(echoes).unwrap();
}

#[test]
fn ended_sessions_leave_nothing_and_are_logged_once() {
    const ROUNDS: u8 = 12;
    for by in [By::KernelTcp, By::Link] {
        let folder = tempfile::tempdir().unwrap();
        let begun = AtomicUsize::new(0);
        scene(
            by,
            Duration::from_secs(2),
            roomy(&folder),
            |clients| {
                for round in 0..ROUNDS {
                    come_and_go(clients, round, &begun);
                }
                clients.step();
                // The server times them out.
                let mut idle = clients.idle(5);
                begun.fetch_add(idle.len(), Ordering::Relaxed);
                for client in &mut idle {
                    while client.poll().is_ok() {
                        clients.host.endpoint.turn(Duration::from_millis(1)).unwrap();
                    }
                }
                clients.step();
            },
            |serving| {
                // Two or three sessions fill a queue.
                serving.server.peers.completions().set_depth_max(100);
                let mut queues_max = 0;
                serving.step_with(|server| {
                    queues_max = server.peers.completions().queues().max(queues_max);
                });
                assert!(queues_max > 2, "{queues_max}");
                nothing_is_left(serving);
                let before = serving.server.peers.polls().of_gone;
                serving.step();
                nothing_is_left(serving);
                let of_gone = serving.server.peers.polls().of_gone - before;
                assert_eq!(of_gone, 0, "their receives are flushed when they have gone");
                let (failed, gone) = &serving.server.outcomes.reported;
                let of = |part: &str| failed.iter().filter(|reason| reason.contains(part)).count();
                assert_eq!(failed.len() + gone, begun.load(Ordering::Relaxed), "{failed:?}");
                assert_eq!(of("nothing came for 2s: given up"), 5, "{failed:?}");
                assert_eq!(of("is not the file that was sent"), usize::from(ROUNDS), "{failed:?}");
            },
        );
    }
}

#[test]
fn last_message_is_awaited_for_a_limited_time() {
    let folder = tempfile::tempdir().unwrap();
    scene(
        By::KernelTcp,
        Duration::from_secs(600),
        roomy(&folder),
        |clients| {
            let client = put_what_is_wrong(clients, "held");
            clients.step();
            // It does not close.
            while clients.host.endpoint.turn(Duration::from_millis(1)).is_ok()
                && !clients.is_asked()
            {}
            drop(client);
            clients.step();
        },
        |serving| {
            serving.step();
            serving.until_true(|server| !server.outcomes.reported.0.is_empty());
            let started = urnic::monotonic_now();
            let before = serving.server.peers.polls().all;
            serving.until_true(|server| server.peers.sizes().peers == 0);
            let (took, polls) =
                (urnic::monotonic_now() - started, serving.server.peers.polls().all - before);
            assert!(took < Duration::from_secs(20), "{took:?}");
            assert!(polls < 10, "{polls} visits of a peer that only has to hear the last word");
            serving.step();
            nothing_is_left(serving);
        },
    );
}

#[test]
fn full_server_admits_another_session_after_one_ended() {
    for by in [By::KernelTcp, By::Link] {
        scene(
            by,
            Duration::from_secs(600),
            limits(),
            |clients| {
                for _ in 0..20 {
                    let mut held = clients.idle(4);
                    let refused = clients.open(Session::Memory, 64, 0).unwrap_err();
                    assert!(format!("{refused:#}").contains("--peers"), "{refused:#}");
                    held.pop().unwrap().close().unwrap();
                    let again = loop {
                        // The server may see the end of the session a little later.
                        match clients.open(Session::Memory, 64, 0) {
                            Ok(client) => break client,
                            Err(error) => assert!(format!("{error:#}").contains("--peers")),
                        }
                    };
                    drop(again);
                    crate::client::close_all(held).unwrap();
                    clients.step();
                }
            },
            |serving| {
                for _ in 0..20 {
                    serving.step();
                    nothing_is_left(serving);
                }
            },
        );
    }
}
