//! One process, two RNICs on a memory link, one RDMA Write.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::net::{Ipv4Addr, SocketAddr};

use urnic::driver::{Lockstep, Poller};
use urnic::mem::Access;
use urnic::mpa::startup::Offer;
use urnic::port::{ConnectParams, ListenParams, Port, PortConfig, PortEvent};
use urnic::stream::StreamEvent;
use urnic::time::{Duration, Instant};
use urnic::types::WrId;
use urnic::verbs::{Qp, QpConfig, Rnic, RnicConfig, SendWr, WcStatus};
use urnic_netdev::Device;
use urnic_netdev::memory::{self, LinkConfig};

/// An RNIC's queue pair and completion queue, with everything that belongs to them.
fn endpoint(
    rnic: &Rnic,
) -> Result<(urnic::verbs::Pd, urnic::verbs::Cq, Qp), urnic::verbs::QpError> {
    let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(16));
    let (send_cq, recv_cq) = (cq.clone(), cq.clone());
    let qp = pd.create_qp(QpConfig { send_cq, recv_cq, send_depth: 8, recv_depth: 8 })?;
    Ok((pd, cq, qp))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (client, server) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    // Seeds make the run repeatable; use `driver::random_seed()` where peers are not trusted.
    let rnic_a = Rnic::new(RnicConfig { seed: 1 });
    let rnic_b = Rnic::new(RnicConfig { seed: 2 });
    let (pd_a, cq_a, qp_a) = endpoint(&rnic_a)?;
    let (pd_b, _cq_b, qp_b) = endpoint(&rnic_b)?;

    // A link on a virtual clock: 10 µs long, as fast as memory.
    let (end_a, end_b) = memory::pair(LinkConfig { latency_ns: 10_000, ..LinkConfig::default() });
    let port_a = Port::new(&rnic_a, PortConfig::for_ipv4(client), end_a.capabilities());
    let port_b = Port::new(&rnic_b, PortConfig::for_ipv4(server), end_b.capabilities());
    let mut link = Lockstep::new(Poller::new(port_a, end_a), Poller::new(port_b, end_b));

    // B lets peers write into 4 KiB of its memory, and tells them where by private data.
    let inbox = pd_b.reg_mr(4096, Access::REMOTE_WRITE)?;
    let where_to = inbox.remote(0);
    link.b.port.listen(7174, ListenParams::default())?;
    let to = SocketAddr::from((server, 7174));
    link.a.port.connect(Instant::ZERO, to, &qp_a, &ConnectParams::default())?;

    let mut connected = false;
    let deadline = Instant::ZERO + Duration::from_secs(1);
    link.run_until(deadline, |link| {
        while let Some(event) = link.b.port.poll_event() {
            if let PortEvent::Stream { connection, event: StreamEvent::Request(_) } = event {
                let stag = where_to.stag.0.to_be_bytes();
                let offer = Offer { private_data: &stag, ird: 1, ord: 1 };
                link.b.port.accept(connection, &qp_b, &offer).expect("a request waits");
            }
        }
        while let Some(event) = link.a.port.poll_event() {
            if let PortEvent::Stream { event: StreamEvent::Established(terms), .. } = event {
                connected = terms.private_data == where_to.stag.0.to_be_bytes();
            }
        }
        connected
    });
    assert!(connected, "MPA has started and A knows B's steering tag");

    // A writes; B's program is not involved.
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
