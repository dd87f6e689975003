//! Intentional faults, one for each check of the oracle: a run with one of them must fail.

use urnic_engine::types::WrId;
use urnic_engine::verbs::{QpState, Wc, WcOpcode, WcStatus};

use crate::live::REVOKED;
use crate::memory::{Layout, Memory, Model, Part};
use crate::plan::{FlowPlan, Sabotage};

impl Sabotage {
    /// Changes the expected state of the model.
    pub(crate) fn change(self, model: &mut Model, flow: &FlowPlan) {
        let (side, at) = match self {
            Self::Guard => (1, 0),
            Self::Sink => (1, Layout::of(flow, 1).part(Part::Sink).start),
            Self::Landing => (0, Layout::of(flow, 0).part(Part::Landing).start),
            Self::Atomic => return model.values[0].iter_mut().for_each(|value| *value ^= 1),
            _ => return,
        };
        model.memory[side][at] ^= 1;
    }

    /// Returns a completion of the send queue as the application sees it; `None` if it gets lost.
    pub(crate) fn sent(self, wc: Wc) -> Option<Wc> {
        match self {
            Self::SendOrder => Some(Wc { wr_id: WrId(wc.wr_id.0 + 1), ..wc }),
            Self::SendOpcode => Some(Wc { opcode: WcOpcode::LocalInvalidate, ..wc }),
            Self::LostSend if wc.status != WcStatus::Success => None,
            _ => Some(wc),
        }
    }

    /// Returns a completion of the receive queue as the application sees it; `None` if it gets
    /// lost.
    pub(crate) fn received(self, wc: Wc) -> Option<Wc> {
        match self {
            Self::ReceiveOrder => Some(Wc { wr_id: WrId(wc.wr_id.0 + 1), ..wc }),
            Self::ReceiveLength => Some(Wc { byte_len: wc.byte_len + 1, ..wc }),
            Self::LostReceive if wc.status != WcStatus::Success => None,
            _ => Some(wc),
        }
    }

    /// Returns the count of memory that changes.
    pub(crate) fn counter(self, count: u64) -> u64 {
        if self == Self::Counter { 0 } else { count }
    }

    /// Returns the state of a queue pair after the end.
    pub(crate) fn state(self, state: QpState) -> QpState {
        if self == Self::State { QpState::Rts } else { state }
    }

    /// Changes the memory of an end whose connection is over.
    pub(crate) fn touch(self, memory: &Memory) {
        if self == Self::Revoked {
            let landing = memory.layout.part(Part::Landing);
            let octets = vec![REVOKED; landing.len()];
            memory.region.write(landing.start, &octets).expect("a part of the region");
        }
    }
}
