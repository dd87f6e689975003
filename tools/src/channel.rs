//! Control messages over a queue pair, beside the payload of a session.

use anyhow::{Context, bail, ensure};
use urnic::mem::Access;
use urnic::types::WrId;
use urnic::verbs::{Mr, Pd, PostError, Qp, RecvWr, SendOp, SendWr, Wc};

use crate::protocol::{CONTROL_LEN_MAX, Control};

/// Receive buffers of one size, and places to send control messages from.
///
/// Every buffer is long enough for a control message and for a payload message: which of the two
/// comes next is the peer's choice.
#[derive(Debug)]
pub(crate) struct Channel {
    inbox: Mr,
    slot_len: usize,
    outbox: Mr,
    outbox_next: usize,
}

impl Channel {
    /// Registers `depth` receive buffers for messages of `len` octets and posts them.
    pub(crate) fn new(pd: &Pd, qp: &Qp, depth: usize, len: usize) -> anyhow::Result<Self> {
        let slot_len = len.max(CONTROL_LEN_MAX);
        let total = slot_len.checked_mul(depth).context("too much memory for receive buffers")?;
        let inbox = pd.reg_mr(total, Access::LOCAL_WRITE).context("memory for receive buffers")?;
        let outbox = pd
            .reg_mr(OUTBOX_DEPTH * CONTROL_LEN_MAX, Access::empty())
            .context("memory for control messages")?;
        let channel = Self { inbox, slot_len, outbox, outbox_next: 0 };
        for slot in 0..depth {
            channel.post_slot(qp, slot)?;
        }
        Ok(channel)
    }

    /// Sends a control message.
    pub(crate) fn send(&mut self, qp: &Qp, message: &Control) -> Result<(), PostError> {
        let octets = message.emit();
        let slot = self.outbox_next;
        let at = slot * CONTROL_LEN_MAX;
        self.outbox.copy_in(at, &octets);
        let op = SendOp::Send { invalidate: None, solicited: true };
        qp.post_send(SendWr::new(CONTROL_SENT, op, [self.outbox.sge(at..at + octets.len())]))?;
        self.outbox_next = (slot + 1) % OUTBOX_DEPTH;
        Ok(())
    }

    /// Reads the control message that a receive completed with, and posts its buffer again.
    pub(crate) fn take_control(&self, qp: &Qp, wc: &Wc) -> anyhow::Result<Control> {
        let len = wc.byte_len as usize;
        ensure!(len <= CONTROL_LEN_MAX, "the peer sent a control message of {len} octets");
        let slot = self.slot(wc)?;
        let mut octets = [0; CONTROL_LEN_MAX];
        self.inbox.copy_out(slot * self.slot_len, &mut octets[..len]);
        self.post_slot(qp, slot)?;
        Ok(Control::parse(&octets[..len])?)
    }

    /// Reads a received payload message.
    pub(crate) fn payload(&self, wc: &Wc) -> anyhow::Result<Vec<u8>> {
        let slot = self.slot(wc)?;
        let mut octets = vec![0; wc.byte_len as usize];
        self.inbox.copy_out(slot * self.slot_len, &mut octets);
        Ok(octets)
    }

    /// Posts the buffer of a received payload message again.
    pub(crate) fn repost(&self, qp: &Qp, wc: &Wc) -> anyhow::Result<()> {
        self.post_slot(qp, self.slot(wc)?)
    }

    /// Sends a received payload message back from where it is. Its buffer is to be posted again
    /// when the request that `wr_id` names, made by [`echo_id`], has completed.
    pub(crate) fn echo(&self, qp: &Qp, wc: &Wc) -> anyhow::Result<()> {
        let slot = self.slot(wc)?;
        let at = slot * self.slot_len;
        let octets = self.inbox.sge(at..at + wc.byte_len as usize);
        qp.post_send(SendWr::send(echo_id(slot), [octets]))?;
        Ok(())
    }

    /// The echo of a buffer has been sent: posts it again.
    pub(crate) fn echoed(&self, qp: &Qp, wc: &Wc) -> anyhow::Result<()> {
        let slot = usize::try_from(wc.wr_id.0 - ECHO_SENT)?;
        self.post_slot(qp, slot)
    }

    fn slot(&self, wc: &Wc) -> anyhow::Result<usize> {
        let slot = usize::try_from(wc.wr_id.0)?;
        let is_slot = slot < self.inbox.len() / self.slot_len;
        if !is_slot {
            bail!("a completion of no receive buffer");
        }
        Ok(slot)
    }

    fn post_slot(&self, qp: &Qp, slot: usize) -> anyhow::Result<()> {
        let at = slot * self.slot_len;
        let buffer = self.inbox.sge(at..at + self.slot_len);
        qp.post_recv(RecvWr::new(WrId(slot as u64), [buffer]))?;
        Ok(())
    }
}

/// Control messages that may be under way from this end.
pub(crate) const OUTBOX_DEPTH: usize = 64;
/// Names a control message that is being sent.
pub(crate) const CONTROL_SENT: WrId = WrId(1 << 32);
/// Names the echo of the buffer whose number is added.
const ECHO_SENT: u64 = 1 << 33;

const fn echo_id(slot: usize) -> WrId {
    WrId(ECHO_SENT + slot as u64)
}
