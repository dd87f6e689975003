//! Pairs of programs, server and client: each row is run, and its expected output is checked.

use std::net::IpAddr;

use super::{Libraries, free_port, has};

/// Command lines of a server and a client. `PORT` is a free port, `HOST` the address of
/// the server.
pub(super) struct Row {
    server: &'static str,
    client: &'static str,
    /// Text that the client prints on success.
    says: &'static str,
}

pub(super) const fn row(server: &'static str, client: &'static str, says: &'static str) -> Row {
    Row { server, client, says }
}

/// perftest prints words like these when something went wrong.
const BAD: [&str; 4] = ["Completion with error", "Failed status", "Couldn't", "Unable to"];

pub(super) fn run(test: &str, program: &str, host: IpAddr, rows: &[Row]) {
    if !has(test, &[program]) {
        return;
    }
    let libraries = Libraries::new();
    for Row { server: server_line, client, says } in rows {
        let port = free_port();
        let fill =
            |line: &str| line.replace("PORT", &port.to_string()).replace("HOST", &host.to_string());
        let server = libraries.start(&fill(server_line), false).listens(port);
        let client_said = libraries.run(&fill(client), false);
        let server_said = server.finish();
        assert!(client_said.contains(says), "{client}: {client_said}");
        for (line, said) in [(*client, client_said), (*server_line, server_said)] {
            let bad = BAD.iter().find(|word| said.contains(**word));
            assert!(bad.is_none(), "{line}: {said}");
        }
    }
}

pub(super) const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

#[test]
fn queue_pairs_connected_by_number_ping() {
    run(
        "queue_pairs_connected_by_number_ping",
        "ibv_rc_pingpong",
        LOOPBACK,
        &[
            row(
                "ibv_rc_pingpong -p PORT -g 0 -n 500",
                "ibv_rc_pingpong -p PORT -g 0 -n 500 HOST",
                "500 iters in",
            ),
            row(
                "ibv_rc_pingpong -p PORT -n 500 -c",
                "ibv_rc_pingpong -p PORT -n 500 -c HOST",
                "500 iters in",
            ),
            row(
                "ibv_rc_pingpong -p PORT -g 0 -n 500 -e",
                "ibv_rc_pingpong -p PORT -g 0 -n 500 -e HOST",
                "500 iters in",
            ),
            row(
                "ibv_rc_pingpong -p PORT -g 0 -n 200 -N -s 65536",
                "ibv_rc_pingpong -p PORT -g 0 -n 200 -N -s 65536 HOST",
                "200 iters in",
            ),
        ],
    );
}

#[test]
fn queue_pairs_ping_on_one_shared_queue() {
    run(
        "queue_pairs_ping_on_one_shared_queue",
        "ibv_srq_pingpong",
        LOOPBACK,
        &[
            row(
                "ibv_srq_pingpong -p PORT -g 0 -q 8 -n 500",
                "ibv_srq_pingpong -p PORT -g 0 -q 8 -n 500 HOST",
                "500 iters in",
            ),
            row(
                "ibv_srq_pingpong -p PORT -g 0 -q 8 -n 500 -e",
                "ibv_srq_pingpong -p PORT -g 0 -q 8 -n 500 -e HOST",
                "500 iters in",
            ),
        ],
    );
}

