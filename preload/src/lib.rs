//! Replaces `stat` and `access` in an application started by `urnic run`. Some applications (UCX)
//! look for a device file before they use a device. Here `/dev/infiniband/urnic0` appears as a
//! character device with read and write permission, although it does not exist. All other paths are
//! passed to the kernel, by the system calls of the two functions.
#![expect(unsafe_code, reason = "functions of C, with paths of C")]

use std::ffi::CStr;

use libc::{AT_FDCWD, X_OK, c_char, c_int, makedev, mode_t, stat as Stat};

/// Folder of device files, and the prefix of urnic's names.
const PREFIX: &[u8] = b"/dev/infiniband/urnic";
/// Character device that all users may read and write.
const MODE: mode_t = libc::S_IFCHR | 0o666;
/// Device number of the first InfiniBand device file (`IB_UVERBS_MAJOR`, `IB_UVERBS_BASE_MINOR`).
const NUMBERS: (u32, u32) = (231, 192);

/// Returns true if a path names a device of urnic.
fn is_device(path: &[u8]) -> bool {
    path.strip_prefix(PREFIX)
        .is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// As [`is_device`], for a C string.
///
/// # Safety
/// `path` must be NULL or a C string.
unsafe fn names_device(path: *const c_char) -> bool {
    if path.is_null() {
        // The kernel returns the error for NULL.
        return false;
    }
    // SAFETY: a C string, by this function's contract.
    is_device(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Fills in the result of a device file.
///
/// # Safety
/// `place` must be valid for writes.
unsafe fn describe(place: *mut Stat) {
    // SAFETY: a C struct of integers, for which all zeroes are valid.
    let mut told: Stat = unsafe { std::mem::zeroed() };
    (told.st_mode, told.st_nlink, told.st_rdev) = (MODE, 1, makedev(NUMBERS.0, NUMBERS.1));
    // SAFETY: valid for writes, by this function's contract.
    unsafe { place.write(told) };
}

/// `stat`.
///
/// # Safety
/// As in C: `path` is a C string, `place` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, place: *mut Stat) -> c_int {
    // SAFETY: NULL or a C string, by this function's contract.
    if unsafe { names_device(path) } {
        // SAFETY: valid for writes, by this function's contract.
        unsafe { describe(place) };
        return 0;
    }
    // SAFETY: the caller's arguments; this call is equivalent (stat(2)).
    unsafe { libc::fstatat(AT_FDCWD, path, place, 0) }
}

/// `stat64`, called by applications built for large files: equal on 64-bit systems.
///
/// # Safety
/// As [`stat`].
#[cfg(target_pointer_width = "64")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat64(path: *const c_char, place: *mut Stat) -> c_int {
    // SAFETY: this function has the same contract.
    unsafe { stat(path, place) }
}

/// `access`.
///
/// # Safety
/// As in C: `path` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: NULL or a C string, by this function's contract.
    if unsafe { names_device(path) } && mode & X_OK == 0 {
        return 0;
    }
    // SAFETY: the caller's arguments; this call is equivalent (access(2)).
    unsafe { libc::faccessat(AT_FDCWD, path, mode, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_urnic_are_there_and_nothing_else_is_changed() {
        // SAFETY: a C struct of integers, for which all zeroes are valid.
        let mut place: Stat = unsafe { std::mem::zeroed() };
        let mut ask = |path: &CStr| {
            // SAFETY: a C string, and a place for the answer.
            let told = unsafe { stat(path.as_ptr(), &raw mut place) };
            // SAFETY: a C string.
            (told, unsafe { access(path.as_ptr(), libc::R_OK | libc::W_OK) })
        };
        assert_eq!(ask(c"/dev/infiniband/urnic0"), (0, 0));
        for path in [c"/dev/infiniband/urnic", c"/dev/infiniband/urnic0x", c"/nowhere/urnic0"] {
            assert_eq!(ask(path), (-1, -1), "{path:?}");
        }
        assert_eq!(ask(c"/dev/null"), (0, 0));
        assert_eq!(place.st_mode & libc::S_IFMT, libc::S_IFCHR);
        // SAFETY: NULL, which the kernel refuses.
        assert_eq!(unsafe { access(std::ptr::null(), 0) }, -1);
    }
}
