//! A device that delivers frames in fragments, like a device whose memory other processes can
//! write.
#![allow(clippy::unwrap_used, reason = "a setup that fails fails its test")]

use std::os::fd::BorrowedFd;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use urnic_netdev::{Capabilities, Device, Fragment, RxFrame, TransmitError, TxFrame};

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
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

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
                payload.push(Fragment::from_slice(run));
                rest = behind;
            }
            sink(RxFrame { head, payload: &payload, ..frame });
        })
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        self.inner.transmit(now_ns, frame)
    }

    fn transmit_room(&self) -> usize {
        self.inner.transmit_room()
    }

    fn flush(&mut self, now_ns: u64) {
        self.inner.flush(now_ns);
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.inner.next_arrival_ns()
    }

    fn link_up(&self) -> bool {
        self.inner.link_up()
    }

    fn check_interval_ns(&self) -> Option<u64> {
        self.inner.check_interval_ns()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.inner.readiness()
    }
}
