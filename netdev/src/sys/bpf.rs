//! The four `bpf(2)` calls for loading a redirect program.
#![expect(unsafe_code, reason = "system calls")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachMode {
    /// In the driver, before there is a socket buffer.
    Native,
    /// Behind the driver, on any interface.
    Generic,
}

/// `union bpf_attr` for BPF_MAP_CREATE.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

/// `union bpf_attr` for BPF_MAP_UPDATE_ELEM.
#[repr(C)]
struct MapUpdate {
    map_fd: i32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// `union bpf_attr` for BPF_PROG_LOAD.
#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buffer: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// `union bpf_attr` for BPF_LINK_CREATE.
#[repr(C)]
struct LinkCreate {
    program_fd: i32,
    interface_index: u32,
    attach_type: u32,
    flags: u32,
}

const _: () = assert!(size_of::<MapUpdate>() == 32);
const _: () = assert!(size_of::<ProgramLoad>() == 64);

/// The kernel takes attributes that `T` does not have as zero.
/// # Safety
/// `T` must have the layout of the command's part of `union bpf_attr`, and its addresses must be
/// valid for the call.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<i32> {
    let attributes: *const T = attributes;
    // SAFETY: the given number of bytes is readable at `attributes`; the rest is the caller's
    // contract.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(io::Error::other)
}

/// # Safety
/// As [`bpf`], and the command must return a new descriptor.
unsafe fn bpf_fd<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's contract.
    let fd = unsafe { bpf(command, attributes) }?;
    // SAFETY: a new descriptor by the caller's contract (bpf(2) sets close-on-exec).
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address<T: ?Sized>(of: &T) -> u64 {
    let address = std::ptr::from_ref(of).cast::<u8>().expose_provenance();
    u64::try_from(address).expect("addresses have at most 64 bits")
}

/// Creates a map from queue numbers below `queues` to AF_XDP sockets: `EPERM` without CAP_BPF and
/// CAP_NET_ADMIN; `EINVAL` if the kernel has no AF_XDP.
pub(crate) fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    let attributes =
        MapCreate { map_type: MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, max_entries: queues };
    // SAFETY: the attributes of this command, which returns a descriptor.
    unsafe { bpf_fd(MAP_CREATE, &attributes) }
}

pub(crate) fn insert_socket(
    map: BorrowedFd<'_>,
    queue: u32,
    socket: BorrowedFd<'_>,
) -> io::Result<()> {
    let value = socket.as_raw_fd();
    let attributes = MapUpdate {
        map_fd: map.as_raw_fd(),
        reserved: 0,
        key: address(&queue),
        value: address(&value),
        flags: 0,
    };
    // SAFETY: the attributes of this command; key and value are four bytes each, as in the map.
    unsafe { bpf(MAP_UPDATE_ELEM, &attributes) }.map(drop)
}

/// Loads an XDP program. A refusal includes the verifier's log, which may be empty.
pub(crate) fn load_xdp(instructions: &[u64]) -> Result<OwnedFd, (io::Error, String)> {
    const LICENSE: &CStr = c"Dual MIT/GPL";
    const LOG_LEN: usize = 16 * 1024;
    let mut log = vec![0u8; LOG_LEN];
    let count = u32::try_from(instructions.len()).expect("a short program");
    let attributes = ProgramLoad {
        program_type: PROG_TYPE_XDP,
        instruction_count: count,
        instructions: address(instructions),
        license: address(LICENSE.to_bytes_with_nul()),
        log_level: 1,
        log_size: u32::try_from(LOG_LEN).expect("small"),
        log_buffer: {
            let buffer: *mut u8 = log.as_mut_ptr();
            u64::try_from(buffer.expose_provenance()).expect("addresses have at most 64 bits")
        },
        kernel_version: 0,
        flags: 0,
        name: *b"urnic_redirect\0\0",
    };
    // SAFETY: the attributes of this command, which returns a descriptor: `count` instructions, a
    // zero-terminated license, and room for the log that nothing else refers to.
    unsafe { bpf_fd(PROG_LOAD, &attributes) }.map_err(|error| {
        let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy);
        (error, text.map(|text| text.trim().to_owned()).unwrap_or_default())
    })
}

/// Attaches an XDP program for as long as the returned descriptor is open: the kernel closes it
/// when the process ends, for any reason. `EBUSY` if the interface has a program, `EOPNOTSUPP` and
/// others if the driver takes none.
pub(crate) fn attach_xdp(
    program: BorrowedFd<'_>,
    interface_index: u32,
    mode: AttachMode,
) -> io::Result<OwnedFd> {
    let flags = match mode {
        AttachMode::Generic => 1 << 1,
        AttachMode::Native => 1 << 2,
    };
    let attributes = LinkCreate {
        program_fd: program.as_raw_fd(),
        interface_index,
        attach_type: ATTACH_TYPE_XDP,
        flags,
    };
    // SAFETY: the attributes of this command, which returns a descriptor.
    unsafe { bpf_fd(LINK_CREATE, &attributes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_program_comes_with_the_verifiers_words() {
        // A lone `exit`, which returns a register that was never set.
        let exit = u64::from_ne_bytes([0x95, 0, 0, 0, 0, 0, 0, 0]);
        let (error, log) = load_xdp(&[exit]).unwrap_err();
        // Without the right to load programs, the kernel does not look at it.
        let may_not = error.kind() == io::ErrorKind::PermissionDenied && log.is_empty();
        assert!(may_not || log.contains("R0 !read_ok"), "{error}: {log}");
    }
}
