//! Connections that are refused, or made in an older revision of MPA.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::{Host, LOOPBACK, PATIENCE, closed_port, filled, pattern};
use urnic::{
    Access, ConnectOptions, Error, ListenParams, PortError, RecvWr, Revision, SendWr,
    StartupConfig, StartupFailure, WrId,
};
use urnic_engine::time::Duration;

#[test]
fn a_closed_port_refuses() {
    let (_keeper, closed) = closed_port();
    for own_thread in [true, false] {
        let host = Host::new(own_thread, 1);
        let qp = host.qp();
        let connecting = host.endpoint.connect(closed, &qp, &ConnectOptions::default()).unwrap();
        let error = connecting.wait(PATIENCE).unwrap_err();
        assert_eq!(error, Error::Io(std::io::ErrorKind::ConnectionRefused));
    }
}

#[test]
fn a_listener_on_a_taken_address_is_refused() {
    let taken = TcpListener::bind(LOOPBACK).unwrap();
    let host = Host::new(true, 1);
    let local = taken.local_addr().unwrap();
    let error = host.endpoint.listen(local, ListenParams::default()).unwrap_err();
    assert_eq!(error, Error::Port(PortError::PortTaken(local.port())));
}

#[test]
fn a_peer_that_does_not_speak_mpa_fails_the_startup() {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let mut rest = Vec::new();
        // The connection may end with a RST.
        let _reset = stream.read_to_end(&mut rest);
    });
    let host = Host::new(true, 1);
    let qp = host.qp();
    let connecting = host.endpoint.connect(address, &qp, &ConnectOptions::default()).unwrap();
    let error = connecting.wait(PATIENCE).unwrap_err();
    assert!(matches!(error, Error::Startup(StartupFailure::Protocol(_))), "{error:?}");
    peer.join().unwrap();
}

#[test]
fn a_client_that_does_not_speak_mpa_leaves_nothing_behind() {
    let host = Host::new(true, 1);
    let listener =
        host.endpoint.listen(LOOPBACK.parse().unwrap(), ListenParams::default()).unwrap();
    let mut stream = TcpStream::connect(listener.local()).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    let _reset = stream.read_to_end(&mut rest);
    assert!(rest.is_empty(), "no answer to what is no MPA request");
    assert!(listener.next_request(Duration::from_millis(50)).unwrap().is_none());
}

#[test]
fn a_rejection_carries_private_data() {
    let server = Host::new(true, 2);
    let listener =
        server.endpoint.listen(LOOPBACK.parse().unwrap(), ListenParams::default()).unwrap();
    let client = Host::new(true, 1);
    let qp = client.qp();
    let connecting =
        client.endpoint.connect(listener.local(), &qp, &ConnectOptions::default()).unwrap();
    listener.next_request(PATIENCE).unwrap().expect("comes").reject(b"not today").unwrap();
    match connecting.wait(PATIENCE) {
        Err(Error::Rejected(rejection)) => {
            assert_eq!(rejection.private_data, b"not today");
        }
        other => panic!("{other:?}"),
    }
}

/// Bytes of an MPA startup frame without Private Data.
const STARTUP_LEN: usize = 20;

fn read_startup(peer: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut header = [0; STARTUP_LEN];
    peer.read_exact(&mut header).unwrap();
    let mut private_data = vec![0; usize::from(u16::from_be_bytes([header[18], header[19]]))];
    peer.read_exact(&mut private_data).unwrap();
    (header[17], private_data)
}

#[test]
fn a_peer_that_knows_only_rfc_5044_is_connected_to_in_revision_1() {
    for own_thread in [false, true] {
        let listener = TcpListener::bind(LOOPBACK).unwrap();
        let address = listener.local_addr().unwrap();
        let peer = thread::spawn(move || {
            let (mut first, _) = listener.accept().unwrap();
            let (revision, private_data) = read_startup(&mut first);
            assert_eq!((revision, private_data.len()), (2, 4 + 5));
            // RFC 6581 §10: the peer takes the Request for malformed, and closes.
            drop(first);
            let (mut second, _) = listener.accept().unwrap();
            let (revision, private_data) = read_startup(&mut second);
            assert_eq!((revision, &private_data[..]), (1, &b"hello"[..]));
            second.write_all(b"MPA ID Rep Frame\x40\x01\x00\x00").unwrap();
            // The first FPDU is the Send that was posted before the negotiation.
            let mut fpdu = [0; 2 + 18 + 4 + 4];
            second.read_exact(&mut fpdu).unwrap();
            assert_eq!(fpdu[..2], [0, 22]);
            assert_eq!(fpdu[20..24], pattern(4, 9)[..]);
        });
        let host = Host::new(own_thread, 1);
        let qp = host.qp();
        let inbox = host.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        qp.post_recv(RecvWr::new(WrId(1), [inbox.sge(0..8)])).unwrap();
        let options =
            ConnectOptions { private_data: b"hello".to_vec(), ..ConnectOptions::default() };
        let connecting = host.endpoint.connect(address, &qp, &options).unwrap();
        let connection = connecting.wait(PATIENCE).unwrap();
        assert_eq!(connection.terms().framing.revision, Revision::One);
        assert!(host.cq.is_empty(), "the receive is still posted");
        let source = filled(&host.pd, &pattern(4, 9), Access::empty());
        qp.post_send(SendWr::send(WrId(2), [source.sge(0..4)])).unwrap();
        host.complete(1);
        host.endpoint.run_for(Duration::from_millis(20)).unwrap();
        peer.join().unwrap();
    }
}

#[test]
fn a_peer_that_always_closes_is_given_up_after_every_fallback() {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let asked: Vec<(u8, bool)> = (0..3)
            .map(|_| {
                let (mut peer, _) = listener.accept().unwrap();
                let mut header = [0; STARTUP_LEN];
                peer.read_exact(&mut header).unwrap();
                (header[17], header[16] & 0x80 != 0)
            })
            .collect();
        assert_eq!(asked, [(2, true), (1, true), (1, false)]);
    });
    let host = Host::new(true, 1);
    let startup = StartupConfig { markers: true, ..StartupConfig::default() };
    let options = ConnectOptions { startup, ..ConnectOptions::default() };
    let connecting = host.endpoint.connect(address, &host.qp(), &options).unwrap();
    let error = connecting.wait(PATIENCE).unwrap_err();
    assert_eq!(error, Error::Startup(StartupFailure::ConnectionLost));
    peer.join().unwrap();
}
