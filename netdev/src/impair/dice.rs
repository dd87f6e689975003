//! Random decisions of the impairing device.

use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::config::{ImpairConfig, PIECES_MAX};

/// One stream of random numbers per impairment: switching one off does not change the others.
#[derive(Debug)]
pub(super) struct Dice {
    loss: Stream,
    burst: Stream,
    in_burst: bool,
    ack: Stream,
    duplicate: Stream,
    corrupt: Stream,
    bits: Stream,
    reorder: Stream,
    jitter: Stream,
    pub(super) resegment: Stream,
    cuts: Stream,
    pub(super) coalesce: Stream,
}

#[derive(Debug)]
pub(super) struct Fate {
    pub(super) lost: bool,
    pub(super) duplicate: bool,
    pub(super) corrupt: bool,
    /// For a reordered frame: the number of frames that overtake it; 0 if only time releases it.
    pub(super) late: Option<u64>,
    pub(super) jitter_ns: u64,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            loss: Stream::new(seed, 0),
            burst: Stream::new(seed, 1),
            in_burst: false,
            duplicate: Stream::new(seed, 2),
            corrupt: Stream::new(seed, 3),
            bits: Stream::new(seed, 4),
            reorder: Stream::new(seed, 5),
            jitter: Stream::new(seed, 6),
            resegment: Stream::new(seed, 7),
            cuts: Stream::new(seed, 8),
            coalesce: Stream::new(seed, 9),
            ack: Stream::new(seed, 10),
        }
    }

    /// Decides on one frame. Each stream draws, regardless of the other decisions.
    pub(super) fn fate(&mut self, config: &ImpairConfig) -> Fate {
        let burst_loss = self.burst_loss(config);
        let late = self.reorder.chance(config.reorder).then(|| {
            let frames_max = config.reorder_frames_max;
            if frames_max == 0 { 0 } else { 1 + self.reorder.below(frames_max) }
        });
        let delayed = self.jitter.chance(config.jitter);
        let jitter_ns =
            if delayed { self.jitter.below(config.jitter_ns_max.saturating_add(1)) } else { 0 };
        Fate {
            lost: self.loss.chance(config.loss) | burst_loss,
            duplicate: self.duplicate.chance(config.duplicate),
            corrupt: self.corrupt.chance(config.corrupt),
            late,
            jitter_ns,
        }
    }

    pub(super) fn ack_lost(&mut self, config: &ImpairConfig) -> bool {
        self.ack.chance(config.ack_loss)
    }

    fn burst_loss(&mut self, config: &ImpairConfig) -> bool {
        if config.burst.enter <= 0.0 {
            // Bursts may have been switched off during a burst.
            self.in_burst = false;
            return false;
        }
        let turn = if self.in_burst { config.burst.leave } else { config.burst.enter };
        self.in_burst ^= self.burst.chance(turn);
        self.in_burst && self.burst.chance(config.burst.loss)
    }

    /// Flips 1 to `bits_max` different bits of at least one byte.
    pub(super) fn flip_bits(&mut self, bytes: &mut [u8], bits_max: u32) {
        let bits_len = bytes.len().saturating_mul(8);
        let count = 1 + self.bits.below(u64::from(bits_max.max(1)));
        let count = index(count).min(bits_len);
        let first = self.bits.index_below(bits_len);
        // At this distance no bit is flipped twice, which would repair it.
        let step = 1 + self.bits.index_below(bits_len / count);
        for k in 0..count {
            let bit = (first + k * step) % bits_len;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Cuts `len` (at least 2) bytes into 2 to `pieces_max` pieces.
    pub(super) fn cuts(&mut self, len: usize, pieces_max: usize) -> Cuts {
        let pieces_max = pieces_max.clamp(2, PIECES_MAX);
        let count = 1 + self.cuts.index_below(pieces_max - 1);
        let mut at = [len; PIECES_MAX];
        let mut k = 0;
        while k < count {
            at[k] = 1 + self.cuts.index_below(len - 1);
            // Every fourth cut leaves a piece of one byte, the hardest case for a receiver.
            if k + 1 < count && self.cuts.chance(0.25) {
                at[k + 1] = at[k] + 1;
                k += 1;
            }
            k += 1;
        }
        at.sort_unstable();
        Cuts { at }
    }
}

/// Ends of pieces in ascending order, some perhaps equal; unused entries hold the payload's length.
#[derive(Debug)]
pub(super) struct Cuts {
    at: [usize; PIECES_MAX],
}

impl Cuts {
    /// Returns the pieces, in order; none is empty.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let mut start = 0;
        self.at.into_iter().filter_map(move |end| {
            let piece = start..end;
            start = end;
            (!piece.is_empty()).then_some(piece)
        })
    }
}

/// The arithmetic on the generator's words is done here: a seed gives the same result with every
/// version of the random number crates.
#[derive(Debug)]
pub(super) struct Stream(ChaCha8Rng);

impl Stream {
    fn new(seed: u64, stream: u64) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream);
        Self(generator)
    }

    /// Returns true with probability `p`. An impossible event consumes no random number.
    pub(super) fn chance(&mut self, p: f64) -> bool {
        if p > 0.0 {
            const UNIT: f64 = 1.0 / 9_007_199_254_740_992.0; // 2^-53
            #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
            let drawn = (self.0.next_u64() >> 11) as f64 * UNIT;
            drawn < p
        } else {
            false
        }
    }

    /// Draws uniformly from `0..bound`; returns 0 if `bound` is 0.
    fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.0.next_u64()) * u128::from(bound);
        u64::try_from(product >> 64).expect("the high half of 128 bits")
    }

    fn index_below(&mut self, bound: usize) -> usize {
        index(self.below(u64::try_from(bound).unwrap_or(u64::MAX)))
    }
}

fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
