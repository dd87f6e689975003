//! Users whose processes may be at the other end of a Unix socket (`SO_PEERCRED`): the same user,
//! root, and one more user if the application names one. In a user namespace the kernel shows users
//! without a number there as [`OVERFLOW_UID`]. All look alike, so a peer with that number is
//! trusted only if the namespace has a user of that number.

use std::fs;
use std::io;
use std::os::fd::AsFd;

use rustix::process::geteuid;

use crate::sys::credentials::{PeerProcess, peer_process};

/// Error: the peer runs as a user that is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the process there is of user {uid}, and this one of user {own}")]
pub struct ForeignUser {
    /// User of the peer.
    pub uid: u32,
    /// Effective user of this process.
    pub own: u32,
}

/// Checks the user of a connection's peer: the own user, root and `also` are trusted. Fails with
/// [`io::ErrorKind::PermissionDenied`] and a [`ForeignUser`] for any other.
pub fn check_peer(stream: impl AsFd, also: Option<u32>) -> io::Result<PeerProcess> {
    let peer = peer_process(stream.as_fd())?;
    match check_user(peer.uid, also) {
        Ok(()) => Ok(peer),
        Err(foreign) => Err(io::Error::new(io::ErrorKind::PermissionDenied, foreign)),
    }
}

/// Checks a user reported by the kernel. `also` is trusted besides the own user and root.
pub fn check_user(uid: u32, also: Option<u32>) -> Result<(), ForeignUser> {
    let own = geteuid().as_raw();
    let is_a_user = || uid != OVERFLOW_UID || has_overflow_user();
    if is_trusted(uid, own, also, is_a_user) { Ok(()) } else { Err(ForeignUser { uid, own }) }
}

pub(crate) fn foreign_user(error: &io::Error) -> Option<ForeignUser> {
    error.get_ref()?.downcast_ref().copied()
}

fn is_trusted(uid: u32, own: u32, also: Option<u32>, is_a_user: impl Fn() -> bool) -> bool {
    also == Some(uid) || uid == 0 || (uid == own && is_a_user())
}

/// [`OVERFLOW_UID`] is the number of one user in this namespace.
fn has_overflow_user() -> bool {
    // Without /proc, assumes the first namespace, which has users of all numbers.
    fs::read_to_string("/proc/self/uid_map").map_or(true, |map| maps(&map, OVERFLOW_UID))
}

/// `map` is a `uid_map` (user_namespaces(7)).
fn maps(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        u64::from(uid).checked_sub(first).is_some_and(|into| into < count)
    })
}

/// Number that the kernel shows for users without one (default of `/proc/sys/kernel/overflowuid`).
const OVERFLOW_UID: u32 = 65_534;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn own_user_root_and_the_named_user_are_trusted() {
        let trusts = |uid, own, also| is_trusted(uid, own, also, || true);
        assert!(trusts(1000, 1000, None) && trusts(0, 1000, None) && trusts(0, 0, None));
        assert!(!trusts(1001, 1000, None) && !trusts(1000, 0, None));
        assert!(trusts(1001, 1000, Some(1001)) && !trusts(1002, 1000, Some(1001)));
        assert!(trusts(1000, 1000, Some(1001)) && trusts(0, 1000, Some(1001)));
    }

    #[test]
    fn users_without_a_number_are_not_the_same_user() {
        assert!(!is_trusted(OVERFLOW_UID, OVERFLOW_UID, None, || false));
        assert!(is_trusted(OVERFLOW_UID, OVERFLOW_UID, None, || true));
        assert!(is_trusted(OVERFLOW_UID, 0, Some(OVERFLOW_UID), || false));
        assert!(maps("         0          0 4294967295\n", OVERFLOW_UID));
        assert!(!maps("0 1000 1\n", OVERFLOW_UID) && maps("0 1000 1\n65534 7 1\n", OVERFLOW_UID));
        assert!(!maps("0 100000 65534\n", OVERFLOW_UID) && maps("0 100000 65535\n", OVERFLOW_UID));
        assert!(!maps("", OVERFLOW_UID) && !maps("a b c\n", OVERFLOW_UID));
    }

    #[test]
    fn the_kernel_says_who_the_peer_is() {
        let (near, _far) = UnixStream::pair().unwrap();
        let peer = check_peer(&near, None).unwrap();
        assert_eq!((peer.pid, peer.uid), (std::process::id(), geteuid().as_raw()));
        let foreign = geteuid().as_raw() + 1;
        let error = check_user(foreign, None).unwrap_err();
        assert!(error.to_string().contains(&format!("user {foreign}")), "{error}");
        assert!(check_user(foreign, Some(foreign)).is_ok());
    }
}
