//! The bare loop: [`Poller`] runs a port and its device at a time that the caller supplies.
//! [`Lockstep`] runs two of them on one virtual clock.

mod lockstep;
#[cfg(test)]
mod tests;

use urnic_netdev::{Device, RxFrame};

pub use lockstep::Lockstep;

use crate::port::Port;
use crate::time::Instant;

/// Most frames received from a device before the answers are sent.
pub const RECEIVE_BURST: usize = 64;
/// Bytes received after which the answers are sent: the acknowledgment of the first frame opens the
/// sender's window. 64 super-frames are 4 MiB, more than a sender has in flight.
pub const RECEIVE_BYTES: usize = 256 << 10;
/// Frames received from a device before their length is known.
const RECEIVE_PORTION: usize = 4;
/// Most frames sent to a device at once: their payload is still in the cache when it is read.
const TRANSMIT_BURST: usize = 64;

/// A port and its device, polled by the caller.
#[derive(Debug)]
pub struct Poller<D> {
    /// The port.
    pub port: Port,
    /// The device.
    pub device: D,
}

impl<D: Device> Poller<D> {
    /// Joins a port with the device it was made for.
    pub const fn new(port: Port, device: D) -> Self {
        Self { port, device }
    }

    /// Receives frames that have arrived, sends frames that are due. Returns the number of frames
    /// moved; 0 means that nothing happens until [`next_wakeup`](Self::next_wakeup) or new work.
    pub fn poll(&mut self, now: Instant) -> usize {
        self.receive(now) + self.transmit(now)
    }

    /// Runs the first half of [`poll`](Self::poll): receives frames and runs timers.
    pub fn receive(&mut self, now: Instant) -> usize {
        let now_ns = now.as_nanos();
        let Self { port, device } = self;
        let received = port.handle_burst(now, |sink| receive_burst(device, now_ns, sink));
        // A device learns changes of its interface while it receives: applied at once.
        port.handle_link(now, device.link_up());
        port.set_capabilities(now, device.capabilities());
        if port.poll_timeout().is_some_and(|at| at <= now) {
            port.handle_timeout(now);
        }
        received
    }

    /// Runs the second half of [`poll`](Self::poll): sends frames that are due.
    pub fn transmit(&mut self, now: Instant) -> usize {
        let now_ns = now.as_nanos();
        let Self { port, device } = self;
        let room = device.transmit_room().min(TRANSMIT_BURST);
        let sent = if room == 0 {
            0
        } else {
            port.poll_transmit(now, room, &mut |frame| device.transmit(now_ns, frame))
        };
        device.flush(now_ns);
        sent
    }

    /// Time of the next event without new work: a frame arrives or a timer expires.
    pub fn next_wakeup(&mut self) -> Option<Instant> {
        let arrival = self.device.next_arrival_ns().map(Instant::from_nanos);
        match (arrival, self.port.poll_timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// Until the device has no frames left, or until [`RECEIVE_BURST`] or [`RECEIVE_BYTES`].
fn receive_burst(
    device: &mut impl Device,
    now_ns: u64,
    sink: &mut dyn FnMut(&RxFrame<'_>),
) -> usize {
    let (mut received, mut octets, mut portion) = (0, 0, RECEIVE_PORTION);
    while received < RECEIVE_BURST && octets < RECEIVE_BYTES {
        let room = portion.clamp(1, RECEIVE_BURST - received);
        let count = device.receive(now_ns, room, &mut |frame| {
            octets += frame.len();
            sink(&frame);
        });
        received += count;
        if count < room {
            break;
        }
        // As many frames as fit, if they are as long as those before.
        portion = RECEIVE_BYTES.saturating_sub(octets) * received / octets.max(1);
    }
    received
}
