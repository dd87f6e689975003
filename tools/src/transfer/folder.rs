//! A folder, and the only access to its contents.
//!
//! Names come from peers. The kernel resolves them beneath the folder's descriptor (`openat2` with
//! `RESOLVE_BENEATH`): neither `..`, an absolute path nor a symbolic link leads out of it, even if
//! created meanwhile.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use anyhow::{Context, bail, ensure};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

use crate::protocol::NAME_LEN_MAX;
use crate::transfer::room::FileId;

#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
}

/// Location of a present or future file: an open folder and a name in it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) folder: OwnedFd,
    pub(crate) name: OsString,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(io::Error::from)
            .with_context(|| format!("folder {}", path.display()))?;
        Ok(Self { fd })
    }

    /// Opens the folder `name` within this one.
    ///
    /// # Errors
    /// If there is none, or it may not be entered.
    pub(crate) fn within(&self, name: &str) -> anyhow::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = self.open_beneath(check_name(name)?, flags);
        Ok(Self { fd: opened.with_context(|| format!("folder {name}"))? })
    }

    /// Opens this folder once more.
    ///
    /// # Errors
    /// If the process may open nothing more.
    pub(crate) fn again(&self) -> anyhow::Result<Self> {
        Ok(Self { fd: self.fd.try_clone().context("opening a folder once more")? })
    }

    /// Returns the location of the file `name`.
    ///
    /// # Errors
    /// If the name cannot be in the folder, or its own folder does not exist.
    pub(crate) fn place(&self, name: &str) -> anyhow::Result<Place> {
        let path = check_name(name)?;
        let leaf = path.file_name().context("a file needs a name")?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or_else(|| Path::new("."));
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = self.open_beneath(parent, flags).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => anyhow::anyhow!(
                "there is no folder {} at the server, and 'urnic put' makes none",
                parent.display()
            ),
            _ => refused(name, &error),
        })?;
        Ok(Place { folder, name: leaf })
    }

    /// Fails unless it is a regular file of the folder that may be read.
    pub(crate) fn open_file(&self, name: &str) -> anyhow::Result<File> {
        let path = check_name(name)?;
        // A pipe or a device must not block the open.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = self.open_beneath(path, flags).map_err(|error| refused(name, &error))?;
        let file = File::from(fd);
        ensure!(file.metadata()?.is_file(), "{name} is no regular file");
        Ok(file)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn open_beneath(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        loop {
            match rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), resolve) {
                // A file was renamed meanwhile, or a signal came.
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }
}

impl Place {
    /// The user chose `path`: nothing is forbidden.
    pub(crate) fn at(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let octets = path.as_os_str().as_encoded_bytes();
        ensure!(!octets.ends_with(b"/"), "{shown} is a folder: give the name of a file in it");
        let name = path.file_name().with_context(|| format!("{shown} names no file"))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let Folder { fd: folder } = Folder::open(parent.unwrap_or_else(|| Path::new(".")))?;
        Ok(Self { folder, name: name.to_owned() })
    }

    /// Fails unless the name is free, or with `force` a regular file has it. Only regular files are
    /// replaced, never a folder, a device, a pipe or a link to any of them: their users do not
    /// expect a regular file there.
    pub(crate) fn check_free(&self, force: bool) -> anyhow::Result<()> {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        let name = self.name.display();
        let found = match rustix::fs::statat(&self.folder, self.name.as_os_str(), flags) {
            Ok(found) => FileType::from_raw_mode(found.st_mode),
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(io::Error::from(error)).context(name.to_string()),
        };
        match found {
            FileType::RegularFile => {
                ensure!(force, "{name} exists: give --force to replace it");
                Ok(())
            }
            FileType::Directory => bail!("{name} is a folder: give the name of a file in it"),
            FileType::Symlink => {
                bail!("{name} is a symbolic link, which is not replaced: name the file itself")
            }
            _ => bail!("{name} is no regular file, and is not replaced"),
        }
    }

    /// A file of any kind counts.
    pub(crate) fn is_taken(&self) -> bool {
        FileId::at(self).is_some()
    }

    pub(crate) fn name_with(&self, suffix: &str) -> OsString {
        let mut name = OsString::from(".");
        name.push(&self.name);
        name.push(suffix);
        name
    }

