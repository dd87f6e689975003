//! The part of a session that depends on its kind.

use anyhow::{anyhow, bail, ensure};
use urnic::{Access, Mr, Qp, RemoteBuffer, Stag, TaggedOffset, Wc};
use urnic_engine::time::Instant;

use crate::channel::Channel;
use crate::protocol::{Control, Hello, Session, Welcome};
use crate::server::Limits;
use crate::server::both::Both;
use crate::server::files::{Get, Put, Transfer};
use crate::server::ping_pong::PingPong;
use crate::server::registration::anonymous;
use crate::server::resources::{SessionResources, folder};
use crate::transfer::Place;

#[derive(Debug)]
pub(crate) enum Role {
    /// The peer reads and writes the region.
    Memory { _region: Mr },
    /// The server returns payload.
    Echo,
    /// The server drops payload; `taken` messages have arrived since credits were last given.
    Sink { taken: u32, batch: u32 },
    /// The server answers Writes by Writes.
    PingPong(PingPong),
    /// Both ends write, or read.
    Both(Both),
    /// The peer sends a file.
    Put(Put),
    /// The peer receives a file.
    Get(Get),
}

impl Role {
    pub(crate) fn new(
        transfer: Transfer<'_>,
        limits: &Limits,
        hello: &Hello,
        resources: SessionResources,
    ) -> anyhow::Result<(Self, Welcome)> {
        let Transfer { host, qp, .. } = transfer;
        let nothing = RemoteBuffer { stag: Stag(0), to: TaggedOffset(0) };
        let credits = u32::try_from(resources.receive)?;
        let idle_ms = u32::try_from(host.options.timeout.as_millis()).unwrap_or(u32::MAX);
        let mut welcome =
            Welcome { region: nothing, len: hello.len, credits, chunks_present: 0, idle_ms };
        let role = match (&hello.session, resources.file) {
            (Session::Memory, _) => {
                let access = Access::FOR_ATOMIC;
                let region = anonymous(host, qp, hello.len, access)?;
                welcome.region = region.remote(0);
                Self::Memory { _region: region }
            }
            (Session::Echo, _) => Self::Echo,
            (Session::Sink, _) => Self::Sink { taken: 0, batch: credits.div_ceil(2) },
            (Session::PingPong(remote), _) => {
                let role = PingPong::new(host, qp, hello.len, *remote)?;
                welcome.region = role.target.remote(0);
                Self::PingPong(role)
            }
            (Session::Both { remote, is_read }, _) => {
                let role = Both::new(host, qp, hello.len, hello.depth, *remote, *is_read)?;
                welcome.region = role.target.remote(0);
                Self::Both(role)
            }
            (Session::Put { name, force }, _) => {
                let place = place_to_write(limits, name, hello.len, *force)?;
                let room = std::sync::Arc::clone(&limits.room);
                let role = Put::new(transfer, place, hello.len, *force, room)?;
                (welcome.region, welcome.chunks_present) = role.welcome();
                welcome.credits = transfer.places;
                Self::Put(role)
            }
            (Session::Get { .. }, Some((file, len))) => {
                let role = Get::new(transfer, file, len)?;
                (welcome.region, welcome.len) = role.welcome();
                welcome.credits = transfer.places;
                Self::Get(role)
            }
            (Session::Get { .. }, None) => bail!("there is no such file"),
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

    pub(crate) fn handle_sent(
        &mut self,
        qp: &Qp,
        channel: &Channel,
        wc: &Wc,
    ) -> anyhow::Result<()> {
        match self {
            Self::Echo => channel.echoed(qp, wc),
            Self::Both(both) => both.handle_sent(),
            Self::PingPong(ping_pong) => ping_pong.handle_sent(),
            _ => Ok(()),
        }
    }

    /// `placed` is the number of bytes placed before the message, where that matters.
    pub(crate) fn handle_control(
        &mut self,
        qp: &Qp,
        channel: &mut Channel,
        message: Control,
        placed: u64,
    ) -> anyhow::Result<()> {
        let answer = match self {
            Self::Put(put) => put.handle_control(message, placed)?,
            Self::Get(get) => get.handle_control(message)?,
            Self::Both(both) => {
                both.handle_control(&message)?;
                None
            }
            _ => return Err(anyhow!("the peer sent {message:?}, which is not valid here")),
        };
        if let Some(answer) = answer {
            channel.send(qp, &answer)?;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn turn(&mut self, qp: &Qp, channel: &mut Channel) -> anyhow::Result<()> {
        match self {
            Self::PingPong(role) => role.turn(qp),
            Self::Both(role) => role.turn(qp, channel),
            Self::Put(role) => role.turn(qp, channel),
            Self::Get(role) => role.turn(qp, channel),
            _ => Ok(()),
        }
    }

    /// Returns true if [`turn`](Self::turn) polls memory that the peer writes to, without an event.
    pub(crate) const fn watches_memory(&self) -> bool {
        matches!(self, Self::PingPong(_))
    }

    #[inline]
    pub(crate) fn due(&self) -> Option<Instant> {
        match self {
            Self::Put(put) => put.due(),
            Self::Get(get) => get.due(),
            _ => None,
        }
    }

    pub(crate) const fn has_last_word(&self) -> bool {
        match self {
            Self::Put(put) => put.has_last_word(),
            Self::Get(get) => get.has_last_word(),
            _ => false,
        }
    }

    pub(crate) const fn is_get(&self) -> bool {
        matches!(self, Self::Get(_))
    }

    /// 0 without a file.
    pub(crate) const fn file_len(&self) -> u64 {
        match self {
            Self::Put(put) if !put.is_committed() => put.len(),
            Self::Get(get) => get.len(),
            _ => 0,
        }
    }

    /// Describes the missing part, as a clause after "the peer went away".
    pub(crate) fn unfinished(&self) -> Option<&'static str> {
        match self {
            Self::Put(put) if !put.is_committed() => Some(
                "before its file was complete; the incomplete file is kept for the next attempt",
            ),
            _ => None,
        }
    }

    pub(crate) const fn is_working(&self) -> bool {
        match self {
            Self::Put(put) => put.is_working(),
            Self::Get(get) => get.is_working(),
            _ => false,
        }
    }
}

/// Fails if files are not accepted, not of that size, or not of that name.
fn place_to_write(limits: &Limits, name: &str, len: u64, force: bool) -> anyhow::Result<Place> {
    let folder = folder(limits)?;
    ensure!(
        len <= limits.file_max,
        "a file of {len} bytes is larger than the limit of {} (--file-size)",
        limits.file_max
    );
    let place = folder.place(name)?;
    if force && !limits.allow_overwrite {
        place.check_free(true)?;
        ensure!(
            !place.is_taken(),
            "{name} exists, and this server replaces no files unless 'urnic serve' is given \
             --allow-overwrite"
        );
    }
    Ok(place)
}
