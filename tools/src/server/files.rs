//! Files at the server. The peer transfers bytes to and from memory of the session; one thread for
//! each transfer copies and checks them between there and the disk.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::task::Waker;

use anyhow::{Context, anyhow, bail, ensure};
use urnic::{Access, Mr, Qp, RemoteBuffer};
use urnic_engine::time::Instant;

use crate::channel::Channel;
use crate::host::Host;
use crate::protocol::Control;
use crate::server::accounts::Place as PeerPlace;
use crate::server::control_thread::{ControlThread, Desk};
use crate::server::registration::register;
use crate::transfer::{Hashing, Partial, Place, Room, Staging, chunk_crc, chunk_range};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer<'a> {
    pub(crate) host: &'a Host,
    pub(crate) qp: &'a Qp,
    pub(crate) places: u32,
    /// Place of its peer among the peers.
    pub(crate) place: &'a Arc<PeerPlace>,
    pub(crate) waker: &'a Waker,
}

#[derive(Debug)]
pub(crate) struct Put {
    /// `None` when all has been written.
    memory: Option<Mr>,
    places: u32,
    len: u64,
    /// Bytes that the peer claims to have written.
    claimed: u64,
    present: u64,
    control_thread: ControlThread,
    is_committed: bool,
}

impl Put {
    pub(crate) fn new(
        transfer: Transfer<'_>,
        place: Place,
        len: u64,
        force: bool,
        room: Arc<Room>,
    ) -> anyhow::Result<Self> {
        let Transfer { host, qp, places, place: of_peer, waker } = transfer;
        let partial = Partial::open(place, len, force, room)?;
        let staging = Staging::new(len, places, |len| host.memory(len)).context("no memory")?;
        let memory = register(host, qp, staging.region(), Access::REMOTE_WRITE)?;
        let present = partial.chunks_present();
        let control_thread =
            ControlThread::start(of_peer, waker, move |desk| take_in(partial, &staging, desk))?;
        Ok(Self {
            memory: Some(memory),
            places,
            len,
            claimed: 0,
            present,
            control_thread,
            is_committed: false,
        })
    }

    pub(crate) fn welcome(&self) -> (RemoteBuffer, u64) {
        let memory = self.memory.as_ref().expect("nothing has been committed yet");
        (memory.remote(0), self.present)
    }

    /// Handles a control message that came after `placed` bytes.
    pub(crate) fn handle_control(
        &mut self,
        message: Control,
        placed: u64,
    ) -> anyhow::Result<Option<Control>> {
        if let Control::Verify { place, index, .. } = message {
            ensure!(place < self.places, "the peer named place {place} of {}", self.places);
            // Memory that was not written is zeros. A peer could fill the disk with them at the
            // price of a message for each chunk.
            let chunk = chunk_range(index, self.len).context("there is no such chunk")?;
            self.claimed = self.claimed.saturating_add(chunk.end - chunk.start);
            ensure!(self.claimed <= placed, "the peer named bytes that it has not written");
        }
        match message {
            Control::Check { .. } | Control::Verify { .. } if self.memory.is_some() => {}
            // From here on the peer cannot change the bytes that are hashed.
            Control::Commit { .. } if self.memory.take().is_some() => {}
            other => return Err(anyhow!("the peer sent {other:?}, which is not valid here")),
        }
        self.control_thread.ask(message)?;
        Ok(None)
    }

