//! The kernel's network interfaces by name: `struct ifreq` and its calls.
#![expect(unsafe_code, reason = "ioctl, and the list that if_nameindex allocates")]

use std::ffi::CStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::str::FromStr;

const NAME_FIELD_LEN: usize = libc::IFNAMSIZ;

const VALUE_LEN: usize = 24;

/// Name of an interface: 1 to 15 bytes of ASCII.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// Padded with zeros, at least one.
    field: [u8; NAME_FIELD_LEN],
}

/// Error: not a valid name of an interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be an interface name: use 1 to 15 letters, digits, '-', '_' or '.'")]
pub struct NameError(String);

impl Name {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let len = self.field.iter().position(|&octet| octet == 0).unwrap_or(NAME_FIELD_LEN);
        std::str::from_utf8(&self.field[..len]).unwrap_or("?")
    }

    fn from_field(field: [u8; NAME_FIELD_LEN]) -> Self {
        Self { field }
    }
}

impl FromStr for Name {
    type Err = NameError;

    /// Parses a name. Fails if the kernel would refuse the name, or it is not plain ASCII.
    fn from_str(text: &str) -> Result<Self, NameError> {
        // As dev_valid_name() of the kernel. '%' would make the kernel choose a number.
        let allowed = |octet: u8| octet.is_ascii_graphic() && !matches!(octet, b'/' | b':' | b'%');
        let fits = (1..NAME_FIELD_LEN).contains(&text.len()) && text != "." && text != "..";
        if !fits || !text.bytes().all(allowed) {
            return Err(NameError(text.to_owned()));
        }
        let mut field = [0; NAME_FIELD_LEN];
        field[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self { field })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// State of an interface (the lower 16 flags of `struct net_device`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    /// Returns true if the interface was set up.
    #[must_use]
    pub const fn up(self) -> bool {
        self.0 & 0x1 != 0
    }

    /// Returns true if the interface is up and has a carrier.
    #[must_use]
    pub const fn running(self) -> bool {
        self.up() && self.0 & 0x40 != 0
    }
}

/// `struct ifreq`, its union as plain bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Request {
    name: [u8; NAME_FIELD_LEN],
    value: [u8; VALUE_LEN],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

impl Request {
    pub(crate) const fn new(name: Name) -> Self {
        Self { name: name.field, value: [0; VALUE_LEN] }
    }

    pub(crate) fn name(&self) -> Name {
        Name::from_field(self.name)
    }

    pub(crate) fn short(&self) -> u16 {
        u16::from_ne_bytes([self.value[0], self.value[1]])
    }

