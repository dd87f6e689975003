//! An incoming file: kept under another name, with its journal, until it is complete.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::protocol::CHUNK_LEN;
use crate::transfer::folder::{JOURNAL, PART};
use crate::transfer::journal::Journal;
use crate::transfer::room::{FileId, Reservation};
use crate::transfer::{Place, Room, Staging, chunk_count, chunk_crc, chunk_range, unnamed_file};

/// Incomplete file. Dropping it keeps the received part, or no file if nothing was received.
#[derive(Debug)]
pub(crate) struct Partial {
    target: Target,
    file: File,
    journal: Journal,
    len: u64,
    room: Arc<Room>,
    reservation: Option<Reservation>,
}

#[derive(Debug)]
enum Target {
    /// Its name.
    Named {
        place: Place,
        force: bool,
    },
    Output,
    Reached,
}

impl Partial {
    /// Begins or resumes a file of `len` bytes, and reserves room for the rest. Fails if the name
    /// is taken (without `force`), another process receives the file, or there is no room.
    pub(crate) fn open(
        place: Place,
        len: u64,
        force: bool,
        room: Arc<Room>,
    ) -> anyhow::Result<Self> {
        let name = place.name.to_string_lossy().into_owned();
        place.check_free(force)?;
        let file = File::from(
            open_own(&place, place.name_with(PART)).with_context(|| format!("making {name}"))?,
        );
        lock(&place, &file).with_context(|| name.clone())?;
        let had = file.metadata()?.len();
        let reservation = room.reserve(&file, len).inspect_err(|_| {
            // A part with contents stays: a later attempt may find room.
            if had == 0 {
                remove_own(&place);
            }
        });
        let reservation = reservation.with_context(|| name.clone())?;
        let journal = match journal_of(&place, len) {
            Ok(journal) => journal,
            Err(error) => {
                // Without a journal, too.
                if had == 0 {
                    remove_own(&place);
                } else {
                    reservation.keep_part(&file, 0);
                }
                return Err(error).with_context(|| format!("the journal of {name}"));
            }
        };
        let target = Target::Named { place, force };
        let partial = Self { target, file, journal, len, room, reservation: Some(reservation) };
        // An earlier attempt may have been for a longer file. Only `len` bytes are hashed.
        if had > len {
            partial.file.set_len(len)?;
        }
        Ok(partial)
    }

    /// Begins a file of `len` bytes for standard output. Fails if there is no room for it.
    pub(crate) fn unnamed(len: u64, room: Arc<Room>) -> anyhow::Result<Self> {
        let file = unnamed_file().context("a temporary file")?;
        let reservation = Some(room.reserve(&file, len).context("a temporary file")?);
        let (target, journal) = (Target::Output, Journal::unkept());
        Ok(Self { target, file, journal, len, room, reservation })
    }

    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Counts chunks of earlier attempts, too.
    pub(crate) fn chunks_present(&self) -> u64 {
        self.journal.chunks().len() as u64
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.chunks_present() == chunk_count(self.len)
    }

