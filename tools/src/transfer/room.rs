//! Limits on the disk space of incoming files.
//!
//! A transfer reserves room for all of its file before the first byte arrives, so of several
//! transfers some succeed, and the others are refused at once. Missing bytes of a failed transfer,
//! removed parts and replaced files release room.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, ensure};
use rustix::fs::{AtFlags, Stat, StatVfs};

use crate::size;
use crate::transfer::Place;

#[derive(Debug)]
pub(crate) struct Room {
    /// Bytes in total; `None` for no limit but the disk's.
    quota: Option<u64>,
    /// Files in total; `None` for no limit but the disk's.
    files_max: Option<u64>,
    /// Percentage of the file system, and of its inodes, that stays free.
    keep_percent: u8,
    /// Holder of a key whose part of the room this is.
    owner: Option<Owner>,
    /// All parts of a room count together.
    taken: Arc<Mutex<Taken>>,
}

/// Holder of a key, with a limit of its own.
#[derive(Clone, Copy, Debug)]
struct Owner {
    number: usize,
    /// Bytes of its files.
    quota: u64,
}

#[derive(Debug, Default)]
struct Taken {
    reserved: u64,
    transfers: u64,
    /// Bytes of files and parts that transfers have left. Each has an inode, and at least
    /// [`CHARGE_MIN`] of the quota, so quota and disk bound the table.
    kept: HashMap<FileId, Kept>,
    /// Sum of `kept`.
    kept_bytes: u64,
    /// Bytes of each owner, reserved and kept.
    owned: HashMap<usize, u64>,
}

/// Bytes of a file or part.
#[derive(Clone, Copy, Debug)]
struct Kept {
    bytes: u64,
    owner: Option<usize>,
}

/// Device and inode of a file: its identity under any name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId(u64, u64);

/// Dropping it releases the room, except for the kept part.
#[derive(Debug)]
pub(crate) struct Reservation {
    room: Arc<Room>,
    file: FileId,
    bytes: u64,
    /// Bytes on the disk from before the server's start, which no quota counts.
    from_before: u64,
    /// Bytes that the file continues to use: moved from the reserved ones under one lock, so never
    /// counted twice.
    kept: Option<u64>,
}

impl FileId {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self(metadata.dev(), metadata.ino())
    }

    pub(crate) fn at(place: &Place) -> Option<Self> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let Stat { st_dev, st_ino, .. } =
            rustix::fs::statat(place.folder(), place.name.as_os_str(), flags).ok()?;
        Some(Self(st_dev, st_ino))
    }
}

impl Taken {
    const fn bytes(&self) -> u64 {
        self.reserved + self.kept_bytes
    }

    fn files(&self) -> u64 {
        self.transfers + self.kept.len() as u64
    }

    fn release(&mut self, file: FileId) {
        if let Some(Kept { bytes, owner }) = self.kept.remove(&file) {
            self.kept_bytes -= bytes;
            self.disown(owner, bytes);
        }
    }

    fn keep(&mut self, file: FileId, bytes: u64, owner: Option<usize>) {
        // The inode of a file that another process deleted may be reused.
        self.release(file);
        self.kept.insert(file, Kept { bytes, owner });
        self.kept_bytes += bytes;
        self.own(owner, bytes);
    }

    fn own(&mut self, owner: Option<usize>, bytes: u64) {
        if let Some(owner) = owner {
            *self.owned.entry(owner).or_default() += bytes;
        }
    }

    fn disown(&mut self, owner: Option<usize>, bytes: u64) {
        if let Some(owned) = owner.and_then(|owner| self.owned.get_mut(&owner)) {
            *owned -= bytes;
        }
    }
}

impl Room {
    pub(crate) fn new(quota: Option<u64>, keep_percent: u8) -> Self {
        Self { quota, files_max: None, keep_percent, owner: None, taken: Arc::default() }
    }

    pub(crate) fn with_files_max(self, files_max: Option<u64>) -> Self {
        Self { files_max, ..self }
    }

    /// Returns the part of this room for the holder of key `number`, who may have `quota` bytes of
    /// it.
    pub(crate) fn part(&self, number: usize, quota: u64) -> Self {
        let Self { quota: of_all, files_max, keep_percent, ref taken, .. } = *self;
        let (owner, taken) = (Some(Owner { number, quota }), Arc::clone(taken));
        Self { quota: of_all, files_max, keep_percent, owner, taken }
    }

