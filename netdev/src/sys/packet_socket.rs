//! Packet sockets (`AF_PACKET`): creation, binding and options.
#![expect(unsafe_code, reason = "system calls")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::sys::mapping::Mapping;
use crate::sys::packet_ring::{PacketRing, RingLayout};

pub(crate) type FilterInstruction = libc::sock_filter;

/// Opens a packet socket that receives nothing until it is bound: `EPERM` without `CAP_NET_RAW`,
/// `EAFNOSUPPORT` if the kernel has no packet sockets.
pub(crate) fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call just returned this descriptor, and nothing else holds it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set<T>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).expect("options are small");
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: `fd` is open, and `value` is `len` readable bytes; this module calls it with values
    // whose pointers, if any, are valid for the length of the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn read_int(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut len = libc::socklen_t::try_from(size_of::<i32>()).expect("four");
    let to = (&raw mut value).cast();
    // SAFETY: `fd` is open; `to` is `len` writable bytes.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, to, &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Returns the number of frames that found no room since the last call.
pub(crate) fn drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut value = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = libc::socklen_t::try_from(size_of_val(&value)).expect("eight");
    let to = (&raw mut value).cast();
    let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
    // SAFETY: `fd` is open; `to` is `len` writable bytes.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, to, &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value.tp_drops) }
}

/// `PACKET_VERSION`, `PACKET_VNET_HDR` and so on; `ENOPROTOOPT` if the kernel is too old.
pub(crate) fn set_option(fd: BorrowedFd<'_>, name: PacketOption, value: i32) -> io::Result<()> {
    set(fd, libc::SOL_PACKET, name.0, &value)
}

#[derive(Clone, Copy)]
pub(crate) struct PacketOption(i32);

impl PacketOption {
    pub(crate) const VNET_HEADER: Self = Self(libc::PACKET_VNET_HDR);
    pub(crate) const COPY_THRESHOLD: Self = Self(libc::PACKET_COPY_THRESH);
    pub(crate) const IGNORE_OUTGOING: Self = Self(libc::PACKET_IGNORE_OUTGOING);
    pub(crate) const QDISC_BYPASS: Self = Self(libc::PACKET_QDISC_BYPASS);
    const VERSION: Self = Self(libc::PACKET_VERSION);
    const FANOUT: Self = Self(libc::PACKET_FANOUT);
}

/// `ENOMEM` if there is no memory for the ring, `EINVAL` for a bad layout.
pub(crate) fn receive_ring(fd: BorrowedFd<'_>, layout: RingLayout) -> io::Result<PacketRing> {
    let number =
        |value: usize| u32::try_from(value).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
    let version = i32::try_from(libc::tpacket_versions::TPACKET_V2 as u32).expect("small");
    set_option(fd, PacketOption::VERSION, version)?;
    let request = libc::tpacket_req {
        tp_block_size: number(layout.block_len)?,
        tp_block_nr: number(layout.blocks)?,
        tp_frame_size: number(layout.slot_len)?,
        tp_frame_nr: number(layout.slots())?,
    };
    set(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
    Ok(PacketRing::new(Mapping::of(fd, 0, layout.len())?, layout))
}

/// `ENODEV` if there is no such interface, `EINVAL` if the socket is in a fanout group.
pub(crate) fn bind(fd: BorrowedFd<'_>, interface_index: u32) -> io::Result<()> {
    // SAFETY: a C struct of integers, for which all zeroes are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).expect("small");
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL).expect("small").to_be();
    address.sll_ifindex = signed(interface_index)?;
    let len = libc::socklen_t::try_from(size_of_val(&address)).expect("small");
    // SAFETY: `fd` is open, and the address is `len` readable bytes.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn signed(interface_index: u32) -> io::Result<i32> {
    i32::try_from(interface_index).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Membership {
    /// Every frame on the wire.
    Promiscuous,
    /// Frames to every group.
    AllGroups,
}

/// Makes the interface receive more than it would for the kernel alone.
pub(crate) fn join(
    fd: BorrowedFd<'_>,
    interface_index: u32,
    membership: Membership,
) -> io::Result<()> {
    let kind = match membership {
        Membership::Promiscuous => libc::PACKET_MR_PROMISC,
        Membership::AllGroups => libc::PACKET_MR_ALLMULTI,
    };
    let request = libc::packet_mreq {
        mr_ifindex: signed(interface_index)?,
        mr_type: u16::try_from(kind).expect("small"),
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Passes only frames for which the program returns non-zero; `EINVAL` if the kernel refuses it.
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, program: &[FilterInstruction]) -> io::Result<()> {
    let len =
        u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // The kernel only reads the program, and copies it.
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FanoutGroup(u16);

/// Creates a new group with the socket in it, which distributes frames by a hash of their flow.
pub(crate) fn fanout_first(fd: BorrowedFd<'_>) -> io::Result<FanoutGroup> {
    let kind = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_UNIQUEID;
    let value = i32::try_from(kind << 16).expect("15 bits");
    set_option(fd, PacketOption::FANOUT, value)?;
    let [a, b, _, _] = read_int(fd, libc::SOL_PACKET, libc::PACKET_FANOUT)?.to_le_bytes();
    Ok(FanoutGroup(u16::from_le_bytes([a, b])))
}

pub(crate) fn fanout_join(fd: BorrowedFd<'_>, group: FanoutGroup) -> io::Result<()> {
    let kind = i32::try_from(libc::PACKET_FANOUT_HASH).expect("small");
    set_option(fd, PacketOption::FANOUT, (kind << 16) | i32::from(group.0))
}

/// Sets the limit of waiting frames in each direction, in bytes, for sockets of any family.
pub(crate) fn set_buffers(fd: BorrowedFd<'_>, send_len: i32, receive_len: i32) {
    for (force, plain, value) in [
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send_len),
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive_len),
    ] {
        if set(fd, libc::SOL_SOCKET, force, &value).is_err() {
            // Without CAP_NET_ADMIN the system's limit applies; the device works with less.
            let _limited = set(fd, libc::SOL_SOCKET, plain, &value);
        }
    }
}

/// Returns and clears the socket's pending error, if there is one.
pub(crate) fn take_error(fd: BorrowedFd<'_>) -> Option<io::Error> {
    match read_int(fd, libc::SOL_SOCKET, libc::SO_ERROR) {
        Ok(0) => None,
        Ok(code) => Some(io::Error::from_raw_os_error(code)),
        Err(error) => Some(error),
    }
}
