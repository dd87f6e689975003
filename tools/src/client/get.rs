//! Fetches a file from a server: RDMA Reads into local memory, chunk by chunk, each verified.

use std::collections::{HashMap, HashSet, VecDeque};
use std::thread;

use anyhow::{Context, anyhow};
use urnic::{Access, Mr, MrPart, RemoteBuffer, SendWr, TaggedOffset, WrId};

use crate::client::pieces::{PIECES_MAX, Piece, Pieces};
use crate::client::put::{JOIN_INTERVAL, Transferred, answered, hash_in_thread, join, sleep_max};
use crate::client::{Client, Happened, Unverified};
use crate::progress::Progress;
use crate::protocol::{CHECKS_MAX, Control, PLACES_MAX};
use crate::transfer::{Partial, Staging, chunk_count, chunk_range};

pub(crate) fn get(
    client: &mut Client<'_>,
    partial: Partial,
    rate: Option<u64>,
    progress: &Progress,
) -> anyhow::Result<Transferred> {
    let len = partial.len();
    client.check_places()?;
    let places = client.welcome.credits.min(PLACES_MAX);
    let staging =
        Staging::new(len, places, |len| client.host.memory(len)).context("memory for the file")?;
    let part = MrPart {
        range: 0..staging.region().len(),
        base: TaggedOffset(0),
        access: Access::LOCAL_WRITE,
        only: Some(client.qp.number()),
    };
    let sink = client.host.pd.reg_part(staging.region(), part).context("registering memory")?;
    let mut receiver = Receiver {
        client,
        partial,
        staging,
        sink,
        free: (0..places).collect(),
        crossing: HashMap::new(),
        asked: HashSet::new(),
        verified: 0,
        progress,
    };
    let missing = receiver.find_missing()?;
    let resumed = receiver.verified;
    progress.resume(resumed);
    receiver.receive(missing, Pieces::new(len, VecDeque::new(), rate))?;
    let Receiver { client, mut partial, .. } = receiver;
    client.send(&Control::ShaRequest)?;
    let hashing = hash_in_thread(partial.file(), len)?;
    let expected = match client.wait_control()? {
        Control::Sha { sha256 } => sha256,
        other => return Err(client.unexpected(&other)),
    };
    let sha256 = join(client, hashing)?;
    if sha256 != expected {
        partial.forget().context("removing the incomplete file")?;
        return Err(Unverified.into());
    }
    commit(client, partial)?;
    Ok(Transferred { sha256, resumed })
}

/// Keeps the session alive meanwhile: a disk, or the reader of standard output, may be slow. A
/// session that ends now has done its work.
fn commit(client: &mut Client<'_>, partial: Partial) -> anyhow::Result<()> {
    let committing = thread::Builder::new()
        .name("urnic-commit".to_owned())
        .spawn(move || partial.commit())
        .context("starting the thread that renames the file")?;
    while !committing.is_finished() && client.rest(JOIN_INTERVAL).is_ok() {}
    committing.join().map_err(|_| anyhow!("the thread that names the file has panicked"))?
}

struct Receiver<'a, 'h> {
    client: &'a mut Client<'h>,
    partial: Partial,
    staging: Staging,
    sink: Mr,
    free: Vec<u32>,
    crossing: HashMap<u64, Crossing>,
    asked: HashSet<u64>,
    verified: u64,
    progress: &'a Progress,
}

#[derive(Clone, Copy, Debug)]
struct Crossing {
    place: u32,
    crc: u32,
    open: usize,
    more: bool,
}

impl Receiver<'_, '_> {
    fn find_missing(&mut self) -> anyhow::Result<VecDeque<u64>> {
        let chunks = 0..chunk_count(self.partial.len());
        if self.partial.chunks_present() == 0 {
            return Ok(chunks.collect());
        }
        let mut missing = VecDeque::new();
        for index in chunks {
            if self.asked.len() == CHECKS_MAX {
                self.take_check(&mut missing)?;
            }
            self.ask(index)?;
        }
        while !self.asked.is_empty() {
            self.take_check(&mut missing)?;
        }
        Ok(missing)
    }

