//! Two ports in memory that open and close connections, so that one end keeps them in TIME-WAIT.

use std::net::SocketAddr;

use urnic_engine::poll::{Lockstep, Poller};
use urnic_engine::port::{ConnectionId, ListenParams, LowerLayer, Port, PortConfig, PortEvent};
use urnic_engine::stream::StreamEvent;
use urnic_engine::verbs::{Rnic, RnicConfig};
use urnic_netdev::Device;
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};

use crate::pair::{A, B, TCP_PORT};

/// TCP ports at which `b` listens: `a` can have 16,384 connections to each at a time.
const LISTENERS: u16 = 8;
/// Connections that are opened and closed at a time.
const AT_A_TIME: usize = 64;

/// The two ports.
pub struct Closing {
    /// The link between them.
    pub link: Lockstep<MemoryDevice, MemoryDevice>,
    /// Connections that `a` has opened, in all.
    pub opened: usize,
}

impl Closing {
    /// Makes the ports; `a` keeps at most `time_wait_max` connections in TIME-WAIT.
    #[must_use]
    pub fn new(time_wait_max: usize) -> Self {
        let (device_a, device_b) = memory::pair(LinkConfig::default());
        let poller = |seed: u64, config: PortConfig, device: MemoryDevice| {
            let rnic = Rnic::new(RnicConfig { seed: seed.into() });
            Poller::new(Port::new(&rnic, config, device.capabilities()), device)
        };
        let of_a = PortConfig { time_wait_max, ..PortConfig::for_ipv4(A) };
        let a = poller(1, of_a, device_a);
        let mut link = Lockstep::new(a, poller(2, PortConfig::for_ipv4(B), device_b));
        for port in TCP_PORT..TCP_PORT + LISTENERS {
            let params = ListenParams { delayed: true, ..ListenParams::default() };
            link.b.port.listen(port, params).unwrap();
        }
        Self { link, opened: 0 }
    }

    /// Opens and closes `count` connections; `a` closes first.
    pub fn open_and_close(&mut self, count: usize) {
        for first in (0..count).step_by(AT_A_TIME) {
            self.batch(AT_A_TIME.min(count - first));
        }
    }

    fn batch(&mut self, count: usize) {
        let (now, port) = (self.link.now(), &mut self.link.a.port);
        let mut open = || {
            let tcp_port = TCP_PORT + u16::try_from(self.opened % usize::from(LISTENERS)).unwrap();
            let remote = SocketAddr::from((B, tcp_port));
            let id = port.open(now, remote, LowerLayer::Optimized).unwrap();
            // Only an established connection is closed in order.
            port.send_streaming(id, b"x").unwrap();
            self.opened += 1;
            id
        };
        let ids: Vec<ConnectionId> = (0..count).map(|_| open()).collect();
        let (mut heard, mut closed) = (0, [0; 2]);
        while closed != [count; 2] {
            assert!(self.link.step(), "{closed:?} of {count}");
            while let Some(event) = self.link.a.port.poll_event() {
                closed[0] += usize::from(matches!(event, PortEvent::Closed { .. }));
            }
            while let Some(event) = self.link.b.port.poll_event() {
                match event {
                    PortEvent::Stream { event: StreamEvent::StreamingBytes, .. } => heard += 1,
                    PortEvent::Stream { connection, event: StreamEvent::PeerClosed } => {
                        self.link.b.port.disconnect(connection).unwrap();
                    }
                    PortEvent::Closed { .. } => closed[1] += 1,
                    _ => {}
                }
            }
            if heard == count {
                ids.iter().for_each(|id| self.link.a.port.disconnect(*id).unwrap());
                heard = 0;
            }
        }
    }

    /// Returns the number of connections that `a` keeps in TIME-WAIT.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.link.a.port.time_wait_count()
    }
}
