//! The end of a ping-pong that answers.

use urnic::{Access, Mr, Qp, RemoteBuffer, SendWr, WrId};

use crate::host::Host;
use crate::server::registration::anonymous;

/// Answers each change of the last octet of its memory by a Write of the same octet.
#[derive(Debug)]
pub(crate) struct PingPong {
    pub(super) target: Mr,
    source: Mr,
    remote: RemoteBuffer,
    len: usize,
    /// The octet that comes next.
    expected: u8,
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
        Ok(Self { target, source, remote, len: usize::try_from(len)?, expected: 1 })
    }

    #[inline]
    pub(super) fn turn(&mut self, qp: &Qp) -> anyhow::Result<()> {
        let mut last = [0];
        self.target.copy_out(self.len - 1, &mut last);
        if last[0] != self.expected {
            return Ok(());
        }
        // The other end has seen the octet before, so the last Write has been sent, and received.
        self.source.copy_in(self.len - 1, &last);
        qp.post_send(SendWr::write(WrId(0), self.remote, [self.source.sge(0..self.len)]))?;
        self.expected = self.expected.wrapping_add(1);
        Ok(())
    }
}