    fn take_check(&mut self, missing: &mut VecDeque<u64>) -> anyhow::Result<()> {
        match self.client.wait_control()? {
            Control::Digest { index, crc } => {
                answered(&mut self.asked, index)?;
                if self.partial.has(index, crc).context("reading the file")? {
                    self.count(index);
                } else {
                    missing.push_back(index);
                }
                Ok(())
            }
            other => Err(self.client.unexpected(&other)),
        }
    }

    fn ask(&mut self, index: u64) -> anyhow::Result<()> {
        self.client.send(&Control::DigestRequest { index })?;
        self.asked.insert(index);
        Ok(())
    }

    fn count(&mut self, index: u64) {
        let range = chunk_range(index, self.partial.len()).unwrap_or(0..0);
        self.verified += range.end - range.start;
        self.progress.set(self.verified);
    }

    fn receive(&mut self, mut wanted: VecDeque<u64>, mut pieces: Pieces) -> anyhow::Result<()> {
        let mut open = 0;
        while !(wanted.is_empty() && self.crossing.is_empty()) {
            while let (Some(place), Some(index)) = (self.free.last(), wanted.front()) {
                let (place, index) = (*place, *index);
                self.client.send(&Control::Fetch { index, place })?;
                self.crossing.insert(index, Crossing { place, crc: 0, open: 0, more: true });
                self.asked.insert(index);
                let _taken = (self.free.pop(), wanted.pop_front());
            }
            let pause = pieces.pause();
            while open < PIECES_MAX && pieces.pause().is_zero() {
                let Some(piece) = pieces.next() else { break };
                self.read(&piece)?;
                open += 1;
            }
            match self.client.poll()? {
                Some(Happened::Done(WrId(index))) => {
                    open -= 1;
                    if !self.done(index)? {
                        pieces.again(index)?;
                        wanted.push_back(index);
                    }
                }
                Some(Happened::Control(Control::Digest { index, crc })) => {
                    answered(&mut self.asked, index)?;
                    self.crossing.get_mut(&index).context("a digest of no chunk")?.crc = crc;
                    pieces.add(index);
                }
                Some(Happened::Control(other)) => return Err(self.client.unexpected(&other)),
                Some(Happened::Payload(_)) => return Err(self.client.unasked()),
                None if open == 0 && self.asked.is_empty() => self.client.pause(pause)?,
                None => self.client.idle(sleep_max(pause))?,
            }
        }
        Ok(())
    }

    fn read(&mut self, piece: &Piece) -> anyhow::Result<()> {
        let crossing = self.crossing.get_mut(&piece.chunk).context("a piece of no chunk")?;
        crossing.open += 1;
        crossing.more = !piece.is_last;
        let at = self.staging.offset(crossing.place, &piece.range);
        let region = self.client.welcome.region;
        let remote =
            RemoteBuffer { stag: region.stag, to: TaggedOffset(region.to.0.wrapping_add(at)) };
        let end = at + (piece.range.end - piece.range.start);
        let octets = usize::try_from(at)?..usize::try_from(end)?;
        self.client.post(SendWr::read(WrId(piece.chunk), remote, self.sink.sge(octets)))
    }

    /// `false` if the chunk is complete and wrong.
    fn done(&mut self, index: u64) -> anyhow::Result<bool> {
        let crossing = self.crossing.get_mut(&index).context("a Read of no chunk")?;
        crossing.open -= 1;
        if crossing.open > 0 || crossing.more {
            return Ok(true);
        }
        let Crossing { place, crc, .. } = *crossing;
        self.crossing.remove(&index);
        self.free.push(place);
        let stored = self.partial.store(&self.staging, place, index, crc);
        let is_good = stored.context("writing the file")?;
        if is_good {
            self.count(index);
        }
        Ok(is_good)
    }
}
