//! A congestion controller from outside of the engine: a fixed window.

use std::net::Ipv4Addr;

use urnic_engine::port::PortConfig;
use urnic_engine::tcp::{AckSample, Config, CongestionKind, Controller};
use urnic_engine::time::Instant;

/// Keeps a window of 64 segments, whatever happens.
#[derive(Clone, Debug)]
struct Fixed {
    emss: u32,
}

impl Controller for Fixed {
    fn cwnd(&self) -> u64 {
        64 * u64::from(self.emss)
    }
    fn ssthresh(&self) -> u64 {
        self.cwnd()
    }
    fn on_ack(&mut self, _ack: &AckSample) {}
    fn on_loss(&mut self, _now: Instant, _flight: u64) {}
    fn on_timeout(&mut self, _now: Instant, _flight: u64, _first: bool) {}
    fn on_idle(&mut self) {}
    fn set_emss(&mut self, emss: u32) {
        self.emss = emss;
    }
    fn boxed_clone(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}

fn main() {
    let congestion = CongestionKind::External(|emss, _initial_window| Box::new(Fixed { emss }));
    let tcp = Config { congestion, ..Config::default() };
    // All connections of a port with these settings have a controller of their own.
    let port = PortConfig { tcp, ..PortConfig::for_ipv4(Ipv4Addr::new(10, 0, 0, 1)) };
    assert!(matches!(port.tcp.congestion, CongestionKind::External(_)));
}
