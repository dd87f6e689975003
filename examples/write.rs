//! A client over the kernel's TCP: writes into the memory of `examples/serve.rs`.
//!
//! `cargo run --example write [-- ADDRESS [TEXT]]`
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::net::SocketAddr;
use std::time::Duration;

use urnic::{
    Access, ConnectOptions, Endpoint, EndpointConfig, QpConfig, RemoteBuffer, Rnic, RnicConfig,
    SendWr, WcStatus, WrId, random_seed,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let patience = Duration::from_secs(10);
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:7174".to_owned());
    let text = arguments.next().unwrap_or_else(|| "hello, remote memory".to_owned());

    let rnic = Rnic::new(RnicConfig { seed: random_seed()? });
    let endpoint = Endpoint::kernel(&rnic, &EndpointConfig::default())?;
    let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(16)?);
    let qp = pd.create_qp(QpConfig::new(&cq))?;
    let remote = address.parse::<SocketAddr>()?;
    let connection = endpoint.connect(remote, &qp, &ConnectOptions::default())?.wait(patience)?;

    // The server's private data has the address to write to.
    let advert = &connection.terms().private_data;
    let inbox =
        RemoteBuffer::from_octets(advert).ok_or("the server does not say where to write")?;

    // The text, followed by its length, which is sent after the text was placed.
    let memory = pd.reg_mr(text.len() + 4, Access::empty())?;
    memory.copy_in(0, text.as_bytes());
    memory.copy_in(text.len(), &u32::try_from(text.len())?.to_be_bytes());
    qp.post_send(SendWr::write(WrId(1), inbox, [memory.sge(0..text.len())]))?;
    qp.post_send(SendWr::send(WrId(2), [memory.sge(text.len()..text.len() + 4)]))?;
    for _ in 0..2 {
        let wc = endpoint.wait(&cq, patience)?.ok_or("no completion came")?;
        if wc.status != WcStatus::Success {
            return Err(format!("work request {:?}: {:?}", wc.wr_id, wc.status).into());
        }
    }
    println!("wrote {} bytes to {}", text.len(), connection.remote());
    connection.close(patience)?;
    Ok(())
}
