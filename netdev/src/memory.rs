//! Linked pair of devices in memory, under the callers' clock. Each direction is a bounded queue of
//! frames, which arrive whole, in order and unchanged, after `serialisation + latency`. The two
//! ends may be used by two threads. Frames are stored in recycled buffers, which a direction
//! allocates as the queue grows, at most [`LinkConfig::queue_frames`]. The number of buffers *is*
//! the queue's limit: a frame occupies its buffer until the receiver has returned it.

mod link;

use std::collections::VecDeque;
use std::num::{NonZeroU16, NonZeroUsize};

pub use link::Link;

use crate::{
    Capabilities, Device, Medium, RxChecksum, RxFrame, TransmitError, TxChecksum, TxFrame,
};

/// Settings of the link between the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Largest IP datagram, in bytes.
    pub mtu: usize,
    /// Time from the sending of a frame's last byte to its arrival, in nanoseconds.
    pub latency_ns: u64,
    /// Bits per second and direction, of frame bytes. `None`: sending takes no time. Zero: no
    /// arrival.
    pub rate_bits_per_second: Option<u64>,
    /// Most frames in flight per direction, at least one; further ones are refused with
    /// [`TransmitError::Full`]. Up to an eighth of them may be received frames whose buffers return
    /// in the next call of [`receive`](Device::receive).
    pub queue_frames: usize,
    /// Layer at which frames begin.
    pub medium: Medium,
    /// Largest super-frame payload, in bytes; the link does not cut it. `None` refuses
    /// super-frames.
    pub super_frame_len_max: Option<NonZeroUsize>,
    /// True if the link takes frames with a partial checksum, and leaves it so: such a frame never
    /// leaves memory and arrives as [`RxChecksum::Valid`].
    pub tx_checksum: bool,
}

impl Default for LinkConfig {
    /// Returns Ethernet with an MTU of 1500, no latency, unlimited rate, 1024 frames, no offloads.
    fn default() -> Self {
        Self {
            mtu: 1500,
            latency_ns: 0,
            rate_bits_per_second: None,
            queue_frames: 1024,
            medium: Medium::Ethernet,
            super_frame_len_max: None,
            tx_checksum: false,
        }
    }
}

/// Creates two devices; each receives the frames that the other transmits. The link is up.
#[must_use]
pub fn pair(config: LinkConfig) -> (MemoryDevice, MemoryDevice) {
    let link = Link::new(config.mtu, config.latency_ns);
    (MemoryDevice::new(config, link.clone(), 0), MemoryDevice::new(config, link, 1))
}

/// One end of a linked pair; see [`pair`].
#[derive(Debug)]
pub struct MemoryDevice {
    config: LinkConfig,
    link: Link,
    /// Direction on which this end sends.
    direction: usize,
    /// Frames taken by `transmit` and not yet flushed.
    staged: VecDeque<Slot>,
    spare: Vec<Box<[u8]>>,
    buffers: usize,
    /// Time at which the last byte taken so far will have been sent.
    sent_at_ns: u64,
    /// Time at which the last frame taken so far arrives.
    arrival_ns: u64,
    /// Received frames: first handed to the sink, then kept until their buffers are returned.
    burst: VecDeque<Slot>,
}

impl MemoryDevice {
    fn new(config: LinkConfig, link: Link, direction: usize) -> Self {
        Self {
            config,
            link,
            direction,
            staged: VecDeque::new(),
            spare: Vec::new(),
            buffers: 0,
            sent_at_ns: 0,
            arrival_ns: 0,
            burst: VecDeque::new(),
        }
    }

    /// Returns a handle to the link, for devices that are wrapped in middleware.
    #[must_use]
    pub fn link(&self) -> Link {
        self.link.clone()
    }

    /// Takes the link down or up, for both ends; see [`Link::set_link_up`].
    pub fn set_link_up(&self, up: bool) {
        self.link.set_link_up(up);
    }

    /// Changes the MTU of both directions; see [`Link::set_mtu`].
    pub fn set_mtu(&self, mtu: usize) {
        self.link.set_mtu(mtu);
    }

    /// Changes the latency of both directions; see [`Link::set_latency`].
    pub fn set_latency(&self, latency_ns: u64) {
        self.link.set_latency(latency_ns);
    }

