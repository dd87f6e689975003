//! Connects to a peer over the kernel's TCP.

use std::time::Duration;

use urnic::{ConnectOptions, Endpoint, EndpointConfig, QpConfig, Rnic, RnicConfig, random_seed};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rnic = Rnic::new(RnicConfig { seed: random_seed()? });
    let endpoint = Endpoint::kernel(&rnic, &EndpointConfig::default())?;
    let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(64)?);
    let qp = pd.create_qp(QpConfig { send_depth: 32, ..QpConfig::new(&cq) })?;
    let connecting =
        endpoint.connect("192.0.2.1:7174".parse()?, &qp, &ConnectOptions::default())?;
    let connection = connecting.wait(Duration::from_secs(10))?;
    // … qp.post_send(…), endpoint.wait(&cq, …) …
    connection.close(Duration::from_secs(10))?;
    Ok(())
}