#[test]
fn perftest_measures_by_number() {
    run(
        "perftest_measures_by_number",
        "ib_write_bw",
        LOOPBACK,
        &[
            row(
                "ib_write_bw -F -p PORT -a -n 20",
                "ib_write_bw -F -p PORT -a -n 20 HOST",
                " 8388608 ",
            ),
            row(
                "ib_write_bw -F -p PORT -q 257 -s 1024 -n 10",
                "ib_write_bw -F -p PORT -q 257 -s 1024 -n 10 HOST",
                " 1024 ",
            ),
            row("ib_write_lat -F -p PORT -n 100", "ib_write_lat -F -p PORT -n 100 HOST", " 100 "),
            row(
                "ib_read_bw -F -p PORT -n 100 -b",
                "ib_read_bw -F -p PORT -n 100 -b HOST",
                " 65536 ",
            ),
            row("ib_read_lat -F -p PORT -n 100", "ib_read_lat -F -p PORT -n 100 HOST", " 100 "),
            row(
                "ib_send_bw -F -p PORT -n 300 -q 4 -e",
                "ib_send_bw -F -p PORT -n 300 -q 4 -e HOST",
                " 65536 ",
            ),
            row(
                "ib_send_bw -F -p PORT -n 300 -r 4 -b",
                "ib_send_bw -F -p PORT -n 300 -r 4 -b HOST",
                " 65536 ",
            ),
            row(
                "ib_send_bw -F -p PORT -n 300 --use-srq",
                "ib_send_bw -F -p PORT -n 300 --use-srq HOST",
                " 65536 ",
            ),
            row(
                "ib_send_lat -F -p PORT -n 300 --use_old_post_send",
                "ib_send_lat -F -p PORT -n 300 --use_old_post_send HOST",
                " 300 ",
            ),
            row("ib_atomic_bw -F -p PORT -n 300", "ib_atomic_bw -F -p PORT -n 300 HOST", " 300 "),
            row(
                "ib_atomic_lat -F -p PORT -n 100 -A CMP_AND_SWAP",
                "ib_atomic_lat -F -p PORT -n 100 -A CMP_AND_SWAP HOST",
                " 100 ",
            ),
        ],
    );
}

#[test]
fn qperf_measures_by_number_and_by_rdma_cm() {
    if urnic_testkit::is_too_long("qperf_measures_by_number_and_by_rdma_cm") {
        return;
    }
    const TESTS: &str = "rc_lat rc_bw rc_bi_bw rc_rdma_read_bw rc_rdma_write_lat rc_rdma_write_poll_lat rc_compare_swap_mr ver_rc_fetch_add quit";
    let by_number = format!("qperf HOST -lp PORT -t 1 {TESTS}").leak();
    run(
        "qperf_measures_by_number_and_by_rdma_cm",
        "qperf",
        LOOPBACK,
        &[
            row("qperf -lp PORT", by_number, "quit:"),
            row(
                "qperf -lp PORT",
                "qperf HOST -lp PORT -t 1 -cm 1 rc_lat rc_bw rc_rdma_write_bw quit",
                "quit:",
            ),
        ],
    );
}

#[test]
fn fio_moves_blocks() {
    let client = |verb: &str| {
        &*format!("fio --name=c --ioengine=rdma --hostname=HOST --port=PORT --verb={verb} --rw=write --bs=64k --size=16m --iodepth=16").leak()
    };
    let server =
        "fio --name=s --ioengine=rdma --port=PORT --rw=read --bs=64k --size=16m --iodepth=16";
    run(
        "fio_moves_blocks",
        "fio",
        LOOPBACK,
        &[
            row(server, client("write"), "WRITE: bw="),
            row(server, client("read"), "WRITE: bw="),
            row(server, client("send"), "WRITE: bw="),
        ],
    );
}

/// libfabric ignores loopback interfaces, so it needs another address of this host.
#[test]
fn libfabric_has_messages_and_datagrams_of_its_own() {
    let test = "libfabric_has_messages_and_datagrams_of_its_own";
    let addresses = if_addrs::get_if_addrs().unwrap_or_default();
    let own = addresses.iter().find(|of| !of.is_loopback() && of.ip().is_ipv4() && of.is_oper_up());
    let Some(own) = own else {
        return urnic_testkit::skip(test, "no interface but loopback has an IPv4 address");
    };
    run(
        test,
        "fi_pingpong",
        own.ip(),
        &[
            row(
                "fi_pingpong -B PORT -p verbs -e msg",
                "fi_pingpong -P PORT -p verbs -e msg HOST",
                "1m ",
            ),
            row(
                "fi_pingpong -B PORT -p verbs;ofi_rxm -e rdm",
                "fi_pingpong -P PORT -p verbs;ofi_rxm -e rdm HOST",
                "1m ",
            ),
        ],
    );
}
