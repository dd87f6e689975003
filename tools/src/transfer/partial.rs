//! A file that is arriving: kept under another name, with its journal, until it is whole.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use anyhow::{Context, bail, ensure};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::transfer::folder::{JOURNAL, PART};
use crate::transfer::journal::Journal;
use crate::transfer::{Place, chunk_crc};

/// A file that is not whole yet.
///
/// Dropping it leaves what has arrived, for the next attempt.
#[derive(Debug)]
pub(crate) struct Partial {
    place: Place,
    file: File,
    journal: Journal,
    len: u64,
    /// Whether a file of that name is replaced.
    force: bool,
}

impl Partial {
    /// Begins a file of `len` octets, or goes on with it. Room for all of it is taken at once: a
    /// full disk is found now, not while octets are placed.
    ///
    /// # Errors
    /// When the name is taken (unless `force`), when another process is at it, when there is no
    /// room, or when files cannot be made there.
    pub(crate) fn open(place: Place, len: u64, force: bool) -> anyhow::Result<Self> {
        let name = place.name.to_string_lossy().into_owned();
        ensure!(force || !place.exists(), "{name} exists: give --force to replace it");
        let file = File::from(
            open_own(&place, place.name_with(PART)).with_context(|| format!("making {name}"))?,
        );
        lock(&place, &file).with_context(|| name.clone())?;
        reserve(&file, len).with_context(|| format!("room for {len} octets of {name}"))?;
        let journal = File::from(
            open_own(&place, place.name_with(JOURNAL))
                .with_context(|| format!("making the journal of {name}"))?,
        );
        let journal =
            Journal::open(journal, len).with_context(|| format!("the journal of {name}"))?;
        Ok(Self { place, file, journal, len, force })
    }

    /// The file's memory: to be mapped, not to be truncated.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// Octets of the whole file.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Chunks that were verified once, now or in an earlier attempt.
    pub(crate) fn chunks_present(&self) -> u64 {
        self.journal.chunks().len() as u64
    }

    /// Whether chunk `index` was verified once, is still there, and has this CRC32c.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn has(&self, index: u64, crc: u32) -> io::Result<bool> {
        let listed = self.journal.chunks().get(&index) == Some(&crc);
        Ok(listed && chunk_crc(&self.file, index, self.len)? == crc)
    }

    /// Checks what has arrived of chunk `index`, and writes it down when it is right.
    ///
    /// # Errors
    /// When the file cannot be read, or the journal cannot be written.
    pub(crate) fn verify(&mut self, index: u64, crc: u32) -> io::Result<bool> {
        let is_good = chunk_crc(&self.file, index, self.len)? == crc;
        if is_good {
            self.journal.add(index, crc)?;
        }
        Ok(is_good)
    }

    /// The file as a whole is wrong: nothing of it is believed any more.
    ///
    /// # Errors
    /// When that cannot be written down.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.journal.forget()
    }

    /// The file is whole and right: brings it to the disk, gives it its name, and brings that to
    /// the disk too.
    ///
    /// # Errors
    /// When that fails, or the name has been taken meanwhile.
    pub(crate) fn commit(self) -> anyhow::Result<()> {
        let Self { place, file, journal: _, len: _, force } = self;
        file.sync_all().context("bringing the file to the disk")?;
        let flags = if force { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let folder = place.folder();
        let part = place.name_with(PART);
        match rustix::fs::renameat_with(folder, &part, folder, &place.name, flags) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                bail!("{} exists by now: give --force to replace it", place.name.display())
            }
            Err(error) => return Err(io::Error::from(error)).context("giving the file its name"),
        }
        // The journal is of no use any more; left over, it would be ignored.
        let _left_over = rustix::fs::unlinkat(folder, place.name_with(JOURNAL), AtFlags::empty());
        rustix::fs::fsync(folder).map_err(io::Error::from).context("bringing the name to the disk")
    }
}

/// Opens a file of ours in the folder, making it if it is not there. A link is not followed: who
/// can write to the folder could otherwise have us write elsewhere.
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

/// Makes sure that nobody else receives the same file.
fn lock(place: &Place, file: &File) -> anyhow::Result<()> {
    const BUSY: &str = "another transfer of this file is under way";
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::AGAIN) => bail!(BUSY),
        Err(error) => return Err(io::Error::from(error)).context("locking the file"),
    }
    // Between opening and locking, another transfer may have finished: what is locked then is a
    // whole file that has its name.
    let part = place.name_with(PART);
    let named = rustix::fs::statat(place.folder(), part, AtFlags::SYMLINK_NOFOLLOW);
    let own = file.metadata()?;
    match named {
        Ok(named) if named.st_ino == own.ino() && named.st_dev == own.dev() => Ok(()),
        _ => bail!(BUSY),
    }
}

/// Gives the file its length and takes room for all of it: memory mapped from a file without room
/// faults when it is written.
fn reserve(file: &File, len: u64) -> anyhow::Result<()> {
    let old_len = file.metadata()?.len();
    if old_len > len {
        file.set_len(len)?;
    }
    if len == 0 {
        return Ok(());
    }
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP) => return Ok(write_zeros(file, old_len.min(len), len)?),
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
}

/// For file systems that cannot take room otherwise.
fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = from;
    while at < to {
        let len = usize::try_from(to - at).unwrap_or(usize::MAX).min(zeros.len());
        file.write_all_at(&zeros[..len], at)?;
        at += len as u64;
    }
    Ok(())
}
