//! The connection manager, as programs see it.

use super::{Libraries, compiled, free_port, has};

/// Queue pairs that programs make and bring to each state themselves.
#[test]
fn programs_connect_their_own_queue_pairs() {
    compiled::run("programs_connect_their_own_queue_pairs", "own_queue_pairs");
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
