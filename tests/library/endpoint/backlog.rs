//! Peers that connect and stay silent keep no other out.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::{Host, LOOPBACK, PATIENCE, mpa_request};
use socket2::{Domain, Socket, Type};
use urnic::{ConnectOptions, Error, ListenParams, Offer, PortError};

/// Opens connections from `host` to `to` that send only `octets`.
fn silent_peers(host: &str, to: SocketAddr, count: usize, octets: &[u8]) -> Vec<TcpStream> {
    let from: SocketAddr = format!("{host}:0").parse().unwrap();
    let connect = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&from.into()).unwrap();
        socket.connect(&to.into()).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.write_all(octets).unwrap();
        stream
    };
    (0..count).map(|_| connect()).collect()
}

#[test]
fn host_with_many_silent_connections_blocks_nobody() {
    let server = Host::new(true, 2);
    let params = ListenParams { backlog: 4, ..ListenParams::default() };
    let listener = server.endpoint.listen(LOOPBACK.parse().unwrap(), params).unwrap();
    // A slow peer keeps its entry meanwhile.
    let mut slow = silent_peers("127.0.0.1", listener.local(), 1, b"");
    let mut silent = silent_peers("127.0.0.2", listener.local(), 30, b"");
    let mut octet = [0];
    let reset = silent[0].read(&mut octet).unwrap_err();
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset, "the oldest gives way");
    slow[0].write_all(&mpa_request()).unwrap();
    listener.next_request(PATIENCE).unwrap().expect("the slow one asks").reject(b"").unwrap();
    let client = Host::new(true, 1);
    let qp = client.qp();
    let connecting =
        client.endpoint.connect(listener.local(), &qp, &ConnectOptions::default()).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().expect("one that comes new asks");
    request.accept(&server.qp(), &Offer::default()).unwrap().wait(PATIENCE).unwrap();
    connecting.wait(PATIENCE).unwrap();
}

#[test]
fn peer_awaiting_its_answer_is_not_evicted_for_silent_ones() {
    let server = Host::new(true, 2);
    let params = ListenParams { backlog: 1, ..ListenParams::default() };
    let listener = server.endpoint.listen(LOOPBACK.parse().unwrap(), params).unwrap();
    let client = Host::new(true, 1);
    let qp = client.qp();
    let connecting =
        client.endpoint.connect(listener.local(), &qp, &ConnectOptions::default()).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().expect("asks");
    let mut silent = silent_peers("127.0.0.2", listener.local(), 5, b"");
    let mut octet = [0];
    for stranger in &mut silent[..4] {
        stranger.read(&mut octet).unwrap_err();
    }
    request.accept(&server.qp(), &Offer::default()).unwrap().wait(PATIENCE).unwrap();
    connecting.wait(PATIENCE).unwrap();
}

#[test]
fn refused_connections_that_stay_open_block_nobody() {
    let server = Host::new(true, 2);
    let params = ListenParams { backlog: 1, ..ListenParams::default() };
    let listener = server.endpoint.listen(LOOPBACK.parse().unwrap(), params).unwrap();
    let mut refused = Vec::new();
    for _ in 0..20 {
        refused.extend(silent_peers("127.0.0.2", listener.local(), 1, &mpa_request()));
        let request = listener.next_request(PATIENCE).unwrap().expect("each is heard");
        request.reject(b"no").unwrap();
    }
    // Nor do peers that send no Request.
    let mut garbage = silent_peers("127.0.0.2", listener.local(), 20, b"GET / HTTP/1.1\r\n\r\n");
    garbage.extend(silent_peers("127.0.0.1", listener.local(), 1, &mpa_request()));
    listener.next_request(PATIENCE).unwrap().expect("another host is heard").reject(b"").unwrap();
}

#[test]
fn recreated_listener_has_its_whole_backlog() {
    let server = Host::new(true, 2);
    let params = || ListenParams { backlog: 1, ..ListenParams::default() };
    let first = server.endpoint.listen(LOOPBACK.parse().unwrap(), params()).unwrap();
    let at = first.local();
    let _silent = silent_peers("127.0.0.2", at, 2, b"");
    drop(first);
    // The listener closes when the worker processes the request for that.
    let listener = loop {
        match server.endpoint.listen(at, params()) {
            Ok(listener) => break listener,
            Err(error) => assert_eq!(error, Error::Port(PortError::PortTaken(at.port()))),
        }
    };
    for _ in 0..5 {
        let _asks = silent_peers("127.0.0.1", at, 1, &mpa_request());
        listener.next_request(PATIENCE).unwrap().expect("asks").reject(b"").unwrap();
    }
}
