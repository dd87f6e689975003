//! Waits for completions in an async program: the descriptor of a completion channel in tokio.
//!
//! Both ends are in this program, over the kernel's TCP: `cargo run --example tokio`
#![expect(clippy::print_stdout, reason = "an example shows what it did")]
#![expect(unsafe_code, reason = "tokio requires the promise that a descriptor stays open")]

use std::io;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use urnic::{
    Access, CompChannel, ConnectOptions, Cq, Endpoint, EndpointConfig, ListenParams, Offer, Pd, Qp,
    QpConfig, QueueError, RecvWr, Rnic, RnicConfig, SendWr, Wc, WrId, random_seed,
};

/// A completion queue that tasks await.
struct AsyncCq {
    cq: Cq,
    channel: AsyncFd<CompChannel>,
}

impl AsyncCq {
    fn new(cq: Cq) -> io::Result<Self> {
        let channel = CompChannel::new(&cq)?;
        // SAFETY: a channel has one descriptor, which stays open as long as it lives.
        let channel = unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) }?;
        Ok(Self { cq, channel })
    }

    /// The next completion.
    async fn next(&self) -> io::Result<Wc> {
        loop {
            // Ask first, then poll: completions in between are reported.
            self.channel.get_ref().req_notify();
            if let Some(wc) = self.cq.poll() {
                return Ok(wc);
            }
            let mut ready = self.channel.readable().await?;
            self.channel.get_ref().clear();
            ready.clear_ready();
        }
    }
}

fn queue_pair(rnic: &Rnic) -> Result<(Pd, Cq, Qp), QueueError> {
    let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(16)?);
    let qp = pd.create_qp(QpConfig::new(&cq))?;
    Ok((pd, cq, qp))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let patience = Duration::from_secs(10);
    let rnic = Rnic::new(RnicConfig { seed: random_seed()? });
    // A thread of its own moves the data; tasks only wait for completions.
    let endpoint = Endpoint::kernel(&rnic, &EndpointConfig::default())?;
    let (pd_a, cq_a, qp_a) = queue_pair(&rnic)?;
    let (pd_b, cq_b, qp_b) = queue_pair(&rnic)?;

    let inbox = pd_b.reg_mr(64, Access::LOCAL_WRITE)?;
    qp_b.post_recv(RecvWr::new(WrId(7), [inbox.sge(0..64)]))?;
    let listener = endpoint.listen("127.0.0.1:0".parse()?, ListenParams::default())?;
    let connecting = endpoint.connect(listener.local(), &qp_a, &ConnectOptions::default())?;
    let request = listener.next_request(patience)?.ok_or("no request came")?;
    let accepting = request.accept(&qp_b, &Offer::default())?;
    let (a, b) = (connecting.wait(patience)?, accepting.wait(patience)?);

    let outbox = pd_a.reg_mr(5, Access::empty())?;
    outbox.copy_in(0, b"hello");
    qp_a.post_send(SendWr::send(WrId(1), [outbox.sge(0..5)]))?;
    let (sent, received) = (AsyncCq::new(cq_a)?, AsyncCq::new(cq_b)?);
    let (sent, received) = tokio::try_join!(sent.next(), received.next())?;
    println!(
        "sent: {:?}; received: {:?}, {} bytes",
        sent.status, received.status, received.byte_len
    );
    a.disconnect();
    b.disconnect();
    Ok(())
}
