//! Intentional faults, one for each check of the oracle: a run with one of them must fail.

use urnic_engine::types::{QpNum, Stag, WrId};
use urnic_engine::verbs::{QpState, Wc, WcOpcode, WcStatus};

use crate::live::REVOKED;
use crate::memory::{Layout, Memory, Model, Part};
use crate::plan::{FlowPlan, Sabotage};

/// The last request of a plan whose failed requests are revived.
const LAST: WrId = WrId(6);

impl Sabotage {
    pub(crate) fn change(self, model: &mut Model, flow: &FlowPlan) {
        let (side, at) = match self {
            Self::Guard => (1, 0),
            Self::Sink => (1, Layout::of(flow, 1).part(Part::Sink).start),
            Self::Landing => (0, Layout::of(flow, 0).part(Part::Landing).start),
            Self::Inbox => (1, Layout::of(flow, 1).part(Part::Inbox).start),
            Self::Number => (1, Layout::of(flow, 1).part(Part::Numbers).start),
            Self::Atomic => return model.values[0].iter_mut().for_each(|value| *value ^= 1),
            _ => return,
        };
        model.memory[side][at] ^= 1;
    }

    /// `None` if the completion gets lost.
    pub(crate) fn sent(self, wc: Wc) -> Option<Wc> {
        match self {
            Self::SendOrder => Some(Wc { wr_id: WrId(wc.wr_id.0 + 1), ..wc }),
            Self::SendRepeated => Some(Wc { wr_id: WrId(wc.wr_id.0.saturating_sub(1)), ..wc }),
            Self::SendOpcode => Some(Wc { opcode: WcOpcode::LocalInvalidate, ..wc }),
            Self::ReadLength if wc.opcode == WcOpcode::RdmaRead => {
                Some(Wc { byte_len: wc.byte_len + 1, ..wc })
            }
            Self::Revived if wc.wr_id == LAST => Some(Wc { status: WcStatus::Success, ..wc }),
            Self::LostSend if wc.status != WcStatus::Success => None,
            _ => Some(wc),
        }
    }

    /// `None` if the completion gets lost.
    pub(crate) fn received(self, wc: Wc) -> Option<Wc> {
        match self {
            Self::ReceiveOrder => Some(Wc { wr_id: WrId(wc.wr_id.0 + 1), ..wc }),
            Self::ReceiveLength => Some(Wc { byte_len: wc.byte_len + 1, ..wc }),
            Self::ReceiveOpcode => Some(Wc { opcode: WcOpcode::LocalInvalidate, ..wc }),
            Self::ReceiveQp => Some(Wc { qp: QpNum(wc.qp.0 ^ 1), ..wc }),
            Self::ReceiveInvalidated => {
                let invalidated = if wc.invalidated.is_none() { Some(Stag(0)) } else { None };
                Some(Wc { invalidated, ..wc })
            }
            Self::ReceiveSolicited => Some(Wc { solicited: !wc.solicited, ..wc }),
            Self::ReceiveValue => Some(Wc { value: wc.value ^ 1, ..wc }),
            Self::LostReceive if wc.status != WcStatus::Success => None,
            _ => Some(wc),
        }
    }

    pub(crate) fn counter(self, count: u64) -> u64 {
        if self == Self::Counter { 0 } else { count }
    }

    /// Returns the count of memory that changes when a Read was posted.
    pub(crate) const fn posted(self, count: u64) -> u64 {
        if matches!(self, Self::Stale) { u64::MAX } else { count }
    }

    /// Returns the state of a queue pair after the end.
    pub(crate) fn state(self, state: QpState) -> QpState {
        if self == Self::State { QpState::Rts } else { state }
    }

    pub(crate) fn touch(self, memory: &Memory) {
        if self == Self::Stray {
            let octet = !memory.content()[0];
            memory.region.write(0, &[octet]).expect("the first byte of the region");
        }
        if self == Self::Revoked {
            let landing = memory.layout.part(Part::Landing);
            let octets = vec![REVOKED; landing.len()];
            memory.region.write(landing.start, &octets).expect("a part of the region");
        }
    }
}
