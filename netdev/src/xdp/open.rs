//! Opens AF_XDP sockets on an interface.

use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::OpenError;
use crate::TRACE;
use crate::interface::{Control, Name};
use crate::link_state::LinkState;
use crate::rights;
use crate::sys::packet_socket::{self, Membership};
use crate::sys::xdp_queue::{HEADROOM_LEN, QueueLayout, XdpQueue};
use crate::sys::xdp_socket;
use crate::xdp::redirect::Redirect;
use crate::xdp::{AttachMode, XdpMode, XdpSocket, failed};

/// Interface and queue to open, and the socket's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpConfig<'a> {
    /// Name of the interface.
    pub name: Name,
    /// Number of the queue, from 0.
    pub queue: u32,
    /// IP addresses of the stack above, which the kernel must not have.
    pub addresses: &'a [IpAddr],
    /// Ethernet address of the stack, if it differs from the interface's, which must receive all
    /// frames.
    pub mac: Option<[u8; 6]>,
    /// True to try the driver's native XDP before the generic one.
    pub native: bool,
    /// True to try zero-copy mode before copy mode.
    pub zero_copy: bool,
    /// Most frames that wait to be received, and most to be transmitted; a power of two.
    pub ring_frames: usize,
}

impl<'a> XdpConfig<'a> {
    /// Settings for queue 0 under the interface's own address: native if possible, in copy mode.
    #[must_use]
    pub const fn new(name: Name, addresses: &'a [IpAddr]) -> Self {
        Self {
            name,
            queue: 0,
            addresses,
            mac: None,
            native: true,
            zero_copy: false,
            ring_frames: RING_FRAMES,
        }
    }
}

/// For when the interface returns.
#[derive(Debug)]
pub(super) struct Reopen {
    config: XdpConfig<'static>,
    addresses: Box<[IpAddr]>,
}

impl Reopen {
    pub(super) fn open(&self) -> Result<XdpSocket, OpenError> {
        let config = XdpConfig { addresses: &self.addresses, ..self.config };
        let mut queues = open(&config, 1)?;
        Ok(queues.pop().expect("one queue was asked for"))
    }
}

/// Largest MTU whose frames fit into a chunk, with a VLAN tag, in bytes.
pub const MTU_MAX: usize = CHUNK_LEN_MAX - HEADROOM_LEN - LINK_HEADER_LEN;

/// Default of `ring_frames`: a TCP window of several MiB in frames of 1500 bytes.
const RING_FRAMES: usize = 4096;
const RING_FRAMES_RANGE: RangeInclusive<usize> = 64..=32_768;
const QUEUES: RangeInclusive<usize> = 1..=256;
const LINK_HEADER_LEN: usize = crate::ethernet::HEADER_LEN + crate::ethernet::TAG_LEN;
/// The kernel accepts chunks of up to a page.
const CHUNK_LEN_MAX: usize = 4096;
const CHUNK_LEN_MIN: usize = 2048;

pub(super) fn check_rights() -> Result<(), OpenError> {
    let refused = |error: io::Error| match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT | libc::EINVAL | libc::ENOSYS) => unavailable(),
        _ => {
            let action = "make AF_XDP sockets".to_owned();
            OpenError::from_io(error, action, rights::remedy(rights::XDP))
        }
    };
    xdp_socket::open().map(drop).map_err(refused)?;
    Redirect::check_rights().map_err(refused)
}

pub(super) fn open(config: &XdpConfig<'_>, queues: usize) -> Result<Vec<XdpSocket>, OpenError> {
    let name = config.name;
    OpenError::check_range("number of XDP queues", queues, QUEUES)?;
    OpenError::check_range("number of ring frames", config.ring_frames, RING_FRAMES_RANGE)?;
    let control = open_control()?;
    let interface_index = control.index(name).map_err(|_| OpenError::unknown_interface(name))?;
    let own_mac = control.mac(name).map_err(|_| OpenError::WrongKind {
        name,
        wanted: "an Ethernet interface",
        remedy: "use one that is".to_owned(),
    })?;
    OpenError::check_addresses(config.addresses)?;
    let mtu = control.mtu(name).map_err(|error| failed(name, "ask for the MTU of", error))?;
    if mtu > MTU_MAX {
        return Err(OpenError::WrongKind {
            name,
            wanted: "an interface whose frames fit into the packet memory of AF_XDP",
            remedy: format!(
                "its MTU is {mtu}, the largest {MTU_MAX}, and less with some drivers; set it \
                 (`sudo ip link set dev {name} mtu 3498`), or use the packet device"
            ),
        });
    }
    let map_len = config.queue.saturating_add(u32::try_from(queues).expect("at most 256"));
    let redirect = Redirect::attach(name, interface_index, map_len, config.native)?;
    let redirect = Arc::new(redirect);
    let mac = config.mac.unwrap_or(own_mac);
    let membership = if mac == own_mac { Membership::AllGroups } else { Membership::Promiscuous };
    (config.queue..map_len)
        .map(|queue| {
            let (xdp_queue, zero_copy) =
                bound_queue(config, &control, interface_index, queue, mtu)?;
            redirect
                .insert(queue, xdp_queue.as_fd())
                .map_err(|error| failed(name, "direct frames to an XDP socket on", error))?;
            let mut socket = XdpSocket {
                mode: mode(&redirect, zero_copy),
                _redirect: Arc::clone(&redirect),
                queue: xdp_queue,
                _membership: join(name, interface_index, membership)?,
                control: open_control()?,
                name,
                interface_index,
                reopen: (queues == 1).then(|| Reopen {
                    config: XdpConfig { addresses: &[], ..*config },
                    addresses: config.addresses.into(),
                }),
                link: LinkState::Down,
                mac,
                frame_len_max: chunk_len(mtu) - HEADROOM_LEN,
                mtu,
                check_due_ns: 0,
                flushed_ns: 0,
            };
            socket.ask();
            let mode = &socket.mode;
            debug!(target: TRACE, %name, queue, mtu, ?mode, "XDP socket opened");
            Ok(socket)
        })
        .collect()
}

