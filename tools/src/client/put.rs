//! Bringing a file to a server: RDMA Writes into its file, chunk by chunk, each verified.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow};
use urnic::driver::monotonic_now;
use urnic::mem::Access;
use urnic::types::{TaggedOffset, WrId};
use urnic::verbs::{Mr, RemoteBuffer, SendWr};

use crate::client::pieces::{PIECES_MAX, Piece, Pieces};
use crate::client::{Client, Happened};
use crate::progress::Progress;
use crate::protocol::{CHECKS_MAX, Control};
use crate::transfer::{Hashing, chunk_count, chunk_crc, chunk_range};

/// What was transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transferred {
    pub(crate) sha256: [u8; 32],
    /// Octets that were there from an earlier attempt.
    pub(crate) resumed: u64,
}

/// Transfers a file of `len` octets within a session for it.
///
/// # Errors
/// When the session fails, or the file is not the same at the other end.
pub(crate) fn put(
    client: &mut Client<'_>,
    file: &File,
    len: u64,
    rate: Option<u64>,
    progress: &Progress,
) -> anyhow::Result<Transferred> {
    let hashing = hash_in_thread(file, len)?;
    let source = client.host.pd.reg_file(file, Access::empty()).context("mapping the file")?;
    let mut sender = Sender { client, file, source, len, checks: 0, verified: 0, progress };
    let missing = sender.find_missing()?;
    let resumed = sender.verified;
    sender.send(Pieces::new(len, missing, rate))?;
    let sha256 = join(client, hashing)?;
    client.send(&Control::Commit { sha256 })?;
    match client.wait_control()? {
        Control::Committed => Ok(Transferred { sha256, resumed }),
        other => Err(client.unexpected(&other)),
    }
}

/// Hashes a file meanwhile.
pub(super) fn hash_in_thread(
    file: &File,
    len: u64,
) -> anyhow::Result<JoinHandle<io::Result<[u8; 32]>>> {
    let file = file.try_clone().context("another handle of the file")?;
    thread::Builder::new()
        .name("urnic-hash".to_owned())
        .spawn(move || Hashing::new(len).finish(&file))
        .context("starting a thread to hash the file")
}

/// Waits for the hash, and keeps the session alive meanwhile.
pub(super) fn join(
    client: &mut Client<'_>,
    hashing: JoinHandle<io::Result<[u8; 32]>>,
) -> anyhow::Result<[u8; 32]> {
    let mut asked = monotonic_now();
    while !hashing.is_finished() {
        client.host.endpoint.turn(JOIN_INTERVAL)?;
        if monotonic_now() - asked > ALIVE_INTERVAL {
            client.peer_counters()?;
            asked = monotonic_now();
        }
    }
    let hashed = hashing.join().map_err(|_| anyhow!("the thread that hashes has panicked"))?;
    hashed.context("hashing the file")
}

struct Sender<'a, 'h> {
    client: &'a mut Client<'h>,
    file: &'a File,
    source: Mr,
    len: u64,
    /// Chunks whose result is due.
    checks: usize,
    /// Octets that are there and right.
    verified: u64,
    progress: &'a Progress,
}

impl Sender<'_, '_> {
    /// The chunks that the server has not got from an earlier attempt.
    fn find_missing(&mut self) -> anyhow::Result<VecDeque<u64>> {
        let chunks = 0..chunk_count(self.len);
        if self.client.welcome.chunks_present == 0 {
            return Ok(chunks.collect());
        }
        let mut missing = VecDeque::new();
        for index in chunks {
            if self.checks == CHECKS_MAX {
                self.take_check(&mut missing)?;
            }
            let crc = self.crc(index)?;
            self.client.send(&Control::Check { index, crc })?;
            self.checks += 1;
        }
        while self.checks > 0 {
            self.take_check(&mut missing)?;
        }
        Ok(missing)
    }

    fn take_check(&mut self, missing: &mut VecDeque<u64>) -> anyhow::Result<()> {
        match self.client.wait_control()? {
            Control::Chunk { index, is_good } => {
                self.checks -= 1;
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
        while open > 0 || self.checks > 0 || !pieces.is_empty() {
            let pause = pieces.pause();
            while open < PIECES_MAX && self.checks < CHECKS_MAX && pieces.pause().is_zero() {
                let Some(piece) = pieces.next() else { break };
                self.write(&piece)?;
                open += 1;
            }
            match self.client.poll()? {
                Some(Happened::Done(_)) => open -= 1,
                Some(Happened::Control(Control::Chunk { index, is_good })) => {
                    self.checks = self.checks.saturating_sub(1);
                    if is_good { self.count(index) } else { pieces.again(index)? }
                }
                Some(Happened::Control(other)) => return Err(self.client.unexpected(&other)),
                Some(Happened::Payload(_)) => {}
                // It is this end that waits.
                None if open == 0 && self.checks == 0 => self.client.host.endpoint.turn(pause)?,
                None => self.client.idle(sleep_max(pause))?,
            }
        }
        Ok(())
    }

    fn write(&mut self, piece: &Piece) -> anyhow::Result<()> {
        let region = self.client.welcome.region;
        let to = TaggedOffset(region.to.0.wrapping_add(piece.range.start));
        let octets = usize::try_from(piece.range.start)?..usize::try_from(piece.range.end)?;
        let remote = RemoteBuffer { stag: region.stag, to };
        self.client.post(SendWr::write(WrId(0), remote, [self.source.sge(octets)]))?;
        if piece.is_last {
            // The server hears of it after all of the chunk has been placed.
            let (index, crc) = (piece.chunk, self.crc(piece.chunk)?);
            self.client.send(&Control::Verify { index, crc })?;
            self.checks += 1;
        }
        Ok(())
    }
}

/// How long to sleep when the next piece may go after `pause`.
pub(super) fn sleep_max(pause: Duration) -> Duration {
    if pause.is_zero() { SLEEP_MAX } else { pause.min(SLEEP_MAX) }
}

const SLEEP_MAX: Duration = Duration::from_millis(100);
const JOIN_INTERVAL: Duration = Duration::from_millis(5);
/// How often the server hears of a client that is busy with itself.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);
