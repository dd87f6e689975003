//! The rate of the devices without any protocol: frames of one side counted at the other.
//!
//! The payload comes from as much memory as the engine sends from: a device that only reads the
//! same warm 64 KiB would set a limit that no transfer of real data can reach. In the gathered case
//! each segment is two runs of memory, like an FPDU's header and payload: this is the limit of
//! sending without a copy. In the checked case each end also computes the CRC of each segment, and
//! the receiver copies the payload to its destination: this is the work of an RNIC that remains
//! without a protocol.

use std::hint::black_box;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Result, bail};
use urnic::{Region, monotonic_now};
use urnic_engine::mem::digest::Kernel;
use urnic_engine::mem::{Scattered, SharedSlice};
use urnic_engine::time::Duration;
use urnic_engine::wire::crc32c::crc32c;
use urnic_netdev::{Device, TxChecksum, TxFrame};

use crate::core::pin;
use crate::network::{self, AnyDevice, Far, Link};
use crate::writes::{DEPTH, MESSAGE_LEN};

/// Frames to pump.
#[derive(Clone, Copy, Debug)]
struct Frames {
    /// Bytes behind the TCP header.
    payload_len: usize,
    /// Length of the segments into which the device cuts.
    segment_len: Option<u16>,
    /// Bytes at the beginning of each segment that come from another place.
    header_len: usize,
    /// Set if both ends compute the CRC of each segment, and the receiver copies its payload.
    checked: bool,
}

impl Frames {
    /// Returns the largest frames that the link carries.
    fn largest(link: Link, header_len: usize, checked: bool) -> Result<Self> {
        let (mtu, vnet) = match link {
            Link::Taps { mtu, vnet } | Link::Packet { mtu, vnet } => (mtu, vnet),
            Link::Xdp => (1500, false),
            Link::Shared { mtu, .. } | Link::Sharing { mtu } | Link::Published { mtu } => {
                (mtu, true)
            }
            Link::Impaired { .. } | Link::Kernel => {
                bail!("not a link to pump frames through")
            }
        };
        // IPv4 and TCP headers with timestamps.
        let segment_len = mtu - 52;
        let segments = if vnet { SUPER_FRAME_LEN / segment_len } else { 1 };
        let cut = u16::try_from(segment_len)?;
        let payload_len = segments * segment_len;
        Ok(Self { payload_len, segment_len: vnet.then_some(cut), header_len, checked })
    }

    /// Bytes of a segment.
    fn segment_len(&self) -> usize {
        self.segment_len.map_or(self.payload_len, usize::from)
    }

    /// The runs of one frame.
    fn gather<'m>(
        &self,
        memory: SharedSlice<'m>,
        mut headers: &'m [u8],
        runs: &mut Vec<SharedSlice<'m>>,
    ) {
        let mut at = 0;
        runs.clear();
        let mut left = self.payload_len;
        while left > 0 {
            let len = left.min(if self.header_len > 0 { self.segment_len() } else { left });
            let header;
            (header, headers) = headers.split_at(self.header_len.min(len));
            let payload = memory.part(at, len - header.len());
            at += payload.len();
            if self.checked {
                black_box((crc32c(header), Kernel::chosen().append(u32::MAX, payload)));
            }
            let both = [SharedSlice::from_bytes(header), payload];
            runs.extend(both.into_iter().filter(|run| !run.is_empty()));
            left -= len;
        }
    }
}

/// Payload bytes per second, in Gbit/s.
pub(crate) fn rate(far: &Far, link: Link, time: Duration) -> Result<f64> {
    pump(far, link, 0, false, time)
}

/// Like the plain rate, of memory in runs: a header of its own, then the rest of each segment.
pub(crate) fn gathered_rate(far: &Far, link: Link, time: Duration) -> Result<f64> {
    pump(far, link, FPDU_OVERHEAD_LEN, false, time)
}

/// Like the gathered rate, with a CRC of each segment at both ends, and a copy at the receiver.
pub(crate) fn checked_rate(far: &Far, link: Link, time: Duration) -> Result<f64> {
    pump(far, link, FPDU_OVERHEAD_LEN, true, time)
}

