//! One connection of a measurement: messages posted, completed, and credited.

use anyhow::Context;
use urnic::{Mr, SendOp, SendWr, WrId};

use crate::bw::budget::Budget;
use crate::client::{Client, Happened};
use crate::measure::Op;
use crate::protocol::Control;

/// One connection.
pub(super) struct Flow<'h> {
    pub(super) client: Client<'h>,
    op: Op,
    depth: u32,
    /// Messages in flight.
    pub(super) open: u32,
    /// Most messages in flight at a time.
    pub(super) most: u32,
    /// Messages for which the server has buffers; for Sends.
    credits: u32,
    pub(super) done: u64,
}

impl<'h> Flow<'h> {
    pub(super) const fn new(client: Client<'h>, op: Op, depth: u32) -> Self {
        let credits = if op.takes_buffer() { client.welcome.credits } else { u32::MAX };
        Self { client, op, depth, open: 0, most: 0, credits, done: 0 }
    }

    /// Returns true if this end cannot continue before the server acts.
    #[inline]
    pub(super) const fn is_waiting(&self) -> bool {
        self.open > 0 || self.credits == 0
    }

    /// Posts as many messages as depth, credits and budget allow.
    #[inline]
    pub(super) fn fill(&mut self, memory: &Mr, budget: &mut Budget) -> anyhow::Result<()> {
        while self.open < self.depth && self.credits > 0 && budget.take() {
            let bytes = memory.sge(0..memory.len());
            let remote = self.client.welcome.region;
            self.client.post(match self.op {
                Op::Write => SendWr::write(WrId(0), remote, [bytes]),
                Op::Read => SendWr::read(WrId(0), remote, bytes),
                Op::Send => SendWr::send(WrId(0), [bytes]),
                Op::FetchAdd => {
                    SendWr::new(WrId(0), SendOp::FetchAdd { remote, add: 1, mask: 0 }, [])
                }
                Op::Immediate => {
                    let op = SendOp::Immediate { value: self.done, solicited: false };
                    SendWr::new(WrId(0), op, [])
                }
            })?;
            self.open += 1;
            if self.op.takes_buffer() {
                self.credits -= 1;
            }
        }
        self.most = self.most.max(self.open);
        Ok(())
    }

    /// Handles events; returns true if there were any.
    #[inline]
    pub(super) fn collect(&mut self) -> anyhow::Result<bool> {
        let mut happened = false;
        while let Some(event) = self.client.poll()? {
            happened = true;
            match event {
                Happened::Done(_) => {
                    self.open -= 1;
                    self.done += 1;
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