    /// Returns true if chunk `index` was verified, is still present, and has this CRC32c.
    pub(crate) fn has(&self, index: u64, crc: u32) -> io::Result<bool> {
        if self.journal.chunks().get(&index) != Some(&crc) {
            return Ok(false);
        }
        match chunk_crc(&self.file, index, self.len) {
            Ok(found) => Ok(found == crc),
            // After a loss of power the file may hold less than the journal says.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes chunk `index` from `place`, and adds it to the journal if it has this CRC32c.
    pub(crate) fn store(
        &mut self,
        staging: &Staging,
        place: u32,
        index: u64,
        crc: u32,
    ) -> anyhow::Result<bool> {
        let range = chunk_range(index, self.len).context("there is no such chunk")?;
        // The quota was reserved at the beginning; but the disk has other users, too.
        self.room.check_disk(&self.file, range.end - range.start)?;
        let is_good = staging.store(&self.file, index, place)? == crc;
        if is_good {
            self.journal.add(index, crc)?;
        }
        Ok(is_good)
    }

    /// Removes all chunks from the journal: the file as a whole is wrong.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.journal.forget()
    }

    /// Ends a complete and verified file: flushes it to the disk, gives it its name, and flushes
    /// the name too; or writes it to standard output. Fails if the name has been taken meanwhile.
    pub(crate) fn commit(mut self) -> anyhow::Result<()> {
        match std::mem::replace(&mut self.target, Target::Reached) {
            Target::Named { place, force } => {
                let named = self.name(&place, force);
                if named.is_err() {
                    self.target = Target::Named { place, force };
                }
                named
            }
            Target::Output => {
                self.file.rewind().context("reading the temporary file")?;
                io::copy(&mut self.file, &mut io::stdout().lock())
                    .context("writing to standard output")?;
                Ok(())
            }
            Target::Reached => Ok(()),
        }
    }

    fn name(&self, place: &Place, force: bool) -> anyhow::Result<()> {
        self.file.sync_all().context("writing the file to the disk")?;
        // Another kind of file may have taken the name meanwhile.
        place.check_free(force)?;
        let found = self.file.metadata().context("looking at the file")?.len();
        ensure!(found == self.len, "the part of {} was changed meanwhile", place.name.display());
        let replaced = FileId::at(place);
        let flags = if force { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let folder = place.folder();
        let part = place.name_with(PART);
        match rustix::fs::renameat_with(folder, &part, folder, &place.name, flags) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                bail!("{} exists by now: give --force to replace it", place.name.display())
            }
            Err(error) => return Err(io::Error::from(error)).context("renaming the file"),
        }
        if let Some(replaced) = replaced {
            self.room.release(replaced);
        }
        // A later attempt would ignore the journal.
        let _left_over = rustix::fs::unlinkat(folder, place.name_with(JOURNAL), AtFlags::empty());
        rustix::fs::fsync(folder).map_err(io::Error::from).context("writing the name to the disk")
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        match (&self.target, self.reservation.take()) {
            (Target::Named { place, .. }, _) if self.journal.chunks().is_empty() => {
                // This file is locked, so no other transfer uses it.
                remove_own(place);
            }
            (Target::Named { .. }, Some(reservation)) => {
                let verified = self.chunks_present().saturating_mul(CHUNK_LEN).min(self.len);
                reservation.keep_part(&self.file, verified);
            }
            (Target::Reached, Some(reservation)) => reservation.keep(),
            (Target::Output, _) | (_, None) => {}
        }
    }
}

pub(super) fn remove_own(place: &Place) {
    for suffix in [JOURNAL, PART] {
        // A file that cannot be removed is used by the next attempt.
        let _left = rustix::fs::unlinkat(place.folder(), place.name_with(suffix), AtFlags::empty());
    }
}

fn journal_of(place: &Place, len: u64) -> io::Result<Journal> {
    Journal::open(File::from(open_own(place, place.name_with(JOURNAL))?), len)
}

/// Creates it if it does not exist. Links are not followed: another writer of the folder could
/// redirect writes of this process.
fn open_own(place: &Place, name: OsString) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    let fd = rustix::fs::openat(place.folder(), name, flags, mode)?;
    let file = File::from(fd);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    Ok(file.into())
}

/// Ensures that no other transfer receives the same file.
pub(super) fn lock(place: &Place, file: &File) -> anyhow::Result<()> {
    const BUSY: &str = "another transfer of this file is in progress";
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::AGAIN) => bail!(BUSY),
        Err(error) => return Err(io::Error::from(error)).context("locking the file"),
    }
    // Another transfer may have finished meanwhile: then the locked file has its final name.
    let part = place.name_with(PART);
    let named = rustix::fs::statat(place.folder(), part, AtFlags::SYMLINK_NOFOLLOW);
    let own = file.metadata()?;
    match named {
        Ok(named) if named.st_ino == own.ino() && named.st_dev == own.dev() => Ok(()),
        _ => bail!(BUSY),
    }
}

#[cfg(test)]
mod tests;
