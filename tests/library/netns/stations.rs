//! Endpoints with threads of their own, as applications use them, and transfers between two of
//! them.
#![allow(dead_code, reason = "each test file uses its part")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use urnic::{
    ConnectOptions, Connection, ConnectionEvent, Endpoint, EndpointConfig, ListenParams, Offer,
    PortConfig, Qp, QpConfig, StartupConfig,
};
use urnic_engine::time::Duration;
use urnic_netdev::Device;

use crate::netns::scene::{Clock, Work};
use urnic_testkit::network::ip;
use urnic_testkit::pair::{End, TCP_PORT, content, pattern, v6};

/// Time limit for events that happen at once on a quiet machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// An endpoint with the objects for one connection at a time.
pub(crate) struct Station {
    pub(crate) end: End,
    pub(crate) endpoint: Endpoint,
    pub(crate) address: Ipv4Addr,
}

impl Station {
    /// Makes a station over the kernel's TCP, in the namespace of the calling thread.
    pub(crate) fn kernel(address: Ipv4Addr) -> Self {
        Self::kernel_with(address, Duration::from_secs(100))
    }

    /// Does the same; connections give up after `user_timeout`.
    pub(crate) fn kernel_with(address: Ipv4Addr, user_timeout: Duration) -> Self {
        let end = End::new(u64::from(address.to_bits()));
        let config = EndpointConfig { user_timeout, ..EndpointConfig::default() };
        let endpoint = Endpoint::kernel(&end.rnic, &config).unwrap();
        Self { end, endpoint, address }
    }

    /// Makes a station with an engine on a device.
    pub(crate) fn engine<D: Device + Send + 'static>(address: Ipv4Addr, device: D) -> Self {
        Self::engine_with(address, device, Duration::from_secs(100))
    }

    /// Makes a station with an engine on a device whose connections give up after `user_timeout`.
    pub(crate) fn engine_with<D: Device + Send + 'static>(
        address: Ipv4Addr,
        device: D,
        user_timeout: Duration,
    ) -> Self {
        let end = End::new(u64::from(address.to_bits()));
        let (port, config) = (identity(address, user_timeout), EndpointConfig::default());
        let endpoint = Endpoint::on_device(&end.rnic, device, port, &config).unwrap();
        Self { end, endpoint, address }
    }

    /// Returns the address to connect to.
    pub(crate) fn at(&self, ipv6: bool) -> SocketAddr {
        let address = if ipv6 { IpAddr::V6(v6(self.address)) } else { IpAddr::V4(self.address) };
        SocketAddr::new(address, TCP_PORT)
    }

    pub(crate) fn new_qp(&self) -> Qp {
        let (send_cq, recv_cq) = (self.end.cq.clone(), self.end.cq.clone());
        let config =
            QpConfig { send_depth: 256, recv_depth: 256, ..QpConfig::with_cqs(send_cq, recv_cq) };
        self.end.pd.create_qp(config).unwrap()
    }
}

/// Returns the configuration of an engine's port.
pub(crate) fn identity(address: Ipv4Addr, user_timeout: Duration) -> PortConfig {
    let mut config = PortConfig { ipv6: Some((v6(address), 64)), ..PortConfig::for_ipv4(address) };
    config.tcp.user_timeout = user_timeout;
    config
}

/// Gives the kernel an address of each family on an interface of the calling thread's namespace.
pub(crate) fn give_kernel(address: Ipv4Addr, interface: &str) {
    let disabled = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    std::fs::write(disabled, "0").unwrap();
    ip(&format!("addr add {address}/24 dev {interface}"));
    ip(&format!("addr add {}/64 dev {interface} nodad", v6(address)));
}

/// Connects two stations with a new queue pair each; the settings are those of the initiator and
/// the responder.
pub(crate) fn connect(
    initiator: &mut Station,
    responder: &mut Station,
    ipv6: bool,
    [asks, answers]: [StartupConfig; 2],
) -> [Connection; 2] {
    (initiator.end.qp, responder.end.qp) = (initiator.new_qp(), responder.new_qp());
    let params = ListenParams { startup: answers, ..ListenParams::default() };
    let listener = responder.endpoint.listen(responder.at(ipv6), params).unwrap();
    let options = ConnectOptions { startup: asks, ..ConnectOptions::default() };
    let connecting =
        initiator.endpoint.connect(responder.at(ipv6), &initiator.end.qp, &options).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().expect("the peer asks");
    let offer = Offer { private_data: b"hello", ird: 8, ord: 8 };
    let accepted = request.accept(&responder.end.qp, &offer).unwrap();
    [connecting.wait(PATIENCE).unwrap(), accepted.wait(PATIENCE).unwrap()]
}

/// Lets both sides at once write, read and send `len` bytes, and checks every byte.
pub(crate) fn exchange(a: &Station, b: &Station, len: usize, what: &str) {
    let mut works = [Work::new(&a.end, len, 3), Work::new(&b.end, len, 5)];
    let remote = [works[1].buffers(), works[0].buffers()];
    let clock = Clock::start();
    while !works.iter().all(Work::is_done) {
        works[0].go_on(&a.end, remote[0]);
        works[1].go_on(&b.end, remote[1]);
        // Sleeps: the endpoints have threads.
        a.endpoint.run_for(Duration::from_micros(50)).unwrap();
        let waited = clock.now().as_nanos();
        assert!(waited < 60_000_000_000, "{what}: {works:?} after a minute");
    }
    for (own, peer) in [(0, 1), (1, 0)] {
        let expected = pattern(works[peer].seed, len);
        assert!(content(&works[own].written) == expected, "{what}: octets written to {own}");
        assert!(content(&works[own].received) == expected, "{what}: octets sent to {own}");
        assert!(content(&works[own].read) == expected, "{what}: octets read by {own}");
    }
}

/// Closes a connection in order from its first end, which TCP then keeps in TIME-WAIT.
pub(crate) fn close([first, second]: [Connection; 2]) {
    first.disconnect();
    loop {
        match second.next_event(PATIENCE).unwrap().expect("it ends in time") {
            ConnectionEvent::PeerClosed => second.disconnect(),
            ConnectionEvent::Closed(_) => return,
            other => panic!("{other:?}"),
        }
    }
}
