//! Messages that arrive before their receives, on the kernel's TCP and on a device.

use std::net::SocketAddr;

use urnic::{
    Access, ConnectOptions, ListenParams, Offer, QpConfig, QpRules, RecvWr, SendWr, WcStatus, WrId,
};
use urnic_engine::limits::HELD_BYTES_MAX;

use super::{Host, LOOPBACK, PATIENCE, contents, filled, hosts_on_a_link, pattern};

const LEN: usize = 256 << 10;

/// Asserts that nothing is lost if more waits than the server holds and all socket buffers take,
/// and that the connection goes on once receives are posted.
fn more_than_may_wait_is_delivered(server: &Host, client: &Host, local: SocketAddr) {
    let rules = QpRules::IwarpWait;
    let config = QpConfig { rules, ..QpConfig::new(&server.cq) };
    let peer_qp = server.pd.create_qp(config).unwrap();
    let qp = client.qp();
    let listener = server.endpoint.listen(local, ListenParams::default()).unwrap();
    let options = ConnectOptions::default();
    let connecting = client.endpoint.connect(listener.local(), &qp, &options).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().expect("comes");
    let offer = Offer { ird: 4, ord: 4, ..Offer::default() };
    let peer = request.accept(&peer_qp, &offer).unwrap().wait(PATIENCE).unwrap();
    let _connection = connecting.wait(PATIENCE).unwrap();

    let octets = pattern(LEN, 9);
    let source = filled(&client.pd, &octets, Access::empty());
    let sink = server.pd.reg_mr(LEN, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
    let inbox = server.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
    // A Read behind a waiting message is answered.
    qp.post_send(SendWr::send(WrId(100), [source.sge(0..LEN)])).unwrap();
    let landing = client.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
    qp.post_send(SendWr::read(WrId(101), sink.remote(0), landing.sge(0..8))).unwrap();
    client.complete(2);
    let count = 6 * HELD_BYTES_MAX / LEN;
    let (mut sent, mut received) = (0, 0);
    while received <= count {
        while sent < count && qp.post_send(SendWr::send(WrId(0), [source.sge(0..LEN)])).is_ok() {
            sent += 1;
        }
        while let Some(wc) = client.cq.poll() {
            assert_eq!(wc.status, WcStatus::Success);
        }
        if received == 0 {
            // Until the server takes nothing further: its process may sleep meanwhile.
            while let Ok(Some(wc)) =
                client.endpoint.wait(&client.cq, std::time::Duration::from_millis(200))
            {
                assert_eq!(wc.status, WcStatus::Success);
                if sent < count {
                    qp.post_send(SendWr::send(WrId(0), [source.sge(0..LEN)])).unwrap();
                    sent += 1;
                }
            }
        }
        let buffer = RecvWr::new(WrId(received as u64), [inbox.sge(0..LEN)]);
        peer_qp.post_recv(buffer).unwrap();
        let wc = server.endpoint.wait(&server.cq, PATIENCE).unwrap().expect("is delivered");
        assert_eq!((wc.wr_id, wc.status), (WrId(received as u64), WcStatus::Success));
        assert!(contents(&inbox, LEN) == octets);
        received += 1;
    }
    let counters = peer.counters().unwrap();
    assert!(counters.rdma.bytes_without_receive >= HELD_BYTES_MAX as u64);
}

#[test]
fn more_than_may_wait_is_delivered_over_sockets() {
    let (server, client) = (Host::new(true, 1), Host::new(true, 2));
    more_than_may_wait_is_delivered(&server, &client, LOOPBACK.parse().unwrap());
}

#[test]
fn more_than_may_wait_is_delivered_on_a_device() {
    let ([server, client], local) = hosts_on_a_link();
    more_than_may_wait_is_delivered(&server, &client, local);
}
