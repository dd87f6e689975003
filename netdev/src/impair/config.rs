//! What to impair, and what was impaired.

/// Which impairments, and how often. The default is none.
///
/// Probabilities are per frame, from 0 (never) to 1 (always); anything below counts as 0, anything
/// above as 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImpairConfig {
    /// Probability that a frame is lost, independent of all others.
    pub loss: f64,
    /// Loss in bursts, in addition.
    pub burst: BurstLoss,
    /// Probability that a TCP segment which only acknowledges (no payload, no SYN, FIN or RST) is
    /// lost, in addition.
    pub ack_loss: f64,
    /// Every frame is lost: an outage of this direction.
    pub outage: bool,
    /// Largest IP datagram that passes, in bytes: a longer one is lost silently. A
    /// super-frame counts as the segments that it becomes.
    pub path_mtu: Option<usize>,
    /// Time that every frame takes, in nanoseconds, besides what the inner device takes.
    pub delay_ns: u64,
    /// Bits per second of a bottleneck in front of the delay, counting frame bytes only; `None`
    /// passes frames in no time. At zero nothing ever passes.
    pub rate_bits_per_second: Option<u64>,
    /// Frames that wait for the bottleneck or are passing it, at most; one more is lost.
    pub queue_frames_max: usize,
    /// Probability that a frame is sent twice, the copies back to back.
    pub duplicate: f64,
    /// Probability that bits of a frame are flipped, anywhere behind its link header.
    pub corrupt: f64,
    /// Most bits flipped in one frame; at least one is.
    pub corrupt_bits_max: u32,
    /// Probability that a frame is held back while others overtake it.
    pub reorder: f64,
    /// Most frames that overtake a reordered one: it is released after 1 to this many later
    /// frames. With 0, only time releases it.
    pub reorder_frames_max: u64,
    /// Time, in nanoseconds, by which a reordered frame is late at most.
    pub reorder_delay_ns: u64,
    /// Probability that a frame is delayed. A delay keeps the order: later frames wait behind.
    pub jitter: f64,
    /// Longest delay, in nanoseconds; each is drawn evenly from 0 to this.
    pub jitter_ns_max: u64,
    /// Probability that a TCP data segment is cut into several, each with correct checksums.
    pub resegment: f64,
    /// Most pieces of one segment, from 2 to [`PIECES_MAX`]; clamped. Pieces of one byte are
    /// frequent.
    pub resegment_pieces_max: usize,
    /// Probability that a TCP data segment waits for the next frame, until
    /// [`flush`](crate::Device::flush) at the latest, to become one segment with it. That happens
    /// when it continues the same flow with equal headers and both fit the inner device's MTU.
    pub coalesce: f64,
    /// MTU to report instead of the inner device's, when that is larger: leaves merged segments
    /// room that the stack above does not use.
    pub mtu: Option<usize>,
    /// Most frames held at once; one more is dropped.
    pub held_max: usize,
}

/// Loss by the Gilbert–Elliott model: a good state without loss and a bad one with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstLoss {
    /// Probability, per frame in the good state, of entering the bad one.
    pub enter: f64,
    /// Probability, per frame in the bad state, of leaving it.
    pub leave: f64,
    /// Probability that a frame in the bad state is lost.
    pub loss: f64,
}

/// What an [`Impair`](super::Impair) has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImpairCounters {
    /// Frames offered from above that the inner device's link can carry.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Frames lost by decision, for want of room here or in the inner device, or because its link
    /// went down while they were held.
    pub dropped: u64,
    /// Of those, frames that found the queue of the bottleneck full.
    pub overflowed: u64,
    /// Most frames that were held at one time.
    pub held_peak: usize,
    /// Held frames that went on more than [`LATE_NS`] after their time, because the device was
    /// not called.
    pub late: u64,
    /// Longest time by which one did, in nanoseconds.
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
    /// Whether frames have to come in plain, with real checksums: because their bytes may change,
    /// or because what they are is looked up.
    pub(super) fn wants_plain_frames(&self) -> bool {
        self.rewrites_frames() || self.ack_loss > 0.0
    }

    /// Whether bytes of frames may change.
    pub(super) fn rewrites_frames(&self) -> bool {
        self.corrupt > 0.0 || self.resegment > 0.0 || self.coalesce > 0.0
    }
}

impl Default for ImpairConfig {
    /// No impairment. The details are those in force once a probability is set: 1 bit, up to 3
    /// frames or 1 ms late, up to 1 ms of jitter, up to 4 pieces, 1000 frames queued, 1024 held.
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
    /// No bursts. Once `enter` is set, bursts of 4 frames on average, all of them lost.
    fn default() -> Self {
        Self { enter: 0.0, leave: 0.25, loss: 1.0 }
    }
}

/// From when on a frame counts as late, in nanoseconds.
pub const LATE_NS: u64 = 200_000;

/// Most pieces that one segment is cut into.
pub const PIECES_MAX: usize = 16;
