//! Sends one Ethernet frame from one end of a memory link to the other.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use urnic_netdev::memory::{self, LinkConfig};
use urnic_netdev::{Device, TransmitError, TxFrame};

fn main() -> Result<(), TransmitError> {
    // A link of 10 µs. Time is an argument: nothing here reads a clock.
    let config = LinkConfig { latency_ns: 10_000, ..LinkConfig::default() };
    let (mut left, mut right) = memory::pair(config);

    left.transmit(0, &TxFrame::whole(&[0x55; 64]))?;
    left.flush(0);
    let arrival_ns = right.next_arrival_ns().expect("a frame is in flight");

    let frames = right.receive(arrival_ns, 16, &mut |frame| {
        println!("{} bytes after {arrival_ns} ns", frame.len());
    });
    assert_eq!(frames, 1);
    Ok(())
}