    // A panic of another holder leaves the sums consistent.
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves room for `file` to grow to `len` bytes: for the bytes that it does not have yet,
    /// rounded up to blocks of [`CHARGE_MIN`]. An error reserves nothing, and names the option.
    pub(crate) fn reserve(self: &Arc<Self>, file: &File, len: u64) -> anyhow::Result<Reservation> {
        let found = file.metadata()?;
        let (id, on_disk) = (FileId::of(&found), on_disk(&found).min(len));
        self.check_disk(file, len - on_disk)?;
        let mut taken = self.taken();
        let own = taken.kept.get(&id).copied();
        let own_bytes = own.map_or(0, |own| own.bytes);
        let from_before = on_disk.saturating_sub(own_bytes);
        let bytes = charge(len - from_before);
        let others = taken.bytes() - own_bytes;
        if let Some(Owner { number, quota }) = self.owner {
            let owned = taken.owned.get(&number).copied().unwrap_or(0);
            let is_own = own.is_some_and(|own| own.owner == Some(number));
            let others = owned - if is_own { own_bytes } else { 0 };
            ensure!(
                others.checked_add(bytes).is_some_and(|total| total <= quota),
                "{} are wanted, but of the {} for the holder of your key (quota) {} are taken",
                size::format(bytes),
                size::format(quota),
                size::format(others)
            );
        }
        if let Some(quota) = self.quota {
            ensure!(
                others.checked_add(bytes).is_some_and(|total| total <= quota),
                "{} are wanted, but of the {} for all files together (--quota) {} are taken, {} of \
                 them by unfinished transfers",
                size::format(bytes),
                size::format(quota),
                size::format(others),
                size::format(taken.reserved)
            );
        }
        if let Some(files_max) = self.files_max {
            let others = taken.files() - u64::from(own.is_some());
            ensure!(
                others < files_max,
                "{others} files have been put here, which is the limit: start 'urnic serve' with a \
                 larger --files"
            );
        }
        taken.release(id);
        taken.reserved = taken.reserved.saturating_add(bytes);
        taken.transfers += 1;
        taken.own(self.owner.map(|owner| owner.number), bytes);
        drop(taken);
        Ok(Reservation { room: Arc::clone(self), file: id, bytes, from_before, kept: None })
    }

    pub(crate) fn release(&self, file: FileId) {
        self.taken().release(file);
    }

    /// Fails unless the disk has room for `len` further bytes, and for another name.
    pub(crate) fn check_disk(&self, on: impl AsFd, len: u64) -> anyhow::Result<()> {
        let disk = rustix::fs::fstatvfs(on).map_err(io::Error::from);
        let disk = disk.context("asking for the free space")?;
        let stays_free = match self.keep_percent {
            0 => String::new(),
            percent => format!(" ({percent} % of it stay free)"),
        };
        let StatVfs { f_blocks, f_bavail, f_frsize, f_files, f_favail, .. } = disk;
        let free = f_bavail.saturating_sub(self.kept_free(f_blocks)).saturating_mul(f_frsize);
        ensure!(
            len <= free,
            "{} are wanted, but the disk has {} left for files{stays_free}",
            size::format(len),
            size::format(free)
        );
        // A file system that creates inodes on demand does not report their number.
        ensure!(
            f_files == 0 || f_favail >= self.kept_free(f_files),
            "the disk has no inode left for another file{stays_free}"
        );
        Ok(())
    }

    fn kept_free(&self, all: u64) -> u64 {
        all / 100 * u64::from(self.keep_percent)
    }

    #[cfg(test)]
    pub(crate) fn sums(&self) -> (u64, u64) {
        let taken = self.taken();
        (taken.bytes(), taken.files())
    }
}

impl Reservation {
    pub(crate) fn keep(mut self) {
        self.kept = Some(self.bytes);
    }

