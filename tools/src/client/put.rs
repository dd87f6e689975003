//! Sends a file to a server: RDMA Writes into the server's memory, chunk by chunk, each verified.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use urnic::{Access, Mr, RemoteBuffer, SendWr, TaggedOffset, WrId};
use urnic_engine::wire::crc32c::Crc32c;

use crate::client::pieces::{PIECES_MAX, Piece, Pieces};
use crate::client::{Client, Happened};
use crate::progress::Progress;
use crate::protocol::{CHECKS_MAX, Control, PLACES_MAX};
use crate::transfer::{Hashing, Staging, chunk_count, chunk_crc, chunk_range};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transferred {
    pub(crate) sha256: [u8; 32],
    /// Bytes that an earlier attempt has transferred.
    pub(crate) resumed: u64,
}

pub(crate) fn put(
    client: &mut Client<'_>,
    file: &File,
    len: u64,
    rate: Option<u64>,
    progress: &Progress,
) -> anyhow::Result<Transferred> {
    let hashing = hash_in_thread(file, len)?;
    client.check_places()?;
    let staging =
        Staging::new(len, client.welcome.credits.min(PLACES_MAX), |len| client.host.memory(len));
    let staging = staging.context("memory for the file")?;
    let memory = client.host.pd.reg_region(staging.region(), Access::empty());
    let source = memory.context("registering memory")?;
    let free = (0..client.welcome.credits.min(PLACES_MAX)).collect();
    let mut sender = Sender {
        client,
        file,
        staging,
        source,
        free,
        crossing: HashMap::new(),
        crc: Crc32c::new(),
        len,
        asked: HashSet::new(),
        verified: 0,
        progress,
    };
    let missing = sender.find_missing()?;
    let resumed = sender.verified;
    progress.resume(resumed);
    sender.send(Pieces::new(len, missing, rate))?;
    let sha256 = join(client, hashing)?;
    client.send(&Control::Commit { sha256 })?;
    match client.wait_control()? {
        Control::Committed => Ok(Transferred { sha256, resumed }),
        other => Err(client.unexpected(&other)),
    }
}

pub(super) fn hash_in_thread(
    file: &File,
    len: u64,
) -> anyhow::Result<JoinHandle<io::Result<[u8; 32]>>> {
    let file = file.try_clone().context("another handle of the file")?;
    thread::Builder::new()
        .name("urnic-hash".to_owned())
        .spawn(move || Hashing::new(len).finish(&file, || true).map(Option::unwrap_or_default))
        .context("starting a thread to hash the file")
}

/// Keeps the session alive meanwhile.
pub(super) fn join(
    client: &mut Client<'_>,
    hashing: JoinHandle<io::Result<[u8; 32]>>,
) -> anyhow::Result<[u8; 32]> {
    while !hashing.is_finished() {
        client.rest(JOIN_INTERVAL)?;
    }
    let hashed = hashing.join().map_err(|_| anyhow!("the thread that hashes has panicked"))?;
    hashed.context("hashing the file")
}

struct Sender<'a, 'h> {
    client: &'a mut Client<'h>,
    file: &'a File,
    staging: Staging,
    source: Mr,
    free: Vec<u32>,
    crossing: HashMap<u64, u32>,
    /// The sent part of the current chunk.
    crc: Crc32c,
    len: u64,
    asked: HashSet<u64>,
    verified: u64,
    progress: &'a Progress,
}

impl Sender<'_, '_> {
    /// The server has the others from an earlier attempt.
    fn find_missing(&mut self) -> anyhow::Result<VecDeque<u64>> {
        let chunks = 0..chunk_count(self.len);
        if self.client.welcome.chunks_present == 0 {
            return Ok(chunks.collect());
        }
        let mut missing = VecDeque::new();
        for index in chunks {
            if self.asked.len() == CHECKS_MAX {
                self.take_check(&mut missing)?;
            }
            let crc = self.crc(index)?;
            self.client.send(&Control::Check { index, crc })?;
            self.asked.insert(index);
        }
        while !self.asked.is_empty() {
            self.take_check(&mut missing)?;
        }
        Ok(missing)
    }