    #[must_use]
    pub(crate) fn with_short(mut self, value: u16) -> Self {
        self.value[..2].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn int(&self) -> i32 {
        i32::from_ne_bytes([self.value[0], self.value[1], self.value[2], self.value[3]])
    }

    fn with_int(mut self, value: i32) -> Self {
        self.value[..4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn mac(&self) -> [u8; 6] {
        let [_, _, a, b, c, d, e, f, ..] = self.value;
        [a, b, c, d, e, f]
    }

    fn with_mac(self, mac: [u8; 6]) -> Self {
        let mut request = self.with_short(libc::ARPHRD_ETHER);
        request.value[2..8].copy_from_slice(&mac);
        request
    }

    fn with_pointer<T>(mut self, to: *mut T) -> Self {
        self.value[..size_of::<usize>()].copy_from_slice(&to.expose_provenance().to_ne_bytes());
        self
    }
}

/// An ioctl whose argument is a `struct ifreq` without pointers.
#[derive(Clone, Copy)]
pub(crate) struct Operation(libc::Ioctl);

impl Operation {
    const GET_INDEX: Self = Self(libc::SIOCGIFINDEX);
    const GET_FLAGS: Self = Self(libc::SIOCGIFFLAGS);
    const SET_FLAGS: Self = Self(libc::SIOCSIFFLAGS);
    const GET_MTU: Self = Self(libc::SIOCGIFMTU);
    const SET_MTU: Self = Self(libc::SIOCSIFMTU);
    const GET_MAC: Self = Self(libc::SIOCGIFHWADDR);
    const SET_MAC: Self = Self(libc::SIOCSIFHWADDR);
    const SET_QUEUE_LEN: Self = Self(libc::SIOCSIFTXQLEN);
    pub(crate) const TUN_ATTACH: Self = Self(libc::TUNSETIFF);
    pub(crate) const TUN_INTERFACE: Self = Self(libc::TUNGETIFF);
}

/// Runs an operation; the kernel may write its answer into the request.
pub(crate) fn run(
    fd: BorrowedFd<'_>,
    operation: Operation,
    request: &mut Request,
) -> io::Result<()> {
    // SAFETY: `fd` is open; every `Operation` accesses at most one `struct ifreq` at the given
    // address, follows no pointer in it, and `Request` has that layout and may have any content.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), operation.0, std::ptr::from_mut(request)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Queries and sets up the interfaces of the network namespace that it was created in. Methods fail
/// with `ENODEV` if there is no such interface, `EPERM` if setting something without
/// `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Control {
    socket: OwnedFd,
}

impl Control {
    /// Opens a socket for these requests. Needs no privilege. Fails if the process has no
    /// descriptor left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call just returned this descriptor, and nothing else holds it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { socket })
    }

    fn run(&self, operation: Operation, mut request: Request) -> io::Result<Request> {
        run(self.socket.as_fd(), operation, &mut request)?;
        Ok(request)
    }

    /// Returns the interface's index.
    pub fn index(&self, name: Name) -> io::Result<u32> {
        let index = self.run(Operation::GET_INDEX, Request::new(name))?.int();
        u32::try_from(index).map_err(io::Error::other)
    }

    /// Returns the interface's flags.
    pub fn flags(&self, name: Name) -> io::Result<Flags> {
        Ok(Flags(self.run(Operation::GET_FLAGS, Request::new(name))?.short()))
    }

    /// Sets the interface up or down.
    pub fn set_up(&self, name: Name, up: bool) -> io::Result<()> {
        let Flags(now) = self.flags(name)?;
        let then = if up { now | 0x1 } else { now & !0x1 };
        self.run(Operation::SET_FLAGS, Request::new(name).with_short(then))?;
        Ok(())
    }

    /// Returns the largest IP datagram, in bytes.
    pub fn mtu(&self, name: Name) -> io::Result<usize> {
        let mtu = self.run(Operation::GET_MTU, Request::new(name))?.int();
        usize::try_from(mtu).map_err(io::Error::other)
    }

    /// Sets the largest IP datagram, in bytes; `EINVAL` if the interface cannot carry that.
    pub fn set_mtu(&self, name: Name, mtu: usize) -> io::Result<()> {
        let mtu = i32::try_from(mtu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        self.run(Operation::SET_MTU, Request::new(name).with_int(mtu))?;
        Ok(())
    }

    /// Returns the Ethernet address; an error if the interface is neither Ethernet nor the
    /// loopback.
    pub fn mac(&self, name: Name) -> io::Result<[u8; 6]> {
        let answer = self.run(Operation::GET_MAC, Request::new(name))?;
        match answer.short() {
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(answer.mac()),
            kind => Err(io::Error::other(format!("{name} is no Ethernet interface (type {kind})"))),
        }
    }

    /// Sets the interface's Ethernet address; `EADDRNOTAVAIL` for a group address.
    pub fn set_mac(&self, name: Name, mac: [u8; 6]) -> io::Result<()> {
        self.run(Operation::SET_MAC, Request::new(name).with_mac(mac))?;
        Ok(())
    }

    /// Sets the most frames that wait for transmission in the kernel (`txqueuelen`).
    pub fn set_queue_len(&self, name: Name, frames: usize) -> io::Result<()> {
        let frames =
            i32::try_from(frames).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        self.run(Operation::SET_QUEUE_LEN, Request::new(name).with_int(frames))?;
        Ok(())
    }

    /// Returns the driver's name, and its text for the place of the device: for the TUN driver,
    /// `tap` or `tun`. `EOPNOTSUPP` if the driver does not report them.
    pub fn driver(&self, name: Name) -> io::Result<(String, String)> {
        let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, text: [0; DRIVER_INFO_TEXT_LEN] };
        let mut request = Request::new(name).with_pointer(&raw mut info);
        let fd = self.socket.as_raw_fd();
        // SAFETY: the socket is open; SIOCETHTOOL reads one `struct ifreq`, whose layout `Request`
        // has, and the pointer in it is to `info`, which lives on and has the layout that the
        // command in its first field requires.
        let result = unsafe { libc::ioctl(fd, libc::SIOCETHTOOL, &raw mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let text = |from: usize| {
            let field = &info.text[from..from + 32];
            CStr::from_bytes_until_nul(field)
                .map(|text| text.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        Ok((text(DRIVER_AT), text(BUS_INFO_AT)))
    }

    /// Returns the number of queues that the interface receives on; `EOPNOTSUPP` if the driver does
    /// not report it, as most drivers with one queue.
    pub fn queues(&self, name: Name) -> io::Result<usize> {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        let mut request = Request::new(name).with_pointer(&raw mut channels);
        let fd = self.socket.as_raw_fd();
        // SAFETY: the socket is open; SIOCETHTOOL reads one `struct ifreq`, whose layout `Request`
        // has, and the pointer in it is to `channels`, which lives on and has the layout that the
        // command in its first field requires.
        let result = unsafe { libc::ioctl(fd, libc::SIOCETHTOOL, &raw mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        usize::try_from(channels.receive.max(channels.combined)).map_err(io::Error::other)
    }
}

const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `struct ethtool_channels`: the maximum of each kind, then the present numbers.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

const _: () = assert!(size_of::<Channels>() == 36);

const ETHTOOL_GDRVINFO: u32 = 0x3;
const DRIVER_INFO_TEXT_LEN: usize = 192;
const DRIVER_AT: usize = 0;
/// Offset behind the driver's name, its version and its firmware's, 32 bytes each.
const BUS_INFO_AT: usize = 96;

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    text: [u8; DRIVER_INFO_TEXT_LEN],
}

const _: () = assert!(size_of::<DriverInfo>() == 196);

/// Returns the interfaces of the calling thread's network namespace, in order of index.
pub fn names() -> io::Result<Vec<Name>> {
    // SAFETY: takes no argument.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut names = Vec::new();
    let mut entry = list;
    loop {
        // SAFETY: `entry` walks the array that `if_nameindex` returned, and stops at its end mark.
        let libc::if_nameindex { if_index, if_name } = unsafe { entry.read() };
        if if_index == 0 || if_name.is_null() {
            break;
        }
        // SAFETY: not the end mark, so a zero-terminated string, which lives until the list is
        // freed.
        let name = unsafe { CStr::from_ptr(if_name) };
        names.extend(name.to_str().ok().and_then(|name| name.parse::<Name>().ok()));
        // SAFETY: this was not the end mark, so there is another entry.
        entry = unsafe { entry.add(1) };
    }
    // SAFETY: `list` came from `if_nameindex`, and nothing refers to it now.
    unsafe { libc::if_freenameindex(list) };
    Ok(names)
}

/// Opens a kernel device node for reading and writing, non-blocking.
pub(crate) fn open_node(path: &str) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_the_kernel_takes() {
        for good in ["lo", "tap0", "a", "eth0.5", "abcdefghijklmno", "br-x_1"] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for bad in ["", "abcdefghijklmnop", "a b", "a/b", "a:b", ".", "..", "tap%d", "a\0", "ä"] {
            assert_eq!(bad.parse::<Name>(), Err(NameError(bad.to_owned())), "{bad:?}");
        }
    }

    #[test]
    fn loopback_attributes_can_be_queried() {
        let control = Control::new().unwrap();
        let lo: Name = "lo".parse().unwrap();
        assert!(names().unwrap().contains(&lo), "every namespace has a loopback");
        assert_ne!(control.index(lo).unwrap(), 0);
        assert!(control.mtu(lo).unwrap() >= 576, "MTU of the loopback");
        assert_eq!(control.mac(lo).unwrap(), [0; 6]);
        control.flags(lo).unwrap();
    }

    #[test]
    fn an_unknown_interface_is_an_error_everywhere() {
        let control = Control::new().unwrap();
        let name: Name = "urnic-none".parse().unwrap();
        for result in [
            control.index(name).map(drop),
            control.flags(name).map(drop),
            control.mtu(name).map(drop),
            control.mac(name).map(drop),
            control.driver(name).map(drop),
            control.set_up(name, true),
        ] {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENODEV));
        }
    }
}
