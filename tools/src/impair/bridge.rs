//! Frames between two devices.

use urnic_netdev::impair::{Impair, ImpairConfig, ImpairCounters};
use urnic_netdev::packets::Packets;
use urnic_netdev::{Device, RxFrame, TxChecksum, TxFrame};

/// Packets from one device at a time: those of a few super-frames.
pub(crate) const BURST: usize = 256;

/// Each device sends, through its own impairment, what the other has received. Super-frames are cut
/// on arrival, so that faults apply to each packet.
#[derive(Debug)]
pub(crate) struct Bridge<D> {
    ends: [Impair<Packets<D>>; 2],
    refused: [u64; 2],
}

impl<D: Device> Bridge<D> {
    /// `configs` are for frames to `b` and to `a`. With `merges`, packets that are forwarded
    /// together may leave as super-frames; see [`Packets`].
    pub(crate) fn new(
        devices: [D; 2],
        [to_b, to_a]: [ImpairConfig; 2],
        seed: u64,
        merges: bool,
    ) -> Self {
        let [a, b] = devices.map(|device| Packets::new(device, merges));
        let ends = [Impair::new(a, to_a, seed), Impair::new(b, to_b, seed ^ 0x5eed)];
        Self { ends, refused: [0; 2] }
    }

    /// Returns the number of frames received. `clock` is read for each frame after it was received:
    /// if it were read before, and the process delayed, a frame would be forwarded too early.
    pub(crate) fn turn(&mut self, clock: impl Fn() -> u64) -> usize {
        let Self { ends: [a, b], refused: [to_b, to_a] } = self;
        let moved = forward(&clock, a, b, to_b) + forward(&clock, b, a, to_a);
        for end in [a, b] {
            end.flush(clock());
        }
        moved
    }

    pub(crate) fn next_release_ns(&self) -> Option<u64> {
        self.ends.iter().filter_map(Device::next_arrival_ns).min()
    }

    /// Sets the configurations for frames to B and to A.
    pub(crate) fn set_config(&mut self, [to_b, to_a]: [ImpairConfig; 2]) {
        let [a, b] = &mut self.ends;
        a.set_config(to_a);
        b.set_config(to_b);
    }

    pub(crate) fn devices(&self) -> [&D; 2] {
        self.ends.each_ref().map(|end| end.inner().inner())
    }

    /// Returns the counters of frames to B and to A.
    pub(crate) fn counters(&self) -> [&ImpairCounters; 2] {
        let [a, b] = &self.ends;
        [b.counters(), a.counters()]
    }

    /// Too long for the device, or its link was down.
    pub(crate) fn refused(&self) -> [u64; 2] {
        let ([to_b, to_a], [a, b]) = (self.refused, &self.ends);
        [to_b + b.inner().lost(), to_a + a.inner().lost()]
    }
}

fn forward<D: Device>(
    clock: impl Fn() -> u64,
    from: &mut Impair<D>,
    to: &mut Impair<D>,
    refused: &mut u64,
) -> usize {
    from.receive(clock(), BURST, &mut |frame: RxFrame<'_>| {
        let frame = TxFrame {
            head: frame.head,
            payload: frame.payload,
            checksum: TxChecksum::Complete,
            segment_size: frame.segment_size,
            digests: None,
        };
        *refused += u64::from(to.transmit(clock(), &frame).is_err());
    })
}

#[cfg(test)]
mod tests;
