//! One process, two RNICs on a memory link, one RDMA Write.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::net::{Ipv4Addr, SocketAddr};

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::Offer;
use urnic_engine::poll::{Lockstep, Poller};
use urnic_engine::port::{ConnectParams, ListenParams, Port, PortConfig, PortEvent};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::{Duration, Instant};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{
    Cq, Pd, Qp, QpConfig, QueueError, RemoteBuffer, Rnic, RnicConfig, SendWr, WcStatus,
};
use urnic_netdev::Device;
use urnic_netdev::memory::{self, LinkConfig};

/// A queue pair of an RNIC, its protection domain and its completion queue.
fn queue_pair(rnic: &Rnic) -> Result<(Pd, Cq, Qp), QueueError> {
    let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(16)?);
    let qp = pd.create_qp(QpConfig::new(&cq))?;
    Ok((pd, cq, qp))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (client, server) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    // Seeds make the run repeatable; use `urnic::random_seed()` where peers are not trusted.
    let rnic_a = Rnic::new(RnicConfig { seed: 1.into() });
    let rnic_b = Rnic::new(RnicConfig { seed: 2.into() });
    let (pd_a, cq_a, qp_a) = queue_pair(&rnic_a)?;
    let (pd_b, _cq_b, qp_b) = queue_pair(&rnic_b)?;

    // A link on a virtual clock: 10 µs long, as fast as memory.
    let (end_a, end_b) = memory::pair(LinkConfig { latency_ns: 10_000, ..LinkConfig::default() });
    let port_a = Port::new(&rnic_a, PortConfig::for_ipv4(client), end_a.capabilities());
    let port_b = Port::new(&rnic_b, PortConfig::for_ipv4(server), end_b.capabilities());
    let mut link = Lockstep::new(Poller::new(port_a, end_a), Poller::new(port_b, end_b));

    // B lets peers write into 4 KiB of its memory, and sends them the address by private data.
    let inbox = pd_b.reg_mr(4096, Access::REMOTE_WRITE)?;
    link.b.port.listen(7174, ListenParams::default())?;
    let to = SocketAddr::from((server, 7174));
    link.a.port.connect(Instant::ZERO, to, &qp_a, &ConnectParams::default())?;

    let mut where_to = None;
    let deadline = Instant::ZERO + Duration::from_secs(1);
    link.run_until(deadline, |link| {
        while let Some(event) = link.b.port.poll_event() {
            if let PortEvent::Stream { connection, event: StreamEvent::Request(_) } = event {
                let advert = inbox.remote(0).to_octets();
                let offer = Offer { private_data: &advert, ird: 1, ord: 1 };
                link.b.port.accept(connection, &qp_b, &offer).expect("a request waits");
            }
        }
        while let Some(event) = link.a.port.poll_event() {
            if let PortEvent::Stream { event: StreamEvent::Established(terms), .. } = event {
                where_to = RemoteBuffer::from_octets(&terms.private_data);
            }
        }
        where_to.is_some()
    });
    let where_to = where_to.ok_or("MPA has started, and A knows where it may write")?;

    // A writes; B's application is not involved.
    let message = b"hello, remote memory";
    let source = pd_a.reg_mr(message.len(), Access::empty())?;
    source.copy_in(0, message);
    qp_a.post_send(SendWr::write(WrId(1), where_to, [source.sge(0..message.len())]))?;
    let mut completion = None;
    link.run_until(deadline, |_| {
        completion = completion.or_else(|| cq_a.poll());
        completion.is_some()
    });
    assert_eq!(completion.map(|wc| wc.status), Some(WcStatus::Success));

    let mut arrived = vec![0; message.len()];
    inbox.copy_out(0, &mut arrived);
    assert_eq!(arrived, message);
    println!("B's memory says: {}", String::from_utf8_lossy(&arrived));
    Ok(())
}
