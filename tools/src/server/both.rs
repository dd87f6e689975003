//! The server's half of a session in which both ends write, or read, at once.

use anyhow::{bail, ensure};
use urnic::{Access, Mr, Qp, RemoteBuffer, SendWr, WrId};

use crate::channel::Channel;
use crate::host::Host;
use crate::protocol::Control;
use crate::server::registration::anonymous;

/// Keeps messages in flight from the client's [`Control::Start`] to its [`Control::Stop`].
#[derive(Debug)]
pub(crate) struct Both {
    pub(super) target: Mr,
    own: Mr,
    remote: RemoteBuffer,
    is_read: bool,
    depth: u32,
    open: u32,
    done: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    /// The client waits for the last message.
    Stopping,
    Stopped,
}

impl Both {
    pub(super) fn new(
        host: &Host,
        qp: &Qp,
        len: u64,
        depth: u32,
        remote: RemoteBuffer,
        is_read: bool,
    ) -> anyhow::Result<Self> {
        let target = anonymous(host, qp, len, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
        let own = anonymous(host, qp, len, Access::LOCAL_WRITE)?;
        let (open, done, stage) = (0, 0, Stage::Waiting);
        Ok(Self { target, own, remote, is_read, depth, open, done, stage })
    }

    pub(super) fn handle_control(&mut self, message: &Control) -> anyhow::Result<()> {
        self.stage = match (message, self.stage) {
            (Control::Start, Stage::Waiting) => Stage::Running,
            (Control::Stop, Stage::Waiting | Stage::Running) => Stage::Stopping,
            _ => bail!("the peer sent {message:?}, which is not valid here"),
        };
        Ok(())
    }

    pub(super) fn handle_sent(&mut self) -> anyhow::Result<()> {
        ensure!(self.open > 0, "a completion of nothing");
        self.open -= 1;
        self.done += 1;
        Ok(())
    }

    #[inline]
    pub(super) fn turn(&mut self, qp: &Qp, channel: &mut Channel) -> anyhow::Result<()> {
        if self.stage == Stage::Running {
            while self.open < self.depth {
                let octets = self.own.sge(0..self.own.len());
                qp.post_send(if self.is_read {
                    SendWr::read(WrId(0), self.remote, octets)
                } else {
                    SendWr::write(WrId(0), self.remote, [octets])
                })?;
                self.open += 1;
            }
        }
        if self.stage == Stage::Stopping && self.open == 0 {
            channel.send(qp, &Control::Stopped { messages: self.done })?;
            self.stage = Stage::Stopped;
        }
        Ok(())
    }
}
