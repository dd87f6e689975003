//! What a session does at the server, by its kind.

use anyhow::{Context, anyhow, bail, ensure};
use urnic::mem::{Access, Region};
use urnic::types::{Stag, TaggedOffset, WrId};
use urnic::verbs::{Mr, MrPart, Qp, RemoteBuffer, SendWr, Wc};

use crate::channel::Channel;
use crate::host::Host;
use crate::protocol::{Control, Hello, Session, Welcome};
use crate::server::Limits;
use crate::server::files::{Get, Put};
use crate::server::peer::{PING_PONG_SLOTS, check_depth};

/// A session's own part.
#[derive(Debug)]
pub(crate) enum Role {
    /// The peer works on the region.
    Memory { _region: Mr },
    /// Payload goes back.
    Echo,
    /// Payload is dropped; how much since credits were last given.
    Sink { taken: u32, batch: u32 },
    /// Writes are answered by writes.
    PingPong(PingPong),
    /// A file comes.
    Put(Put),
    /// A file goes.
    Get(Get),
}

/// Requests and buffers beside those for control messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    pub(crate) send: usize,
    pub(crate) recv: usize,
    pub(crate) recv_len: usize,
}

/// What the session needs.
///
/// # Errors
/// When that is more than a peer gets.
pub(crate) fn needs(hello: &Hello, limits: &Limits) -> anyhow::Result<Needs> {
    let recv = check_depth(hello, limits.memory_max)?;
    let send = match hello.session {
        Session::Echo => recv,
        Session::PingPong(_) => PING_PONG_DEPTH,
        _ => 0,
    };
    let recv_len = if recv == 0 { 0 } else { usize::try_from(hello.len)? };
    Ok(Needs { send: send.max(1), recv, recv_len })
}

impl Role {
    pub(crate) fn new(
        host: &Host,
        limits: &Limits,
        qp: &Qp,
        hello: &Hello,
        needs: Needs,
    ) -> anyhow::Result<(Self, Welcome)> {
        let nothing = RemoteBuffer { stag: Stag(0), to: TaggedOffset(0) };
        let credits = u32::try_from(needs.recv)?;
        let mut welcome = Welcome { region: nothing, len: hello.len, credits, chunks_present: 0 };
        let role = match &hello.session {
            Session::Memory => {
                let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
                let region = anonymous(host, qp, hello.len, access)?;
                welcome.region = region.remote(0);
                Self::Memory { _region: region }
            }
            Session::Echo => Self::Echo,
            Session::Sink => {
                ensure!(credits > 0, "sending needs a depth of 1 at least");
                Self::Sink { taken: 0, batch: credits.div_ceil(2) }
            }
            Session::PingPong(remote) => {
                let role = PingPong::new(host, qp, hello.len, *remote)?;
                welcome.region = role.target.remote(0);
                Self::PingPong(role)
            }
            Session::Put { name, force } => {
                let folder = folder(limits)?;
                ensure!(
                    hello.len <= limits.file_max,
                    "a file of {} octets is larger than the {} that are taken here (--file-size)",
                    hello.len,
                    limits.file_max
                );
                let role = Put::new(host, qp, folder.place(name)?, hello.len, *force)?;
                (welcome.region, welcome.chunks_present) = role.welcome();
                Self::Put(role)
            }
            Session::Get { name } => {
                let role = Get::new(host, qp, folder(limits)?.open_file(name)?)?;
                (welcome.region, welcome.len) = role.welcome();
                Self::Get(role)
            }
        };
        Ok((role, welcome))
    }

    pub(crate) fn handle_payload(
        &mut self,
        qp: &Qp,
        channel: &mut Channel,
        wc: &Wc,
    ) -> anyhow::Result<()> {
        match self {
            Self::Echo => channel.echo(qp, wc),
            Self::Sink { taken, batch } => {
                channel.repost(qp, wc)?;
                *taken += 1;
                if *taken == *batch {
                    channel.send(qp, &Control::Credit(*batch))?;
                    *taken = 0;
                }
                Ok(())
            }
            _ => bail!("the peer sent payload in a session that has none"),
        }
    }

