//! The folder of the sockets, which only its user can access.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::environment::runtime_folder;

/// Returns `$XDG_RUNTIME_DIR/urnic`, or if that variable is missing or names another user's folder,
/// `urnic-top-UID` in the folder for temporary files.
#[must_use]
pub fn folder() -> PathBuf {
    match runtime_folder() {
        Some(runtime) => runtime.join("urnic"),
        None => env::temp_dir().join(format!("urnic-top-{}", geteuid().as_raw())),
    }
}

pub(super) fn make(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => check(folder),
    }
}

/// Fails if another user can access the folder.
pub(super) fn check(folder: &Path) -> io::Result<()> {
    // Not the target of a link: another user may have made the link.
    let found = fs::symlink_metadata(folder)?;
    let is_own = found.is_dir() && found.uid() == geteuid().as_raw();
    if is_own && found.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it is not a folder that only you can enter: remove it, or set XDG_RUNTIME_DIR",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_others_may_enter_is_refused() {
        let place = env::temp_dir().join(format!("urnic-top-test-{}", std::process::id()));
        let _left_over = fs::remove_dir_all(&place);
        make(&place).unwrap();
        make(&place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o750)).unwrap();
        assert_eq!(make(&place).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
        let link = place.join("link");
        std::os::unix::fs::symlink(&place, &link).unwrap();
        assert!(make(&link).is_err(), "a link is no folder");
        assert!(check(&place.join("none")).is_err());
        fs::remove_dir_all(&place).unwrap();
    }
}
