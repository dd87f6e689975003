//! Configuration and counters of the impairments.

/// Impairments, by default none. Probabilities are per frame, clamped to 0 (never) to 1 (always).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImpairConfig {
    /// Probability that a frame is lost, independent of all others.
    pub loss: f64,
    /// Loss in bursts, in addition.
    pub burst: BurstLoss,
    /// Probability that a TCP segment without payload, SYN, FIN or RST is lost, in addition.
    pub ack_loss: f64,
    /// True if every frame is lost: an outage of this direction.
    pub outage: bool,
    /// Largest IP datagram that passes, in bytes; a longer one, or segment of a super-frame, is
    /// lost.
    pub path_mtu: Option<usize>,
    /// Delay of every frame, in nanoseconds, besides that of the inner device.
    pub delay_ns: u64,
    /// Bits per second of a bottleneck in front of the delay, of frame bytes. `None`: no
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
    /// A reordered frame is released after 1 to this many later frames; with 0, only by time.
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
    /// [`flush`](crate::Device::flush) at the latest, to be merged with it, if that continues the
    /// same flow with equal headers and both fit the MTU.
    pub coalesce: f64,
    /// MTU to report, if the inner device's is larger: leaves merged segments room.
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
    /// Frames lost by decision, for lack of room here or below, or because the link below went
    /// down.
    pub dropped: u64,
    /// Dropped frames that found the bottleneck's queue full.
    pub overflowed: u64,
    /// Most frames that were held at one time.
    pub held_peak: usize,
    /// Held frames released more than [`LATE_NS`] after their time: the device was not called.
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
    pub(super) fn wants_plain_frames(&self) -> bool {
        self.rewrites_frames() || self.ack_loss > 0.0
    }

    pub(super) fn rewrites_frames(&self) -> bool {
        self.corrupt > 0.0 || self.resegment > 0.0 || self.coalesce > 0.0
    }
}

impl Default for ImpairConfig {
    /// Returns no impairment; the numbers below apply once a probability is set.
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
