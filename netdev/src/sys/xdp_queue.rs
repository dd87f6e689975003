//! Packet memory and the four rings of one AF_XDP queue. The first chunks receive, the rest
//! transmit. The kernel owns a chunk from the fill or transmit ring until it returns through the
//! receive or completion ring. A returned chunk that the kernel did not own, or that is out of
//! range, is ignored and counted.
#![expect(unsafe_code, reason = "chunks are memory that the kernel and this process use in turns")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys::mapping::Mapping;
use crate::sys::packet_socket;
use crate::sys::xdp_ring::Descriptor;
use crate::sys::xdp_socket::{self, Rings};

/// Room that the kernel keeps in front of a received frame (`XDP_PACKET_HEADROOM`).
pub(crate) const HEADROOM_LEN: usize = 256;

/// Limit of frames in flight in copy mode, in bytes, with the kernel's own overhead.
const SEND_BUFFER_LEN: i32 = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueLayout {
    /// Bytes of a chunk, 2048 or 4096.
    pub(crate) chunk_len: u32,
    /// Chunks that receive, a power of two.
    pub(crate) receive: u32,
    /// Chunks that transmit, a power of two.
    pub(crate) transmit: u32,
}

#[derive(Debug)]
pub(crate) struct XdpQueue {
    rings: Rings,
    /// Dropped before the memory, so that the kernel stops using it.
    socket: OwnedFd,
    memory: Mapping,
    layout: QueueLayout,
    with_kernel: Box<[bool]>,
    idle: Vec<u32>,
    staged: bool,
    bad_entries: u64,
}

impl XdpQueue {
    /// Creates a socket with its memory and rings, not bound yet. The kernel owns all receiving
    /// chunks.
    pub(crate) fn new(layout: QueueLayout) -> io::Result<Self> {
        let socket = xdp_socket::open()?;
        // In copy mode frames in flight count against the socket's buffer, usually 208 KiB.
        packet_socket::set_buffers(socket.as_fd(), SEND_BUFFER_LEN, 0);
        let QueueLayout { chunk_len, receive, transmit } = layout;
        let chunks = receive + transmit;
        let memory = Mapping::fresh(length(chunks) * length(chunk_len))?;
        xdp_socket::register(socket.as_fd(), &memory, chunk_len)?;
        let mut rings = xdp_socket::rings(socket.as_fd(), receive, transmit)?;
        for chunk in 0..receive {
            rings.fill.put_address(u64::from(chunk) * u64::from(chunk_len));
        }
        rings.fill.publish_put();
        Ok(Self {
            rings,
            socket,
            memory,
            layout,
            with_kernel: (0..chunks).map(|chunk| chunk < receive).collect(),
            idle: (receive..chunks).collect(),
            staged: false,
            bad_entries: 0,
        })
    }

    pub(crate) fn bind(&self, interface_index: u32, queue: u32, zero_copy: bool) -> io::Result<()> {
        xdp_socket::bind(self.socket.as_fd(), interface_index, queue, zero_copy)
    }

    pub(crate) const fn bad_entries(&self) -> u64 {
        self.bad_entries
    }

    pub(crate) fn receive(&mut self, burst: usize, sink: &mut dyn FnMut(&[u8])) -> usize {
        let waiting = length(self.rings.receive.waiting()).min(burst);
        let mut count = 0;
        for _ in 0..waiting {
            let descriptor = self.rings.receive.take();
            let Some((chunk, at)) = self.received(descriptor) else {
                self.bad_entries += 1;
                continue;
            };
            // SAFETY: `received` has checked that the bytes are within a chunk that the kernel
            // owned and has just returned: it does not write them before it gets the chunk again
            // below. Receiving chunks are never borrowed mutably.
            sink(unsafe { self.memory.octets(at, length(descriptor.len)) });
            count += 1;
            // The kernel publishes frames first and the fill ring's entries that it has read
            // afterwards: the ring, with an entry for each chunk, may look full for a moment.
            self.rings.fill.put_address(u64::from(chunk) * u64::from(self.layout.chunk_len));
        }
        if waiting > 0 {
            self.rings.receive.publish_taken();
            self.rings.fill.publish_put();
        }
        if self.rings.fill.needs_wakeup() {
            // The next call retries.
            let _told = xdp_socket::wake_receive(self.socket.as_fd());
        }
        count
    }