    pub(crate) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }
}

pub(crate) const PART: &str = ".urnic-part";
pub(crate) const JOURNAL: &str = ".urnic-journal";

fn check_name(name: &str) -> anyhow::Result<&Path> {
    ensure!(
        !name.is_empty() && name.len() <= NAME_LEN_MAX,
        "a file name has 1 to {NAME_LEN_MAX} bytes"
    );
    ensure!(!name.contains(|c: char| c.is_control()), "a file name has no control characters");
    let path = Path::new(name);
    for component in path.components() {
        match component {
            // Hidden files are settings, keys, and incomplete files.
            Component::Normal(part) => ensure!(
                !part.as_encoded_bytes().starts_with(b"."),
                "{name}: files and folders whose names begin with a dot are not served"
            ),
            Component::CurDir => {}
            _ => bail!("{name} leads out of the folder that is served"),
        }
    }
    ensure!(!name.ends_with('/'), "{name} names a folder: give the name of a file in it");
    Ok(path)
}

fn refused(name: &str, error: &io::Error) -> anyhow::Error {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::XDEV | rustix::io::Errno::LOOP) => {
            anyhow::anyhow!("{name} leads out of the folder that is served")
        }
        Some(rustix::io::Errno::NOENT) => anyhow::anyhow!("there is no {name} in the folder"),
        Some(rustix::io::Errno::NOSYS) => {
            anyhow::anyhow!("serving files needs openat2: Linux 5.6 or later")
        }
        _ => anyhow::anyhow!("{name}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in [
            "",
            ".",
            "..",
            "../x",
            "/etc/passwd",
            "a/../../x",
            "a/..",
            "x/",
            "a\0b",
            "a\nb",
            ".x.urnic-part",
            "d/.x.urnic-journal",
            ".ssh/id",
            "d/.hidden",
        ] {
            let place = Folder::open(Path::new(".")).unwrap().place(name);
            assert!(place.is_err(), "{name:?}");
        }
        assert!(check_name(&"n".repeat(NAME_LEN_MAX + 1)).is_err());
        assert_eq!(check_name("a/b.txt").unwrap(), Path::new("a/b.txt"));
    }

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "octets").unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        let served = Folder::open(folder.path()).unwrap();
        assert!(served.open_file("file").is_ok());
        for name in ["sub", "pipe"] {
            let error = served.open_file(name).unwrap_err().to_string();
            assert!(error.contains("no regular file"), "{name}: {error}");
        }
        let error = served.place("none/file").unwrap_err().to_string();
        assert!(error.contains("no folder none"), "{error}");
        let error = served.open_file("none/file").unwrap_err().to_string();
        assert!(error.contains("no none/file in the folder"), "{error}");
    }

    /// Only a regular file gives way, and only to `--force`.
    #[test]
    fn a_name_is_free_or_that_of_a_regular_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "octets").unwrap();
        std::fs::create_dir(at("sub")).unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        std::os::unix::fs::symlink("none", at("dangling")).unwrap();
        let kind = FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), kind, Mode::RUSR, 0).unwrap();
        let found = |name: &str, force| {
            let place = Place::at(&at(name)).unwrap();
            assert_eq!(place.is_taken(), name != "new", "{name}");
            place.check_free(force).map_err(|why| why.to_string())
        };
        for force in [false, true] {
            assert_eq!(found("new", force), Ok(()));
            for (name, text) in [
                ("sub", "is a folder"),
                ("link", "is a symbolic link"),
                ("dangling", "is a symbolic link"),
                ("pipe", "is no regular file"),
            ] {
                let why = found(name, force).unwrap_err();
                assert!(why.starts_with(name) && why.contains(text), "{why}");
            }
        }
        assert_eq!(found("file", true), Ok(()));
        assert!(found("file", false).unwrap_err().contains("--force"));
        for (path, text) in [("sub/", "is a folder"), ("..", "names no file"), ("none/x", "folder")]
        {
            let why = format!("{:#}", Place::at(&at(path)).unwrap_err());
            assert!(why.contains(text), "{path}: {why}");
        }
        let place = Place::at(&at("file")).unwrap();
        assert_eq!(place.name_with(PART), ".file.urnic-part");
        assert_eq!(place.name_with(JOURNAL), ".file.urnic-journal");
    }
}
