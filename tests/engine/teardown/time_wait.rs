//! Many connections in TIME-WAIT: their memory, their limit, and their end.

use urnic_engine::limits::TIME_WAIT_KEPT;
use urnic_engine::port::PortConfig;
use urnic_engine::time::Duration;
use urnic_testkit::closing::Closing;
use urnic_testkit::counting::live_bytes;
use urnic_testkit::pair::A;

/// Maximum bytes of the heap for one connection, even right after a table has doubled.
const BYTES_MAX: i64 = 256;

/// Memory per connection is highest right after the table of addresses has doubled. A busy port may
/// have to keep 100,000 connections.
#[test]
fn each_of_100_000_time_wait_records_takes_256_octets_at_most() {
    let mut ends = Closing::new(100_000);
    // The memory of a port without connections changes with the first ones.
    ends.open_and_close(64);
    let before = live_bytes() - 64 * BYTES_MAX;
    let mut each = Vec::new();
    for count in [7169, 10_000, 14_337, 28_673, 57_345, 100_000] {
        ends.open_and_close(count - ends.opened);
        let now = ends.link.a.port.connection_count();
        assert_eq!((now, ends.waiting()), (count, count), "and nothing else is left of them");
        assert_eq!(ends.link.b.port.connection_count(), 0);
        each.push((live_bytes() - before) / i64::try_from(count).unwrap());
    }
    assert!(each.iter().all(|each| (100..=BYTES_MAX).contains(each)), "{each:?}");
    // A further one takes the entry of the oldest.
    assert_eq!(ends.link.a.port.port_counters().time_wait_recycled, 0);
    ends.open_and_close(1000);
    assert_eq!(ends.waiting(), 100_000);
    assert_eq!(ends.link.a.port.port_counters().time_wait_recycled, 1000);
    // They end a minute after they began, all that are due at a time, and free their memory.
    let held = live_bytes();
    let deadline = ends.link.now() + Duration::from_secs(61);
    ends.link.run_until(deadline, |_| false);
    assert_eq!(ends.link.a.port.connection_count(), 0);
    assert!(held - live_bytes() > 140 * 100_000, "{}", held - live_bytes());
}

#[test]
fn port_configured_without_time_wait_keeps_no_record() {
    let mut ends = Closing::new(0);
    ends.open_and_close(100);
    assert_eq!((ends.link.a.port.connection_count(), ends.waiting()), (0, 0));
}

#[test]
fn the_limit_of_a_port_is_that_of_its_configuration_within_the_engines() {
    let default = PortConfig::for_ipv4(A);
    assert_eq!(default.time_wait_max, TIME_WAIT_KEPT);
    assert_eq!(Closing::new(usize::MAX).link.a.port.config().time_wait_max, 1 << 20);
}
