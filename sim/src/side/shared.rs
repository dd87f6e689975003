//! Messages of a connection that takes receives from a shared queue.

use urnic_engine::types::WrId;
use urnic_engine::verbs::{Wc, WcStatus};

use crate::memory::Part;
use crate::plan::{FlowPlan, Kind};
use crate::side::Side;

impl Side {
    /// Copies a message from its buffer, which may be any of the queue, to its place in the inbox.
    /// Returns the completion as if it had been received there.
    pub(super) fn out_of_pool(&self, flow: &FlowPlan, wc: Wc) -> Result<Wc, String> {
        let Some(pool) = &self.pool else { return Ok(wc) };
        // Without a message that is left, this receive is refused as any other.
        let Some(index) = self.peer_messages.get(self.progress.received).copied() else {
            return Ok(wc);
        };
        let own = Wc { wr_id: WrId(index as u64), ..wc };
        if wc.status != WcStatus::Success {
            pool.borrow_mut().take_back(wc.wr_id)?;
            return Ok(own);
        }
        let work = &flow.sides[1 - self.index].work;
        let is_send = matches!(work[index].kind, Kind::Send | Kind::SendInvalidate);
        let len = if is_send { wc.byte_len as usize } else { 0 };
        let octets = pool.borrow_mut().take(wc.wr_id, len)?;
        if is_send {
            let inbox = self.memory.layout.part(Part::Inbox).start + self.peer_spots[index].to;
            self.memory.region.write(inbox, &octets).map_err(|error| error.to_string())?;
        }
        Ok(own)
    }
}
