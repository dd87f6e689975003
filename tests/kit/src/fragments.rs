//! A device that delivers frames in fragments, like a device whose memory other processes can
//! write.
#![allow(clippy::unwrap_used, reason = "a setup that fails fails its test")]

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use urnic_netdev::{Device, RxFrame, SharedSlice, forward_device};

/// Cuts received frames into a head, which contains at least the headers, and runs of random
/// lengths behind it.
#[derive(Debug)]
pub struct InFragments<D> {
    inner: D,
    dice: ChaCha8Rng,
    /// Maximum length of a run in bytes.
    run_len_max: usize,
}

impl<D: Device> InFragments<D> {
    pub fn new(inner: D, seed: u64, run_len_max: usize) -> Self {
        Self { inner, dice: ChaCha8Rng::seed_from_u64(seed), run_len_max }
    }
}

/// Returns a number from 1 to `max`.
fn up_to(dice: &mut ChaCha8Rng, max: usize) -> usize {
    1 + usize::try_from(dice.next_u32()).unwrap() % max
}

impl<D: Device> Device for InFragments<D> {
    forward_device!(self => self.inner; capabilities, transmit, transmit_room, flush);
    forward_device!(self => self.inner; next_arrival_ns, link_up, check_interval_ns, readiness);

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        let Self { inner, dice, run_len_max } = self;
        inner.receive(now_ns, burst, &mut |frame| {
            let head_len = RxFrame::HEAD_LEN_MIN + up_to(dice, 64);
            let Some((head, mut rest)) = frame.head.split_at_checked(head_len) else {
                return sink(frame);
            };
            let mut payload = Vec::new();
            while !rest.is_empty() {
                let (run, behind) = rest.split_at(up_to(dice, *run_len_max).min(rest.len()));
                payload.push(SharedSlice::from_bytes(run));
                rest = behind;
            }
            sink(RxFrame { head, payload: &payload, ..frame });
        })
    }
}