fn mode(redirect: &Redirect, zero_copy: Result<(), String>) -> XdpMode {
    let native = redirect.mode == AttachMode::Native;
    let fallbacks = redirect.fallback.clone().into_iter();
    let (zero_copy, refusal) = match zero_copy {
        Ok(()) => (true, None),
        Err(reason) => (false, Some(reason).filter(|reason| !reason.is_empty())),
    };
    XdpMode { native, zero_copy, fallbacks: fallbacks.chain(refusal).collect() }
}

fn chunk_len(mtu: usize) -> usize {
    if mtu + LINK_HEADER_LEN + HEADROOM_LEN <= CHUNK_LEN_MIN {
        CHUNK_LEN_MIN
    } else {
        CHUNK_LEN_MAX
    }
}

/// Returns also if zero-copy mode was possible: if not, the reason, or an empty text if not
/// requested.
fn bound_queue(
    config: &XdpConfig<'_>,
    control: &Control,
    interface_index: u32,
    queue: u32,
    mtu: usize,
) -> Result<(XdpQueue, Result<(), String>), OpenError> {
    let name = config.name;
    let entries = u32::try_from(config.ring_frames.next_power_of_two()).expect("at most 32768");
    let chunk_len = u32::try_from(chunk_len(mtu)).expect("at most a page");
    let layout = QueueLayout { chunk_len, receive: entries, transmit: entries };
    debug!(target: TRACE, %name, queue, chunk_len, entries, "rings of an XDP queue");
    let new = || XdpQueue::new(layout).map_err(|error| queue_error(name, error));
    let mut reason = String::new();
    if config.zero_copy {
        let socket = new()?;
        match bind(&socket, interface_index, queue, true) {
            Ok(()) => return Ok((socket, Ok(()))),
            Err(error) => reason = format!("{name} has no zero-copy mode: {error}"),
        }
    }
    let socket = new()?;
    bind(&socket, interface_index, queue, false)
        .map_err(|error| bind_error(name, control, queue, error))?;
    Ok((socket, Err(reason)))
}

/// The kernel releases a queue in the background some time after its socket was closed: a busy
/// queue is retried for a while.
#[expect(clippy::disallowed_methods, reason = "nothing tells when the kernel has let go")]
fn bind(socket: &XdpQueue, interface_index: u32, queue: u32, zero_copy: bool) -> io::Result<()> {
    let mut left = BIND_TRIES;
    loop {
        match socket.bind(interface_index, queue, zero_copy) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && left > 0 => {
                left -= 1;
                std::thread::sleep(BIND_PAUSE);
            }
            result => return result,
        }
    }
}

/// Two seconds in total. The kernel needs milliseconds unless the machine is very busy.
const BIND_TRIES: u32 = 200;
const BIND_PAUSE: Duration = Duration::from_millis(10);

/// The packet socket receives nothing itself.
fn join(name: Name, interface_index: u32, membership: Membership) -> Result<OwnedFd, OpenError> {
    let failed = |error| failed(name, "receive all that is needed from", error);
    let socket = packet_socket::open().map_err(failed)?;
    packet_socket::join(socket.as_fd(), interface_index, membership).map_err(failed)?;
    Ok(socket)
}

fn open_control() -> Result<Control, OpenError> {
    Control::new().map_err(|source| OpenError::Io {
        action: "open a socket for interface requests".to_owned(),
        source,
    })
}

fn queue_error(name: Name, error: io::Error) -> OpenError {
    match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT | libc::ENOPROTOOPT) => unavailable(),
        Some(libc::ENOBUFS | libc::EAGAIN | libc::ENOMEM) => OpenError::Permission {
            action: format!("lock the packet memory of {name}"),
            remedy: "raise the limit (`ulimit -l unlimited`), run as root, or use fewer ring \
                     frames"
                .to_owned(),
        },
        _ => failed(name, "make an XDP socket for", error),
    }
}

fn unavailable() -> OpenError {
    OpenError::Unavailable {
        what: "AF_XDP",
        remedy: "use a kernel of at least 5.9 that is built with XDP_SOCKETS, or the packet device"
            .to_owned(),
    }
}

fn bind_error(name: Name, control: &Control, queue: u32, error: io::Error) -> OpenError {
    let value = usize::try_from(queue).expect("32 bits fit");
    match error.raw_os_error() {
        Some(libc::EBUSY) => OpenError::Busy {
            name,
            remedy: format!("queue {queue} has an XDP socket already; use another queue"),
        },
        Some(libc::EINVAL) if control.queues(name).is_ok_and(|count| value >= count) => {
            let count = control.queues(name).unwrap_or(1);
            OpenError::OutOfRange {
                what: "interface queue",
                value,
                min: 0,
                max: count.saturating_sub(1),
            }
        }
        _ => failed(name, &format!("bind an XDP socket to queue {queue} of"), error),
    }
}
