//! The engine's alarm, doorbell and queues of receives under loom, which tries every order of their
//! steps, and every value that a relaxed load may return. A lost wake-up is a deadlock here.
//!
//! ```text
//! cargo test -p urnic-loom
//! ```
//!
//! The files are those of the engine. A separate package keeps loom's atomics out of all other
//! code, without compiler flags.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "these files are of another package, and the tests use a part of them"
)]

/// Replaces the engine's limits by the smallest ones that show every case.
mod limits {
    pub(crate) const DOORBELL_PLACES: usize = 1;
    pub(crate) const ALARM_EARLY_KEPT: usize = 1;
    pub(crate) const ALARM_WAKERS_MAX: usize = 2;
    pub(crate) const QP_DEPTH_MAX: usize = 2;
}

/// Replaces the engine's types.
mod types {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct PdNum(pub(crate) u32);
}

#[path = "../../../engine/src/verbs"]
mod verbs {
    pub(crate) mod alarm;
    pub(crate) mod calls;
    pub(crate) mod doorbell;
    pub(crate) mod posted;
    pub(crate) mod receives;
    pub(crate) mod srq;
    pub(crate) mod sync;

    pub(crate) use srq::Srq;
    pub(crate) use stand_in::{PostError, QpShared, QueueError, RecvWr};

    /// Receives and queue pairs, reduced to the parts that the queues use.
    pub(crate) mod stand_in {
        use std::sync::Arc;

        use super::Srq;
        use super::doorbell::{Doorbell, DoorbellButton};
        use super::posted::Posted;
        use super::receives::Receives;
        use crate::types::PdNum;

        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Sge {
            pub(crate) writable: bool,
            pub(crate) pd: PdNum,
            pub(crate) only: Option<u32>,
        }

        #[derive(Clone, Debug, Default)]
        pub(crate) struct RecvWr {
            pub(crate) sges: Vec<Sge>,
            pub(crate) inaccessible: bool,
        }

        impl RecvWr {
            pub(crate) fn len(&self) -> u64 {
                self.sges.len() as u64
            }
        }

        #[derive(Debug)]
        pub(crate) enum PostError {
            Full,
            TooLong(u64),
            Scatter,
            NotAssociated,
            SharedReceives,
        }

        #[derive(Debug)]
        pub(crate) enum QueueError {
            SrqDepth(usize),
        }

        /// Returns a queue of requests, and a function that posts one to it.
        pub(crate) fn posted() -> (Arc<Posted<u32>>, impl Fn(&Posted<u32>) + Send) {
            (Arc::new(Posted::new(2)), |posted| posted.push(1).expect("there is room"))
        }

        /// A queue pair whose stream is polled when its doorbell has rung.
        #[derive(Debug)]
        pub(crate) struct QpShared {
            pub(crate) receives: Receives,
            pub(crate) button: Arc<DoorbellButton>,
        }

        impl QpShared {
            /// Makes a queue pair whose messages wait for receives: its own, or those of a shared
            /// queue.
            pub(crate) fn waiting(doorbell: &Arc<Doorbell>, srq: Option<Srq>) -> Arc<Self> {
                Arc::new(Self {
                    receives: Receives::new(2, srq, true),
                    button: Arc::new(DoorbellButton::new(Arc::clone(doorbell), 0)),
                })
            }

            /// Does the same as `Qp::post_recv`.
            pub(crate) fn post(&self) {
                if self.receives.post(RecvWr::default()).expect("there is room") {
                    self.press();
                }
            }

            pub(crate) fn press(&self) {
                self.button.press();
            }
        }
    }
}

#[cfg(test)]
mod tests;
