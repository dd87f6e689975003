//! Two ports in memory with many connections between them.

use std::net::SocketAddr;

use urnic_engine::mpa::startup::Offer;
use urnic_engine::poll::Lockstep;
use urnic_engine::port::{ConnectParams, ConnectionId, ListenParams, PortEvent};
use urnic_engine::stream::StreamEvent;
use urnic_engine::verbs::Qp;
use urnic_netdev::memory::MemoryDevice;

use crate::pair::{B, TCP_PORT};

/// Connections being opened at a time: fewer than a listener's backlog.
const OPENING_MAX: usize = 64;
/// Connections to one TCP port, of the 16,384 possible ones.
const TO_ONE_PORT: usize = 16_000;

/// Opens a connection for each queue pair, from `a` to `b`. Returns the connections of both ends.
/// No other connection between the two may be opened meanwhile.
///
/// # Panics
/// If one cannot be opened.
pub fn connect(
    link: &mut Lockstep<MemoryDevice, MemoryDevice>,
    [of_a, of_b]: [&[Qp]; 2],
) -> [Vec<ConnectionId>; 2] {
    assert_eq!(of_a.len(), of_b.len(), "each connection has two ends");
    let listeners = of_a.len().div_ceil(TO_ONE_PORT);
    for index in 0..listeners {
        link.b.port.listen(tcp_port(index), ListenParams::default()).unwrap();
    }
    let offer = Offer { ird: 1, ord: 1, ..Offer::default() };
    let params = ConnectParams { offer, ..ConnectParams::default() };
    let mut asked = 0;
    let [mut open, mut accepted] = [of_a.len(); 2].map(Vec::with_capacity);
    while open.len() < of_a.len() {
        while asked < of_a.len() && asked - open.len() < OPENING_MAX {
            let remote = SocketAddr::from((B, tcp_port(asked % listeners)));
            link.a.port.connect(link.now(), remote, &of_a[asked], &params).unwrap();
            asked += 1;
        }
        assert!(link.step(), "the link is silent with {} of {}", open.len(), of_a.len());
        while let Some(event) = link.b.port.poll_event() {
            if let PortEvent::Stream { connection, event: StreamEvent::Request(_) } = event {
                link.b.port.accept(connection, &of_b[accepted.len()], &offer).unwrap();
                accepted.push(connection);
            }
        }
        while let Some(event) = link.a.port.poll_event() {
            match event {
                PortEvent::Stream { connection, event: StreamEvent::Established(_) } => {
                    open.push(connection);
                }
                PortEvent::Incoming { .. } => (),
                other => panic!("{other:?}"),
            }
        }
    }
    [open, accepted]
}

fn tcp_port(index: usize) -> u16 {
    TCP_PORT + u16::try_from(index).expect("few")
}
