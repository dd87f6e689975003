//! How much of a disk arriving files may take.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, ensure};

use crate::size;

/// What files that arrive may take, all together. Nothing is taken for what is announced, only for
/// what has arrived.
#[derive(Debug)]
pub(crate) struct Room {
    /// Octets in all; `None` for as many as the disk has.
    quota: Option<u64>,
    /// Percent of the file system that stay free.
    keep_percent: u8,
    /// Octets taken so far.
    taken: AtomicU64,
}

impl Room {
    /// At most `quota` octets, of a file system that keeps `keep_percent` of it free.
    pub(crate) const fn new(quota: Option<u64>, keep_percent: u8) -> Self {
        Self { quota, keep_percent, taken: AtomicU64::new(0) }
    }

    /// Whether `len` octets more could be taken, without taking them.
    ///
    /// # Errors
    /// When not, with the option that decides.
    pub(crate) fn check(&self, on: impl AsFd, len: u64) -> anyhow::Result<()> {
        let taken = self.taken.load(Ordering::Relaxed);
        if let Some(quota) = self.quota {
            ensure!(
                taken.checked_add(len).is_some_and(|total| total <= quota),
                "{} are wanted, but of the {} for all files together (--quota) {} are taken",
                size::format(len),
                size::format(quota),
                size::format(taken)
            );
        }
        let free = self.free(on).context("asking for the free space")?;
        ensure!(
            len <= free,
            "{} are wanted, but the disk has {} left for files ({} % of it stay free)",
            size::format(len),
            size::format(free),
            self.keep_percent
        );
        Ok(())
    }

    /// Takes `len` octets.
    ///
    /// # Errors
    /// When that is more than is left; none are taken then.
    pub(crate) fn take(&self, on: impl AsFd, len: u64) -> io::Result<()> {
        let full = |what: &str| Err(io::Error::new(io::ErrorKind::StorageFull, what.to_owned()));
        if self.free(on)? < len {
            return full("no space is left on the disk for files");
        }
        let within = |taken: u64| {
            taken.checked_add(len).filter(|total| self.quota.is_none_or(|quota| *total <= quota))
        };
        match self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within) {
            Ok(_) => Ok(()),
            Err(_) => full("the quota for all files together is used up"),
        }
    }

    /// Octets of the file system that files may still take.
    fn free(&self, on: impl AsFd) -> io::Result<u64> {
        let disk = rustix::fs::fstatvfs(on)?;
        let keep = disk.f_blocks / 100 * u64::from(self.keep_percent);
        Ok(disk.f_bavail.saturating_sub(keep).saturating_mul(disk.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::unnamed_file;

    #[test]
    fn a_quota_is_for_all_files_together_and_exact() {
        let (disk, room) = (unnamed_file().unwrap(), Room::new(Some(10), 0));
        room.take(&disk, 4).unwrap();
        room.check(&disk, 6).unwrap();
        assert!(room.check(&disk, 7).unwrap_err().to_string().contains("--quota"));
        assert_eq!(room.take(&disk, 7).unwrap_err().kind(), io::ErrorKind::StorageFull);
        room.take(&disk, 6).unwrap();
        assert!(room.take(&disk, 1).is_err());
        assert!(room.check(&disk, u64::MAX).is_err(), "a sum beyond 64 bits is too much");
    }

    #[test]
    fn what_stays_free_is_no_room() {
        let disk = unnamed_file().unwrap();
        let all = Room::new(None, 100);
        assert!(all.check(&disk, 1).unwrap_err().to_string().contains("100 %"));
        assert!(all.take(&disk, 1).is_err() && all.take(&disk, 0).is_ok());
        let none = Room::new(None, 0);
        none.check(&disk, 1).unwrap();
        assert!(none.check(&disk, 1 << 60).is_err(), "more than any disk has");
    }
}
