//! Ordinary sockets beside the engine: a TCP connection of two host stacks on a memory link.

use urnic_engine::poll::{Lockstep, Poller};
use urnic_engine::port::{Port, PortConfig};
use urnic_engine::time::{Duration, Instant};
use urnic_engine::verbs::{Rnic, RnicConfig};
use urnic_netdev::{Device, memory};

fn main() -> Result<(), urnic_engine::port::host::HostError> {
    let (a, b) = memory::pair(memory::LinkConfig::default());
    let rnic = Rnic::new(RnicConfig { seed: 1.into() });
    let port = |last, device: &memory::MemoryDevice| {
        Port::new(&rnic, PortConfig::for_ipv4([10, 0, 0, last].into()), device.capabilities())
    };
    let (port_a, port_b) = (port(1, &a), port(2, &b));
    let mut link = Lockstep::new(Poller::new(port_a, a), Poller::new(port_b, b));

    let server = link.b.port.host_mut().tcp_listen(80, 4096)?;
    let client = link.a.port.host_mut().tcp_connect(([10, 0, 0, 2], 80).into(), 4096)?;
    let deadline = Instant::ZERO + Duration::from_secs(1);
    assert!(link.run_until(deadline, |link| link.a.port.host_mut().tcp(client).may_send()));
    link.a.port.host_mut().tcp(client).send_slice(b"hello").expect("the connection is open");
    assert!(link.run_until(deadline, |link| link.b.port.host_mut().tcp(server).recv_queue() == 5));
    Ok(())
}
