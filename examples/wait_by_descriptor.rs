//! Waits for completions by a descriptor, which may be part of any poll set.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use rustix::event::{PollFd, PollFlags, poll};
use urnic::{CompChannel, Cq, Rnic, RnicConfig, random_seed};

fn print_completions(cq: &Cq) -> std::io::Result<()> {
    let channel = CompChannel::new(cq)?;
    loop {
        channel.req_notify();
        while let Some(wc) = cq.poll() {
            println!("{wc:?}");
        }
        // Or epoll, or an async runtime …
        poll(&mut [PollFd::new(&channel, PollFlags::IN)], None)?;
        channel.clear();
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rnic = Rnic::new(RnicConfig { seed: random_seed()? });
    // … queue pairs that complete to it …
    Ok(print_completions(&rnic.create_cq(64)?)?)
}