    fn received(&self, Descriptor { at, len }: Descriptor) -> Option<(u32, usize)> {
        let chunk_len = u64::from(self.layout.chunk_len);
        let chunk = u32::try_from(at / chunk_len).ok()?;
        let fits = at % chunk_len + u64::from(len) <= chunk_len;
        let given = chunk < self.layout.receive && *self.with_kernel.get(length(chunk))?;
        (fits && given).then_some((chunk, usize::try_from(at).ok()?))
    }

    /// Returns the number of free transmit chunks, after taking back sent ones.
    pub(crate) fn room(&mut self) -> usize {
        let waiting = self.rings.completion.waiting();
        for _ in 0..waiting {
            let at = self.rings.completion.take_address();
            let chunk = u32::try_from(at / u64::from(self.layout.chunk_len)).unwrap_or(u32::MAX);
            match self.with_kernel.get_mut(length(chunk)) {
                Some(given) if *given && chunk >= self.layout.receive => {
                    *given = false;
                    self.idle.push(chunk);
                }
                _ => self.bad_entries += 1,
            }
        }
        if waiting > 0 {
            self.rings.completion.publish_taken();
        }
        self.idle.len().min(length(self.rings.transmit.room()))
    }

    /// Number of frames that [`transmit`](Self::transmit) certainly takes now; 0 only if it takes
    /// none.
    pub(crate) fn room_at_least(&self) -> usize {
        // The transmit ring has an entry for each chunk, which is free before the chunk returns.
        self.idle.len().saturating_add(length(self.rings.completion.unclaimed()))
    }

    /// Takes a frame that `write` puts into a chunk; [`flush`](Self::flush) sends it. Returns false
    /// if no chunk is free or the frame is too long.
    pub(crate) fn transmit(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        let Some(frame_len) = u32::try_from(len).ok().filter(|&len| len <= self.layout.chunk_len)
        else {
            return false;
        };
        if (self.idle.is_empty() && self.room() == 0) || self.rings.transmit.room() == 0 {
            return false;
        }
        let Some(chunk) = self.idle.pop() else { return false };
        let at = u64::from(chunk) * u64::from(self.layout.chunk_len);
        let start = length(chunk) * length(self.layout.chunk_len);
        // SAFETY: the chunk was idle: the kernel does not access it until it is in the ring. It is
        // borrowed only once, since `self` is borrowed mutably.
        write(unsafe { self.memory.octets_mut(start, len) });
        self.with_kernel[length(chunk)] = true;
        self.rings.transmit.put(Descriptor { at, len: frame_len });
        self.staged = true;
        true
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.rings.transmit.has_unconsumed() && self.rings.transmit.needs_wakeup()
    }

    /// Makes the kernel send the taken frames; the next call sends the rest. `ENETDOWN`, `ENXIO`
    /// and others if the interface is down or deleted; congestion is no error.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.staged {
            self.rings.transmit.publish_put();
            self.staged = false;
        } else if !self.rings.transmit.has_unconsumed() {
            return Ok(());
        }
        let mut left = self.rings.transmit.unconsumed();
        // In copy mode the kernel takes a part of the ring per call.
        while left > 0 && self.rings.transmit.needs_wakeup() {
            match xdp_socket::wake_transmit(self.socket.as_fd()) {
                Ok(()) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {}
                    _ => return Err(error),
                },
            }
            let now = self.rings.transmit.unconsumed();
            if now >= left {
                break;
            }
            left = now;
        }
        Ok(())
    }
}

impl AsFd for XdpQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn length(value: u32) -> usize {
    usize::try_from(value).expect("32 bits fit")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::sys::xdp_ring::{Ring, RingOffsets};

