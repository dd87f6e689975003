//! Middleware that impairs the frames transmitted through it: loss, bursts, outages, reordering,
//! duplicates, bit errors, a bottleneck with its queue, delay and jitter, and segments cut or
//! merged. All randomness comes from a seed: equal frames at equal times are impaired equally.

mod config;
mod dice;
mod hold;

pub use config::{BurstLoss, ImpairConfig, ImpairCounters, LATE_NS, PIECES_MAX};

use dice::Dice;
use hold::{HeldFrame, Hold, Release};

use crate::{
    Capabilities, Device, RxFrame, SharedSlice, TransmitError, TxChecksum, TxFrame, checksum,
    forward_device, segment,
};

/// Device that impairs the frames transmitted through it; see the [module](self). An ordinary frame
/// passes, in this order: merging with its predecessor, cutting into pieces, and then for each
/// piece loss, bit errors, the bottleneck, duplication, and delay or reordering. A super-frame is
/// never merged, cut or corrupted.
///
/// If bit errors, cutting, merging or the loss of acknowledgments are configured at construction,
/// the device offers neither super-frames nor checksum offload. Frames then carry real checksums
/// and arrive [`Unverified`](crate::RxChecksum::Unverified).
///
/// Delayed frames are released when a method is called with a later `now_ns`;
/// [`next_arrival_ns`](Device::next_arrival_ns) includes the next release.
#[derive(Debug)]
pub struct Impair<D> {
    inner: D,
    config: ImpairConfig,
    counters: ImpairCounters,
    dice: Dice,
    hold: Hold,
    /// Segment that the next frame may be merged into; sent by `flush` at the latest.
    pending: Option<Vec<u8>>,
    pool: Vec<Vec<u8>>,
    offloads_hidden: bool,
}

impl<D: Device> Impair<D> {
    /// Wraps `inner`. All randomness comes from `seed`.
    #[must_use]
    pub fn new(inner: D, config: ImpairConfig, seed: u64) -> Self {
        Self {
            inner,
            config,
            counters: ImpairCounters::default(),
            dice: Dice::new(seed),
            hold: Hold::default(),
            pending: None,
            pool: Vec::new(),
            offloads_hidden: config.wants_plain_frames(),
        }
    }

    /// Returns the wrapped device.
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    /// Returns the wrapped device. Frames transmitted through it directly are not impaired.
    pub const fn inner_mut(&mut self) -> &mut D {
        &mut self.inner
    }

    /// Returns the counters.
    pub const fn counters(&self) -> &ImpairCounters {
        &self.counters
    }

    /// Returns the current configuration.
    pub const fn config(&self) -> &ImpairConfig {
        &self.config
    }

    /// Changes the impairments from the next frame on. Held frames keep their times, and the
    /// offloads stay.
    pub const fn set_config(&mut self, config: ImpairConfig) {
        self.config = config;
    }

    fn rewrite(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        let mut bytes = self.gather(frame);
        if let TxChecksum::Partial { start, offset } = frame.checksum {
            checksum::complete(&mut bytes, start, offset);
        }
        let Capabilities { medium, mtu, .. } = self.inner.capabilities();
        let mut has_merged = false;
        if let Some(mut pending) = self.pending.take() {
            if segment::merge(&mut pending, &bytes, medium, mtu) {
                self.counters.coalesced += 1;
                self.pool.push(std::mem::replace(&mut bytes, pending));
                has_merged = true;
            } else {
                self.cut(now_ns, pending).unwrap_or_else(|_| self.counters.dropped += 1);
            }
        }
        if self.dice.coalesce.chance(self.config.coalesce) && segment::is_data(&bytes, medium) {
            self.pending = Some(bytes);
            return Ok(());
        }
        match self.cut(now_ns, bytes) {
            // The caller cannot offer the other half again.
            Err(_) if has_merged => {
                self.counters.dropped += 1;
                Ok(())
            }
            result => result,
        }
    }

    fn convey_pending(&mut self, now_ns: u64) {
        if let Some(pending) = self.pending.take() {
            self.cut(now_ns, pending).unwrap_or_else(|_| self.counters.dropped += 1);
        }
    }

    fn cut(&mut self, now_ns: u64, bytes: Vec<u8>) -> Result<(), TransmitError> {
        let mut result = Ok(());
        let cut = self.dice.resegment.chance(self.config.resegment);
        let medium = self.inner.capabilities().medium;
        match segment::parse(&bytes, medium).filter(|layout| cut && layout.payload_len() >= 2) {
            None => result = self.convey(now_ns, &TxFrame::whole(&bytes)),
            Some(layout) => {
                self.counters.resegmented += 1;
                let pieces_max = self.config.resegment_pieces_max;
                let cuts = self.dice.cuts(layout.payload_len(), pieces_max);
                let mut piece = self.pool.pop().unwrap_or_default();
                for range in cuts.pieces() {
                    segment::piece(&bytes, &layout, range, 0, &mut piece);
                    // A part of a frame cannot be refused: a piece without room is lost.
                    self.convey(now_ns, &TxFrame::whole(&piece))
                        .unwrap_or_else(|_| self.counters.dropped += 1);
                }
                self.pool.push(piece);
            }
        }
        self.pool.push(bytes);
        result
    }

