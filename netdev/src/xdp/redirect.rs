//! Program that redirects a queue's frames to its socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::OpenError;
use crate::interface::Name;
use crate::sys::bpf::{self, AttachMode};

/// Program on its interface. Dropping it removes the program; so does the end of the process.
#[derive(Debug)]
pub(super) struct Redirect {
    /// Maps queues to sockets.
    map: OwnedFd,
    /// Keeps the program attached to the interface.
    _link: OwnedFd,
    pub(super) mode: AttachMode,
    /// Reason why the mode is not the native one.
    pub(super) fallback: Option<String>,
}

impl Redirect {
    /// Loads the program, for queues below `queues`, and attaches it: in the driver if `native` is
    /// set and the driver accepts it, otherwise behind the driver.
    pub(super) fn attach(
        name: Name,
        interface_index: u32,
        queues: u32,
        native: bool,
    ) -> Result<Self, OpenError> {
        let map = bpf::socket_map(queues)
            .map_err(|error| super::failed(name, "make an XDP socket map for", error))?;
        let program = bpf::load_xdp(&program(map.as_fd())).map_err(|(error, log)| {
            let log = if log.is_empty() { String::new() } else { format!(" ({log})") };
            super::failed(name, &format!("load an XDP program{log} for"), error)
        })?;
        let attach = |mode| bpf::attach_xdp(program.as_fd(), interface_index, mode);
        let (mode, fallback) = match native.then(|| attach(AttachMode::Native)) {
            Some(Ok(link)) => {
                return Ok(Self { map, _link: link, mode: AttachMode::Native, fallback: None });
            }
            Some(Err(error)) if error.raw_os_error() == Some(libc::EBUSY) => {
                return Err(busy(name));
            }
            Some(Err(error)) => {
                let reason = format!("{name} takes no XDP program in its driver: {error}");
                (AttachMode::Generic, Some(reason))
            }
            None => (AttachMode::Generic, None),
        };
        let link = attach(mode).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => busy(name),
            _ => super::failed(name, "attach an XDP program to", error),
        })?;
        Ok(Self { map, _link: link, mode, fallback })
    }

    /// Creates the map and loads the program for one queue, without attaching it.
    pub(super) fn check_rights() -> io::Result<()> {
        let map = bpf::socket_map(1)?;
        bpf::load_xdp(&program(map.as_fd())).map(drop).map_err(|(error, _log)| error)
    }

    /// Redirects the frames of a queue to a socket.
    pub(super) fn insert(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        bpf::insert_socket(self.map.as_fd(), queue, socket)
    }
}

fn busy(name: Name) -> OpenError {
    OpenError::Busy {
        name,
        remedy: format!(
            "it has an XDP program (`ip link show {name}` names it); end what uses it, or take \
             the program off: `sudo ip link set dev {name} xdp off`"
        ),
    }
}

/// Returns the program: `return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_PASS)`. The last
/// argument is the result for a queue without a socket: such frames pass to the kernel.
fn program(map: BorrowedFd<'_>) -> [u64; 6] {
    use std::os::fd::AsRawFd;
    const LOAD_WORD: u8 = 0x61;
    const LOAD_IMMEDIATE_64: u8 = 0x18;
    const MOVE_IMMEDIATE: u8 = 0xb7;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    /// Offset of `rx_queue_index` in `struct xdp_md`.
    const RX_QUEUE_INDEX_AT: i16 = 16;
    /// `BPF_PSEUDO_MAP_FD`: the immediate is a descriptor.
    const MAP_DESCRIPTOR: u8 = 1;
    const XDP_PASS: i32 = 2;
    const REDIRECT_MAP: i32 = 51;
    [
        instruction(LOAD_WORD, 2, 1, RX_QUEUE_INDEX_AT, 0),
        instruction(LOAD_IMMEDIATE_64, 1, MAP_DESCRIPTOR, 0, map.as_raw_fd()),
        instruction(0, 0, 0, 0, 0),
        instruction(MOVE_IMMEDIATE, 3, 0, 0, XDP_PASS),
        instruction(CALL, 0, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

/// Encodes `struct bpf_insn`, as its eight bytes in memory.
fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    let registers = if cfg!(target_endian = "big") {
        destination << 4 | source
    } else {
        source << 4 | destination
    };
    let [offset_a, offset_b] = offset.to_ne_bytes();
    let [a, b, c, d] = immediate.to_ne_bytes();
    u64::from_ne_bytes([code, registers, offset_a, offset_b, a, b, c, d])
}
