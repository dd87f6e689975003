//! Configuration and counters of the impairments.

/// Impairments and their probabilities. The default is none.
///
/// Probabilities are per frame, from 0 (never) to 1 (always); values outside are clamped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImpairConfig {
    /// Probability that a frame is lost, independent of all others.
    pub loss: f64,
    /// Loss in bursts, in addition.
    pub burst: BurstLoss,
    /// Probability that a TCP segment which only acknowledges (no payload, no SYN, FIN or RST) is
    /// lost, in addition.
    pub ack_loss: f64,
    /// True if every frame is lost: an outage of this direction.
    pub outage: bool,
    /// Largest IP datagram that passes, in bytes; a longer one is lost silently. A super-frame
    /// counts as its segments.
    pub path_mtu: Option<usize>,
    /// Delay of every frame, in nanoseconds, besides that of the inner device.
    pub delay_ns: u64,
    /// Bits per second of a bottleneck in front of the delay, counting frame bytes only. `None`: no
    /// bottleneck. Zero: nothing ever passes.
    pub rate_bits_per_second: Option<u64>,
    /// Most frames that wait for the bottleneck or are passing it; further frames are lost.
    pub queue_frames_max: usize,
    /// Probability that a frame is sent twice, the copies back to back.
    pub duplicate: f64,
    /// Probability that bits of a frame are flipped, anywhere behind its link header.
    pub corrupt: f64,
    /// Most bits flipped in one frame; at least one is.
    pub corrupt_bits_max: u32,
    /// Probability that a frame is held back while others overtake it.
    pub reorder: f64,
    /// Most frames that overtake a reordered one: it is released after 1 to this many later frames.
    /// With 0, only time releases it.
    pub reorder_frames_max: u64,
    /// Longest delay of a reordered frame, in nanoseconds.
    pub reorder_delay_ns: u64,
    /// Probability that a frame is delayed. A delay keeps the order: later frames wait behind.
    pub jitter: f64,
    /// Longest delay, in nanoseconds; each is drawn uniformly from 0 to this.
    pub jitter_ns_max: u64,
    /// Probability that a TCP data segment is cut into several, each with correct checksums.
    pub resegment: f64,
    /// Most pieces of one segment, clamped to 2 to [`PIECES_MAX`]. Pieces of one byte are frequent.
    pub resegment_pieces_max: usize,
    /// Probability that a TCP data segment waits for the next frame, until
    /// [`flush`](crate::Device::flush) at the latest, to be merged with it. The segments are merged
    /// if the second continues the same flow with equal headers and both fit the inner device's
    /// MTU.
    pub coalesce: f64,
    /// MTU to report instead of the inner device's, if that is larger: leaves merged segments room
    /// that the stack above does not use.
    pub mtu: Option<usize>,
    /// Most frames held at once; further frames are dropped.
    pub held_max: usize,
}

/// Loss by the Gilbert–Elliott model: a good state without loss and a bad one with loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstLoss {
    /// Probability, per frame in the good state, of entering the bad one.
    pub enter: f64,
    /// Probability, per frame in the bad state, of leaving it.
    pub leave: f64,
    /// Probability that a frame in the bad state is lost.
    pub loss: f64,
}

/// Counters of an [`Impair`](super::Impair).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImpairCounters {
    /// Frames offered from above that the inner device's link can carry.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Frames lost by decision, for lack of room here or in the inner device, or because its link
    /// went down while they were held.
    pub dropped: u64,
    /// Dropped frames that found the bottleneck's queue full.
    pub overflowed: u64,
    /// Most frames that were held at one time.
    pub held_peak: usize,
    /// Held frames that were released more than [`LATE_NS`] after their time, because the device
    /// was not called.
    pub late: u64,
    /// Longest such delay, in nanoseconds.
    pub late_ns_max: u64,
    /// Frames sent twice.
    pub duplicated: u64,
    /// Frames held back while others overtook them.
    pub reordered: u64,
    /// Frames with flipped bits.
    pub corrupted: u64,
    /// Segments cut into pieces.
    pub resegmented: u64,
    /// Segments merged into their predecessor.
    pub coalesced: u64,
}

impl ImpairConfig {
    /// Returns true if frames must arrive with real checksums: because their bytes may change, or
    /// because their headers are parsed.
    pub(super) fn wants_plain_frames(&self) -> bool {
        self.rewrites_frames() || self.ack_loss > 0.0
    }

    /// Returns true if bytes of frames may change.
    pub(super) fn rewrites_frames(&self) -> bool {
        self.corrupt > 0.0 || self.resegment > 0.0 || self.coalesce > 0.0
    }
}

impl Default for ImpairConfig {
    /// Returns no impairment. The details apply once a probability is set: 1 bit, up to 3 frames or
    /// 1 ms late, up to 1 ms of jitter, up to 4 pieces, 1000 frames queued, 1024 held.
    fn default() -> Self {
        Self {
            loss: 0.0,
            burst: BurstLoss::default(),
            ack_loss: 0.0,
            outage: false,
            path_mtu: None,
            delay_ns: 0,
            rate_bits_per_second: None,
            queue_frames_max: 1000,
            duplicate: 0.0,
            corrupt: 0.0,
            corrupt_bits_max: 1,
            reorder: 0.0,
            reorder_frames_max: 3,
            reorder_delay_ns: 1_000_000,
            jitter: 0.0,
            jitter_ns_max: 1_000_000,
            resegment: 0.0,
            resegment_pieces_max: 4,
            coalesce: 0.0,
            mtu: None,
            held_max: 1024,
        }
    }
}

impl Default for BurstLoss {
    /// Returns no bursts. Once `enter` is set, bursts of 4 frames on average, all of them lost.
    fn default() -> Self {
        Self { enter: 0.0, leave: 0.25, loss: 1.0 }
    }
}

/// Delay from which a frame counts as late, in nanoseconds.
pub const LATE_NS: u64 = 200_000;

/// Most pieces that one segment is cut into.
pub const PIECES_MAX: usize = 16;
