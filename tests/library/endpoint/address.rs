//! Addresses at which endpoints listen and to which they connect.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use super::{Host, PATIENCE, mpa_request};
use urnic::{
    ConnectOptions, Endpoint, EndpointConfig, Error, ListenParams, PortConfig, PortError, Rnic,
    RnicConfig,
};
use urnic_netdev::memory::{self, LinkConfig};

/// A port that is free for IPv6 may be in use for IPv4: then the test tries the next one.
const PORTS_TRIED: usize = 20;

/// Returns an endpoint on a device without a cable, with an IPv4 and an IPv6 address.
fn unplugged() -> Endpoint {
    let (device, _) = memory::pair(LinkConfig::default());
    let rnic = Rnic::new(RnicConfig { seed: 3.into() });
    let config = PortConfig {
        ipv6: Some(("fd00::2".parse().unwrap(), 64)),
        ..PortConfig::for_ipv4("10.0.0.2".parse().unwrap())
    };
    Endpoint::on_device(&rnic, device, config, &EndpointConfig::default()).unwrap()
}

#[test]
fn an_address_is_refused_in_the_same_way_by_both_engines() {
    let kernel = Host::new(true, 1).endpoint;
    for (endpoint, own) in
        [(&kernel, ["127.0.0.1", "::1"]), (&unplugged(), ["10.0.0.2", "fd00::2"])]
    {
        let listen = |text: &str, port: u16| {
            let local = SocketAddr::new(text.parse().unwrap(), port);
            endpoint.listen(local, ListenParams::default())
        };
        for strange in ["192.0.2.77", "2001:db8::77"] {
            let refusal = PortError::NoSuchAddress(strange.parse().unwrap());
            assert_eq!(listen(strange, 0).unwrap_err(), Error::Port(refusal));
        }
        for own in own {
            let leaves_ipv4 = (0..PORTS_TRIED).any(|_| {
                let listener = listen(own, 0).unwrap();
                let local = listener.local();
                assert_eq!(local.ip().to_string(), own);
                assert_ne!(local.port(), 0);
                let taken = Error::Port(PortError::PortTaken(local.port()));
                for again in [own, "::"] {
                    assert_eq!(listen(again, local.port()).unwrap_err(), taken, "{again}");
                }
                let any_v4 = listen("0.0.0.0", local.port());
                any_v4.inspect_err(|error| assert_eq!(*error, taken)).is_ok()
            });
            assert_eq!(leaves_ipv4, own.contains(':'), "of the other family or taken");
        }
    }
}

#[test]
fn the_unspecified_ipv6_address_is_all_addresses_of_both_families() {
    let server = Host::new(true, 2);
    let listener =
        server.endpoint.listen("[::]:0".parse().unwrap(), ListenParams::default()).unwrap();
    let port = listener.local().port();
    for host in ["127.0.0.1", "::1"] {
        let at = SocketAddr::new(host.parse().unwrap(), port);
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(&mpa_request()).unwrap();
        let request = listener.next_request(PATIENCE).unwrap().expect("asks");
        assert_eq!(request.remote(), stream.local_addr().unwrap());
        request.reject(b"").unwrap();
    }
}

#[test]
fn a_listener_for_ipv6_only_leaves_ipv4_to_another() {
    for endpoint in [&Host::new(true, 1).endpoint, &unplugged()] {
        let only = ListenParams { only_ipv6: true, ..ListenParams::default() };
        let leaves_ipv4 = (0..PORTS_TRIED).any(|_| {
            let of_ipv6 = endpoint.listen("[::]:0".parse().unwrap(), only.clone()).unwrap();
            let port = of_ipv6.local().port();
            let of_ipv4 = SocketAddr::new("0.0.0.0".parse().unwrap(), port);
            match endpoint.listen(of_ipv4, ListenParams::default()) {
                Ok(of_ipv4) => {
                    assert_eq!(of_ipv4.local().port(), port);
                    true
                }
                Err(error) => {
                    assert_eq!(error, Error::Port(PortError::PortTaken(port)));
                    false
                }
            }
        });
        assert!(leaves_ipv4);
    }
}

#[test]
fn connection_uses_its_requested_source_address() {
    let (server, client) = (Host::new(true, 1), Host::new(true, 2));
    let listener =
        server.endpoint.listen("127.0.0.1:0".parse().unwrap(), ListenParams::default()).unwrap();
    let connect = |local: &str| {
        let options = ConnectOptions {
            local: Some(local.parse().unwrap()),
            traffic_class: Some(0x20),
            ..ConnectOptions::default()
        };
        client.endpoint.connect(listener.local(), &client.qp(), &options).unwrap()
    };
    let _first = connect("127.0.0.2:0");
    // The request is kept, because an initiator without an answer tries again.
    let asked = listener.next_request(PATIENCE).unwrap().expect("asks");
    assert_eq!(asked.remote().ip().to_string(), "127.0.0.2");
    // A TCP port that another socket holds, and shares.
    let keeper = socket2::Socket::new(
        socket2::Domain::IPV4,
        socket2::Type::STREAM,
        Some(socket2::Protocol::TCP),
    );
    let keeper = keeper.unwrap();
    keeper.set_reuse_address(true).unwrap();
    keeper.bind(&"127.0.0.3:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    let local = keeper.local_addr().unwrap().as_socket().unwrap();
    let _second = connect(&local.to_string());
    let request = listener.next_request(PATIENCE).unwrap().expect("asks");
    assert_eq!(request.remote(), local);
    let error = connect("192.0.2.77:0").wait(PATIENCE).unwrap_err();
    assert_eq!(error, Error::Io(std::io::ErrorKind::AddrNotAvailable));
}

#[test]
fn on_a_device_connections_come_from_its_own_address() {
    let (endpoint, host) = (unplugged(), Host::new(true, 2));
    for (local, error) in [
        ("10.0.0.9:0", Error::Port(PortError::NoSuchAddress("10.0.0.9".parse().unwrap()))),
        ("10.0.0.2:7", Error::Config("the endpoint chooses the TCP ports of its device")),
    ] {
        let options =
            ConnectOptions { local: Some(local.parse().unwrap()), ..ConnectOptions::default() };
        let connecting = endpoint.connect("10.0.0.1:9".parse().unwrap(), &host.qp(), &options);
        assert_eq!(connecting.unwrap().wait(PATIENCE).unwrap_err(), error);
    }
}

/// Both ends refuse an option that would have no effect.
#[test]
fn a_device_refuses_traffic_classes() {
    let (endpoint, host) = (unplugged(), Host::new(true, 2));
    let refused = Error::Config("a device of urnic's own has no traffic classes");
    // The lowest two bits are TCP's own.
    let refused_from_four = [(Some(4), Some(refused.clone())), (Some(0x20), Some(refused))];
    let taken = [(None, None), (Some(0), None), (Some(3), None)];
    for (class, error) in taken.into_iter().chain(refused_from_four) {
        let params = ListenParams { traffic_class: class, ..ListenParams::default() };
        let listening = endpoint.listen("10.0.0.2:0".parse().unwrap(), params);
        assert_eq!(listening.err(), error.clone(), "{class:?}");
        let options = ConnectOptions { traffic_class: class, ..ConnectOptions::default() };
        let connecting = endpoint.connect("10.0.0.1:9".parse().unwrap(), &host.qp(), &options);
        if let Some(error) = error {
            assert_eq!(connecting.unwrap().wait(PATIENCE).unwrap_err(), error);
        }
    }
}
