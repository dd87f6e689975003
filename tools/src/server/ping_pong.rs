//! The answering end of a ping-pong.

use anyhow::ensure;
use urnic::{Access, Mr, Qp, RemoteBuffer, SendWr, WrId};

use crate::host::Host;
use crate::server::registration::anonymous;
use crate::server::resources::PING_PONG_DEPTH;

/// Answers each change of the last byte of its memory by a Write of the same byte.
#[derive(Debug)]
pub(crate) struct PingPong {
    pub(super) target: Mr,
    source: Mr,
    remote: RemoteBuffer,
    len: usize,
    expected: u8,
    /// Writes whose completion has not been seen.
    open: usize,
}

impl PingPong {
    pub(super) fn new(
        host: &Host,
        qp: &Qp,
        len: u64,
        remote: RemoteBuffer,
    ) -> anyhow::Result<Self> {
        let target = anonymous(host, qp, len, Access::REMOTE_WRITE)?;
        let source = anonymous(host, qp, len, Access::empty())?;
        Ok(Self { target, source, remote, len: usize::try_from(len)?, expected: 1, open: 0 })
    }

    #[inline]
    pub(super) fn turn(&mut self, qp: &Qp) -> anyhow::Result<()> {
        let mut last = [0];
        self.target.copy_out(self.len - 1, &mut last);
        // A peer that answers before it has been answered is too fast: its changes are ignored.
        if last[0] != self.expected || self.open == PING_PONG_DEPTH {
            return Ok(());
        }
        // The other end has seen the previous byte, so the last Write has been sent and received.
        self.source.copy_in(self.len - 1, &last);
        qp.post_send(SendWr::write(WrId(0), self.remote, [self.source.sge(0..self.len)]))?;
        self.expected = self.expected.wrapping_add(1);
        self.open += 1;
        Ok(())
    }

    pub(super) fn handle_sent(&mut self) -> anyhow::Result<()> {
        ensure!(self.open > 0, "a completion of nothing");
        self.open -= 1;
        Ok(())
    }
}
