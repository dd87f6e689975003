//! Heap memory of an idle session.

use std::time::Duration;

use urnic_testkit::counting::live_bytes;

use super::limits;
use super::scene::{By, scene};
use crate::server::Limits;
use crate::server::places::Places;

/// Bytes that an idle session may take.
const SESSION_BYTES_MAX: i64 = 8 << 10;

#[test]
fn an_idle_session_takes_8_kib_at_most() {
    /// Sessions before the counted ones. Together they fill tables that double.
    const BEFORE: usize = 256;
    const COUNTED: usize = 256;
    for by in [By::KernelTcp, By::Link] {
        let places = Places { peers_max: 1000, peers_per_source_max: 1000, ..limits().places };
        scene(
            by,
            Duration::from_secs(600),
            Limits { places, ..limits() },
            |clients| {
                let before = clients.idle(BEFORE);
                clients.step();
                let counted = clients.idle(COUNTED);
                clients.step();
                drop((before, counted));
            },
            |serving| {
                serving.step();
                serving.serve_for(Duration::from_millis(50));
                let before = live_bytes();
                serving.step();
                serving.serve_for(Duration::from_millis(50));
                assert_eq!(serving.server.peers.sizes().peers, BEFORE + COUNTED);
                let each = (live_bytes() - before) / i64::try_from(COUNTED).unwrap();
                assert!(each <= SESSION_BYTES_MAX, "{by:?}: {each} bytes for an idle session");
            },
        );
    }
}
