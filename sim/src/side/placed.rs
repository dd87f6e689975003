//! Checks of completions that promise placement in the peer's memory.

use urnic_engine::verbs::{Wc, WcStatus};

use crate::memory::{self, Memory, Model, Part};
use crate::plan::{FlowPlan, Kind};
use crate::side::{Side, index_of};

impl Side {
    pub(super) fn check_placed(
        &self,
        flow: &FlowPlan,
        model: &Model,
        memory: &Memory,
        wc: &Wc,
    ) -> Result<(), String> {
        let index = index_of(wc);
        let (op, at) = (&flow.sides[self.index].work[index], self.spots[index].to);
        let (part, len) = match op.kind {
            Kind::Write | Kind::WriteImmediate => (Part::Sink, op.len),
            // Not checked: a message that waits for a receive, because the confirming Read passes
            // it; and a message in a shared buffer, which the application copies out later.
            Kind::Send | Kind::SendInvalidate if !flow.waits && !flow.shares => {
                (Part::Inbox, op.len.min(memory::receive_len(flow, self.index, index)))
            }
            _ => return Ok(()),
        };
        let is_there = memory.holds(&model.memory[1 - self.index], part, at..at + len);
        if wc.status == WcStatus::Success && !is_there {
            return Err(format!("{op:?}, number {index}, has completed and is not at the peer"));
        }
        Ok(())
    }
}
