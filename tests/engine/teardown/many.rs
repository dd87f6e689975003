//! Many connections, one after the other and all at once.

use urnic_engine::port::ListenParams;
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{SendWr, WcStatus};
use urnic_netdev::impair::ImpairConfig;

use crate::teardown::duo::{Duo, LINK, Queues};
use urnic_testkit::pair::TCP_PORT;

fn exchange(duo: &mut Duo, queues: &[Queues; 2]) {
    queues[1].post_receive(1, &duo.sides[1].memory, 5000);
    queues[0].post_send(2, &duo.sides[0].memory, 5000);
    duo.until(|_| queues[1].recv.len() == 1 && queues[0].send.len() == 1);
    assert_eq!(queues[0].sent(), [(2, WcStatus::Success)]);
    assert_eq!(queues[1].received(), [(1, WcStatus::Success)]);
}

#[test]
fn connections_come_and_go_and_leave_nothing() {
    let mut duo = Duo::listening();
    for round in 0..300 {
        let queues = [duo.sides[0].queues(8), duo.sides[1].queues(8)];
        let ids = duo.connect([&queues[0], &queues[1]]);
        exchange(&mut duo, &queues);
        match round % 3 {
            0 => duo.port(0).abort(ids[0]),
            1 => duo.port(1).abort(ids[1]),
            _ => {
                duo.port(0).disconnect(ids[0]).unwrap();
                duo.port(1).disconnect(ids[1]).unwrap();
            }
        }
    }
    duo.ends_empty();
    assert_eq!(duo.sides[0].closed.len(), 300);
    assert_eq!(duo.sides[1].closed.len(), 300);
}

#[test]
fn connections_come_and_go_over_a_bad_link() {
    let impair =
        ImpairConfig { loss: 0.03, reorder: 0.1, resegment: 0.3, ..ImpairConfig::default() };
    let mut duo = Duo::new(LINK, impair, 3);
    duo.port(1).listen(TCP_PORT, ListenParams::default()).unwrap();
    for round in 0..40 {
        let queues = [duo.sides[0].queues(8), duo.sides[1].queues(8)];
        let ids = duo.connect([&queues[0], &queues[1]]);
        // Left in the middle, with bytes held on both ends.
        for side in [0, 1] {
            let (own, peer) = (&duo.sides[side].memory, &duo.sides[1 - side].memory);
            let write = SendWr::write(WrId(1), peer.remote(0), [own.sge(0..400_000)]);
            queues[side].qp.post_send(write).unwrap();
        }
        duo.run(Duration::from_millis(round % 7));
        duo.port((round % 2) as usize).abort(ids[(round % 2) as usize]);
        let other = usize::from(round % 2 == 0);
        // The RST may be lost: the other end then gives up by itself.
        duo.run(Duration::from_secs(1));
        duo.port(other).abort(ids[other]);
    }
    duo.ends_empty();
}

#[test]
fn many_connections_share_a_link() {
    let impair = ImpairConfig { loss: 0.01, reorder: 0.05, ..ImpairConfig::default() };
    let mut duo = Duo::new(LINK, impair, 5);
    duo.port(1).listen(TCP_PORT, ListenParams::default()).unwrap();
    let mut all = Vec::new();
    for _ in 0..50 {
        let queues = [duo.sides[0].queues(64), duo.sides[1].queues(64)];
        let ids = duo.connect([&queues[0], &queues[1]]);
        all.push((queues, ids));
    }
    for (queues, _) in &all {
        queues[1].post_receive(1, &duo.sides[1].memory, 50_000);
        queues[0].post_send(2, &duo.sides[0].memory, 50_000);
    }
    duo.until(|_| all.iter().all(|(queues, _)| queues[0].send.len() == 1));
    for (queues, ids) in &all {
        assert_eq!(queues[0].sent(), [(2, WcStatus::Success)]);
        assert_eq!(queues[1].received(), [(1, WcStatus::Success)]);
        duo.port(0).disconnect(ids[0]).unwrap();
        duo.port(1).disconnect(ids[1]).unwrap();
    }
    duo.ends_empty();
}

#[test]
fn a_taken_port_cannot_be_listened_to_again() {
    let mut duo = Duo::listening();
    let refused = duo.port(1).listen(TCP_PORT, ListenParams::default());
    assert_eq!(refused, Err(urnic_engine::port::PortError::PortTaken(TCP_PORT)));
}
