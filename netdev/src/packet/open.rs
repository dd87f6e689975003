//! Opening a packet socket on an interface.

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

/// Which interface to open, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketConfig<'a> {
    /// The interface's name.
    pub name: Name,
    /// The IP addresses of the stack above, at most [`ADDRESSES_MAX`]: the kernel hands over what
    /// is for them or for a group, and must not have one of them itself. Empty while they are not
    /// known: everything is handed over.
    pub addresses: &'a [IpAddr],
    /// Whether the device takes super-frames and partial checksums. Received ones are understood
    /// in any case.
    pub super_frames: bool,
    /// Ethernet address of the stack, where it is not to be the interface's own. The interface then
    /// has to listen to all frames on the wire, and the kernel does not look closer at those of
    /// this port. With the interface's own it does, and forwards them if it was told to forward.
    pub mac: Option<[u8; 6]>,
    /// Frames that wait to be received, at most.
    pub ring_frames: usize,
    /// Whether frames go around the kernel's queueing discipline: less work per frame, but nothing
    /// is held back when the card's queue is full; the frame is lost.
    pub qdisc_bypass: bool,
}

impl<'a> PacketConfig<'a> {
    /// An interface with super-frames, under its own Ethernet address.
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

/// A TCP window of several MiB in frames of 1500 bytes.
const RING_FRAMES: usize = 4096;
const RING_FRAMES_RANGE: RangeInclusive<usize> = 16..=65_536;
/// Sockets in one fanout group; the kernel takes 256 or, of late, many more.
const QUEUES: RangeInclusive<usize> = 1..=256;

/// What the kernel puts in front of a frame in a slot: its header, an address, alignment, the
/// `virtio_net_hdr`; and what follows an MTU: the link header, tagged twice. Rounded up.
const SLOT_OVERHEAD: usize = 192;
/// The kernel's ring alignment.
const SLOT_ALIGNMENT: usize = 64;
/// Longer frames, of an unusual MTU, are fetched by themselves like super-frames.
const SLOT_LEN_MAX: usize = 16 * 1024;
/// Blocks of that many bytes; the kernel takes them from where memory need not be contiguous.
const BLOCK_LEN: usize = 256 * 1024;

/// Bytes of frames, with what the kernel counts for its own, that may wait to go out: some tens
/// of super-frames.
const SEND_BUFFER_LEN: i32 = 4 << 20;
/// The same for long frames that wait behind their slots: a TCP window of several MiB.
const RECEIVE_BUFFER_LEN: i32 = 16 << 20;

pub(super) fn check_rights() -> Result<(), OpenError> {
    packet_socket::open().map(drop).map_err(|error| {
        let action = "make packet sockets".to_owned();
        OpenError::from_io(error, action, rights::remedy(rights::PACKET))
    })
}

/// Opens the interface once.
pub(super) fn open(config: &PacketConfig<'_>) -> Result<PacketSocket, OpenError> {
    let mut socket = prepare(config)?;
    start(&mut socket)?;
    Ok(socket)
}

/// Opens the interface `queues` times, the sockets in one fanout group.
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
        // The kernel takes only sockets that receive into a group: a frame may arrive at several
        // of them in between, so what they have got until all are in is thrown away below.
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

/// A socket with its ring that is not bound yet.
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
    debug!(target: TRACE, %name, mtu, frames, super_frames, "packet socket with its ring made");
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
    // The header has to be asked for before the ring, whose slots it is part of.
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

/// Binds the socket: from here on it receives.
fn start(socket: &mut PacketSocket) -> Result<(), OpenError> {
    let fd = socket.socket.as_fd();
    let bound = packet_socket::bind(fd, socket.interface_index)
        .and_then(|()| packet_socket::join(fd, socket.interface_index, socket.membership));
    bound.map_err(|error| failed(socket.name, "receive from", error))?;
    // An interface that is down is one that may come up.
    let _down = packet_socket::take_error(socket.socket.as_fd());
    socket.ask();
    Ok(())
}

/// The slots for frames of an interface.
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