fn pump(far: &Far, link: Link, header_len: usize, checked: bool, time: Duration) -> Result<f64> {
    let frames = Frames::largest(link, header_len, checked)?;
    let (near, there) = network::ends(far, link)?;
    let (mut near, publisher, there) = (near.device, near.publisher, there.device);
    let _core = pin(0);
    let octets = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let receiver = {
        let (octets, stop) = (Arc::clone(&octets), Arc::clone(&stop));
        thread::spawn(move || count(there, &frames, &octets, &stop))
    };
    let head = head(frames.payload_len);
    let memory = match publisher {
        Some(publisher) => Region::published(&publisher, MESSAGE_LEN * DEPTH)?,
        None => Region::anonymous(MESSAGE_LEN * DEPTH)?,
    };
    memory.write(0, &vec![0x5a; memory.len()])?;
    let headers = vec![0xa5; SUPER_FRAME_LEN];
    let mut payload = Vec::with_capacity(SUPER_FRAME_LEN / 256);
    let checksum = match frames.segment_len {
        Some(_) => TxChecksum::Partial { start: 34, offset: 16 },
        None => TxChecksum::Complete,
    };
    let segment_size = frames.segment_len.and_then(NonZeroU16::new);
    let mut at = 0;
    let mut run = |time: Duration| {
        let (start, before) = (monotonic_now(), octets.load(Ordering::Relaxed));
        loop {
            let now = monotonic_now();
            if now - start >= time {
                let moved = octets.load(Ordering::Relaxed) - before;
                return moved as f64 * 8.0 / (now - start).as_nanos() as f64;
            }
            for _ in 0..BURST {
                if near.transmit_room() == 0 {
                    break;
                }
                if at + frames.payload_len > memory.len() {
                    at = 0;
                }
                let octets = memory.slice(at, frames.payload_len).expect("inside the memory");
                frames.gather(octets, &headers, &mut payload);
                at += frames.payload_len;
                let frame = TxFrame {
                    head: &head,
                    payload: &payload,
                    checksum,
                    segment_size,
                    digests: None,
                };
                // If the device has no room, the frame is lost, as on a wire.
                let _lost = near.transmit(now.as_nanos(), &frame);
            }
            near.flush(now.as_nanos());
            near.receive(now.as_nanos(), BURST, &mut |_| {});
        }
    };
    run(time / 5);
    let rate = run(time);
    stop.store(true, Ordering::Relaxed);
    receiver.join().expect("the receiver ends well");
    Ok(rate)
}

fn count(mut device: AnyDevice, frames: &Frames, octets: &AtomicU64, stop: &AtomicBool) {
    let _core = pin(1);
    let mut memory = vec![0; if frames.checked { MESSAGE_LEN * DEPTH } else { 0 }];
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut sum = 0;
        device.receive(monotonic_now().as_nanos(), BURST, &mut |frame| {
            if frame.head.starts_with(&network::mac(2)) {
                sum += frame.len().saturating_sub(HEAD_LEN) as u64;
                if frames.checked {
                    let first = SharedSlice::from_bytes(frame.head.get(HEAD_LEN..).unwrap_or(&[]));
                    place(Scattered::new(first, frame.payload), frames, &mut memory, &mut at);
                }
            }
        });
        octets.fetch_add(sum, Ordering::Relaxed);
    }
}

/// Computes the CRC of each segment of a frame and copies its payload to the memory, from the
/// `at`-th byte on.
fn place(mut octets: Scattered<'_>, frames: &Frames, memory: &mut [u8], at: &mut usize) {
    let segment_len = |left: usize| frames.segment_len().min(left);
    while let Some((segment, rest)) = octets.split_at_checked(segment_len(octets.len()))
        && !segment.is_empty()
    {
        black_box(segment.runs().fold(u32::MAX, |state, run| Kernel::chosen().append(state, run)));
        let header_len = frames.header_len.min(segment.len());
        let payload = segment.split_at_checked(header_len).map_or(segment, |(_, payload)| payload);
        if *at + payload.len() > memory.len() {
            *at = 0;
        }
        payload.copy_to(&mut memory[*at..*at + payload.len()]);
        *at += payload.len();
        octets = rest;
    }
}

/// Ethernet, IPv4 and TCP headers of a data segment.
fn head(payload_len: usize) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[..6].copy_from_slice(&network::mac(2));
    head[6..12].copy_from_slice(&network::mac(1));
    head[12..14].copy_from_slice(&[8, 0]);
    let total = u16::try_from(payload_len + HEAD_LEN - 14).expect("an IP datagram");
    head[14..16].copy_from_slice(&[0x45, 0]);
    head[16..18].copy_from_slice(&total.to_be_bytes());
    head[22..24].copy_from_slice(&[64, 6]);
    head[26..34].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
    let checksum = !smoltcp::wire::checksum::data(&head[14..34]);
    head[24..26].copy_from_slice(&checksum.to_be_bytes());
    head[34..38].copy_from_slice(&[0x1c, 6, 0x1c, 7]);
    head[46..48].copy_from_slice(&[0x50, 0x10]);
    head
}

const HEAD_LEN: usize = 54;
/// Bytes that MPA and DDP add to a tagged FPDU: length, header, CRC.
const FPDU_OVERHEAD_LEN: usize = 20;
const SUPER_FRAME_LEN: usize = 65_000;
/// Frames sent or received at a time.
const BURST: usize = 16;