    fn buffer(&mut self, len: usize) -> Option<Box<[u8]>> {
        if let Some(buffer) = self.spare.pop() {
            return Some(self.long_enough(buffer, len));
        }
        let buffer_len = self.buffer_len(len);
        let buffers_max = self.config.queue_frames.max(1);
        // Fetching returned buffers takes a lock, so some buffers are allocated first: as many as
        // fit into the processor's cache.
        if self.buffers >= buffers_max.min(CACHED_LEN / buffer_len) {
            std::mem::swap(&mut self.spare, &mut self.link.lock(self.direction).spare);
            if let Some(buffer) = self.spare.pop() {
                return Some(self.long_enough(buffer, len));
            }
            if self.buffers >= buffers_max {
                return None;
            }
        }
        self.buffers += 1;
        Some(vec![0; buffer_len].into_boxed_slice())
    }

    fn long_enough(&self, buffer: Box<[u8]>, len: usize) -> Box<[u8]> {
        if buffer.len() >= len { buffer } else { vec![0; self.buffer_len(len)].into_boxed_slice() }
    }

    /// Returns the length of new buffers: enough for `len` bytes and for all later frames.
    fn buffer_len(&self, len: usize) -> usize {
        let ip_len = self
            .config
            .super_frame_len_max
            .map_or(0, |max| max.get().saturating_add(IP_TCP_HEADERS_LEN_MAX));
        let usual = ip_len.max(self.link.mtu()).saturating_add(LINK_HEADER_LEN_MAX);
        // An odd number of cache lines: distances of a power of two would compete for few cache
        // sets.
        (usual.min(BUFFER_LEN_MAX).max(len).div_ceil(CACHE_LINE) | 1) * CACHE_LINE
    }

    /// Takes one frame of `len` bytes that `write` writes directly into its buffer, which starts
    /// with arbitrary content. On a [`TransmitError`] `write` was not called.
    pub fn transmit_in_place<R>(
        &mut self,
        now_ns: u64,
        len: usize,
        checksum: RxChecksum,
        write: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, TransmitError> {
        if !self.link.is_up() {
            return Err(TransmitError::LinkDown);
        }
        let link_header_len = match self.config.medium {
            Medium::Ip => 0,
            Medium::Ethernet => LINK_HEADER_LEN,
        };
        if len > self.link.mtu().saturating_add(link_header_len) {
            return Err(TransmitError::TooLong);
        }
        let mut buffer = self.buffer(len).ok_or(TransmitError::Full)?;
        let written = write(&mut buffer[..len]);
        let arrival_ns = self.schedule(now_ns, len);
        self.staged.push_back(Slot { buffer, len, arrival_ns, checksum, segment_size: None });
        Ok(written)
    }

    /// Returns the arrival time of `wire_len` bytes offered now, and occupies the link until then.
    fn schedule(&mut self, now_ns: u64, wire_len: usize) -> u64 {
        let start = now_ns.max(self.sent_at_ns);
        self.sent_at_ns = match self.config.rate_bits_per_second {
            None => start,
            Some(rate) => start.saturating_add(sending_ns(wire_len, rate)),
        };
        // Frames stay in order even if the latency was just lowered.
        let arrival_ns = self.sent_at_ns.saturating_add(self.link.latency_ns());
        self.arrival_ns = arrival_ns.max(self.arrival_ns);
        self.arrival_ns
    }
}

impl Device for MemoryDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            medium: self.config.medium,
            mtu: self.link.mtu(),
            segmentation_len_max: self.config.super_frame_len_max,
            tx_checksum: self.config.tx_checksum,
            fragments_max: usize::MAX,
            gather_len_min: 0,
            tx_digest: true,
        }
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        let incoming = 1 - self.direction;
        {
            let mut wire = self.link.lock(incoming);
            wire.spare.extend(self.burst.drain(..).map(|slot| slot.buffer));
            take_arrived(&mut wire.frames, now_ns, burst, &mut self.burst);
        }
        if self.burst.is_empty() {
            return 0;
        }
        // The lock is free while the sink runs, since the sink may use the other end.
        for slot in &self.burst {
            sink(RxFrame::whole(&slot.buffer[..slot.len], slot.checksum, slot.segment_size));
        }
        let count = self.burst.len();
        // A few buffers can wait until the next call, which takes the lock anyway.
        if count > self.config.queue_frames / 8 {
            let mut wire = self.link.lock(incoming);
            wire.spare.extend(self.burst.drain(..).map(|slot| slot.buffer));
        }
        count
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        if !self.link.is_up() {
            return Err(TransmitError::LinkDown);
        }
        let len = frame.len();
        self.capabilities().check_len(frame, len - frame.head.len())?;
        let mut buffer = self.buffer(len).ok_or(TransmitError::Full)?;
        frame.gather(&mut buffer);
        let arrival_ns = self.schedule(now_ns, wire_len(frame, len));
        let checksum = match frame.checksum {
            TxChecksum::Partial { .. } => RxChecksum::Valid,
            // Even if the link offers more: middleware may have changed the frame since.
            TxChecksum::Complete => RxChecksum::Unverified,
        };
        let segment_size = frame.segment_size;
        self.staged.push_back(Slot { buffer, len, arrival_ns, checksum, segment_size });
        Ok(())
    }

    fn transmit_room(&self) -> usize {
        let unmade = self.config.queue_frames.max(1) - self.buffers;
        let room = self.spare.len() + unmade;
        // More buffers may have been returned; take the lock only if room is short.
        if room >= ROOM_AMPLE {
            return room;
        }
        room + self.link.lock(self.direction).spare.len()
    }

    fn flush(&mut self, _now_ns: u64) {
        if self.staged.is_empty() {
            return;
        }
        let mut wire = self.link.lock(self.direction);
        // Checked under the lock, so that no frame is put onto a wire that was just cleared.
        if self.link.is_up() {
            append(&mut wire.frames, &mut self.staged);
        } else {
            self.spare.extend(self.staged.drain(..).map(|slot| slot.buffer));
        }
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.link.lock(1 - self.direction).frames.front().map(|slot| slot.arrival_ns)
    }

    fn link_up(&self) -> bool {
        self.link.is_up()
    }
}