    /// Keeps the room of the contents of `file`, at least `verified` bytes; releases the rest.
    pub(crate) fn keep_part(mut self, file: &File, verified: u64) {
        let held = file.metadata().map_or(u64::MAX, |found| on_disk(&found));
        // Some file systems count blocks only when they are on the disk.
        let held = held.max(verified);
        self.kept = Some(charge(held.saturating_sub(self.from_before)).min(self.bytes));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut taken = self.room.taken();
        let Room { quota, files_max, owner, .. } = *self.room;
        let number = owner.map(|owner| owner.number);
        taken.reserved = taken.reserved.saturating_sub(self.bytes);
        taken.transfers -= 1;
        taken.disown(number, self.bytes);
        // Without a limit there is nothing to count.
        let is_limited = quota.is_some() || files_max.is_some() || owner.is_some();
        if let Some(bytes) = self.kept.filter(|_| is_limited) {
            taken.keep(self.file, bytes, number);
        }
    }
}

fn on_disk(found: &Metadata) -> u64 {
    found.blocks().saturating_mul(512)
}

fn charge(len: u64) -> u64 {
    len.checked_next_multiple_of(CHARGE_MIN).unwrap_or(u64::MAX).max(CHARGE_MIN)
}

/// Bytes that even an empty file counts: its name and inode take about as much.
pub(crate) const CHARGE_MIN: u64 = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::unnamed_file;
    use std::io::Write;

    fn refusal(room: &Arc<Room>, file: &File, len: u64) -> String {
        room.reserve(file, len).map_or_else(|error| format!("{error:#}"), |_| String::new())
    }

    #[test]
    fn a_quota_is_for_all_files_together_and_reserved_at_once() {
        let [one, two, three] = [(); 3].map(|()| unnamed_file().unwrap());
        let room = Arc::new(Room::new(Some(5 * CHARGE_MIN), 0));
        let first = room.reserve(&one, 2 * CHARGE_MIN).unwrap();
        let second = room.reserve(&two, 2 * CHARGE_MIN + 1).unwrap();
        assert_eq!(room.sums(), (5 * CHARGE_MIN, 2), "whole blocks");
        assert!(refusal(&room, &three, 0).contains("--quota"), "a name counts, too");
        drop(second);
        assert_eq!(room.sums(), (2 * CHARGE_MIN, 1));
        assert!(refusal(&room, &two, 3 * CHARGE_MIN + 1).contains("--quota"));
        assert_eq!(refusal(&room, &two, 3 * CHARGE_MIN), "");
        assert!(refusal(&room, &two, u64::MAX >> 1).contains("wanted"));
        first.keep();
        assert_eq!(room.sums(), (2 * CHARGE_MIN, 1), "a file that is whole stays counted");
        room.release(FileId::of(&one.metadata().unwrap()));
        assert_eq!(room.sums(), (0, 0));
    }

    #[test]
    fn a_part_keeps_the_room_of_what_it_holds() {
        let (mut part, other) = (unnamed_file().unwrap(), unnamed_file().unwrap());
        let room = Arc::new(Room::new(Some(64 * CHARGE_MIN), 0));
        let all = room.reserve(&part, 60 * CHARGE_MIN).unwrap();
        part.write_all(&[1; 10 << 12]).unwrap();
        part.sync_all().unwrap();
        let held = on_disk(&part.metadata().unwrap());
        assert!((10 * CHARGE_MIN..60 * CHARGE_MIN).contains(&held), "{held}");
        all.keep_part(&part, 0);
        assert_eq!(room.sums(), (held, 1));
        // The next attempt reserves the rest, and is not charged twice.
        let again = room.reserve(&part, 60 * CHARGE_MIN).unwrap();
        assert_eq!(room.sums(), (60 * CHARGE_MIN, 1));
        let refused = refusal(&room, &other, 5 * CHARGE_MIN);
        assert!(
            refused.contains("240K are taken, 240K of them by unfinished transfers"),
            "{refused}"
        );
        drop(again);
        assert_eq!(room.sums(), (0, 0), "its part was removed");
        // Files from an earlier run of the server are not counted.
        let again = room.reserve(&part, 60 * CHARGE_MIN).unwrap();
        assert_eq!(room.sums(), (60 * CHARGE_MIN - held, 1));
        again.keep_part(&part, 0);
        assert_eq!(room.sums(), (CHARGE_MIN, 1), "nothing came, but there is a name");
        // Blocks of a file may be counted late; verified bytes count.
        room.reserve(&other, 9 * CHARGE_MIN).unwrap().keep_part(&other, 5 * CHARGE_MIN);
        assert_eq!(room.sums(), (6 * CHARGE_MIN, 2));
    }

    /// Another thread never sees more in use than was reserved.
    #[test]
    fn a_file_that_is_kept_is_not_counted_twice_meanwhile() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let file = unnamed_file().unwrap();
        let room = Arc::new(Room::new(Some(1 << 40), 0));
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    room.reserve(&file, 1 << 20).unwrap().keep();
                }
                is_done.store(true, Ordering::Release);
            });
            while !is_done.load(Ordering::Acquire) {
                let (bytes, files) = room.sums();
                assert!(bytes <= 1 << 20 && files <= 1, "{bytes} bytes of {files} files");
            }
        });
    }

    #[test]
    fn files_are_counted_one_by_one() {
        let files = [(); 4].map(|()| unnamed_file().unwrap());
        let room = Arc::new(Room::new(None, 0).with_files_max(Some(3)));
        let held = [0, 1].map(|index: usize| room.reserve(&files[index], 0).unwrap());
        room.reserve(&files[2], 0).unwrap().keep();
        assert!(refusal(&room, &files[3], 0).contains("--files"));
        assert_eq!(refusal(&room, &files[2], 9), "", "one that is there already");
        drop(held);
        assert_eq!(room.sums(), (0, 0));
        let unlimited = Arc::new(Room::new(None, 0));
        unlimited.reserve(&files[0], 9).unwrap().keep();
        assert_eq!(unlimited.sums(), (0, 0), "no table without a limit");
    }

    #[test]
    fn a_file_that_is_kept_again_is_counted_once() {
        let (mut taken, file) = (Taken::default(), FileId(1, 2));
        taken.keep(file, 5, Some(3));
        taken.keep(file, 7, Some(4));
        assert_eq!((taken.owned[&3], taken.owned[&4]), (0, 7));
        assert_eq!((taken.bytes(), taken.files()), (7, 1));
        taken.release(file);
        assert_eq!((taken.bytes(), taken.files()), (0, 0));
    }

    #[test]
    fn holders_of_keys_have_parts_of_one_room() {
        let files = [(); 3].map(|()| unnamed_file().unwrap());
        let all = Arc::new(Room::new(Some(5 * CHARGE_MIN), 0));
        let [a, b] = [0, 1].map(|number| Arc::new(all.part(number, 3 * CHARGE_MIN)));
        let first = a.reserve(&files[0], 3 * CHARGE_MIN).unwrap();
        assert!(refusal(&a, &files[1], 0).contains("of your key (quota)"));
        assert!(refusal(&b, &files[1], 3 * CHARGE_MIN).contains("--quota"), "of all");
        first.keep();
        assert!(refusal(&a, &files[1], 0).contains("of your key (quota)"));
        assert_eq!(refusal(&a, &files[0], 3 * CHARGE_MIN), "", "one that is there already");
        assert_eq!(all.sums(), (0, 0), "that attempt has failed");
        b.reserve(&files[2], 2 * CHARGE_MIN).unwrap().keep();
        // The sweep knows no owner.
        all.release(FileId::of(&files[2].metadata().unwrap()));
        assert_eq!((all.sums(), refusal(&b, &files[1], 3 * CHARGE_MIN)), ((0, 0), String::new()));
    }

    #[test]
    fn a_part_of_the_disk_stays_free() {
        let kept = [0, 1, 5, 50, 100].map(|percent| Room::new(None, percent).kept_free(2000));
        assert_eq!(kept, [0, 20, 100, 1000, 2000]);
    }

    #[test]
    fn reserved_disk_space_is_not_available() {
        let disk = unnamed_file().unwrap();
        let all = Room::new(None, 100);
        assert!(all.check_disk(&disk, 1).unwrap_err().to_string().contains("100 % of it stay"));
        let none = Room::new(None, 0);
        none.check_disk(&disk, 1).unwrap();
        let error = none.check_disk(&disk, 1 << 60).unwrap_err().to_string();
        assert!(error.ends_with("left for files"), "{error}");
    }
}
