//! A server over the kernel's TCP: lets one peer write into its memory and prints what it wrote.
//!
//! `cargo run --example serve [-- ADDRESS]`, then `cargo run --example write` in another terminal.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::net::SocketAddr;
use std::time::Duration;

use urnic::{
    Access, Endpoint, EndpointConfig, ListenParams, Offer, QpConfig, RecvWr, Rnic, RnicConfig,
    WcStatus, WrId, random_seed,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let patience = Duration::from_secs(60);
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7174".to_owned());

    // The adapter, and its interface: the kernel's TCP, which needs no privilege.
    let rnic = Rnic::new(RnicConfig { seed: random_seed()? });
    let endpoint = Endpoint::kernel(&rnic, &EndpointConfig::default())?;

    // 4 KiB that a peer may write, and 16 bytes for its message after that.
    let pd = rnic.alloc_pd();
    let inbox = pd.reg_mr(4096, Access::REMOTE_WRITE)?;
    let notice = pd.reg_mr(16, Access::LOCAL_WRITE)?;
    let cq = rnic.create_cq(16)?;
    let qp = pd.create_qp(QpConfig::new(&cq))?;
    qp.post_recv(RecvWr::new(WrId(1), [notice.sge(0..16)]))?;

    let listener = endpoint.listen(address.parse::<SocketAddr>()?, ListenParams::default())?;
    println!("listening at {}", listener.local());
    let request = listener.next_request(patience)?.ok_or("no peer came")?;
    println!("{} asks to connect", request.remote());

    // The peer gets the address by private data: steering tag and offset.
    let advert = inbox.remote(0).to_octets();
    let offer = Offer { private_data: &advert, ird: 1, ord: 1 };
    let connection = request.accept(&qp, &offer)?.wait(patience)?;

    // An RDMA Write raises no completion here. The Send after it does, and is delivered after it.
    let done = endpoint.wait(&cq, patience)?.ok_or("the peer sent nothing")?;
    if done.status != WcStatus::Success {
        return Err(format!("the peer's message: {:?}", done.status).into());
    }
    let mut len = [0; 4];
    notice.copy_out(0, &mut len);
    let mut text = vec![0; inbox.len().min(u32::from_be_bytes(len) as usize)];
    inbox.copy_out(0, &mut text);
    println!("the peer wrote: {}", String::from_utf8_lossy(&text));
    connection.close(patience)?;
    Ok(())
}
