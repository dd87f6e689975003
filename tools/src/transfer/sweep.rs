//! Removes incomplete files of transfers that were not resumed.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime};

use rustix::fs::{Dir, FileType, Mode, OFlags};

use crate::transfer::folder::{JOURNAL, PART};
use crate::transfer::partial::{lock, remove_own};
use crate::transfer::room::FileId;
use crate::transfer::{Folder, Place, Room};

/// Removes incomplete files that were not written for `age`, in subfolders too, and releases their
/// room; returns their number. Skips locked files and unreadable subfolders.
pub(crate) fn sweep(
    folder: &Folder,
    age: Duration,
    now: SystemTime,
    room: &Room,
) -> io::Result<usize> {
    let fd = folder.descriptor().try_clone_to_owned()?;
    sweep_folder(&fd, Old { age, now, room }, 0)
}

#[derive(Clone, Copy)]
struct Old<'a> {
    age: Duration,
    now: SystemTime,
    room: &'a Room,
}

fn sweep_folder(folder: &OwnedFd, old: Old<'_>, depth: usize) -> io::Result<usize> {
    let mut removed = 0;
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        if entry.file_type() == FileType::Directory && depth < DEPTH_MAX {
            // Neither a link nor an entry that replaces the folder meanwhile is followed.
            let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(inner) = rustix::fs::openat(folder, name, flags, Mode::empty()) {
                removed += sweep_folder(&inner, old, depth + 1).unwrap_or(0);
            }
        } else if let Some(of) = name_of_part(name) {
            let place = Place { folder: folder.try_clone()?, name: of.to_owned() };
            removed += usize::from(sweep_file(&place, old).unwrap_or(false));
        }
    }
    Ok(removed)
}

fn name_of_part(name: &OsStr) -> Option<&OsStr> {
    let octets = name.as_bytes();
    let of = [PART, JOURNAL].into_iter().find_map(|suffix| octets.strip_suffix(suffix.as_bytes()));
    of.and_then(|rest| rest.strip_prefix(b".")).map(OsStr::from_bytes)
}

fn sweep_file(place: &Place, old: Old<'_>) -> anyhow::Result<bool> {
    let Old { age, now, room } = old;
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let open = |suffix| {
        let fd = rustix::fs::openat(
            place.folder().as_fd(),
            place.name_with(suffix),
            flags,
            Mode::empty(),
        );
        fd.map(File::from).map_err(io::Error::from)
    };
    let file = match open(PART) {
        Ok(file) => {
            lock(place, &file)?;
            file
        }
        // A journal alone.
        Err(error) if error.kind() == io::ErrorKind::NotFound => open(JOURNAL)?,
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    let written = metadata.modified()?;
    let is_old = metadata.is_file() && now.duration_since(written).is_ok_and(|since| since >= age);
    if is_old {
        remove_own(place);
        room.release(FileId::of(&metadata));
    }
    Ok(is_old)
}

const DEPTH_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::FlockOperation;
    use std::fs;
    use std::path::PathBuf;

    struct Scene(PathBuf);

    impl Scene {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("urnic-{name}-{}", std::process::id()));
            let _left_over = fs::remove_dir_all(&root);
            fs::create_dir_all(root.join("sub")).unwrap();
            Self(root)
        }

        /// A file that was written so long before [`now`].
        fn write(&self, name: &str, before: u64) -> File {
            let file = File::create(self.0.join(name)).unwrap();
            file.set_modified(now() - Duration::from_secs(before)).unwrap();
            file
        }

        fn has(&self, name: &str) -> bool {
            self.0.join(name).symlink_metadata().is_ok()
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _best_effort = fs::remove_dir_all(&self.0);
        }
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 31)
    }

    #[test]
    fn sweep_removes_only_old_unfinished_files() {
        let scene = Scene::new("sweep");
        for name in [".a.urnic-part", ".a.urnic-journal", "sub/.b.urnic-part", ".c.urnic-journal"] {
            scene.write(name, 100);
        }
        for name in ["a", ".hidden", "x.urnic-part", "sub/y"] {
            scene.write(name, 100);
        }
        scene.write(".young.urnic-part", 99);
        scene.write(".young.urnic-journal", 100);
        scene.write(".future.urnic-part", 0).set_modified(now() + Duration::from_secs(9)).unwrap();
        let locked = scene.write(".locked.urnic-part", 100);
        rustix::fs::flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
        let outside = Scene::new("sweep-outside");
        outside.write(".o.urnic-part", 100);
        std::os::unix::fs::symlink(&outside.0, scene.0.join("link")).unwrap();
        let folder = Folder::open(&scene.0).unwrap();
        let removed = sweep(&folder, Duration::from_secs(100), now(), &Room::new(None, 0)).unwrap();
        assert_eq!(removed, 3);
        for name in [".a.urnic-part", ".a.urnic-journal", "sub/.b.urnic-part", ".c.urnic-journal"] {
            assert!(!scene.has(name), "{name} was old");
        }
        for name in ["a", ".hidden", "x.urnic-part", "sub/y", ".young.urnic-part", "link"] {
            assert!(scene.has(name), "{name} stays");
        }
        for name in [".young.urnic-journal", ".future.urnic-part", ".locked.urnic-part"] {
            assert!(scene.has(name), "{name} stays");
        }
        assert!(outside.has(".o.urnic-part"), "what a link leads to stays");
    }
}
