//! Fetching a file from a server: RDMA Reads into a file here, chunk by chunk, each verified.

use std::collections::{HashMap, VecDeque};

use anyhow::{Context, ensure};
use urnic::mem::{Access, Region};
use urnic::types::{TaggedOffset, WrId};
use urnic::verbs::{Mr, MrPart, RemoteBuffer, SendWr};

use crate::client::pieces::{PIECES_MAX, Piece, Pieces};
use crate::client::put::{Transferred, hash_in_thread, join, sleep_max};
use crate::client::{Client, Happened, Unverified};
use crate::progress::Progress;
use crate::protocol::{CHECKS_MAX, Control};
use crate::transfer::{Partial, chunk_count, chunk_range};

/// Transfers the file within a session for it.
///
/// # Errors
/// When the session fails, when the file cannot be kept here, or when it is not the same.
pub(crate) fn get(
    client: &mut Client<'_>,
    partial: Partial,
    rate: Option<u64>,
    progress: &Progress,
) -> anyhow::Result<Transferred> {
    let len = partial.len();
    let region = Region::file(partial.file(), 0, usize::try_from(len)?).context("mapping")?;
    let part = MrPart {
        range: 0..region.len(),
        base: TaggedOffset(0),
        access: Access::LOCAL_WRITE,
        only: Some(client.qp.number()),
    };
    let sink = client.host.pd.reg_part(region, part).context("registering the file")?;
    let mut receiver =
        Receiver { client, partial, sink, reads: HashMap::new(), checks: 0, verified: 0, progress };
    let missing = receiver.find_missing()?;
    let resumed = receiver.verified;
    receiver.receive(Pieces::new(len, missing, rate))?;
    let Receiver { client, mut partial, sink, .. } = receiver;
    // What is hashed, the server cannot change any more.
    drop(sink);
    client.send(&Control::ShaRequest)?;
    let hashing = hash_in_thread(partial.file(), len)?;
    let expected = match client.wait_control()? {
        Control::Sha { sha256 } => sha256,
        other => return Err(client.unexpected(&other)),
    };
    let sha256 = join(client, hashing)?;
    if sha256 != expected {
        partial.forget().context("giving the file up")?;
        return Err(Unverified.into());
    }
    partial.commit()?;
    Ok(Transferred { sha256, resumed })
}

struct Receiver<'a, 'h> {
    client: &'a mut Client<'h>,
    partial: Partial,
    sink: Mr,
    /// Reads that are not done, by chunk; and whether more of the chunk are to come.
    reads: HashMap<u64, (usize, bool)>,
    /// Chunks whose digest is due.
    checks: usize,
    /// Octets that are there and right.
    verified: u64,
    progress: &'a Progress,
}

impl Receiver<'_, '_> {
    /// The chunks that are not there from an earlier attempt.
    fn find_missing(&mut self) -> anyhow::Result<VecDeque<u64>> {
        let chunks = 0..chunk_count(self.partial.len());
        if self.partial.chunks_present() == 0 {
            return Ok(chunks.collect());
        }
        let mut missing = VecDeque::new();
        for index in chunks {
            if self.checks == CHECKS_MAX {
                self.take_check(&mut missing)?;
            }
            self.ask(index)?;
        }
        while self.checks > 0 {
            self.take_check(&mut missing)?;
        }
        Ok(missing)
    }

    fn take_check(&mut self, missing: &mut VecDeque<u64>) -> anyhow::Result<()> {
        match self.client.wait_control()? {
            Control::Digest { index, crc } => {
                self.checks -= 1;
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
        self.checks += 1;
        Ok(())
    }

    fn count(&mut self, index: u64) {
        let range = chunk_range(index, self.partial.len()).unwrap_or(0..0);
        self.verified += range.end - range.start;
        self.progress.set(self.verified);
    }

    fn receive(&mut self, mut pieces: Pieces) -> anyhow::Result<()> {
        let mut open = 0;
        while open > 0 || self.checks > 0 || !pieces.is_empty() {
            let pause = pieces.pause();
            // A chunk in the making may need a check, too.
            while open < PIECES_MAX
                && self.checks + self.reads.len() < CHECKS_MAX
                && pieces.pause().is_zero()
            {
                let Some(piece) = pieces.next() else { break };
                self.read(&piece)?;
                open += 1;
            }
            match self.client.poll()? {
                Some(Happened::Done(id)) => {
                    open -= 1;
                    self.done(id)?;
                }
                Some(Happened::Control(Control::Digest { index, crc })) => {
                    ensure!(self.checks > 0, "the server answers what nobody asked");
                    self.checks -= 1;
                    if self.partial.verify(index, crc).context("verifying the file")? {
                        self.count(index);
                    } else {
                        pieces.again(index)?;
                    }
                }
                Some(Happened::Control(other)) => return Err(self.client.unexpected(&other)),
                Some(Happened::Payload(_)) => {}
                None if open == 0 && self.checks == 0 => self.client.host.endpoint.turn(pause)?,
                None => self.client.idle(sleep_max(pause))?,
            }
        }
        Ok(())
    }

    fn read(&mut self, piece: &Piece) -> anyhow::Result<()> {
        let region = self.client.welcome.region;
        let to = TaggedOffset(region.to.0.wrapping_add(piece.range.start));
        let octets = usize::try_from(piece.range.start)?..usize::try_from(piece.range.end)?;
        let remote = RemoteBuffer { stag: region.stag, to };
        self.client.post(SendWr::read(WrId(piece.chunk), remote, self.sink.sge(octets)))?;
        let (open, more) = self.reads.entry(piece.chunk).or_insert((0, true));
        *open += 1;
        *more = !piece.is_last;
        Ok(())
    }

    /// A Read is done; asks for the digest of its chunk if that is there now.
    fn done(&mut self, WrId(chunk): WrId) -> anyhow::Result<()> {
        if let Some((open, more)) = self.reads.get_mut(&chunk) {
            *open -= 1;
            if *open == 0 && !*more {
                self.reads.remove(&chunk);
                self.ask(chunk)?;
            }
        }
        Ok(())
    }
}
