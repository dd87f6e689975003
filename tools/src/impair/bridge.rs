//! Frames between two devices.

use urnic_netdev::impair::{Impair, ImpairConfig, ImpairCounters};
use urnic_netdev::{Device, RxFrame, TxChecksum, TxFrame};

/// Frames taken from one device in one go.
const BURST: usize = 64;

/// Two devices, each sending what the other has received, through an impairment of its own.
#[derive(Debug)]
pub(crate) struct Bridge<D> {
    ends: [Impair<D>; 2],
    refused: [u64; 2],
}

impl<D: Device> Bridge<D> {
    /// Joins `a` and `b`; the configurations are for frames to `b` and to `a`.
    pub(crate) fn new([a, b]: [D; 2], [to_b, to_a]: [ImpairConfig; 2], seed: u64) -> Self {
        let ends = [Impair::new(a, to_a, seed), Impair::new(b, to_b, seed ^ 0x5eed)];
        Self { ends, refused: [0; 2] }
    }

    /// Moves what can be moved now; returns the number of frames received.
    pub(crate) fn turn(&mut self, now_ns: u64) -> usize {
        let Self { ends: [a, b], refused: [to_b, to_a] } = self;
        let moved = forward(now_ns, a, b, to_b) + forward(now_ns, b, a, to_a);
        for end in [a, b] {
            end.flush(now_ns);
        }
        moved
    }

    /// When a frame goes on without another being received.
    pub(crate) fn next_release_ns(&self) -> Option<u64> {
        self.ends.iter().filter_map(Device::next_arrival_ns).min()
    }

    /// Changes what happens to frames to B and to A.
    pub(crate) fn set_config(&mut self, [to_b, to_a]: [ImpairConfig; 2]) {
        let [a, b] = &mut self.ends;
        a.set_config(to_a);
        b.set_config(to_b);
    }

    /// The devices.
    pub(crate) fn devices(&self) -> [&D; 2] {
        self.ends.each_ref().map(Impair::inner)
    }

    /// What happened to frames to B and to A.
    pub(crate) fn counters(&self) -> [&ImpairCounters; 2] {
        let [a, b] = &self.ends;
        [b.counters(), a.counters()]
    }

    /// Frames to B and to A that the device did not take: too long for it, or its link was down.
    pub(crate) const fn refused(&self) -> [u64; 2] {
        self.refused
    }
}

fn forward<D: Device>(
    now_ns: u64,
    from: &mut Impair<D>,
    to: &mut Impair<D>,
    refused: &mut u64,
) -> usize {
    from.receive(now_ns, BURST, &mut |frame: RxFrame<'_>| {
        // Devices are opened plain: every frame is one packet with its checksum in it.
        let frame = TxFrame {
            head: frame.bytes,
            payload: &[],
            checksum: TxChecksum::Complete,
            segment_size: frame.segment_size,
        };
        *refused += u64::from(to.transmit(now_ns, &frame).is_err());
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use urnic_netdev::memory::{LinkConfig, MemoryDevice, pair};

    /// A bridge, and the far ends of its two links.
    fn bridge(configs: [ImpairConfig; 2]) -> (Bridge<MemoryDevice>, [MemoryDevice; 2]) {
        let link = LinkConfig { queue_frames: 4096, ..LinkConfig::default() };
        let ((far_a, a), (far_b, b)) = (pair(link), pair(link));
        (Bridge::new([a, b], configs, 7), [far_a, far_b])
    }

    fn send(device: &mut MemoryDevice, octets: &[u8]) {
        let frame = TxFrame {
            head: octets,
            payload: &[],
            checksum: TxChecksum::Complete,
            segment_size: None,
        };
        device.transmit(0, &frame).unwrap();
        device.flush(0);
    }

    fn received(device: &mut MemoryDevice, now_ns: u64) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        device.receive(now_ns, 4096, &mut |frame| frames.push(frame.bytes.to_vec()));
        frames
    }

    #[test]
    fn frames_cross_in_both_directions_after_their_delay() {
        let delayed = |delay_ns| ImpairConfig { delay_ns, ..ImpairConfig::default() };
        let (mut bridge, [mut a, mut b]) = bridge([delayed(1_000), delayed(3_000)]);
        send(&mut a, &[1; 60]);
        send(&mut b, &[2; 60]);
        assert_eq!(bridge.turn(0), 2);
        assert_eq!(bridge.next_release_ns(), Some(1_000));
        bridge.turn(999);
        assert!(received(&mut b, 999).is_empty());
        bridge.turn(1_000);
        assert_eq!(received(&mut b, 1_000), [[1; 60]]);
        assert_eq!(bridge.next_release_ns(), Some(3_000));
        bridge.turn(3_000);
        assert_eq!(received(&mut a, 3_000), [[2; 60]]);
        let [to_b, to_a] = bridge.counters();
        assert_eq!((to_b.frames, to_a.frames), (1, 1));
    }

    #[test]
    fn each_direction_has_its_own_faults() {
        let lossy = ImpairConfig { loss: 1.0, ..ImpairConfig::default() };
        let (mut bridge, [mut a, mut b]) = bridge([lossy, ImpairConfig::default()]);
        for _ in 0..10 {
            send(&mut a, &[1; 60]);
            send(&mut b, &[2; 60]);
        }
        bridge.turn(0);
        assert!(received(&mut b, 0).is_empty());
        assert_eq!(received(&mut a, 0).len(), 10);
        bridge.set_config([ImpairConfig::default(); 2]);
        send(&mut a, &[1; 60]);
        bridge.turn(0);
        assert_eq!(received(&mut b, 0).len(), 1);
    }

    #[test]
    fn a_frame_too_long_for_the_other_device_is_counted() {
        let (mut bridge, [mut a, _b]) = bridge([ImpairConfig::default(); 2]);
        bridge.devices()[1].set_mtu(500);
        send(&mut a, &[1; 1000]);
        bridge.turn(0);
        assert_eq!(bridge.refused(), [1, 0]);
    }
}
