//! Opens a TAP interface, or creates one.

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;

use tracing::debug;

use crate::TRACE;
use crate::interface::{Control, Name};
use crate::link_state::LinkState;
use crate::rights;
use crate::sys::gather::Gather;
use crate::sys::interface::open_node;
use crate::sys::tap;
use crate::tap::{BUFFER_LEN, Tap};
use crate::{Medium, OpenError};

/// TAP interface to open, and its settings. An existing interface is otherwise unchanged. A missing
/// one is created, which needs `CAP_NET_ADMIN`, and exists as long as the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapConfig {
    /// Name of the interface.
    pub name: Name,
    /// Ethernet for a TAP interface, IP for a TUN interface, which has no
    /// [offloads](Self::vnet_header).
    pub medium: Medium,
    /// Largest IP datagram, in bytes. Default of a created interface: 1500.
    pub mtu: Option<usize>,
    /// True if frames carry a `virtio_net_hdr`: super-frames and partial checksums. Only TAP
    /// interfaces.
    pub vnet_header: bool,
    /// State of the interface. Default of a created interface: up.
    pub up: Option<bool>,
    /// Ethernet address of the *kernel's* end, which must differ from that of the stack above.
    pub mac: Option<[u8; 6]>,
    /// Most frames that wait to be received (`txqueuelen`). A created interface has
    /// [`QUEUE_FRAMES`].
    pub queue_frames: Option<usize>,
}

impl TapConfig {
    /// Settings for an interface unchanged, or a new one with MTU 1500, set up, with plain frames.
    #[must_use]
    pub const fn new(name: Name) -> Self {
        Self {
            name,
            medium: Medium::Ethernet,
            mtu: None,
            vnet_header: false,
            up: None,
            mac: None,
            queue_frames: None,
        }
    }
}

/// Frames that wait to be received on a created interface: a TCP window of several MiB, so that a
/// receiver that loses the processor loses no frames. The driver's 500 frames are 0.7 MiB.
pub const QUEUE_FRAMES: usize = 4096;

/// MTUs that the driver accepts.
const MTU: RangeInclusive<usize> = 68..=65_521;
/// Most queues of one interface (`MAX_TAP_QUEUES` of the driver).
const QUEUES: RangeInclusive<usize> = 1..=256;

const NODE: &str = "/dev/net/tun";

pub(super) fn check_rights() -> Result<(), OpenError> {
    open_tun()?;
    let config = TapConfig { vnet_header: true, ..TapConfig::new("urn0".parse()?) };
    may_set_up().map_err(|error| {
        OpenError::from_io(error, "make a TAP interface".to_owned(), no_right(&config, 1))
    })
}

/// Sets the MTU of the loopback interface to its present value, which needs the right.
fn may_set_up() -> io::Result<()> {
    let (control, name) = (Control::new()?, "lo".parse().map_err(io::Error::other)?);
    control.set_mtu(name, control.mtu(name)?)
}

pub(super) fn open(config: &TapConfig, queues: usize) -> Result<Vec<Tap>, OpenError> {
    OpenError::check_range("number of TAP queues", queues, QUEUES)?;
    if let Some(mtu) = config.mtu {
        OpenError::check_range("TAP MTU", mtu, MTU)?;
    }
    let control = Control::new().map_err(|source| OpenError::Io {
        action: "open a socket for interface requests".to_owned(),
        source,
    })?;
    let exists = control.index(config.name).is_ok();
    let mut taps = Vec::with_capacity(queues);
    let mut flags = tap::NO_PACKET_INFO;
    flags |= if config.medium == Medium::Ip { tap::TUN } else { tap::TAP };
    if config.vnet_header && config.medium == Medium::Ethernet {
        flags |= tap::VNET_HEADER;
    }
    if queues > 1 {
        flags |= tap::MULTI_QUEUE;
    }
    let (first, flags) = attach_first(config, &control, queues, flags, exists)?;
    taps.push(tap_on(first, config.name, flags)?);
    set_up(config, &control, !exists)?;
    while taps.len() < queues {
        let file = open_tun()?;
        tap::attach(file.as_fd(), config.name, flags)
            .map_err(|error| attach_error(config, &control, queues, error))?;
        taps.push(tap_on(file, config.name, flags)?);
    }
    for tap in &mut taps {
        tap.ask();
    }
    Ok(taps)
}

fn open_tun() -> Result<File, OpenError> {
    open_node(NODE).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => OpenError::Unavailable {
            what: NODE,
            remedy: "load the driver (`modprobe tun`); in a container, pass the device in \
                     (`--device /dev/net/tun`)"
                .to_owned(),
        },
        _ => OpenError::from_io(
            error,
            format!("open {NODE}"),
            "let every user open it, as most systems do: `sudo chmod 666 /dev/net/tun`",
        ),
    })
}

fn attach_first(
    config: &TapConfig,
    control: &Control,
    queues: usize,
    flags: u16,
    exists: bool,
) -> Result<(File, u16), OpenError> {
    let file = open_tun()?;
    let mut result = tap::attach(file.as_fd(), config.name, flags);
    let mut used = flags;
    let refused = matches!(&result, Err(error) if error.raw_os_error() == Some(libc::EINVAL));
    if refused && exists && queues == 1 {
        // An interface created for several queues can be used with one.
        used |= tap::MULTI_QUEUE;
        result = tap::attach(file.as_fd(), config.name, used);
    }
    match result {
        Ok(()) => Ok((file, used)),
        Err(error) => Err(attach_error(config, control, queues, error)),
    }
}

