//! Control messages over a queue pair, in addition to the payload of a session.

use anyhow::{Context, bail, ensure};
use urnic::{Access, Mr, Pd, PostError, Qp, RecvWr, SendOp, SendWr, Wc, WcOpcode, WrId};

use crate::protocol::{CONTROL_LEN_MAX, Control};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffers {
    /// Receive buffers, shared by payload and control messages.
    pub(crate) receive: usize,
    pub(crate) payload_len: usize,
    pub(crate) control: usize,
}

/// Receive buffers of one size, and send buffers. Every receive buffer is long enough for control
/// and payload messages, because the peer chooses which comes next.
#[derive(Debug)]
pub(crate) struct Channel {
    /// The receive buffers, followed by the send buffers.
    memory: Mr,
    slot_len: usize,
    slots: usize,
    outbox_places: usize,
    outbox_next: usize,
    /// The engine may still read them.
    outbox_open: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SendError {
    /// The peer has received none of the messages in the send buffers.
    #[error("the peer does not receive the answers to its requests")]
    NotTaken,
    #[error(transparent)]
    Post(#[from] PostError),
}

impl Channel {
    pub(crate) fn new(pd: &Pd, qp: &Qp, buffers: Buffers) -> anyhow::Result<Self> {
        let Buffers { receive, payload_len, control } = buffers;
        let slot_len = payload_len.max(CONTROL_LEN_MAX);
        let total = slot_len.checked_mul(receive).context(RECEIVE_BUFFERS)?;
        let total = total.checked_add(control * CONTROL_LEN_MAX).context(RECEIVE_BUFFERS)?;
        let memory = pd.reg_mr(total, Access::LOCAL_WRITE).context(RECEIVE_BUFFERS)?;
        let channel = Self {
            memory,
            slot_len,
            slots: receive,
            outbox_places: control,
            outbox_next: 0,
            outbox_open: 0,
        };
        for slot in 0..receive {
            channel.post_slot(qp, slot)?;
        }
        Ok(channel)
    }

    /// The buffer is in use until [`sent`](Self::sent).
    pub(crate) fn send(&mut self, qp: &Qp, message: &Control) -> Result<(), SendError> {
        if self.outbox_open == self.outbox_places {
            return Err(SendError::NotTaken);
        }
        let octets = message.emit();
        let at = self.slots * self.slot_len + self.outbox_next * CONTROL_LEN_MAX;
        self.memory.copy_in(at, &octets);
        let op = SendOp::Send { invalidate: None, solicited: true };
        qp.post_send(SendWr::new(CONTROL_SENT, op, [self.memory.sge(at..at + octets.len())]))?;
        self.outbox_next = (self.outbox_next + 1) % self.outbox_places;
        self.outbox_open += 1;
        Ok(())
    }

    /// The oldest message has completed.
    pub(crate) const fn sent(&mut self) {
        self.outbox_open = self.outbox_open.saturating_sub(1);
    }

    /// Reposts its buffer.
    pub(crate) fn take_control(&self, qp: &Qp, wc: &Wc) -> anyhow::Result<Control> {
        let len = wc.byte_len as usize;
        ensure!(len <= CONTROL_LEN_MAX, "the peer sent a control message of {len} bytes");
        let slot = self.slot(wc)?;
        let mut octets = [0; CONTROL_LEN_MAX];
        self.memory.copy_out(slot * self.slot_len, &mut octets[..len]);
        self.post_slot(qp, slot)?;
        Ok(Control::parse(&octets[..len])?)
    }

    pub(crate) fn payload(&self, wc: &Wc) -> anyhow::Result<Vec<u8>> {
        let slot = self.slot(wc)?;
        let mut octets = vec![0; wc.byte_len as usize];
        self.memory.copy_out(slot * self.slot_len, &mut octets);
        Ok(octets)
    }

    pub(crate) fn repost(&self, qp: &Qp, wc: &Wc) -> anyhow::Result<()> {
        self.post_slot(qp, self.slot(wc)?)
    }

    /// Sends payload back in place. Repost its buffer when [`echo_id`] has completed.
    pub(crate) fn echo(&self, qp: &Qp, wc: &Wc) -> anyhow::Result<()> {
        let slot = self.slot(wc)?;
        let at = slot * self.slot_len;
        qp.post_send(if wc.opcode == WcOpcode::RecvImmediate {
            let op = SendOp::Immediate { value: wc.value, solicited: false };
            SendWr::new(echo_id(slot), op, [])
        } else {
            let octets = self.memory.sge(at..at + wc.byte_len as usize);
            SendWr::send(echo_id(slot), [octets])
        })?;
        Ok(())
    }

    pub(crate) fn echoed(&self, qp: &Qp, wc: &Wc) -> anyhow::Result<()> {
        let slot = usize::try_from(wc.wr_id.0 - ECHO_SENT)?;
        self.post_slot(qp, slot)
    }

    fn slot(&self, wc: &Wc) -> anyhow::Result<usize> {
        let slot = usize::try_from(wc.wr_id.0)?;
        if slot >= self.slots {
            bail!("a completion of no receive buffer");
        }
        Ok(slot)
    }

    fn post_slot(&self, qp: &Qp, slot: usize) -> anyhow::Result<()> {
        let at = slot * self.slot_len;
        let buffer = self.memory.sge(at..at + self.slot_len);
        qp.post_recv(RecvWr::new(WrId(slot as u64), [buffer]))?;
        Ok(())
    }
}

pub(crate) const CONTROL_SENT: WrId = WrId(1 << 32);
/// The number of the buffer is added.
const ECHO_SENT: u64 = 1 << 33;

const fn echo_id(slot: usize) -> WrId {
    WrId(ECHO_SENT + slot as u64)
}

const RECEIVE_BUFFERS: &str = "memory for receive buffers (a smaller --size needs less)";

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use urnic::{ConnectOptions, ListenParams, Offer, QpConfig};

    use super::*;
    use crate::host::{Host, StackOptions};

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn message_slot_is_reused_only_after_its_message_was_sent() {
        let host = Host::open(&StackOptions::kernel(PATIENCE), Duration::ZERO).unwrap();
        let queue_pair = || {
            let cq = host.rnic.create_cq(64).unwrap();
            let (send_cq, recv_cq) = (cq.clone(), cq);
            let config =
                QpConfig { send_depth: 8, recv_depth: 8, ..QpConfig::with_cqs(send_cq, recv_cq) };
            host.pd.create_qp(config).unwrap()
        };
        let (qp, other) = (queue_pair(), queue_pair());
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = host.endpoint.listen(local, ListenParams::default()).unwrap();
        let connecting = host.endpoint.connect(listener.local(), &qp, &ConnectOptions::default());
        let request = listener.next_request(PATIENCE).unwrap().unwrap();
        let _accepted = request.accept(&other, &Offer::default()).unwrap();
        let _connection = connecting.unwrap().wait(PATIENCE).unwrap();
        let buffers = Buffers { receive: 4, payload_len: 0, control: 3 };
        let mut channel = Channel::new(&host.pd, &qp, buffers).unwrap();
        for _ in 0..3 {
            channel.send(&qp, &Control::Working).unwrap();
        }
        assert_eq!(channel.send(&qp, &Control::Working), Err(SendError::NotTaken));
        channel.sent();
        channel.send(&qp, &Control::Working).unwrap();
        assert_eq!(channel.send(&qp, &Control::Working), Err(SendError::NotTaken));
    }
}
