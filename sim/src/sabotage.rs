//! Faults made on purpose, one for each check of the oracle: a run with one of them has to fail.

use urnic_engine::types::WrId;
use urnic_engine::verbs::{QpState, Wc, WcOpcode, WcStatus};

use crate::live::REVOKED;
use crate::memory::{Layout, Memory, Model, Part};
use crate::plan::FlowPlan;

/// A fault that a check of the oracle has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The model expects another byte in memory that nothing writes.
    Guard,
    /// The model expects another byte where the initiator's Writes go.
    Sink,
    /// The model expects another byte where the initiator's Reads go.
    Landing,
    /// The model expects that atomics find other values.
    Atomic,
    /// Completions of the send queue name the request behind their own.
    SendOrder,
    /// Completions of the send queue name another operation.
    SendOpcode,
    /// Completions of the receive queue name the receive behind their own.
    ReceiveOrder,
    /// Completions of the receive queue name one byte more.
    ReceiveLength,
    /// Failed completions of the send queue get lost.
    LostSend,
    /// Failed completions of the receive queue get lost.
    LostReceive,
    /// The counter of memory that changes is believed to stand still.
    Counter,
    /// Memory that was written after its invalidation has been read.
    Revoked,
    /// An end that has left is believed to have posted one message more.
    LeftBehind,
    /// An end has no time to notice that its peer has vanished.
    Impatience,
    /// A queue pair goes on after its connection has ended.
    State,
    /// A region is kept.
    Region,
    /// A connection is kept.
    Connection,
    /// A port may hold nothing.
    Held,
    /// A CRC was wrong.
    Crc,
    /// The work beside hostile peers takes a day longer.
    Late,
    /// The work beside hostile peers is never done.
    Undone,
    /// A Request is none of those that were made.
    Request,
}

impl Sabotage {
    /// Changes what the model expects.
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

    /// A completion of the send queue as the application gets it, if it does.
    pub(crate) fn sent(self, wc: Wc) -> Option<Wc> {
        match self {
            Self::SendOrder => Some(Wc { wr_id: WrId(wc.wr_id.0 + 1), ..wc }),
            Self::SendOpcode => Some(Wc { opcode: WcOpcode::LocalInvalidate, ..wc }),
            Self::LostSend if wc.status != WcStatus::Success => None,
            _ => Some(wc),
        }
    }

    /// A completion of the receive queue as the application gets it, if it does.
    pub(crate) fn received(self, wc: Wc) -> Option<Wc> {
        match self {
            Self::ReceiveOrder => Some(Wc { wr_id: WrId(wc.wr_id.0 + 1), ..wc }),
            Self::ReceiveLength => Some(Wc { byte_len: wc.byte_len + 1, ..wc }),
            Self::LostReceive if wc.status != WcStatus::Success => None,
            _ => Some(wc),
        }
    }

    /// The count of memory that changes.
    pub(crate) fn counter(self, count: u64) -> u64 {
        if self == Self::Counter { 0 } else { count }
    }

    /// The state of a queue pair after the end.
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
