//! An endpoint whose address comes by DHCP, from a small server on a socket of the kernel.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use smoltcp::wire::{DhcpMessageType, DhcpPacket, DhcpRepr, EthernetAddress};
use urnic::{
    ConnectOptions, Endpoint, EndpointConfig, EndpointEvent, Error, PortConfig, PortError,
};
use urnic_engine::time::Duration;

use crate::netns::stations::{PATIENCE, Station, close, connect, exchange};
use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::{ip, tap};
use urnic_testkit::pair::{A, B, End};

const MAC: [u8; 6] = [2, 0, 10, 0, 0, 2];

/// Gives every client the address [`B`], until it is dropped.
struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<usize>>,
}

impl Server {
    fn start(lease_seconds: u32) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67)).unwrap();
        socket.set_broadcast(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut answered = 0;
            let mut buffer = [0; 1500];
            while !stopped.load(Ordering::Acquire) {
                let Ok((len, _)) = socket.recv_from(&mut buffer) else { continue };
                if let Some(reply) = answer(&buffer[..len], lease_seconds) {
                    socket.send_to(&reply, (Ipv4Addr::BROADCAST, 68)).unwrap();
                    answered += 1;
                }
            }
            answered
        });
        Self { stop, thread: Some(thread) }
    }

    /// Stops, and returns the number of answers.
    fn stop(mut self) -> usize {
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// RFC 2131 §4.3: an offer for a discovery, an acknowledgment for a request.
fn answer(message: &[u8], lease_seconds: u32) -> Option<Vec<u8>> {
    let packet = DhcpPacket::new_checked(message).ok()?;
    let asked = DhcpRepr::parse(&packet).ok()?;
    let message_type = match asked.message_type {
        DhcpMessageType::Discover => DhcpMessageType::Offer,
        DhcpMessageType::Request => DhcpMessageType::Ack,
        _ => return None,
    };
    assert_eq!(asked.client_hardware_address, EthernetAddress(MAC));
    let reply = DhcpRepr {
        message_type,
        transaction_id: asked.transaction_id,
        secs: 0,
        client_hardware_address: asked.client_hardware_address,
        client_ip: Ipv4Addr::UNSPECIFIED,
        your_ip: B,
        server_ip: A,
        router: Some(A),
        subnet_mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
        relay_agent_ip: Ipv4Addr::UNSPECIFIED,
        broadcast: true,
        requested_ip: None,
        client_identifier: None,
        server_identifier: Some(A),
        parameter_request_list: None,
        dns_servers: None,
        max_size: None,
        lease_duration: Some(lease_seconds),
        renew_duration: None,
        rebind_duration: None,
        additional_options: &[],
    };
    let mut octets = vec![0; reply.buffer_len()];
    reply.emit(&mut DhcpPacket::new_unchecked(&mut octets[..])).unwrap();
    Some(octets)
}

/// Returns an endpoint on `tap-a` that requests its address; the kernel has [`A`] there.
fn station() -> Station {
    let device = tap("tap-a", 1500, true);
    ip(&format!("addr add {A}/24 dev tap-a"));
    // Route for the server's broadcasts.
    ip("route add default dev tap-a");
    let end = End::new(7);
    let (port, config) = (PortConfig::for_dhcp(MAC), EndpointConfig::default());
    let endpoint = Endpoint::on_device(&end.rnic, device, port, &config).unwrap();
    Station { end, endpoint, address: B }
}

fn event(station: &Station) -> Option<EndpointEvent> {
    station.endpoint.next_event(PATIENCE).unwrap()
}

netns_tests! {
    with ["/dev/net/tun"];

    fn an_address_by_dhcp_is_waited_for_and_used() {
        let mut station = station();
        let told = station.endpoint.wait_address(Duration::from_millis(100));
        assert_eq!(told, Err(Error::Timeout), "nobody answers yet");
        let options = ConnectOptions::default();
        let remote = (A, 1).into();
        let early = station.endpoint.connect(remote, &station.end.qp, &options).unwrap();
        let refused = early.wait(PATIENCE).unwrap_err();
        assert_eq!(refused, PortError::AddressPending(A.into()).into());
        let server = Server::start(3600);
        assert_eq!(station.endpoint.wait_address(PATIENCE), Ok(B.into()));
        let acquired = EndpointEvent::AddressAcquired { address: B.into(), prefix_len: 24 };
        assert_eq!(event(&station), Some(acquired));
        assert_eq!(station.endpoint.wait_address(Duration::ZERO), Ok(B.into()), "at once");
        let mut kernel = Station::kernel(A);
        let startup = urnic_engine::mpa::startup::StartupConfig::default();
        let connections = connect(&mut kernel, &mut station, false, [startup; 2]);
        exchange(&kernel, &station, 1 << 20, "with an address by DHCP");
        close(connections);
        assert!(server.stop() >= 2, "an offer and an acknowledgment");
    }

    /// RFC 2131 §4.4.5: an address whose lease has ended is not used.
    fn a_lease_that_nobody_renews_ends() {
        let station = station();
        let server = Server::start(4);
        station.endpoint.wait_address(PATIENCE).unwrap();
        assert!(matches!(event(&station), Some(EndpointEvent::AddressAcquired { .. })));
        server.stop();
        assert_eq!(event(&station), Some(EndpointEvent::AddressLost { address: B.into() }));
        let told = station.endpoint.wait_address(Duration::from_millis(50));
        assert_eq!(told, Err(Error::Timeout), "it has none");
    }

    fn wait_address_over_the_kernel_returns_the_unspecified_address() {
        let kernel = Station::kernel(A);
        let told = kernel.endpoint.wait_address(PATIENCE);
        assert_eq!(told, Ok(Ipv4Addr::UNSPECIFIED.into()));
        assert_eq!(kernel.endpoint.next_event(Duration::from_millis(1)), Ok(None));
    }
}
