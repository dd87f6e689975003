//! Identity of the process at the other end of a Unix socket. Not by rustix, whose process IDs are
//! never zero: the kernel returns zero for a process in a PID namespace that this process does not
//! see.
#![expect(unsafe_code, reason = "getsockopt and recvmsg with structs of C")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Process at the other end of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// Process ID; zero if the process has none in this process's namespace.
    pub pid: u32,
    /// User ID in this process's namespace.
    pub uid: u32,
}

impl From<libc::ucred> for PeerProcess {
    fn from(ucred: libc::ucred) -> Self {
        Self { pid: u32::try_from(ucred.pid).unwrap_or(0), uid: ucred.uid }
    }
}

/// Returns the process at the other end of a connection (`SO_PEERCRED`): the one that connected, or
/// the one that called `listen(2)`.
pub fn peer_process(stream: BorrowedFd<'_>) -> io::Result<PeerProcess> {
    let mut ucred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = libc::socklen_t::try_from(size_of_val(&ucred)).expect("a few bytes");
    // SAFETY: the kernel writes at most `len` bytes to `ucred`, which has that length and lives on.
    let asked = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut ucred).cast(),
            &raw mut len,
        )
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    if usize::try_from(len) != Ok(size_of_val(&ucred)) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(ucred.into())
}

/// Makes the kernel attach the sender to each datagram (`SO_PASSCRED`).
pub(crate) fn ask_for_senders(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::SO_PASSCRED, 1)
}

/// Makes the kernel refuse messages with descriptors (`SO_PASSRIGHTS`): their senders get an error.
/// Before Linux 6.16 this has no effect.
pub(crate) fn refuse_descriptors(socket: BorrowedFd<'_>) {
    let _older_kernel = set_option(socket, SO_PASSRIGHTS, 0);
}

/// From `asm-generic/socket.h`: libc has it for none of the supported architectures.
const SO_PASSRIGHTS: libc::c_int = 83;

fn set_option(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of_val(&value)).expect("a few bytes");
    // SAFETY: the kernel reads `len` bytes from the address of a live int, which has that length.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            len,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) len: usize,
    /// `None` if the kernel did not attach it.
    pub(crate) sender: Option<PeerProcess>,
    /// Sender's address behind the family, as in `sun_path`, and its length.
    pub(crate) path: ([u8; PATH_LEN], usize),
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Receives a datagram with its sender, and all its descriptors.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    // SAFETY: a C struct of integers, for which all zeroes are valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    // SAFETY: a C struct of integers and pointers, for which all zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    let mut space = MaybeUninit::<Space>::uninit();
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = libc::socklen_t::try_from(size_of_val(&address)).expect("some bytes");
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = space.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Space>();
    // SAFETY: `message` names an address, one part and control space, each live and of the given
    // length.
    let len =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    // An address is no longer than `sockaddr_un`.
    let behind = usize::try_from(message.msg_namelen).unwrap_or(0);
    let path_len = behind.saturating_sub(size_of::<libc::sa_family_t>()).min(PATH_LEN);
    let path = (address.sun_path.map(libc::c_char::cast_unsigned), path_len);
    let mut received = Received { len, sender: None, path, descriptors: Vec::new() };
    // SAFETY: the kernel has written headers and lengths that are inside the space.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: not null, so a header in the space.
        let header = unsafe { next.read_unaligned() };
        // SAFETY: as above.
        let data = unsafe { libc::CMSG_DATA(next) };
        // SAFETY: the length of an empty message.
        let front = usize::try_from(unsafe { libc::CMSG_LEN(0) }).unwrap_or(usize::MAX);
        let data_len = header.cmsg_len.saturating_sub(front);
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if data_len >= size_of::<libc::ucred>() => {
                // SAFETY: that many bytes are there, and any bytes are a valid `ucred`.
                let ucred = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                received.sender = Some(ucred.into());
            }
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for index in 0..data_len / size_of::<libc::c_int>() {
                    // SAFETY: inside the data, whose length the kernel has written.
                    let at = unsafe { data.cast::<libc::c_int>().add(index) };
                    // SAFETY: as above; any bytes are a valid int.
                    let fd = unsafe { at.read_unaligned() };
                    // SAFETY: a new descriptor that the kernel created for this call.
                    received.descriptors.push(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
            _ => {}
        }
        // SAFETY: `next` is a header in the space of `message`.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    Ok(received)
}

pub(crate) const PATH_LEN: usize = 108;

/// Room for the sender, and all descriptors of a datagram; aligned as `cmsghdr`.
#[repr(align(8))]
#[expect(dead_code, reason = "the kernel fills it")]
struct Space([u8; SPACE_LEN]);

const SPACE_LEN: usize = 1152;
// Two headers of 16 bytes, a `ucred`, and `SCM_MAX_FD` descriptors.
const _: () = assert!(SPACE_LEN >= 2 * 16 + 16 + 253_usize.next_multiple_of(2) * 4);