    fn convey(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        let fate = self.dice.fate(&self.config);
        if fate.lost || self.config.outage || self.is_too_long(frame) || self.loses_ack(frame) {
            self.counters.dropped += 1;
            return Ok(());
        }
        self.counters.reordered += u64::from(fate.late.is_some());
        let mut corrupted = None;
        if fate.corrupt && frame.segment_size.is_none() {
            let mut bytes = self.gather(frame);
            let link_header_len =
                segment::link_header_len(&bytes, self.inner.capabilities().medium);
            let behind = bytes.get_mut(link_header_len..).unwrap_or_default();
            if !behind.is_empty() {
                self.dice.flip_bits(behind, self.config.corrupt_bits_max);
                self.counters.corrupted += 1;
            }
            corrupted = Some(bytes);
        }
        let frame = &corrupted.as_deref().map_or(*frame, TxFrame::whole);
        let release =
            self.hold.schedule(now_ns, frame.len(), fate.jitter_ns, fate.late, &self.config);
        let result = self.send(now_ns, release, frame);
        if fate.duplicate && result.is_ok() && !matches!(release, Release::Never) {
            self.counters.duplicated += 1;
            self.send(now_ns, release, frame).unwrap_or_else(|_| self.counters.dropped += 1);
        }
        self.pool.extend(corrupted);
        result
    }

    fn is_too_long(&self, frame: &TxFrame<'_>) -> bool {
        let Some(path_mtu) = self.config.path_mtu else { return false };
        let medium = self.inner.capabilities().medium;
        let payload_len = frame.len() - frame.head.len();
        let segment_len =
            frame.segment_size.map_or(payload_len, |size| payload_len.min(usize::from(size.get())));
        let datagram_len =
            frame.head.len() + segment_len - segment::link_header_len(frame.head, medium);
        datagram_len > path_mtu
    }

    fn loses_ack(&mut self, frame: &TxFrame<'_>) -> bool {
        // A frame with a separate payload carries data.
        self.config.ack_loss > 0.0
            && frame.payload.iter().all(|fragment| fragment.is_empty())
            && segment::is_pure_ack(frame.head, self.inner.capabilities().medium)
            && self.dice.ack_lost(&self.config)
    }

    fn send(
        &mut self,
        now_ns: u64,
        release: Release,
        frame: &TxFrame<'_>,
    ) -> Result<(), TransmitError> {
        match release {
            Release::Now => return self.inner.transmit(now_ns, frame),
            Release::Never => {
                self.counters.dropped += 1;
                self.counters.overflowed += 1;
                return Ok(());
            }
            Release::At(_) | Release::Late(_) => {}
        }
        if self.hold.len() >= self.config.held_max {
            // A full queue drops its tail, as in a switch.
            self.counters.dropped += 1;
            return Ok(());
        }
        let bytes = self.gather(frame);
        let TxFrame { checksum, segment_size, head, .. } = *frame;
        self.hold.put(release, HeldFrame { bytes, head_len: head.len(), checksum, segment_size });
        self.counters.held_peak = self.counters.held_peak.max(self.hold.len());
        Ok(())
    }

    /// Hands on held frames whose time has come, or which enough others have overtaken.
    fn release(&mut self, now_ns: u64) {
        while let Some((held, late_ns)) = self.hold.take_due(now_ns) {
            self.counters.late += u64::from(late_ns > LATE_NS);
            self.counters.late_ns_max = self.counters.late_ns_max.max(late_ns);
            let (head, payload) = held.bytes.split_at(held.head_len);
            let payload = [SharedSlice::from_bytes(payload)];
            let frame = TxFrame {
                head,
                payload: &payload,
                checksum: held.checksum,
                segment_size: held.segment_size,
                digests: None,
            };
            if self.inner.transmit(now_ns, &frame).is_err() {
                self.counters.dropped += 1;
            }
            self.pool.push(held.bytes);
        }
    }

    fn gather(&mut self, frame: &TxFrame<'_>) -> Vec<u8> {
        let mut bytes = self.pool.pop().unwrap_or_default();
        bytes.resize(frame.len(), 0);
        frame.gather(&mut bytes);
        bytes
    }
}

impl<D: Device> Device for Impair<D> {
    forward_device!(self => self.inner; transmit_room, link_up, refusals, check_interval_ns, readiness);

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        if self.offloads_hidden {
            capabilities.segmentation_len_max = None;
            capabilities.tx_checksum = false;
        }
        if let Some(mtu) = self.config.mtu {
            capabilities.mtu = capabilities.mtu.min(mtu);
        }
        capabilities
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        if self.hold.next_release_ns().is_some_and(|release_ns| release_ns <= now_ns) {
            self.release(now_ns);
            self.inner.flush(now_ns);
        }
        self.inner.receive(now_ns, burst, sink)
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        // A frame that the device would refuse is refused before the dice decide.
        if !self.inner.link_up() {
            return Err(TransmitError::LinkDown);
        }
        self.capabilities().check(frame)?;
        self.release(now_ns);
        self.counters.frames += 1;
        self.counters.bytes += frame.len() as u64;
        let result = if frame.segment_size.is_none() && self.config.rewrites_frames() {
            self.rewrite(now_ns, frame)
        } else {
            self.convey_pending(now_ns);
            self.convey(now_ns, frame)
        };
        // This frame may be the last that a reordered one had to wait for.
        self.release(now_ns);
        result
    }

    fn flush(&mut self, now_ns: u64) {
        self.convey_pending(now_ns);
        self.release(now_ns);
        self.inner.flush(now_ns);
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        [self.inner.next_arrival_ns(), self.hold.next_release_ns()].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
