//! The receive queue as the engine sees it: buffers taken from the application, in order, until
//! a message has been delivered into them.

use std::collections::VecDeque;

use crate::ddp::DdpError;
use crate::ddp::untagged::UntaggedQueue;
use crate::types::{MsgOffset, Msn, Stag};
use crate::verbs::{QpShared, RecvWr, Wc, WcOpcode, WcStatus};

/// Buffers for Sends (queue number 0), oldest first, with the order of the messages that fill
/// them.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    posted: VecDeque<RecvWr>,
    order: UntaggedQueue,
    /// RFC 6581 §9.2: a ready-to-receive Send consumes message number 1 but no posted buffer.
    absorb_first: bool,
    failed: bool,
}

/// What a delivered message brings besides its payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Brings {
    pub(crate) invalidated: Option<Stag>,
    pub(crate) solicited: bool,
    pub(crate) immediate: Option<u64>,
}

impl ReceiveQueue {
    pub(crate) fn with_capacity(depth: usize, absorb_first: bool) -> Self {
        Self {
            posted: VecDeque::with_capacity(depth),
            order: UntaggedQueue::new(),
            absorb_first,
            failed: false,
        }
    }

    /// Copies a segment's payload into the buffer of its message, wherever that stands in the
    /// order.
    ///
    /// RFC 5041 §7.1: the buffer, then the offset, then the length are checked before placement.
    pub(crate) fn place<'p>(
        &mut self,
        qp: &QpShared,
        msn: Msn,
        mo: MsgOffset,
        len: usize,
        payload: impl Iterator<Item = &'p [u8]>,
    ) -> Result<(), DdpError> {
        let Some(index) = self.buffer_index(qp, msn)? else {
            return UntaggedQueue::check_extent(mo, len, 0);
        };
        let wr = &self.posted[index];
        UntaggedQueue::check_extent(mo, len, wr.len())?;
        scatter(wr, mo.0 as usize, payload);
        Ok(())
    }

    /// The posted buffer of message `msn`; `None` for a message that needs none.
    fn buffer_index(&mut self, qp: &QpShared, msn: Msn) -> Result<Option<usize>, DdpError> {
        let absorbed = usize::from(self.absorb_first);
        loop {
            match self.order.buffer_index(msn, self.posted.len() + absorbed) {
                Ok(0) if self.absorb_first => return Ok(None),
                Ok(index) => return Ok(Some(index - absorbed)),
                Err(error) => match qp.rq.pop() {
                    Some(wr) => self.posted.push_back(wr),
                    None => return Err(error),
                },
            }
        }
    }

    /// Delivers a segment in stream order; raises the completion when it ends its message.
    /// `Ok(false)` means that the completion was lost.
    pub(crate) fn deliver(
        &mut self,
        qp: &QpShared,
        msn: Msn,
        mo: MsgOffset,
        len: usize,
        last: bool,
        brings: impl FnOnce() -> Brings,
    ) -> Result<bool, DdpError> {
        let Some(message) = self.order.deliver(msn, mo, len, last)? else { return Ok(true) };
        if self.absorb_first {
            self.absorb_first = false;
            return Ok(true);
        }
        let wr = self.posted.pop_front().expect("a placed message has its buffer");
        let Brings { invalidated, solicited, immediate } = brings();
        let kept = qp.recv_cq.push(Wc {
            wr_id: wr.id,
            status: WcStatus::Success,
            opcode: if immediate.is_some() { WcOpcode::RecvImmediate } else { WcOpcode::Recv },
            qp: qp.number,
            byte_len: if immediate.is_some() { 8 } else { message.len },
            invalidated,
            solicited,
            value: immediate.unwrap_or(0),
        });
        qp.recv_completed();
        Ok(kept)
    }

    /// Raises an error completion for every buffer: `first` for the oldest, flushed for the rest.
    pub(crate) fn fail(&mut self, qp: &QpShared, first: WcStatus) {
        // More may have been posted since the first time.
        let mut status = if self.failed { WcStatus::WrFlushErr } else { first };
        self.failed = true;
        while let Some(wr) = self.posted.pop_front() {
            qp.fail_receive(&wr, status);
            status = WcStatus::WrFlushErr;
        }
        qp.flush_posted_receives(status);
    }
}

/// Copies `payload` into the scatter list of `wr` from octet `skip` on. The extent was checked.
fn scatter<'p>(wr: &RecvWr, skip: usize, payload: impl Iterator<Item = &'p [u8]>) {
    let mut element = 0;
    let mut at = skip;
    for mut chunk in payload {
        while !chunk.is_empty() {
            let sge = &wr.sges[element];
            let room = sge.len as usize;
            if at >= room {
                at -= room;
                element += 1;
                continue;
            }
            let take = chunk.len().min(room - at);
            let run = sge.region.writable(sge.offset + at, take);
            run.expect("a scatter element was checked against its region when made")
                .copy_in(0, &chunk[..take]);
            chunk = &chunk[take..];
            at += take;
        }
    }
}