/// The command that creates the interface for a user without privileges.
fn making(config: &TapConfig, queues: usize) -> String {
    let (name, kind) = (config.name, kind(config));
    let vnet_header = if config.vnet_header { " vnet_hdr" } else { "" };
    let multi_queue = if queues > 1 { " multi_queue" } else { "" };
    format!(
        "sudo ip tuntap add dev {name} mode {kind} user $USER{vnet_header}{multi_queue} && \
         sudo ip link set dev {name} up"
    )
}

fn no_right(config: &TapConfig, queues: usize) -> String {
    let making = making(config, queues);
    format!("{}, or have it made for you once: `{making}`", rights::remedy(rights::TAP))
}

/// Returns the kind of the interface in the words of `ip` and the driver.
const fn kind(config: &TapConfig) -> &'static str {
    match config.medium {
        Medium::Ethernet => "tap",
        Medium::Ip => "tun",
    }
}

fn attach_error(
    config: &TapConfig,
    control: &Control,
    queues: usize,
    error: io::Error,
) -> OpenError {
    let name = config.name;
    let driver = control.driver(name).ok();
    match error.raw_os_error() {
        Some(libc::EBUSY) => OpenError::Busy {
            name,
            remedy: "end that process, use another name, or make the interface with `multi_queue`"
                .to_owned(),
        },
        Some(libc::EINVAL) if driver != Some(("tun".to_owned(), kind(config).to_owned())) => {
            OpenError::WrongKind {
                name,
                wanted: match config.medium {
                    Medium::Ethernet => "a TAP interface",
                    Medium::Ip => "a TUN interface",
                },
                remedy: "use another name, or the packet device for an interface of the kernel"
                    .to_owned(),
            }
        }
        Some(libc::EINVAL) if queues > 1 => OpenError::WrongKind {
            name,
            wanted: "a TAP interface for several queues",
            remedy: format!(
                "use one queue, or delete it and make it anew: `{}`",
                making(config, queues)
            ),
        },
        Some(libc::E2BIG) => OpenError::Busy {
            name,
            remedy: "all queues it can have are taken; use fewer".to_owned(),
        },
        _ => OpenError::from_io(
            error,
            format!("use or make the {} interface {name}", kind(config).to_uppercase()),
            no_right(config, queues),
        ),
    }
}

fn tap_on(file: File, name: Name, attach_flags: u16) -> Result<Tap, OpenError> {
    let control = Control::new().map_err(|source| OpenError::Io {
        action: "open a socket for interface requests".to_owned(),
        source,
    })?;
    let tap = Tap {
        file,
        control,
        name,
        attach_flags,
        link: LinkState::Down,
        mtu: 0,
        check_due_ns: 0,
        gather: Gather::new(),
        buffer: vec![0; BUFFER_LEN].into_boxed_slice(),
    };
    let wanted = attach_flags & tap::VNET_HEADER;
    let same_header = |(_, flags): (Name, u16)| flags & tap::VNET_HEADER == wanted;
    if tap::attached(tap.file.as_fd()).is_ok_and(|attached| !same_header(attached)) {
        return Err(OpenError::WrongKind {
            name,
            wanted: if wanted == 0 {
                "used without virtio_net_hdr by its other queues"
            } else {
                "used with virtio_net_hdr by its other queues"
            },
            remedy: "open all queues of an interface the same way".to_owned(),
        });
    }
    tap.set_up_header().map_err(|source| OpenError::Io {
        action: format!("agree on super-frames and checksum offload of {name}"),
        source,
    })?;
    let super_frames = tap.has_vnet_header();
    debug!(target: TRACE, %name, super_frames, "TAP queue opened");
    Ok(tap)
}

/// Applies the settings, with defaults if the interface was `made` here.
fn set_up(config: &TapConfig, control: &Control, made: bool) -> Result<(), OpenError> {
    let name = config.name;
    let failed = |what: &str, remedy: String| {
        let action = format!("set the {what} of {name}");
        move |error| OpenError::from_io(error, action, format!("have it done once: `{remedy}`"))
    };
    if let Some(mac) = config.mac {
        control
            .set_mac(name, mac)
            .map_err(failed("address", format!("sudo ip link set dev {name} address …")))?;
    }
    if let Some(mtu) = config.mtu
        && control.mtu(name).ok() != Some(mtu)
    {
        control
            .set_mtu(name, mtu)
            .map_err(failed("MTU", format!("sudo ip link set dev {name} mtu {mtu}")))?;
    }
    if let Some(frames) = config.queue_frames {
        let remedy = format!("sudo ip link set dev {name} txqueuelen {frames}");
        control.set_queue_len(name, frames).map_err(failed("queue length", remedy))?;
    } else if made {
        // The right to create an interface does not include this (root of a user namespace lacks
        // it). A shorter queue only loses more frames.
        let _shorter = control.set_queue_len(name, QUEUE_FRAMES);
    }
    if let Some(up) = config.up.or_else(|| made.then_some(true))
        && control.flags(name).map(|flags| flags.up()).ok() != Some(up)
    {
        let state = if up { "up" } else { "down" };
        control
            .set_up(name, up)
            .map_err(failed("state", format!("sudo ip link set dev {name} {state}")))?;
    }
    Ok(())
}
