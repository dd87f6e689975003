//! Cases to measure, with equal conditions on both sides.

use std::num::NonZeroUsize;

use urnic_netdev::memory::LinkConfig;

/// Bytes of one message.
pub(crate) const MESSAGE_LEN: usize = 64 << 10;
/// Messages in flight at a time.
pub(crate) const WINDOW: usize = 16;
/// Largest payload of a super-frame.
const SUPER_FRAME_LEN: NonZeroUsize = NonZeroUsize::new(65_535 - 60).expect("not 0");

/// One setting of RDMA over urnic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rdma {
    /// Name in the report.
    pub(crate) name: &'static str,
    /// The smoltcp case to compare with; `None` for small messages.
    pub(crate) against: Option<&'static str>,
    /// The link.
    pub(crate) link: Link,
    /// FPDUs carry CRCs.
    pub(crate) crc: bool,
    /// The stream has markers.
    pub(crate) markers: bool,
    /// The operation of every message.
    pub(crate) op: Op,
    /// Bytes of a message, and of source and of sink memory, as in perftest and iperf, so that both
    /// sides find it in the cache.
    pub(crate) message_len: usize,
    /// Messages in flight at a time.
    pub(crate) depth: usize,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// RDMA Write.
    Write,
    /// RDMA Read: messages come from the other end.
    Read,
    /// Send, with a receive that the other end posts for each.
    Send,
}

/// One setting of smoltcp's TCP sockets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sockets {
    /// Name in the report.
    pub(crate) name: &'static str,
    /// The link.
    pub(crate) link: Link,
    /// Bytes of each socket buffer.
    pub(crate) buffer_len: usize,
}

/// A link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Largest IP datagram.
    pub(crate) mtu: usize,
    /// The stacks compute and verify TCP and IP checksums. `false`: the link does.
    pub(crate) software_checksums: bool,
    /// Frames of up to 64 KiB cross the link uncut.
    pub(crate) super_frames: bool,
}

impl Link {
    const fn plain(mtu: usize) -> Self {
        Self { mtu, software_checksums: false, super_frames: false }
    }

    const fn summed(mtu: usize) -> Self {
        Self { software_checksums: true, ..Self::plain(mtu) }
    }

    const fn super_frames(mtu: usize) -> Self {
        Self { super_frames: true, ..Self::plain(mtu) }
    }

    /// The memory link: no latency, no limit of rate.
    pub(crate) fn config(&self) -> LinkConfig {
        LinkConfig {
            mtu: self.mtu,
            tx_checksum: !self.software_checksums,
            super_frame_len_max: self.super_frames.then_some(SUPER_FRAME_LEN),
            ..LinkConfig::default()
        }
    }
}

const fn rdma(name: &'static str, against: &'static str, link: Link) -> Rdma {
    let (op, message_len, depth) = (Op::Write, MESSAGE_LEN, WINDOW);
    let against = Some(against);
    Rdma { name, against, link, crc: true, markers: false, op, message_len, depth }
}

/// Small messages, at an MTU of 1500.
const fn small(name: &'static str, op: Op, message_len: usize, depth: usize) -> Rdma {
    Rdma { against: None, op, message_len, depth, ..rdma(name, "", Link::plain(1500)) }
}

/// All settings of urnic. CRCs are on unless the name says otherwise.
pub(crate) const RDMA: &[Rdma] = &[
    rdma("1500", "1500", Link::plain(1500)),
    Rdma { crc: false, ..rdma("1500, no CRC", "1500", Link::plain(1500)) },
    Rdma { markers: true, ..rdma("1500, markers", "1500", Link::plain(1500)) },
    rdma("1500, software checksums", "1500, software checksums", Link::summed(1500)),
    rdma("1500, super-frames", "1500", Link::super_frames(1500)),
    Rdma { op: Op::Read, ..rdma("1500, read", "1500", Link::plain(1500)) },
    Rdma { op: Op::Read, ..rdma("1500, super-frames, read", "1500", Link::super_frames(1500)) },
    Rdma { op: Op::Read, ..rdma("9000, read", "9000", Link::plain(9000)) },
    rdma("9000", "9000", Link::plain(9000)),
    Rdma { crc: false, ..rdma("9000, no CRC", "9000", Link::plain(9000)) },
    Rdma { markers: true, ..rdma("9000, markers", "9000", Link::plain(9000)) },
    rdma("9000, software checksums", "9000, software checksums", Link::summed(9000)),
    small("write of 8, depth 1", Op::Write, 8, 1),
    small("write of 8, depth 64", Op::Write, 8, 64),
    small("send of 64, depth 1", Op::Send, 64, 1),
    small("send of 64, depth 64", Op::Send, 64, 64),
    small("read of 8, depth 16", Op::Read, 8, 16),
];

const fn sockets(name: &'static str, link: Link, buffer_len: usize) -> Sockets {
    Sockets { name, link, buffer_len }
}

/// All settings of smoltcp, each with the best buffers for it.
pub(crate) const SOCKETS: &[Sockets] = &[
    sockets("1500", Link::plain(1500), 128 << 10),
    sockets("1500, software checksums", Link::summed(1500), 128 << 10),
    sockets("9000", Link::plain(9000), 256 << 10),
    sockets("9000, software checksums", Link::summed(9000), 256 << 10),
];

/// The bytes to move: no two messages alike.
#[expect(clippy::cast_possible_truncation, reason = "a pattern is made of low bytes")]
pub(crate) fn pattern() -> Vec<u8> {
    (0..MESSAGE_LEN)
        .map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ (i >> 16) as u8)
        .collect()
}
