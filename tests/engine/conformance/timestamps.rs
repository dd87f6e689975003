//! RFC 7323 §3 to §5: timestamps, what they echo, and protection against wrapped sequence numbers.

use urnic_engine::tcp::Config;

use crate::conformance::script::{self, listen};

fn config() -> Config {
    Config { timestamps: true, window_scaling: false, ..script::config() }
}

const ESTABLISHED: &str = "
0.000 < S  0:0 win 60000 <mss=1012,sackOK,ts=100:0>
0.000 > S. 0:0 ack 1 <mss=1000,sackOK,ts=0:100>
0.001 < .  1:1 ack 1 <ts=101:1>
";

fn established(table: &str) {
    listen(config(), &[ESTABLISHED, table].concat());
}

// spec: TCP-7323-3
#[test]
fn every_segment_has_a_timestamp_and_echoes_the_peers() {
    // §3.2: once negotiated, in every segment but RST.
    established(
        "
        0.010 ! write 100
        0.010 > P. 1:101 ack 1 <ts=0:101>
        0.011 < .  1:1 ack 101 <ts=120:10>
        0.030 ! close
        0.030 > F. 101:101 ack 1 <ts=0:120>
        0.031 < F. 1:1 ack 102 <ts=140:30>
        0.031 > .  102:102 ack 2 <ts=0:140>
        ",
    );
}

// spec: TCP-7323-4
#[test]
fn a_delayed_acknowledgment_echoes_the_first_segment_it_is_for() {
    // §4.3 (A).
    established(
        "
        0.010 < .  1:1001 ack 1 <ts=110:1>
        0.010 < .  1001:2001 ack 1 <ts=115:1>
        0.010 > .  1:1 ack 2001 <ts=0:110>
        0.020 ? read 2000
        ",
    );
}

// spec: TCP-7323-4
#[test]
fn a_hole_keeps_the_echo_and_what_fills_it_is_echoed() {
    // §4.3 (B), (C). Before full operation only copies are kept beyond a gap: there is no SACK.
    established(
        "
        0.010 < .  1:1001 ack 1 <ts=110:1>
        0.010 < .  1001:2001 ack 1 <ts=111:1>
        0.010 > .  1:1 ack 2001 <ts=0:110>
        0.012 < .  3001:4001 ack 1 <ts=112:1>
        0.012 > .  1:1 ack 2001 <ts=0:110>
        0.013 < .  2001:3001 ack 1 <ts=130:1>
        0.013 > .  1:1 ack 4001 <ts=0:130>
        0.020 ? read 4000
        ",
    );
}

// spec: TCP-7323-7
#[test]
fn data_of_an_earlier_wrap_is_acknowledged_and_dropped() {
    // §5.3 R1: before the sequence check. This keeps old duplicates out of remote memory.
    established(
        "
        0.010 < .  1:1001 ack 1 <ts=110:1>
        0.010 < .  1001:2001 ack 1 <ts=111:1>
        0.010 > .  1:1 ack 2001 <ts=0:110>
        0.020 < .  2001:3001 ack 1 <ts=109:1>
        0.020 > .  1:1 ack 2001 <ts=0:110>
        0.030 ? read 2000
        0.040 < P. 2001:2501 ack 1 <ts=140:1>
        * > .  1:1 ack 2501 <ts=0:140>
        1.000 ? read 500
        ",
    );
}

#[test]
fn an_equal_timestamp_is_not_an_earlier_one() {
    established(
        "
        0.010 < .  1:1001 ack 1 <ts=110:1>
        0.010 < .  1001:2001 ack 1 <ts=110:1>
        0.010 > .  1:1 ack 2001 <ts=0:110>
        0.010 < .  2001:3001 ack 1 <ts=110:1>
        0.010 < .  3001:4001 ack 1 <ts=110:1>
        0.010 > .  1:1 ack 4001 <ts=0:110>
        0.020 ? read 4000
        ",
    );
}

#[test]
fn a_timestamp_clock_may_wrap() {
    // §5.2: compared modulo 2^32.
    listen(
        config(),
        "
        0.000 < S  0:0 win 60000 <mss=1012,sackOK,ts=4294967290:0>
        0.000 > S. 0:0 ack 1 <mss=1000,sackOK,ts=0:4294967290>
        0.001 < .  1:1 ack 1 <ts=4294967291:1>
        0.010 < .  1:1001 ack 1 <ts=4:1>
        0.010 < .  1001:2001 ack 1 <ts=4:1>
        0.010 > .  1:1 ack 2001 <ts=0:4>
        0.020 < .  2001:3001 ack 1 <ts=4294967295:1>
        0.020 > .  1:1 ack 2001 <ts=0:4>
        0.030 ? read 2000
        ",
    );
}

#[test]
fn an_old_acknowledgment_acknowledges_nothing() {
    established(
        "
        0.010 ! write 100
        0.010 > P. 1:101 ack 1 <ts=0:101>
        0.011 < .  1:1 ack 101 <ts=50:10>
        0.011 > .  101:101 ack 1 <ts=0:101>
        *     > P. 1:101 ack 1 <ts=0:101>
        0.012 < .  1:1 ack 101 <ts=130:10>
        ",
    );
}

#[test]
fn an_old_fin_closes_nothing() {
    established(
        "
        0.010 < F. 1:1 ack 1 <ts=99:1>
        0.010 > .  1:1 ack 1 <ts=0:101>
        0.020 ? connections 1
        0.030 < F. 1:1 ack 1 <ts=130:1>
        0.030 > .  1:1 ack 2 <ts=0:130>
        0.030 ? peer-closed
        ",
    );
}

#[test]
fn a_reset_needs_no_timestamp_and_may_have_an_old_one() {
    // §5.2: RST segments are not checked.
    for options in ["", "<ts=5:1>"] {
        established(&format!("0.010 < R  1:1 {options}\n0.020 ? closed\n0.020 ? connections 0\n"));
    }
}

// spec: TCP-7323-3
#[test]
fn a_segment_without_a_timestamp_is_dropped_and_the_connection_goes_on() {
    // §3.2: "if a non-RST segment is received without a TSopt, a TCP SHOULD silently drop the
    // segment. A TCP MUST NOT abort a TCP connection because any segment lacks an expected TSopt."
    established(
        "
        0.010 < .  1:1001 ack 1
        0.500 ? connections 1
        0.600 < .  1:1001 ack 1 <ts=700:1>
        0.600 < .  1001:2001 ack 1 <ts=700:1>
        0.600 > .  1:1 ack 2001 <ts=0:700>
        0.700 ? read 2000
        ",
    );
}

// spec: TCP-7323-5
#[test]
fn after_24_idle_days_no_timestamp_is_old() {
    // §5.5: the peer's clock may have wrapped.
    established(
        "
        0.010       < .  1:1001 ack 1 <ts=5000:1>
        0.010       < .  1001:2001 ack 1 <ts=5000:1>
        0.010       > .  1:1 ack 2001 <ts=0:5000>
        1987200.000 < .  2001:3001 ack 1 <ts=4999:1>
        1987200.000 > .  1:1 ack 2001 <ts=0:5000>
        2160000.000 < .  2001:3001 ack 1 <ts=4999:1>
        2160000.000 < .  3001:4001 ack 1 <ts=4999:1>
        2160000.000 > .  1:1 ack 4001 <ts=0:4999>
        2160001.000 ? read 4000
        ",
    );
}
