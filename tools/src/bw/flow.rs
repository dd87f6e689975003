//! One connection of a measurement: messages posted, completed, and credited.

use anyhow::Context;
use urnic::{Mr, SendBatch, SendOp, SendWr, WrId};

use crate::bw::Plan;
use crate::bw::budget::Budget;
use crate::client::{Client, Happened};
use crate::measure::Op;
use crate::protocol::Control;

pub(super) struct Flow<'h> {
    pub(super) client: Client<'h>,
    op: Op,
    depth: u32,
    pub(super) open: u32,
    pub(super) most: u32,
    /// Messages for which the server has buffers; for Sends.
    credits: u32,
    pub(super) done: u64,
    /// Posted by one call, and the requests of the next call.
    list: u32,
    batch: SendBatch,
    signal_every: u32,
    unsignaled: u32,
    pub(super) calls: u64,
    pub(super) completions: u64,
}

impl<'h> Flow<'h> {
    pub(super) fn new(client: Client<'h>, plan: &Plan) -> Self {
        let Plan { op, depth, signal_every, .. } = *plan;
        let credits = if op.takes_buffer() { client.welcome.credits } else { u32::MAX };
        // The server returns half of the credits at a time: a longer list would wait for ever.
        let list = plan.post_list.min(depth).min(credits / 2 + 1);
        let batch = client.qp.batch();
        let (open, most, done, unsignaled, calls, completions) = (0, 0, 0, 0, 0, 0);
        Self {
            client,
            op,
            depth,
            open,
            most,
            credits,
            done,
            list,
            batch,
            signal_every,
            unsignaled,
            calls,
            completions,
        }
    }

    /// Returns true if this end cannot continue before the server acts.
    #[inline]
    pub(super) const fn is_waiting(&self) -> bool {
        self.open > 0 || self.credits == 0
    }

    /// Posts as depth, credits and budget allow, in full lists while the budget lasts. One of
    /// `signal_every` has a completion, and the last one, so that none is waited for in vain.
    #[inline]
    pub(super) fn fill(&mut self, memory: &Mr, budget: &mut Budget) -> anyhow::Result<()> {
        let free = self.depth.saturating_sub(self.open).min(self.credits);
        let lists = free - free % self.list;
        let mut left = 0;
        while left < lists && budget.take() {
            left += 1;
        }
        while left > 0 {
            let count = left.min(self.list);
            left -= count;
            for place in 1..=count {
                let is_last = left == 0 && place == count;
                let wr = self.request(memory, is_last);
                self.batch.push(wr).map_err(|_| self.client.lost())?;
            }
            self.batch.post();
            self.calls += 1;
            self.open += count;
            if self.op.takes_buffer() {
                self.credits -= count;
            }
        }
        self.most = self.most.max(self.open);
        Ok(())
    }

    /// The id of a request with a completion is the number of messages that are done then.
    #[inline]
    fn request(&mut self, memory: &Mr, is_last: bool) -> SendWr {
        let bytes = memory.sge(0..memory.len());
        let remote = self.client.welcome.region;
        self.unsignaled += 1;
        let id = WrId(self.unsignaled.into());
        let wr = match self.op {
            Op::Write => SendWr::write(id, remote, [bytes]),
            Op::Read => SendWr::read(id, remote, bytes),
            Op::Send => SendWr::send(id, [bytes]),
            Op::FetchAdd => SendWr::new(id, SendOp::FetchAdd { remote, add: 1, mask: 0 }, []),
            Op::Immediate => {
                SendWr::new(id, SendOp::Immediate { value: self.done, solicited: false }, [])
            }
        };
        if self.unsignaled < self.signal_every && !is_last {
            return wr.unsignaled();
        }
        self.unsignaled = 0;
        wr
    }

    #[inline]
    pub(super) fn collect(&mut self) -> anyhow::Result<bool> {
        let mut happened = false;
        while let Some(event) = self.client.poll()? {
            happened = true;
            match event {
                Happened::Done(WrId(messages)) => {
                    self.open = self.open.saturating_sub(u32::try_from(messages)?);
                    self.done += messages;
                    self.completions += 1;
                }
                Happened::Control(Control::Credit(more)) if self.op.takes_buffer() => {
                    // A buffer is returned once: there are never more credits than at first.
                    let credits = self
                        .credits
                        .checked_add(more)
                        .filter(|credits| more > 0 && *credits <= self.client.welcome.credits);
                    let remote = self.client.remote();
                    self.credits = credits.with_context(|| {
                        format!("{remote} granted {more} credits, more than it can have")
                    })?;
                }
                Happened::Control(other) => return Err(self.client.unexpected(&other)),
                Happened::Payload(_) => return Err(self.client.unasked()),
            }
        }
        Ok(happened)
    }
}
