//! Detects processes with more rights than their user.
#![expect(unsafe_code, reason = "the auxiliary vector is C's to read")]

/// Returns true if the kernel started the process with rights that its user does not have: a
/// set-user-id or set-group-id executable, or one with file capabilities (`AT_SECURE` of
/// getauxval(3)). The environment of such a process is controlled by that user.
#[must_use]
pub fn has_more_rights_than_its_user() -> bool {
    // SAFETY: reads the vector that the kernel gave the process; no memory is passed.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) };
    secure != 0
}
