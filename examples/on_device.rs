//! Two endpoints with TCP/IP stacks of their own on a link in memory: a Send from one to the other.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::net::Ipv4Addr;
use std::time::Duration;

use urnic::{
    Access, ConnectOptions, Endpoint, EndpointConfig, ListenParams, Offer, PortConfig, QpConfig,
    RecvWr, Rnic, RnicConfig, SendWr, WrId, random_seed,
};
use urnic_netdev::memory::{self, LinkConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let patience = Duration::from_secs(10);
    let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let rnic = Rnic::new(RnicConfig { seed: random_seed()? });
    // On a machine's network the devices are `tap::Tap`, `packet::PacketSocket`, `xdp::XdpSocket`.
    let (device_a, device_b) = memory::pair(LinkConfig::default());
    let config = EndpointConfig::default();
    let end_a = Endpoint::on_device(&rnic, device_a, PortConfig::for_ipv4(a), &config)?;
    let end_b = Endpoint::on_device(&rnic, device_b, PortConfig::for_ipv4(b), &config)?;

    let (pd, cq_a, cq_b) = (rnic.alloc_pd(), rnic.create_cq(16)?, rnic.create_cq(16)?);
    let (qp_a, qp_b) = (pd.create_qp(QpConfig::new(&cq_a))?, pd.create_qp(QpConfig::new(&cq_b))?);
    let (outbox, inbox) = (pd.reg_mr(5, Access::empty())?, pd.reg_mr(64, Access::LOCAL_WRITE)?);
    outbox.copy_in(0, b"hello");
    qp_b.post_recv(RecvWr::new(WrId(1), [inbox.sge(0..64)]))?;

    let listener = end_b.listen((b, 7174).into(), ListenParams::default())?;
    let connecting = end_a.connect(listener.local(), &qp_a, &ConnectOptions::default())?;
    let request = listener.next_request(patience)?.ok_or("no request came")?;
    let accepting = request.accept(&qp_b, &Offer::default())?;
    let (near, far) = (connecting.wait(patience)?, accepting.wait(patience)?);

    qp_a.post_send(SendWr::send(WrId(2), [outbox.sge(0..5)]))?;
    let received = end_b.wait(&cq_b, patience)?.ok_or("nothing arrived")?;
    println!("{:?}: {} bytes", received.status, received.byte_len);
    far.disconnect();
    near.close(patience)?;
    Ok(())
}
