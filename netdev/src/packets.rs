//! Middleware that presents single packets with complete checksums to the layer above while the
//! device below transfers super-frames. A received super-frame is segmented as the kernel does it
//! for a device without offloads. In the other direction, if enabled, consecutive packets of one
//! flow are sent as one super-frame, but only if its segments are the same packets, byte for byte.
//! The order of packets is kept, and a packet with a wrong checksum is sent alone.

mod cut;
mod merge;

use cut::Rest;
use merge::Train;

use crate::{Capabilities, Device, RxChecksum, RxFrame, TransmitError, TxFrame, forward_device};

/// Device of single packets on a device of super-frames; see the [module](self). Accepts neither
/// super-frames nor partial checksums. Received packets are [`Unverified`](RxChecksum::Unverified).
#[derive(Debug)]
pub struct Packets<D> {
    inner: D,
    merges: bool,
    rest: Rest,
    /// Sent by the next `flush` at the latest.
    train: Train,
    lost: u64,
    gathered: Vec<u8>,
}

impl<D: Device> Packets<D> {
    /// With `merges`, packets may be sent as super-frames, if the device accepts them.
    #[must_use]
    pub fn new(inner: D, merges: bool) -> Self {
        let Capabilities { segmentation_len_max, tx_checksum, .. } = inner.capabilities();
        let merges = merges && tx_checksum && segmentation_len_max.is_some();
        let (rest, train) = (Rest::default(), Train::default());
        Self { inner, merges, rest, train, lost: 0, gathered: Vec::new() }
    }

    /// Returns the wrapped device.
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    /// Returns the number of merged packets that the inner device refused.
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    fn depart(&mut self, now_ns: u64) {
        let Self { inner, train, lost, .. } = self;
        *lost += train.depart(|frame| inner.transmit(now_ns, frame));
    }
}

impl<D: Device> Device for Packets<D> {
    forward_device!(self => self.inner; transmit_room, link_up, refusals, check_interval_ns, readiness);

    fn capabilities(&self) -> Capabilities {
        let capabilities = self.inner.capabilities();
        Capabilities {
            segmentation_len_max: None,
            tx_checksum: false,
            tx_digest: false,
            ..capabilities
        }
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        let Self { inner, rest, gathered, .. } = self;
        let medium = inner.capabilities().medium;
        let mut count = rest.hand_over(burst, sink);
        while count < burst {
            // One at a time, since a frame may be any number of packets.
            let received = inner.receive(now_ns, 1, &mut |frame| {
                count += match frame.gathered(gathered) {
                    RxFrame { head: bytes, segment_size: Some(size), .. } => {
                        rest.cut(bytes, medium, size, burst - count, sink)
                    }
                    RxFrame { head: bytes, checksum: RxChecksum::Valid, .. } => {
                        rest.complete(bytes, medium, sink)
                    }
                    frame @ RxFrame { checksum: RxChecksum::Unverified, .. } => {
                        sink(frame);
                        1
                    }
                };
            });
            if received == 0 {
                break;
            }
        }
        count
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        if !self.merges {
            return self.inner.transmit(now_ns, frame);
        }
        if !self.inner.link_up() {
            return Err(TransmitError::LinkDown);
        }
        self.capabilities().check(frame)?;
        let Capabilities { medium, segmentation_len_max, .. } = self.inner.capabilities();
        let payload_len_max = segmentation_len_max.map_or(0, Into::into);
        if self.train.couple(frame, medium, payload_len_max) {
            return Ok(());
        }
        self.depart(now_ns);
        if self.train.begin(frame, medium) {
            return Ok(());
        }
        self.inner.transmit(now_ns, frame)
    }

    fn flush(&mut self, now_ns: u64) {
        self.depart(now_ns);
        self.inner.flush(now_ns);
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        // The remaining packets of a super-frame are available now.
        if self.rest.is_empty() { self.inner.next_arrival_ns() } else { Some(0) }
    }
}

const fn plain(bytes: &[u8]) -> RxFrame<'_> {
    RxFrame::whole(bytes, RxChecksum::Unverified, None)
}

#[cfg(test)]
mod tests;
