//! Endpoints on an IPoIB link: every operation of RDMA between two hosts of a fabric in memory,
//! with packets of 2048 and of 4096 bytes, over IPv4 and IPv6, and while the fabric changes.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;

use urnic::{
    Access, ConnectOptions, Cq, Endpoint, EndpointConfig, ListenParams, Listener, Mr, Offer, Pd,
    PortConfig, Qp, QpConfig, RecvWr, RemoteBuffer, Rnic, RnicConfig, SendWr, WcStatus, WrId,
};
use urnic_engine::time::Duration;
use urnic_ipoib::device::IpoibDevice;
use urnic_ipoib::link::{LinkConfig, link_local};
use urnic_ipoib::memory::{Fabric, FabricConfig};
use urnic_ipoib::wire::address::{Guid, PKey, Qpn};

const PATIENCE: Duration = Duration::from_secs(20);

struct Host {
    endpoint: Endpoint,
    pd: Pd,
    cq: Cq,
}

const fn guid(host: u8) -> Guid {
    Guid(0x10_0000 + host as u64)
}

const fn ip4(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, host)
}

const fn ip6(host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host as u16)
}

impl Host {
    fn new(fabric: &Fabric, host: u8) -> Self {
        let (ipv4, ipv6) = (Some((ip4(host), 24)), Some((ip6(host), 64)));
        let qpn = Qpn::from_bits(0x40 + u32::from(host));
        let link = LinkConfig { ipv4, ipv6, ..LinkConfig::new(qpn, [host; 32]) };
        let device = IpoibDevice::new(fabric.plug(guid(host), &[PKey(0xffff)]), link);
        let port = PortConfig {
            ipv6,
            interface_identifier: Some(guid(host).interface_identifier(false)),
            ..PortConfig::for_ipv4(ip4(host))
        };
        let link_local = link_local(guid(host));
        assert_eq!(port.link_local(), link_local, "port and link agree");
        let rnic = Rnic::new(RnicConfig { seed: u64::from(host).into() });
        let config = EndpointConfig::default();
        let endpoint = Endpoint::on_device(&rnic, device, port, &config).unwrap();
        Self { endpoint, pd: rnic.alloc_pd(), cq: rnic.create_cq(64).unwrap() }
    }

    fn qp(&self) -> Qp {
        self.pd.create_qp(QpConfig::new(&self.cq)).unwrap()
    }

    fn complete(&self) {
        let wc = self.endpoint.wait(&self.cq, PATIENCE).unwrap().expect("completes in time");
        assert_eq!(wc.status, WcStatus::Success);
    }
}

fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) >> 3).to_le_bytes()[0] ^ salt).collect()
}

fn contents(mr: &Mr, len: usize) -> Vec<u8> {
    let mut octets = vec![0; len];
    mr.copy_out(0, &mut octets);
    octets
}

const LEN: usize = 300_001;

/// Accepts a peer, lets it write, read and send `LEN` bytes each, and checks them.
fn serve(host: &Host, listener: &Listener) -> Vec<u8> {
    let memory = host.pd.reg_mr(LEN, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
    let inbox = host.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
    let qp = host.qp();
    qp.post_recv(RecvWr::new(WrId(9), [inbox.sge(0..LEN)])).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().expect("a peer connects");
    let buffer = memory.remote(0).to_octets();
    let offer = Offer { private_data: &buffer, ird: 4, ord: 4 };
    let connection = request.accept(&qp, &offer).unwrap().wait(PATIENCE).unwrap();
    host.complete();
    connection.close(PATIENCE).unwrap();
    assert_eq!(contents(&memory, LEN), contents(&inbox, LEN));
    contents(&inbox, LEN)
}

/// Performs all operations between two hosts; `between` runs in their midst.
fn meet(server: &Host, client: &Host, ip: IpAddr, salt: u8, between: impl FnOnce()) {
    let at = SocketAddr::new(ip, 7174);
    let listener = server.endpoint.listen(at, ListenParams::default()).unwrap();
    thread::scope(|scope| {
        let served = scope.spawn(|| serve(server, &listener));
        let sent = use_peer(client, at, salt, between);
        assert_eq!(served.join().unwrap(), sent, "{at}");
    });
}

/// Performs a Write, a Read and a Send; `between` runs after the Write.
fn use_peer(host: &Host, at: SocketAddr, salt: u8, between: impl FnOnce()) -> Vec<u8> {
    let qp = host.qp();
    let opening = host.endpoint.connect(at, &qp, &ConnectOptions::default()).unwrap();
    let connection = opening.wait(PATIENCE).unwrap();
    let remote = RemoteBuffer::from_octets(&connection.terms().private_data).unwrap();
    let octets = pattern(LEN, salt);
    let source = host.pd.reg_mr(LEN, Access::empty()).unwrap();
    source.copy_in(0, &octets);
    qp.post_send(SendWr::write(WrId(1), remote, [source.sge(0..LEN)])).unwrap();
    host.complete();
    between();
    let copy = host.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
    qp.post_send(SendWr::read(WrId(2), remote, copy.sge(0..LEN))).unwrap();
    host.complete();
    assert_eq!(contents(&copy, LEN), octets, "what was written is read");
    qp.post_send(SendWr::send(WrId(3), [source.sge(0..LEN)])).unwrap();
    host.complete();
    connection.close(PATIENCE).unwrap();
    octets
}

// spec: IPOIB-ARCH-1
#[test]
fn writes_reads_and_sends_cross_a_link_of_either_mtu_and_family() {
    for (mtu_octets, salt) in [(2048, 1), (4096, 2)] {
        let fabric = Fabric::new(FabricConfig { mtu_octets, ..FabricConfig::default() });
        let (server, client) = (Host::new(&fabric, 1), Host::new(&fabric, 2));
        for ip in [IpAddr::V4(ip4(1)), IpAddr::V6(ip6(1)), IpAddr::V6(link_local(guid(1)))] {
            meet(&server, &client, ip, salt, || {});
        }
        // 900,000 bytes each way except for Reads, in few more packets than the largest payloads
        // need. The upper bound is loose: timeouts on a busy machine cause retransmissions, and
        // reduce the path MTU to 1280 bytes.
        let delivered = fabric.counters().delivered;
        let least = 3 * 3 * LEN as u64 / mtu_octets as u64;
        assert!((least..10 * least).contains(&delivered), "{delivered} packets, {least} at least");
        assert_eq!((fabric.counters().too_long, fabric.counters().malformed), (0, 0));
    }
}

/// Streams survive changes by the subnet manager, because TCP retransmits.
#[test]
fn a_stream_survives_another_manager_and_a_peer_that_moves() {
    let fabric = Fabric::new(FabricConfig::default());
    let (server, client) = (Host::new(&fabric, 1), Host::new(&fabric, 2));
    meet(&server, &client, ip4(1).into(), 7, || {
        let now_ns = urnic::monotonic_now().as_nanos();
        fabric.restart_manager();
        fabric.set_link(now_ns, guid(1), false);
        fabric.move_port(guid(1));
        fabric.set_link(now_ns, guid(1), true);
    });
}
