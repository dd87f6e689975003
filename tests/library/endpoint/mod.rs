//! Endpoints on the kernel's TCP over loopback: connecting, moving data, ending, and every way in
//! which that fails. This file has the two ends, which all parts share.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

mod address;
mod backlog;
mod data;
mod descriptors;
mod end;
mod not_ready;
mod rules;
mod sharing;
mod startup;

use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};
use urnic::{
    Access, Connection, ConnectionEvent, Cq, Endpoint, EndpointConfig, Mr, Pd, PortConfig, Qp,
    QpConfig, RemoteBuffer, Rnic, RnicConfig, Stag, TaggedOffset, WcStatus,
};
use urnic_engine::time::Duration;
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};

const PATIENCE: Duration = Duration::from_secs(20);
const LOOPBACK: &str = "127.0.0.1:0";

/// Returns an address at which nothing listens while the socket is kept.
pub(crate) fn closed_port() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&LOOPBACK.parse::<SocketAddr>().unwrap().into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// An endpoint with the objects for one queue pair.
struct Host {
    endpoint: Endpoint,
    rnic: Rnic,
    pd: Pd,
    cq: Cq,
}

impl Host {
    fn new(own_thread: bool, seed: u64) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let config = EndpointConfig { own_thread, ..EndpointConfig::default() };
        let endpoint = Endpoint::kernel(&rnic, &config).unwrap();
        Self { endpoint, pd: rnic.alloc_pd(), cq: rnic.create_cq(256).unwrap(), rnic }
    }

    /// Makes a host on a device, with the TCP of the engine.
    fn port(device: MemoryDevice, address: Ipv4Addr, seed: u64) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let (port, config) = (PortConfig::for_ipv4(address), EndpointConfig::default());
        let endpoint = Endpoint::on_device(&rnic, device, port, &config).unwrap();
        Self { endpoint, pd: rnic.alloc_pd(), cq: rnic.create_cq(256).unwrap(), rnic }
    }

    fn qp(&self) -> Qp {
        let (send_cq, recv_cq) = (self.cq.clone(), self.cq.clone());
        self.pd
            .create_qp(QpConfig {
                send_depth: 64,
                recv_depth: 64,
                ..QpConfig::with_cqs(send_cq, recv_cq)
            })
            .unwrap()
    }

    fn complete(&self, count: usize) {
        for _ in 0..count {
            let wc = self.endpoint.wait(&self.cq, PATIENCE).unwrap().expect("completes in time");
            assert_eq!(wc.status, WcStatus::Success);
        }
    }
}

fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) >> 3).to_le_bytes()[0] ^ salt).collect()
}

fn filled(pd: &Pd, octets: &[u8], access: Access) -> Mr {
    let mr = pd.reg_mr(octets.len(), access).unwrap();
    mr.copy_in(0, octets);
    mr
}

fn contents(mr: &Mr, len: usize) -> Vec<u8> {
    let mut octets = vec![0; len];
    mr.copy_out(0, &mut octets);
    octets
}

fn wait_closed(connection: &Connection) {
    let mut reports = 0;
    loop {
        match connection.next_event(PATIENCE).unwrap().expect("ends in time") {
            ConnectionEvent::PeerClosed => {
                reports += 1;
                connection.disconnect();
            }
            ConnectionEvent::Closed(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(reports <= 1);
}

/// Returns the buffer that the server names in its Private Data.
fn advertised(connection: &Connection) -> RemoteBuffer {
    let stag = connection.terms().private_data[..].try_into().map(u32::from_be_bytes).unwrap();
    RemoteBuffer { stag: Stag(stag), to: TaggedOffset(0) }
}

/// Returns two hosts on the ends of a link, with the TCP of the engine.
fn hosts_on_a_link() -> ([Host; 2], SocketAddr) {
    let (a, b) = memory::pair(LinkConfig::default());
    let server = Host::port(a, Ipv4Addr::new(10, 0, 0, 1), 1);
    let client = Host::port(b, Ipv4Addr::new(10, 0, 0, 2), 2);
    ([server, client], "10.0.0.1:7174".parse().unwrap())
}

/// Returns an MPA Request (RFC 5044 §7.1.1) of revision 1, with CRC.
fn mpa_request() -> Vec<u8> {
    [&b"MPA ID Req Frame"[..], &[0x40, 1, 0, 0]].concat()
}
