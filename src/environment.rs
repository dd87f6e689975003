//! The environment variables that control urnic.

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{getegid, geteuid, getgid, getuid};
use urnic_netdev::has_more_rights_than_its_user;

/// Returns an environment variable. `None` in a process with more rights than its user, such as a
/// set-user-id program: its user must not control it by the environment. Commands read `URNIC_LOG`
/// and `URNIC_TOP` in any process, since they have options with the same effect.
#[must_use]
pub fn environment(name: &str) -> Option<OsString> {
    if has_more_rights_than_its_user() { None } else { env::var_os(name) }
}

/// Returns the folder for sockets and links of this user, `$XDG_RUNTIME_DIR`. `None` if the
/// variable is missing, is not an absolute path (XDG Base Directory Specification), or names a
/// folder that another user owns (`su` keeps the variable) or may write to; and in set-user-id and
/// set-group-id programs, but not in those with file capabilities, which run as the folder's owner.
#[must_use]
pub fn runtime_folder() -> Option<PathBuf> {
    let is_its_users = geteuid() == getuid() && getegid() == getgid();
    let folder = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    folder.filter(|folder| is_usable(folder, is_its_users))
}

/// Returns true if the process may use a folder that its environment names. `is_its_users` is false
/// if the process has the rights of another user.
fn is_usable(folder: &Path, is_its_users: bool) -> bool {
    is_its_users && folder.is_absolute() && !is_of_another_user(folder)
}

/// A missing folder is not: its use will fail with a reason.
fn is_of_another_user(folder: &Path) -> bool {
    folder
        .metadata()
        .is_ok_and(|found| found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn variables_are_read_in_a_process_with_the_rights_of_its_user() {
        assert!(!has_more_rights_than_its_user());
        assert_eq!(environment("PATH"), env::var_os("PATH"));
        assert_eq!(environment("URNIC_NO_SUCH_VARIABLE"), None);
    }

    #[test]
    fn a_folder_that_another_user_owns_or_may_write_is_not_used() {
        let place = env::temp_dir().join(format!("urnic-environment-{}", std::process::id()));
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, Permissions::from_mode(0o700)).unwrap();
        assert!(!is_of_another_user(&place));
        fs::set_permissions(&place, Permissions::from_mode(0o770)).unwrap();
        assert!(is_of_another_user(&place) && !is_usable(&place, true));
        fs::set_permissions(&place, Permissions::from_mode(0o700)).unwrap();
        // Only root may give a folder away.
        if chown(&place, Some(geteuid().as_raw() + 1), None).is_ok() {
            assert!(is_of_another_user(&place));
        }
        fs::remove_dir(&place).unwrap();
        assert!(!is_of_another_user(&place), "what is not there fails where it is used");
    }

    #[test]
    fn only_an_absolute_folder_of_the_user_is_used() {
        let none = env::temp_dir().join(format!("urnic-none-{}", std::process::id()));
        assert!(is_usable(&none, true));
        assert!(!is_usable(&none, false), "the process has the rights of another user");
        assert!(!is_usable(Path::new("urnic-none"), true), "relative");
    }
}
