//! Opens a packet socket on an interface.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};

use tracing::debug;

use crate::OpenError;
use crate::TRACE;
use crate::interface::{Control, Name};
use crate::link_state::LinkState;
use crate::packet::filter::{self, ADDRESSES_MAX};
use crate::packet::{BUFFER_LEN, PacketSocket};
use crate::rights;
use crate::sys::gather::Gather;
use crate::sys::packet_ring::RingLayout;
use crate::sys::packet_socket::{self, Membership, PacketOption};
use crate::vnet;

/// Interface to open, and the socket's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketConfig<'a> {
    /// Name of the interface.
    pub name: Name,
    /// IP addresses of the stack above, at most [`ADDRESSES_MAX`], which the kernel must not have
    /// itself. It hands over frames for them or for a group. If empty, all frames are handed over.
    pub addresses: &'a [IpAddr],
    /// True if super-frames and partial checksums may be transmitted; received ones always pass.
    pub super_frames: bool,
    /// Ethernet address of the stack, if it differs from the interface's. The interface must then
    /// receive all frames on the wire, and the kernel ignores those for this address. With the
    /// interface's own address the kernel processes them, too, and may forward them.
    pub mac: Option<[u8; 6]>,
    /// Most frames that wait to be received.
    pub ring_frames: usize,
    /// True if frames bypass the kernel's queueing discipline: less work, but a full card loses
    /// frames.
    pub qdisc_bypass: bool,
}

impl<'a> PacketConfig<'a> {
    /// Settings for an interface with super-frames, under its own Ethernet address.
    #[must_use]
    pub const fn new(name: Name, addresses: &'a [IpAddr]) -> Self {
        Self {
            name,
            addresses,
            super_frames: true,
            mac: None,
            ring_frames: RING_FRAMES,
            qdisc_bypass: false,
        }
    }
}

/// Default of `ring_frames`: a TCP window of several MiB in frames of 1500 bytes.
const RING_FRAMES: usize = 4096;
const RING_FRAMES_RANGE: RangeInclusive<usize> = 16..=65_536;
/// Accepted numbers of sockets in one fanout group; recent kernels accept many more.
const QUEUES: RangeInclusive<usize> = 1..=256;

/// The kernel's header, an address, alignment, the `virtio_net_hdr` and the link header with two
/// tags. Rounded up.
const SLOT_OVERHEAD: usize = 192;
/// Alignment of the kernel's ring.
const SLOT_ALIGNMENT: usize = 64;
/// Longer frames, of an unusual MTU, are read from the socket's queue like super-frames.
const SLOT_LEN_MAX: usize = 16 * 1024;
/// The kernel allocates blocks from memory that need not be contiguous.
const BLOCK_LEN: usize = 256 * 1024;

/// Frames that wait to be sent, with the kernel's own overhead: some tens of super-frames.
const SEND_BUFFER_LEN: i32 = 4 << 20;
/// Limit of the socket's queue of long frames, in bytes: a TCP window of several MiB.
const RECEIVE_BUFFER_LEN: i32 = 16 << 20;

pub(super) fn check_rights() -> Result<(), OpenError> {
    packet_socket::open().map(drop).map_err(|error| {
        let action = "make packet sockets".to_owned();
        OpenError::from_io(error, action, rights::remedy(rights::PACKET))
    })
}

pub(super) fn open(config: &PacketConfig<'_>) -> Result<PacketSocket, OpenError> {
    let mut socket = prepare(config)?;
    start(&mut socket)?;
    Ok(socket)
}

/// The sockets are in one fanout group.
pub(super) fn open_queues(
    config: &PacketConfig<'_>,
    queues: usize,
) -> Result<Vec<PacketSocket>, OpenError> {
    OpenError::check_range("number of packet queues", queues, QUEUES)?;
    if queues == 1 {
        return Ok(vec![open(config)?]);
    }
    let failed = |error| failed(config.name, "divide the frames of", error);
    let mut sockets: Vec<PacketSocket> = Vec::with_capacity(queues);
    let mut group = None;
    for _ in 0..queues {
        let mut socket = prepare(config)?;
        // The kernel accepts only receiving sockets into a group. Until all are in it, a frame may
        // arrive at several of them: those received so far are discarded below.
        start(&mut socket)?;
        let fd = socket.socket.as_fd();
        match group {
            None => group = Some(packet_socket::fanout_first(fd).map_err(failed)?),
            Some(group) => packet_socket::fanout_join(fd, group).map_err(failed)?,
        }
        sockets.push(socket);
    }
    for socket in &mut sockets {
        socket.discard_received();
    }
    Ok(sockets)
}

