//! smoltcp's interface as the receiver of one frame, shared by the benches of its sockets. The
//! benches differ in how they send.

use smoltcp::phy::{self, DeviceCapabilities};
use smoltcp::time::Instant;

/// Hands one received frame to an interface.
pub struct Ingress<'a> {
    /// The frame; `None` once it is taken.
    pub frame: Option<&'a [u8]>,
    /// Immediate answers of the interface: ARP replies, resets, urgent acknowledgments.
    pub answers: &'a mut Vec<Vec<u8>>,
    pub capabilities: &'a DeviceCapabilities,
}

/// A received frame in its buffer.
pub struct Received<'a>(&'a [u8]);

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// Buffer for one answer.
pub struct Answer<'a>(&'a mut Vec<Vec<u8>>);

impl phy::TxToken for Answer<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push(frame);
        result
    }
}

impl phy::Device for Ingress<'_> {
    type RxToken<'a>
        = Received<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Answer<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Answer<'_>)> {
        Some((Received(self.frame.take()?), Answer(self.answers)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Answer<'_>> {
        Some(Answer(self.answers))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.capabilities.clone()
    }
}
