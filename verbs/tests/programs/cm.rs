//! The connection manager, as applications see it.

use super::matrix::{LOOPBACK, row, run};
use super::{Libraries, compiled, free_port, has};

/// Queue pairs that applications make and move to each state themselves.
#[test]
fn programs_connect_their_own_queue_pairs() {
    compiled::run("programs_connect_their_own_queue_pairs", "own_queue_pairs", &[]);
}

/// Targets of RDMA never go to RTS, and other applications go there late.
#[test]
fn a_queue_pair_that_stays_in_rtr_is_connected() {
    compiled::run("a_queue_pair_that_stays_in_rtr_is_connected", "late", &[]);
}

#[test]
fn an_interface_refuses_types_of_service() {
    // The test does not open the device.
    let variables = [("URNIC_DEV", "tap:urnnone,ip=10.9.9.1/24")];
    compiled::run("an_interface_refuses_types_of_service", "no_classes", &variables);
}

/// Other processes request a queue pair that connects without rdma_cm.
#[test]
fn a_queue_pair_is_connected_to_by_its_peer_alone() {
    let test = "a_queue_pair_is_connected_to_by_its_peer_alone";
    compiled::run(test, "places", &[("URNIC_LOG", "urnic=warn")]);
}

/// Options, addresses, the order of calls, and errors.
#[test]
fn ids_are_as_those_of_rdma_core() {
    compiled::run("ids_are_as_those_of_rdma_core", "ids", &[]);
}

/// TCP and RDMA use the same number, as in servers that speak both.
#[test]
fn a_port_of_rdma_is_not_one_of_tcp() {
    compiled::run("a_port_of_rdma_is_not_one_of_tcp", "ports", &[]);
}

/// The library, the endpoint and the engine each keep as many requests as the application asks for.
#[test]
fn listener_keeps_the_requested_backlog() {
    let test = "listener_keeps_the_requested_backlog";
    compiled::run(test, "backlog", &[("URNIC_LOG", "urnic=warn")]);
}

/// Posted and completed requests when an application disconnects.
#[test]
fn disconnect_flushes_posted_requests() {
    compiled::run("disconnect_flushes_posted_requests", "flush", &[]);
}

#[test]
fn receives_outlive_a_disconnect_of_the_peer_as_on_infiniband() {
    let test = "receives_outlive_a_disconnect_of_the_peer_as_on_infiniband";
    compiled::run(test, "receives_left", &[]);
}

/// A peer disconnects while more of its messages wait than are read.
#[test]
fn disconnect_is_reported_after_waiting_messages() {
    compiled::run(
        "disconnect_is_reported_after_waiting_messages",
        "full",
        &[("URNIC_ACK", "local")],
    );
}

/// perftest with `-R`: it exchanges its parameters over one connection, and measures on others.
#[test]
fn perftest_measures_by_rdma_cm() {
    run(
        "perftest_measures_by_rdma_cm",
        "ib_write_bw",
        LOOPBACK,
        &[
            row(
                "ib_write_bw -R -F -p PORT -n 100",
                "ib_write_bw -R -F -p PORT -n 100 HOST",
                " 65536 ",
            ),
            row(
                "ib_write_lat -R -F -p PORT -n 100",
                "ib_write_lat -R -F -p PORT -n 100 HOST",
                " 100 ",
            ),
            row(
                "ib_read_bw -R -F -p PORT -n 100 -q 3",
                "ib_read_bw -R -F -p PORT -n 100 -q 3 HOST",
                " 65536 ",
            ),
            row(
                "ib_read_lat -R -F -p PORT -n 100",
                "ib_read_lat -R -F -p PORT -n 100 HOST",
                " 100 ",
            ),
            row(
                "ib_send_bw -R -F -p PORT -n 300 -e",
                "ib_send_bw -R -F -p PORT -n 300 -e HOST",
                " 65536 ",
            ),
            row(
                "ib_send_bw -R -F -p PORT -n 300 --use-srq",
                "ib_send_bw -R -F -p PORT -n 300 --use-srq HOST",
                " 65536 ",
            ),
            row(
                "ib_send_lat -R -F -p PORT -n 100",
                "ib_send_lat -R -F -p PORT -n 100 HOST",
                " 100 ",
            ),
            row(
                "ib_atomic_bw -R -F -p PORT -n 100",
                "ib_atomic_bw -R -F -p PORT -n 100 HOST",
                " 8 ",
            ),
            row(
                "ib_atomic_lat -R -F -p PORT -n 100",
                "ib_atomic_lat -R -F -p PORT -n 100 HOST",
                " 100 ",
            ),
        ],
    );
}

/// `rping -q` at either end, or at both.
#[test]
fn rping_pings_by_a_queue_pair_of_its_own() {
    if !has("rping_pings_by_a_queue_pair_of_its_own", &["rping"]) {
        return;
    }
    let libraries = Libraries::new();
    for iwarp in [false, true] {
        for (of_server, of_client) in [("-q", "-q"), ("-q", ""), ("", "-q")] {
            let port = free_port();
            let line = format!("rping -s {of_server} -a 127.0.0.1 -p {port} -C 20 -vV");
            let server = libraries.start(&line, iwarp).listens(port);
            let line = format!("rping -c {of_client} -a 127.0.0.1 -p {port} -C 20 -vV");
            let client = libraries.run(&line, iwarp);
            assert!(client.contains("rdma-ping-19"), "{client}");
            let server = server.finish();
            assert!(server.contains("rdma-ping-19"), "{server}");
        }
    }
}
