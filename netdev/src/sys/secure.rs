//! Detection of processes with more rights than their user.
#![expect(unsafe_code, reason = "the auxiliary vector is C's to read")]

/// Returns true if the kernel started the process with rights that its user has not: a set-user-id or
/// set-group-id program, or one with capabilities of its file (`AT_SECURE` of getauxval(3)). Its environment is
/// that user's.
#[must_use]
pub fn has_more_rights_than_its_user() -> bool {
    // SAFETY: reads the vector that the kernel gave the process; no memory is passed.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) };
    secure != 0
}
