//! The addresses that endpoints take to listen at and to connect to.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use super::{Host, PATIENCE, mpa_request};
use urnic::{
    Endpoint, EndpointConfig, Error, ListenParams, PortConfig, PortError, Rnic, RnicConfig,
};
use urnic_netdev::memory::{self, LinkConfig};

/// An endpoint on a device with no cable, with an IPv4 and an IPv6 address.
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
            let listener = listen(own, 0).unwrap();
            let local = listener.local();
            assert_eq!(local.ip().to_string(), own);
            assert_ne!(local.port(), 0);
            let taken = Error::Port(PortError::PortTaken(local.port()));
            for again in [own, "::"] {
                assert_eq!(listen(again, local.port()).unwrap_err(), taken, "{again}");
            }
            let any_v4 = listen("0.0.0.0", local.port());
            assert_eq!(any_v4.is_ok(), own.contains(':'), "of the other family or taken");
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