    const OFFSETS: RingOffsets =
        RingOffsets { producer: 0, consumer: 64, flags: 128, entries: 192 };
    const LAYOUT: QueueLayout = QueueLayout { chunk_len: 2048, receive: 2, transmit: 4 };

    /// Creates a queue whose kernel is a peer that counts the calls; it asks for one for each
    /// flush.
    fn queue() -> (XdpQueue, UnixDatagram) {
        let (socket, kernel) = UnixDatagram::pair().unwrap();
        kernel.set_nonblocking(true).unwrap();
        let ring = |entries, entry_len| {
            Ring::new(Mapping::fresh(4096).unwrap(), OFFSETS, entries, entry_len)
        };
        let rings = Rings {
            fill: ring(2, 8),
            completion: ring(4, 8),
            receive: ring(2, 16),
            transmit: ring(4, 16),
        };
        rings.transmit.set_word(OFFSETS.flags, libc::XDP_RING_NEED_WAKEUP);
        let queue = XdpQueue {
            rings,
            socket: socket.into(),
            memory: Mapping::fresh(6 * 2048).unwrap(),
            layout: LAYOUT,
            with_kernel: (0..6).map(|chunk| chunk < 2).collect(),
            idle: (2..6).collect(),
            staged: false,
            bad_entries: 0,
        };
        (queue, kernel)
    }

    fn calls(kernel: &UnixDatagram) -> usize {
        std::iter::from_fn(|| kernel.recv(&mut [0]).ok()).count()
    }

    #[test]
    fn frames_left_by_a_congested_kernel_are_offered_again() {
        let (mut queue, kernel) = queue();
        assert!(queue.flush().is_ok() && !queue.has_unsent());
        assert_eq!(calls(&kernel), 0, "nothing to send");
        // Calls whose frames are not taken, until the next would have to wait.
        while xdp_socket::wake_transmit(queue.as_fd()).is_ok() {}
        assert!(queue.transmit(60, |chunk| chunk.fill(7)));
        assert!(queue.flush().is_ok(), "congestion is no error");
        assert!(queue.has_unsent());
        calls(&kernel);
        assert!(queue.flush().is_ok());
        assert_eq!(calls(&kernel), 1, "told again");
        // The kernel has taken the frame.
        queue.rings.transmit.set_word(OFFSETS.consumer, 1);
        assert!(queue.flush().is_ok() && !queue.has_unsent());
        assert_eq!(calls(&kernel), 0);
        // A kernel that polls the ring needs no call.
        queue.rings.transmit.set_word(OFFSETS.flags, 0);
        assert!(queue.transmit(60, |chunk| chunk.fill(7)));
        assert!(queue.flush().is_ok() && !queue.has_unsent());
        assert_eq!(calls(&kernel), 0);
    }

    #[test]
    fn there_is_room_for_as_many_frames_as_chunks_and_again_when_they_come_back() {
        let (mut queue, _kernel) = queue();
        for left in (0..4).rev() {
            assert!(queue.transmit(60, |chunk| chunk.fill(7)));
            assert_eq!(queue.room_at_least(), left);
        }
        assert!(!queue.transmit(60, |_| panic!("no chunk")));
        assert!(queue.flush().is_ok());
        // The last chunk, which was taken first, was sent.
        queue.rings.transmit.set_word(OFFSETS.consumer, 4);
        let [a, b, c, d, e, f, g, h] = (5 * 2048_u64).to_ne_bytes();
        let halves = [[a, b, c, d], [e, f, g, h]].map(u32::from_ne_bytes);
        queue.rings.completion.set_word(OFFSETS.entries, halves[0]);
        queue.rings.completion.set_word(OFFSETS.entries + 4, halves[1]);
        queue.rings.completion.set_word(OFFSETS.producer, 1);
        assert_eq!(queue.room_at_least(), 1);
        assert!(queue.transmit(60, |chunk| chunk.fill(8)));
        assert!(!queue.transmit(60, |_| panic!("no chunk")));
        assert_eq!(queue.bad_entries(), 0);
    }
}
