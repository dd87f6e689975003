//! Reading an endpoint's counters beside the application that uses it.

use std::thread;
use std::time::Duration;

use urnic::{
    ConnectOptions, Endpoint, EndpointConfig, ListenParams, Offer, QpConfig, Rnic, RnicConfig,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn host(own_thread: bool) -> (Rnic, Endpoint) {
    let rnic = Rnic::new(RnicConfig { seed: 1.into() });
    let config = EndpointConfig { own_thread, ..EndpointConfig::default() };
    let endpoint = Endpoint::kernel(&rnic, &config).unwrap();
    (rnic, endpoint)
}

fn qp(rnic: &Rnic) -> urnic::Qp {
    rnic.alloc_pd().create_qp(QpConfig::new(&rnic.create_cq(16).unwrap())).unwrap()
}

#[test]
fn connections_are_seen_while_they_are_open_and_counted_when_they_are_over() {
    let ((rnic, client), (far_rnic, server)) = (host(true), host(true));
    let mut watch = client.watch();
    let before = watch.look(PATIENCE);
    assert!(before.is_new && before.figures.open.is_empty());
    let listener = server.listen("127.0.0.1:0".parse().unwrap(), ListenParams::default()).unwrap();
    let at = listener.local();
    let connecting = client.connect(at, &qp(&rnic), &ConnectOptions::default()).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().expect("a peer connects");
    let accepted = request.accept(&qp(&far_rnic), &Offer::default()).unwrap();
    let near = connecting.wait(PATIENCE).unwrap();
    let far = accepted.wait(PATIENCE).unwrap();
    let open = watch.look(PATIENCE).figures;
    let [one] = open.open[..] else { panic!("one connection: {open:?}") };
    assert_eq!((one.remote, open.connections_closed), (at, 0));
    // The MPA Request and Reply, at least.
    let (sent, received) = (one.figures.bytes_sent, one.figures.bytes_received);
    assert!(sent >= 20 && received >= 20, "{one:?}");
    assert_eq!(open.total(), one.figures);
    let closes = thread::spawn(move || far.close(PATIENCE));
    near.close(PATIENCE).unwrap();
    closes.join().unwrap().unwrap();
    let over = watch.look(PATIENCE).figures;
    assert_eq!((over.open.len(), over.connections_closed), (0, 1));
    assert!(over.closed.bytes_sent >= sent && over.closed.bytes_received >= received, "{over:?}");
    drop(client);
    let ended = watch.look(PATIENCE);
    assert!(!ended.is_new, "it does not keep the endpoint");
    assert_eq!(ended.figures.connections_closed, 1, "what was known stays known");
}

#[test]
fn watching_does_not_turn_an_endpoint_of_the_application() {
    let (_rnic, endpoint) = host(false);
    let mut watch = endpoint.watch();
    for _ in 0..3 {
        assert!(!watch.look(Duration::from_millis(5)).is_new);
    }
    endpoint.turn(Duration::ZERO).unwrap();
    assert!(watch.look(PATIENCE).is_new, "the question that waited is answered");
}