    /// A payload message of this end has been sent.
    pub(crate) fn handle_sent(&self, qp: &Qp, channel: &Channel, wc: &Wc) -> anyhow::Result<()> {
        match self {
            Self::Echo => channel.echoed(qp, wc),
            _ => Ok(()),
        }
    }

    pub(crate) fn handle_control(
        &mut self,
        qp: &Qp,
        channel: &mut Channel,
        message: Control,
    ) -> anyhow::Result<()> {
        let answer = match self {
            Self::Put(put) => put.handle_control(message)?,
            Self::Get(get) => get.handle_control(message)?,
            _ => return Err(anyhow!("the peer said {message:?}, which makes no sense here")),
        };
        if let Some(answer) = answer {
            channel.send(qp, &answer)?;
        }
        Ok(())
    }

    /// Does what nobody asked for just now.
    #[inline]
    pub(crate) fn turn(&mut self, qp: &Qp, channel: &mut Channel) -> anyhow::Result<()> {
        match self {
            Self::PingPong(role) => role.turn(qp),
            Self::Put(role) => role.turn(qp, channel),
            Self::Get(role) => role.turn(qp, channel),
            _ => Ok(()),
        }
    }

    /// What is missing, to follow "the peer went away".
    pub(crate) fn unfinished(&self) -> Option<&'static str> {
        match self {
            Self::Put(put) if !put.is_committed() => {
                Some("before its file was whole; what has arrived is kept for the next attempt")
            }
            _ => None,
        }
    }

    /// Whether it is this end that the other waits for.
    pub(crate) const fn is_working(&self) -> bool {
        match self {
            Self::Put(put) => put.is_working(),
            Self::Get(get) => get.is_working(),
            _ => false,
        }
    }
}

fn folder(limits: &Limits) -> anyhow::Result<&crate::transfer::Folder> {
    limits.folder.as_ref().context("no files are served here: 'urnic serve' was not given --dir")
}

/// Fresh memory that only this peer reaches.
fn anonymous(host: &Host, qp: &Qp, len: u64, access: Access) -> anyhow::Result<Mr> {
    let len = usize::try_from(len)?;
    let region = Region::huge(len).context("no memory")?;
    register(host, qp, region, access)
}

/// Opens all of a region to this peer only.
pub(crate) fn register(
    host: &Host,
    qp: &Qp,
    region: std::sync::Arc<Region>,
    access: Access,
) -> anyhow::Result<Mr> {
    let range = 0..region.len();
    let part = MrPart { range, base: TaggedOffset(0), access, only: Some(qp.number()) };
    host.pd.reg_part(region, part).context("no room for another registration")
}

/// Answers each change of the last octet of its memory by a Write of the same octet.
#[derive(Debug)]
pub(crate) struct PingPong {
    target: Mr,
    source: Mr,
    remote: RemoteBuffer,
    len: usize,
    /// The octet that comes next.
    expected: u8,
}

impl PingPong {
    fn new(host: &Host, qp: &Qp, len: u64, remote: RemoteBuffer) -> anyhow::Result<Self> {
        ensure!(len > 0, "ping-pong needs a message of 1 octet at least");
        const { assert!(PING_PONG_SLOTS == 2) };
        let target = anonymous(host, qp, len, Access::REMOTE_WRITE)?;
        let source = anonymous(host, qp, len, Access::empty())?;
        Ok(Self { target, source, remote, len: usize::try_from(len)?, expected: 1 })
    }

    fn turn(&mut self, qp: &Qp) -> anyhow::Result<()> {
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

/// Writes under way: one, and those whose completion has not been seen.
const PING_PONG_DEPTH: usize = 64;
