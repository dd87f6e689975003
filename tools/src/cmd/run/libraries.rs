//! The libraries that `urnic run` gives to programs, and the folder with their names. A library is
//! taken from the first of: the program's folder, its `deps`, where cargo leaves it, the `lib`
//! folder next to the program's folder, and the copy inside this program, for `cargo install`.

use std::env;
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use tempfile::NamedTempFile;
use urnic::runtime_folder;

pub(super) struct Library {
    name: &'static str,
    copy: &'static [u8],
}

/// Cargo has built the library as a dependency; for `cargo check` it is an empty file of
/// `build.rs`.
macro_rules! library {
    ($name:literal) => {
        Library {
            name: $name,
            copy: include_bytes!(concat!(env!("OUT_DIR"), "/../../../deps/", $name)),
        }
    };
}

pub(super) static RDMA: Library = library!("liburnic_rdma.so");
pub(super) static PRELOAD: Library = library!("liburnic_preload.so");

/// Names by which programs look for [`RDMA`].
const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

impl Library {
    /// Writes the copy into this user's folder if there is no file.
    pub(super) fn path(&self) -> anyhow::Result<PathBuf> {
        let program = env::current_exe().context("finding the path of this program")?;
        let beside = program.parent().unwrap_or_else(|| Path::new("/"));
        let places = [beside.to_owned(), beside.join("deps"), beside.join("../lib")];
        let is_library =
            |path: &PathBuf| path.metadata().is_ok_and(|found| found.is_file() && found.len() > 0);
        let found = places.iter().map(|place| place.join(self.name)).find(is_library);
        match found {
            Some(found) => fs::canonicalize(found).with_context(|| self.name.to_owned()),
            None => self.write_into(&folder()?.join(version())),
        }
    }

    /// Writes the copy unless it is there. Running programs that use another copy keep it.
    fn write_into(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let path = folder.join(self.name);
        if fs::read(&path).is_ok_and(|there| there == self.copy) {
            return Ok(path);
        }
        ensure!(!self.copy.is_empty(), "there is no {}: build urnic with its libraries", self.name);
        let write = || {
            fs::create_dir_all(folder)?;
            let mut new = NamedTempFile::new_in(folder)?;
            new.write_all(self.copy)?;
            new.persist(&path)?;
            io::Result::Ok(())
        };
        write().with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }
}

/// Programs started by two versions have a folder each.
fn version() -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.';
    env!("URNIC_VERSION").replace(|c| !is_plain(c), "-")
}

pub(super) fn with_names(rdma: &Path) -> anyhow::Result<PathBuf> {
    installed(rdma).map_or_else(|| linked(rdma), Ok)
}

/// Packages and container images create the folder `urnic` beside the library, with links.
fn installed(library: &Path) -> Option<PathBuf> {
    let folder = library.parent()?.join("urnic");
    let is_it = |name: &str| fs::canonicalize(folder.join(name)).is_ok_and(|it| it == library);
    NAMES.iter().all(|name| is_it(name)).then_some(folder)
}

fn linked(library: &Path) -> anyhow::Result<PathBuf> {
    let own = folder()?;
    // The names of a copy are beside it.
    let copies = library.parent().filter(|folder| folder.starts_with(&own));
    let folder = copies.map(Path::to_owned).unwrap_or(own);
    for name in NAMES {
        link(library, &folder.join(name))
            .with_context(|| format!("{name} in {}", folder.display()))?;
    }
    Ok(folder)
}

/// Returns this user's own folder: its contents are executed.
fn folder() -> anyhow::Result<PathBuf> {
    let base = runtime_folder().unwrap_or_else(env::temp_dir);
    private_folder(&base).context("a folder for the library")
}

/// Creates one with a name that cannot be guessed if another user has the usual name.
fn private_folder(base: &Path) -> anyhow::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let folder = base.join(format!("urnic-run-{user}"));
    if let Some(folder) = private(folder.clone())? {
        return Ok(folder);
    }
    let mark = RandomState::new().hash_one(std::process::id());
    let other = base.join(format!("urnic-run-{user}-{mark:016x}"));
    writeln!(
        io::stderr(),
        "urnic: {} is not a folder that only you can change: remove it; using {} for now",
        folder.display(),
        other.display()
    )
    .context("standard error")?;
    private(other)?.context("another process has made a folder of that name")
}

/// `None` if another user can change its contents.
fn private(folder: PathBuf) -> io::Result<Option<PathBuf>> {
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Links are not followed: another user may have created them.
    let found = fs::symlink_metadata(&folder)?;
    let is_own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    let is_private = is_own && found.permissions().mode() & 0o022 == 0;
    Ok(is_private.then_some(folder))
}

/// Other runs may create it at the same time.
fn link(library: &Path, link: &Path) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|there| there == library) {
        return Ok(());
    }
    let new = link.with_extension(format!("new-{}", std::process::id()));
    symlink(library, &new)?;
    fs::rename(&new, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_another_user_is_passed_over() {
        let place = tempfile::tempdir().unwrap();
        let first = private_folder(place.path()).unwrap();
        assert_eq!(private_folder(place.path()).unwrap(), first);
        // A folder as another user may leave it: writable for others, or a link to another place.
        fs::set_permissions(&first, fs::Permissions::from_mode(0o777)).unwrap();
        let other = private_folder(place.path()).unwrap();
        assert_ne!(other, first);
        assert_eq!(fs::symlink_metadata(&other).unwrap().permissions().mode() & 0o777, 0o700);
        fs::remove_dir(&first).unwrap();
        symlink(&other, &first).unwrap();
        assert!(![&first, &other].contains(&&private_folder(place.path()).unwrap()));
    }

    #[test]
    fn names_that_are_installed_beside_the_library_are_used() {
        let place = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(place.path()).unwrap();
        let (library, folder) = (place.join(RDMA.name), place.join("urnic"));
        fs::write(&library, "").unwrap();
        fs::create_dir(&folder).unwrap();
        assert_eq!(installed(&library), None);
        for name in NAMES {
            assert_eq!(installed(&library), None, "not all are there");
            symlink(&library, folder.join(name)).unwrap();
        }
        assert_eq!(installed(&library), Some(folder.clone()));
        fs::remove_file(folder.join(NAMES[0])).unwrap();
        symlink("/dev/null", folder.join(NAMES[0])).unwrap();
        assert_eq!(installed(&library), None, "another library has the name");
    }

    #[test]
    fn the_copy_is_written_once_and_replaces_that_of_another_version() {
        let place = tempfile::tempdir().unwrap();
        for library in [&RDMA, &PRELOAD] {
            assert!(library.copy.starts_with(b"\x7fELF"), "{}", library.name);
        }
        let library = Library { name: "library.so", copy: b"this version" };
        let path = library.write_into(place.path()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"this version");
        let written = fs::metadata(&path).unwrap().ino();
        assert_eq!(library.write_into(place.path()).unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().ino(), written);
        // A program that runs has opened the file: it is replaced, not overwritten.
        fs::write(&path, "another version").unwrap();
        library.write_into(place.path()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"this version");
        assert_ne!(fs::metadata(&path).unwrap().ino(), written);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing else is left");
    }
}