    pub(crate) fn turn(&mut self, qp: &Qp, channel: &mut Channel) -> anyhow::Result<()> {
        while let Some(answer) = self.control_thread.turn(qp, channel)? {
            match answer {
                Control::Committed => self.is_committed = true,
                Control::NotVerified => bail!("what arrived is not the file that was sent"),
                Control::Failed(reason) => bail!("{reason}"),
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) const fn is_committed(&self) -> bool {
        self.is_committed
    }

    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the peer was sent the reason of a failure, after which no answers follow.
    pub(crate) const fn has_last_word(&self) -> bool {
        self.control_thread.has_last_word()
    }

    pub(crate) const fn is_working(&self) -> bool {
        self.control_thread.is_working()
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.control_thread.due()
    }
}

fn take_in(mut partial: Partial, staging: &Staging, desk: &Desk) {
    while let Some(question) = desk.next() {
        let answer = match question {
            Control::Check { index, crc } => partial
                .has(index, crc)
                .context("reading the file")
                .map(|is_good| Control::Chunk { index, is_good }),
            Control::Verify { index, crc, place } => partial
                .store(staging, place, index, crc)
                .map(|is_good| Control::Chunk { index, is_good }),
            Control::Commit { sha256 } => {
                desk.give(match commit(partial, sha256, desk) {
                    Ok(true) => Control::Committed,
                    Ok(false) => Control::NotVerified,
                    Err(error) => Control::Failed(format!("{error:#}")),
                });
                return;
            }
            _ => return,
        };
        let answer = answer.unwrap_or_else(|error| Control::Failed(format!("{error:#}")));
        let is_last = matches!(answer, Control::Failed(_));
        desk.give(answer);
        if is_last {
            return;
        }
    }
}

/// Moves the file to its final name; returns `false` if it is not the file that was sent.
fn commit(mut partial: Partial, sha256: [u8; 32], desk: &Desk) -> anyhow::Result<bool> {
    // Missing bytes would be hashed as zeros, for as long as the peer likes.
    ensure!(partial.is_whole(), "not all of the file has arrived");
    let hashing = Hashing::new(partial.len());
    let found = hashing.finish(partial.file(), || desk.is_wanted()).context("hashing the file")?;
    let found = found.context("the peer went away")?;
    if found != sha256 {
        partial.forget().context("removing the incomplete file")?;
        return Ok(false);
    }
    partial.commit()?;
    Ok(true)
}

#[derive(Debug)]
pub(crate) struct Get {
    memory: Mr,
    places: u32,
    len: u64,
    control_thread: ControlThread,
}

impl Get {
    pub(crate) fn new(transfer: Transfer<'_>, file: File, len: u64) -> anyhow::Result<Self> {
        let Transfer { host, qp, places, place, waker } = transfer;
        let staging = Staging::new(len, places, |len| host.memory(len)).context("no memory")?;
        let memory = register(host, qp, staging.region(), Access::REMOTE_READ)?;
        let control_thread = ControlThread::start(place, waker, move |desk| {
            let ended = give_out(&file, &staging, len, desk);
            if let Err(error) = ended {
                desk.give(Control::Failed(format!("reading the file: {error}")));
            }
        })?;
        Ok(Self { memory, places, len, control_thread })
    }

    pub(crate) fn welcome(&self) -> (RemoteBuffer, u64) {
        (self.memory.remote(0), self.len)
    }

    pub(crate) fn handle_control(&mut self, message: Control) -> anyhow::Result<Option<Control>> {
        match message {
            Control::Fetch { place, .. } if place >= self.places => {
                bail!("the peer named place {place} of {}", self.places);
            }
            Control::DigestRequest { .. } | Control::Fetch { .. } | Control::ShaRequest => {
                self.control_thread.ask(message)?;
            }
            other => return Err(anyhow!("the peer sent {other:?}, which is not valid here")),
        }
        Ok(None)
    }

    pub(crate) fn turn(&mut self, qp: &Qp, channel: &mut Channel) -> anyhow::Result<()> {
        while let Some(answer) = self.control_thread.turn(qp, channel)? {
            if let Control::Failed(reason) = answer {
                bail!("{reason}");
            }
        }
        Ok(())
    }

    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// See [`Put::has_last_word`].
    pub(crate) const fn has_last_word(&self) -> bool {
        self.control_thread.has_last_word()
    }

    pub(crate) const fn is_working(&self) -> bool {
        self.control_thread.is_working()
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.control_thread.due()
    }
}

/// Thread of a file that the peer receives: hashes it while no question is open.
fn give_out(file: &File, staging: &Staging, len: u64, desk: &Desk) -> io::Result<()> {
    let mut hashing = Hashing::new(len);
    let mut whole = None;
    loop {
        let question = match whole {
            Some(_) => desk.next(),
            None => match desk.try_next() {
                Ok(question) => Some(question),
                Err(TryRecvError::Disconnected) => None,
                Err(TryRecvError::Empty) => {
                    whole = hashing.step(file)?;
                    continue;
                }
            },
        };
        match question {
            Some(Control::DigestRequest { index }) => {
                let crc = chunk_crc(file, index, len)?;
                desk.give(Control::Digest { index, crc });
            }
            Some(Control::Fetch { index, place }) => {
                let crc = staging.load(file, index, place)?;
                desk.give(Control::Digest { index, crc });
            }
            Some(Control::ShaRequest) => {
                while whole.is_none() && desk.is_wanted() {
                    whole = hashing.step(file)?;
                }
                let Some(sha256) = whole else { return Ok(()) };
                desk.give(Control::Sha { sha256 });
            }
            _ => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::StackOptions;
    use crate::protocol::CHUNK_LEN;
    use crate::server::accounts::Accounts;
    use crate::server::control_thread::tests::desk_of_one_that_left;
    use crate::server::places::{Share, Source};
    use crate::transfer::unnamed_file;
    use std::time::Duration;
    use urnic::QpConfig;

    #[test]
    fn only_octets_that_were_written_make_a_chunk() {
        let host =
            Host::open(&StackOptions::kernel(Duration::from_secs(1)), Duration::ZERO).unwrap();
        let cq = host.rnic.create_cq(4).unwrap();
        let (send_cq, recv_cq) = (cq.clone(), cq);
        let config =
            QpConfig { send_depth: 1, recv_depth: 1, ..QpConfig::with_cqs(send_cq, recv_cq) };
        let qp = host.pd.create_qp(config).unwrap();
        let mut accounts = Accounts::new(crate::server::tests::limits().places);
        let name = format!("urnic-claimed-{}", std::process::id());
        let put = |len, accounts: &mut Accounts| {
            let source = Source::of(([127, 0, 0, 1], 1).into());
            let grant = accounts.take(Share { source, memory: 0 }).unwrap();
            let (place, waker) = (grant.place().unwrap(), Waker::noop());
            let transfer = Transfer { host: &host, qp: &qp, places: 2, place, waker };
            let place = Place::at(&std::env::temp_dir().join(&name)).unwrap();
            Put::new(transfer, place, len, true, Arc::new(Room::new(None, 0))).unwrap()
        };
        let verify = |index, place| Control::Verify { index, crc: 0, place };
        let mut whole = put(2 * CHUNK_LEN, &mut accounts);
        whole.handle_control(verify(0, 0), CHUNK_LEN).unwrap();
        whole.handle_control(verify(1, 1), 2 * CHUNK_LEN).unwrap();
        assert!(whole.handle_control(verify(0, 0), 2 * CHUNK_LEN).is_err(), "once more");
        drop(whole);
        while accounts.taken().0.peers > 0 {}
        let mut bad = put(2 * CHUNK_LEN, &mut accounts);
        assert!(bad.handle_control(verify(0, 0), CHUNK_LEN - 1).is_err(), "a byte is missing");
        assert!(bad.handle_control(verify(2, 0), u64::MAX).is_err(), "there is no such chunk");
        assert!(bad.handle_control(verify(0, 2), u64::MAX).is_err(), "there is no such place");
    }

    /// Length of a file that takes hours to hash, in bytes.
    const HUGE: u64 = 1 << 43;

    #[test]
    fn unneeded_hash_is_not_finished() {
        let file = unnamed_file().unwrap();
        file.set_len(HUGE).unwrap();
        let staging = Staging::new(0, 1, urnic::Region::anonymous).unwrap();
        // No chunk is read for it either.
        let chunks = (0..16).map(|index| Control::Fetch { index, place: 0 }).collect();
        for questions in [vec![], vec![Control::ShaRequest], chunks] {
            let (desk, given) = desk_of_one_that_left(questions);
            give_out(&file, &staging, HUGE, &desk).unwrap();
            drop(desk);
            assert_eq!(given.recv().ok(), None, "no answer");
        }
    }

    #[test]
    fn file_of_a_vanished_sender_is_not_committed() {
        let room = || Arc::new(Room::new(None, 0));
        let (desk, _given) = desk_of_one_that_left(vec![]);
        // An empty file: there is nothing to hash, and it is still not wanted.
        let partial = Partial::unnamed(0, room()).unwrap();
        let refused = commit(partial, [0; 32], &desk).unwrap_err();
        assert!(refused.to_string().contains("went away"), "{refused}");
        let partial = Partial::unnamed(1, room()).unwrap();
        let refused = commit(partial, [0; 32], &desk).unwrap_err();
        assert!(refused.to_string().contains("not all"), "{refused}");
    }
}
