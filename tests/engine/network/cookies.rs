//! More peers at once than a listener's backlog holds (RFC 4987).

use std::net::{IpAddr, SocketAddr};

use urnic_engine::mpa::startup::Offer;
use urnic_engine::port::{ConnectParams, ListenParams};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::Duration;
use urnic_engine::verbs::QpConfig;

use crate::network::scene::{B6, Scene};
use urnic_testkit::pair::B;

const PORT: u16 = 7000;

#[test]
fn a_peer_beyond_the_backlog_is_served_by_a_cookie() {
    for address in [IpAddr::V4(B), IpAddr::V6(B6)] {
        let mut scene = Scene::new();
        // In streaming mode they stay in the backlog, because MPA is not started.
        let listen = ListenParams { backlog: 1, delayed: true, ..ListenParams::default() };
        scene.link.b.port.listen(PORT, listen).unwrap();
        let now = scene.now();
        let mut ids = Vec::new();
        for _ in 0..2 {
            let config = QpConfig { send_depth: 4, recv_depth: 4, ..QpConfig::new(&scene.a.cq) };
            let qp = scene.a.pd.create_qp(config).unwrap();
            let remote = SocketAddr::new(address, PORT);
            let params = ConnectParams { offer: Offer::default(), ..ConnectParams::default() };
            ids.push(scene.link.a.port.connect(now, remote, &qp, &params).unwrap());
        }
        // The Request of each arrives: both connections are established, one of them by a cookie.
        scene.run_for(Duration::from_secs(5), |_| false);
        let counters = *scene.link.b.port.port_counters();
        assert_eq!((counters.cookies_sent, counters.cookies_redeemed), (1, 1));
        assert_eq!(scene.link.b.port.connection_count(), 2);
        for id in ids {
            let tcp = scene.link.a.port.counters(id).unwrap().tcp;
            assert_eq!(tcp.retransmissions, 0, "what was sent arrived");
        }
        let lost = |event: &StreamEvent| matches!(event, StreamEvent::StartupFailed(_));
        assert!(!scene.a.events.iter().any(lost), "{:?}", scene.a.events);
    }
}
