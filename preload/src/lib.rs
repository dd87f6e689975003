//! `stat` and `access` of a program that `urnic run` starts. Some programs (UCX) ask for a device file before
//! they use a device: `/dev/infiniband/urnic0` is a character device that may be read and written here, though
//! there is none. All other paths are the kernel's, by the system calls that the two functions stand for.
#![expect(unsafe_code, reason = "functions of C, with paths of C")]

use std::ffi::CStr;

use libc::{AT_FDCWD, X_OK, c_char, c_int, makedev, mode_t, stat as Stat};

/// Where device files are, and how the names of urnic's begin.
const PREFIX: &[u8] = b"/dev/infiniband/urnic";
/// A character device that all may read and write.
const MODE: mode_t = libc::S_IFCHR | 0o666;
/// The numbers of the first device file of InfiniBand's (`IB_UVERBS_MAJOR`, `IB_UVERBS_BASE_MINOR`).
const NUMBERS: (u32, u32) = (231, 192);

/// Whether a path is of a device of urnic's.
fn is_device(path: &[u8]) -> bool {
    path.strip_prefix(PREFIX)
        .is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// As [`is_device`], of C's string.
///
/// # Safety
/// `path` is NULL or a string.
unsafe fn names_device(path: *const c_char) -> bool {
    if path.is_null() {
        // The kernel says what there is to say of it.
        return false;
    }
    // SAFETY: a string, by this function's contract.
    is_device(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Says that it is a device file.
///
/// # Safety
/// `place` is one for the answer.
unsafe fn describe(place: *mut Stat) {
    // SAFETY: numbers, of which zero is one.
    let mut told: Stat = unsafe { std::mem::zeroed() };
    (told.st_mode, told.st_nlink, told.st_rdev) = (MODE, 1, makedev(NUMBERS.0, NUMBERS.1));
    // SAFETY: C's place for the answer, by this function's contract.
    unsafe { place.write(told) };
}

/// `stat`.
///
/// # Safety
/// As of C's: `path` is a string, `place` one for the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, place: *mut Stat) -> c_int {
    // SAFETY: NULL or a string, by this function's contract.
    if unsafe { names_device(path) } {
        // SAFETY: a place for the answer, by this function's contract.
        unsafe { describe(place) };
        return 0;
    }
    // SAFETY: what C has given; stat(2) says that this is the same.
    unsafe { libc::fstatat(AT_FDCWD, path, place, 0) }
}

/// `stat64`, which programs call that were built for large files: on 64 bits the same.
///
/// # Safety
/// As [`stat`].
#[cfg(target_pointer_width = "64")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat64(path: *const c_char, place: *mut Stat) -> c_int {
    // SAFETY: as this function's contract.
    unsafe { stat(path, place) }
}

/// `access`.
///
/// # Safety
/// As of C's: `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: NULL or a string, by this function's contract.
    if unsafe { names_device(path) } && mode & X_OK == 0 {
        return 0;
    }
    // SAFETY: what C has given; access(2) says that this is the same.
    unsafe { libc::faccessat(AT_FDCWD, path, mode, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_urnic_are_there_and_nothing_else_is_changed() {
        // SAFETY: zero is a value of numbers.
        let mut place: Stat = unsafe { std::mem::zeroed() };
        let mut ask = |path: &CStr| {
            // SAFETY: a string, and a place for the answer.
            let told = unsafe { stat(path.as_ptr(), &raw mut place) };
            // SAFETY: a string.
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