fn prepare(config: &PacketConfig<'_>) -> Result<PacketSocket, OpenError> {
    let name = config.name;
    OpenError::check_range("number of ring frames", config.ring_frames, RING_FRAMES_RANGE)?;
    OpenError::check_range("number of addresses", config.addresses.len(), 0..=ADDRESSES_MAX)?;
    let control = Control::new().map_err(|source| OpenError::Io {
        action: "open a socket for interface requests".to_owned(),
        source,
    })?;
    let interface_index = control.index(name).map_err(|_| OpenError::unknown_interface(name))?;
    let own_mac = control.mac(name).map_err(|_| OpenError::WrongKind {
        name,
        wanted: "an Ethernet interface",
        remedy: "use one that is, or `kernel` for TCP over whatever the kernel routes".to_owned(),
    })?;
    OpenError::check_addresses(config.addresses)?;
    let mtu = control.mtu(name).map_err(|error| failed(name, "ask for the MTU of", error))?;
    let socket = packet_socket::open().map_err(|error| open_error(name, error))?;
    let mac = config.mac.unwrap_or(own_mac);
    let layout = layout(mtu, config.ring_frames);
    let ring = set_up(&socket, config, mac, layout)
        .map_err(|error| failed(name, "set up a packet socket for", error))?;
    let (frames, super_frames) = (config.ring_frames, config.super_frames);
    debug!(target: TRACE, %name, mtu, frames, super_frames, "packet socket opened");
    let membership = if mac == own_mac { Membership::AllGroups } else { Membership::Promiscuous };
    Ok(PacketSocket {
        ring,
        socket: File::from(socket),
        control,
        name,
        interface_index,
        membership,
        super_frames: config.super_frames,
        link: LinkState::Down,
        mac,
        mtu,
        check_due_ns: 0,
        gather: Gather::new(),
        buffer: vec![0; BUFFER_LEN].into_boxed_slice(),
        frames_cut: 0,
    })
}

fn set_up(
    socket: &OwnedFd,
    config: &PacketConfig<'_>,
    mac: [u8; 6],
    layout: RingLayout,
) -> io::Result<crate::sys::packet_ring::PacketRing> {
    let fd = socket.as_fd();
    // Request the header before the ring, whose slots contain it.
    packet_socket::set_option(fd, PacketOption::VNET_HEADER, 1)?;
    packet_socket::set_option(fd, PacketOption::IGNORE_OUTGOING, 1)?;
    packet_socket::set_option(fd, PacketOption::COPY_THRESHOLD, 1)?;
    if config.qdisc_bypass {
        packet_socket::set_option(fd, PacketOption::QDISC_BYPASS, 1)?;
    }
    packet_socket::set_buffers(fd, SEND_BUFFER_LEN, RECEIVE_BUFFER_LEN);
    packet_socket::attach_filter(fd, &filter::program(mac, config.addresses))?;
    packet_socket::receive_ring(fd, layout)
}

/// Binds the socket: from now on it receives.
fn start(socket: &mut PacketSocket) -> Result<(), OpenError> {
    let fd = socket.socket.as_fd();
    let bound = packet_socket::bind(fd, socket.interface_index)
        .and_then(|()| packet_socket::join(fd, socket.interface_index, socket.membership));
    bound.map_err(|error| failed(socket.name, "receive from", error))?;
    // An interface that is down may come up later.
    let _down = packet_socket::take_error(socket.socket.as_fd());
    socket.ask();
    Ok(())
}

pub(crate) fn layout(mtu: usize, ring_frames: usize) -> RingLayout {
    let slot_len =
        (mtu.saturating_add(SLOT_OVERHEAD)).min(SLOT_LEN_MAX).next_multiple_of(SLOT_ALIGNMENT);
    let per_block = BLOCK_LEN / slot_len;
    RingLayout { slot_len, block_len: BLOCK_LEN, blocks: ring_frames.div_ceil(per_block) }
}

const _: () = assert!(vnet::HEADER_LEN + 80 + 22 <= SLOT_OVERHEAD);

pub(crate) fn open_error(name: Name, error: io::Error) -> OpenError {
    match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT) => OpenError::Unavailable {
            what: "AF_PACKET",
            remedy: "load the module (`sudo modprobe af_packet`) or use a TAP interface".to_owned(),
        },
        _ => failed(name, "open a packet socket on", error),
    }
}

pub(crate) fn failed(name: Name, action: &str, error: io::Error) -> OpenError {
    OpenError::from_io(error, format!("{action} {name}"), rights::remedy(rights::PACKET))
}