    fn take_check(&mut self, missing: &mut VecDeque<u64>) -> anyhow::Result<()> {
        match self.client.wait_control()? {
            Control::Chunk { index, is_good } => {
                answered(&mut self.asked, index)?;
                if is_good {
                    self.count(index);
                } else {
                    missing.push_back(index);
                }
                Ok(())
            }
            other => Err(self.client.unexpected(&other)),
        }
    }

    fn count(&mut self, index: u64) {
        let range = chunk_range(index, self.len).unwrap_or(0..0);
        self.verified += range.end - range.start;
        self.progress.set(self.verified);
    }

    fn crc(&self, index: u64) -> anyhow::Result<u32> {
        chunk_crc(self.file, index, self.len).context("reading the file")
    }

    fn send(&mut self, mut pieces: Pieces) -> anyhow::Result<()> {
        let mut open = 0;
        while open > 0 || !self.asked.is_empty() || !pieces.is_empty() {
            let pause = pieces.pause();
            while open < PIECES_MAX
                && (pieces.is_within_chunk() || !self.free.is_empty())
                && pieces.pause().is_zero()
            {
                let Some(piece) = pieces.next() else { break };
                self.write(&piece)?;
                open += 1;
            }
            match self.client.poll()? {
                Some(Happened::Done(_)) => open -= 1,
                Some(Happened::Control(Control::Chunk { index, is_good })) => {
                    answered(&mut self.asked, index)?;
                    let place = self.crossing.remove(&index);
                    self.free.push(place.context("a result of no chunk")?);
                    if is_good {
                        self.count(index);
                    } else {
                        pieces.again(index)?;
                        pieces.add(index);
                    }
                }
                Some(Happened::Control(other)) => return Err(self.client.unexpected(&other)),
                Some(Happened::Payload(_)) => return Err(self.client.unasked()),
                None if open == 0 && self.asked.is_empty() => self.client.pause(pause)?,
                None => self.client.idle(sleep_max(pause))?,
            }
        }
        Ok(())
    }

    fn write(&mut self, piece: &Piece) -> anyhow::Result<()> {
        let place = match self.crossing.get(&piece.chunk) {
            Some(place) => *place,
            None => {
                let place = self.free.pop().context("no place for a chunk")?;
                self.crossing.insert(piece.chunk, place);
                self.crc = Crc32c::new();
                place
            }
        };
        let at = self.staging.offset(place, &piece.range);
        self.staging
            .load_piece(self.file, place, piece.range.clone(), &mut self.crc)
            .context("reading the file")?;
        let region = self.client.welcome.region;
        let remote =
            RemoteBuffer { stag: region.stag, to: TaggedOffset(region.to.0.wrapping_add(at)) };
        let end = at + (piece.range.end - piece.range.start);
        let octets = usize::try_from(at)?..usize::try_from(end)?;
        self.client.post(SendWr::write(WrId(0), remote, [self.source.sge(octets)]))?;
        if piece.is_last {
            // The server receives this message after all of the chunk has been placed.
            let crc = std::mem::replace(&mut self.crc, Crc32c::new()).finish();
            self.client.send(&Control::Verify { index: piece.chunk, crc, place })?;
            self.asked.insert(piece.chunk);
        }
        Ok(())
    }
}

/// Fails if the answer was not requested, or is a second one.
pub(super) fn answered(asked: &mut HashSet<u64>, index: u64) -> anyhow::Result<()> {
    ensure!(asked.remove(&index), "the server sent an answer that was not requested");
    Ok(())
}

pub(super) fn sleep_max(pause: Duration) -> Duration {
    if pause.is_zero() { SLEEP_MAX } else { pause.min(SLEEP_MAX) }
}

const SLEEP_MAX: Duration = Duration::from_millis(100);
pub(super) const JOIN_INTERVAL: Duration = Duration::from_millis(5);