#[derive(Debug)]
struct Slot {
    buffer: Box<[u8]>,
    len: usize,
    arrival_ns: u64,
    checksum: RxChecksum,
    segment_size: Option<NonZeroU16>,
}

fn take_arrived(
    frames: &mut VecDeque<Slot>,
    now_ns: u64,
    burst: usize,
    taken: &mut VecDeque<Slot>,
) {
    let has_arrived = |slot: &Slot| slot.arrival_ns <= now_ns;
    // Usual case: all frames. They arrive in order, so checking the last one suffices.
    if frames.len() <= burst && frames.back().is_some_and(has_arrived) {
        std::mem::swap(frames, taken);
        return;
    }
    let count = frames.iter().take(burst).take_while(|slot| has_arrived(slot)).count();
    taken.extend(frames.drain(..count));
}

fn append(frames: &mut VecDeque<Slot>, more: &mut VecDeque<Slot>) {
    if frames.is_empty() {
        std::mem::swap(frames, more);
    } else {
        frames.append(more);
    }
}

/// Returns the bytes of a frame on the wire: a super-frame counts its headers once per segment.
fn wire_len(frame: &TxFrame<'_>, len: usize) -> usize {
    let Some(segment_size) = frame.segment_size else { return len };
    let payload_len = len - frame.head.len();
    let segments = payload_len.div_ceil(usize::from(segment_size.get())).max(1);
    len.saturating_add((segments - 1).saturating_mul(frame.head.len()))
}

/// Returns the time, in nanoseconds, rounded up, that `len` bytes take at `rate` bits per second.
pub(crate) fn sending_ns(len: usize, rate: u64) -> u64 {
    const NS_PER_OCTET_AT_1_BPS: u64 = 8 * 1_000_000_000;
    let at_1_bps = u64::try_from(len).ok().and_then(|len| len.checked_mul(NS_PER_OCTET_AT_1_BPS));
    match at_1_bps {
        Some(ns) if rate != 0 => ns.div_ceil(rate),
        _ => u64::MAX,
    }
}

const LINK_HEADER_LEN: usize = 14;
/// Ethernet header with two VLAN tags.
const LINK_HEADER_LEN_MAX: usize = 22;
const IP_TCP_HEADERS_LEN_MAX: usize = 120;
/// Longest buffer allocated ahead of need, for any MTU.
const BUFFER_LEN_MAX: usize = 256 * 1024;
const CACHE_LINE: usize = 64;
/// More frames than a caller usually sends at once.
const ROOM_AMPLE: usize = 64;
/// Bytes of buffers that are allocated before returned ones are fetched.
const CACHED_LEN: usize = 64 * 1024;

#[cfg(test)]
mod tests;
