//! Options of sockets, and their defaults.

use libc::{
    IPPROTO_IPV6, IPPROTO_TCP, IPV6_V6ONLY, SO_KEEPALIVE, SO_LINGER, SO_OOBINLINE, SO_RCVBUF,
    SO_REUSEADDR, SO_SNDBUF, SOL_SOCKET, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_MAXSEG,
    TCP_NODELAY, c_int,
};

use super::stream::Sizes;
use super::wire;
use crate::errno::Errno;

/// `SOL_RDMA` in `rdma/rsocket.h`.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

const RING_LEN: u32 = 1 << 18;
/// Range of lengths that an application may request.
const RING_LEN_MIN: u32 = 1 << 13;
const RING_LEN_MAX: u32 = 1 << 24;
const QUEUE_LEN: u32 = 384;
/// Depths from `RS_QP_MIN_SIZE` of rdma-core to what credits of 16 bits can distinguish.
const QUEUE_LEN_MIN: u32 = 16;
const QUEUE_LEN_MAX: u32 = 16_384;
const INLINE_LEN: u32 = 64;
/// Default value of `TCP_KEEPIDLE`, in seconds.
const KEEP_IDLE_S: u32 = 7200;

#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) flags: c_int,
    /// True once `connect` has returned success, and for accepted sockets.
    pub(super) is_told_open: bool,
    send_ring: u32,
    receive_ring: u32,
    send_queue: u32,
    receive_queue: u32,
    /// Stored and returned, without effect.
    inline: u32,
    iomap: u16,
    /// Like all fields below: stored and returned, without effect.
    keep_idle_s: u32,
    reuse_address: bool,
    keep_alive: bool,
    out_of_band_inline: bool,
    no_delay: bool,
    only_ipv6: bool,
    lingers: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            flags: libc::O_RDWR,
            is_told_open: false,
            send_ring: RING_LEN,
            receive_ring: RING_LEN,
            send_queue: QUEUE_LEN,
            receive_queue: QUEUE_LEN,
            inline: INLINE_LEN,
            iomap: 0,
            keep_idle_s: KEEP_IDLE_S,
            reuse_address: false,
            keep_alive: false,
            out_of_band_inline: false,
            no_delay: false,
            only_ipv6: false,
            lingers: true,
        }
    }
}

impl Options {
    pub(super) fn inherited(self) -> Self {
        Self { flags: libc::O_RDWR, is_told_open: true, ..self }
    }

    pub(super) fn sizes(&self) -> Sizes {
        let ring = |len: u32| usize::try_from(len).unwrap_or(0);
        let queue = |len: u32| u16::try_from(len).unwrap_or(u16::MAX);
        Sizes {
            send_ring: ring(self.send_ring),
            // The ring has two halves.
            receive_ring: ring(self.receive_ring).next_multiple_of(2),
            send_queue: queue(self.send_queue),
            receive_queue: queue(self.receive_queue),
            iomap: self.iomap,
        }
    }
}

/// C has the number as `int`, where a large one may have become negative.
fn number(value: c_int) -> u32 {
    value.cast_unsigned()
}

/// Doubled, as Linux doubles the size for its own overhead, and within the permitted range.
fn ring(value: c_int) -> u32 {
    number(value).saturating_mul(2).clamp(RING_LEN_MIN, RING_LEN_MAX)
}

impl Options {
    /// `is_new` is true until the socket has a stream.
    pub(super) fn set(
        &mut self,
        is_new: bool,
        level: c_int,
        name: c_int,
        value: c_int,
    ) -> Result<(), Errno> {
        let is_on = value != 0;
        match (level, name) {
            // Sockets that do not listen share addresses even without this option.
            (SOL_SOCKET, SO_REUSEADDR) => self.reuse_address = is_on,
            (SOL_SOCKET, SO_RCVBUF) if is_new => self.receive_ring = ring(value),
            (SOL_SOCKET, SO_SNDBUF) if is_new => self.send_ring = ring(value),
            (SOL_SOCKET, SO_RCVBUF | SO_SNDBUF) => {}
            (SOL_SOCKET, SO_KEEPALIVE) => self.keep_alive = is_on,
            (SOL_SOCKET, SO_OOBINLINE) => self.out_of_band_inline = is_on,
            (SOL_SOCKET, SO_LINGER) => self.lingers = is_on,
            (IPPROTO_TCP, TCP_KEEPCNT | TCP_KEEPINTVL | TCP_MAXSEG) => {}
            (IPPROTO_TCP, TCP_KEEPIDLE) if value <= 0 => return Err(Errno::INVALID),
            (IPPROTO_TCP, TCP_KEEPIDLE) => self.keep_idle_s = number(value),
            (IPPROTO_TCP, TCP_NODELAY) => self.no_delay = is_on,
            (IPPROTO_IPV6, IPV6_V6ONLY) => self.only_ipv6 = is_on,
            (SOL_RDMA, _) if !is_new => return Err(Errno::INVALID),
            (SOL_RDMA, RDMA_SQSIZE) => self.send_queue = queue(value),
            (SOL_RDMA, RDMA_RQSIZE) => self.receive_queue = queue(value),
            (SOL_RDMA, RDMA_INLINE) => self.inline = number(value),
            (SOL_RDMA, RDMA_IOMAPSIZE) => {
                self.iomap = wire::scaled(u16::try_from(value).unwrap_or(u16::MAX));
            }
            _ => return Err(Errno::NOT_SUPPORTED),
        }
        Ok(())
    }

    /// Returns the first of two numbers for `SO_LINGER`.
    pub(super) fn get(&self, level: c_int, name: c_int) -> Result<c_int, Errno> {
        let value = match (level, name) {
            (SOL_SOCKET, SO_REUSEADDR) => u32::from(self.reuse_address),
            (SOL_SOCKET, SO_RCVBUF) => self.receive_ring,
            (SOL_SOCKET, SO_SNDBUF) => self.send_ring,
            (SOL_SOCKET, SO_KEEPALIVE) => u32::from(self.keep_alive),
            (SOL_SOCKET, SO_OOBINLINE) => u32::from(self.out_of_band_inline),
            (SOL_SOCKET, SO_LINGER) => u32::from(self.lingers),
            (IPPROTO_TCP, TCP_KEEPCNT | TCP_KEEPINTVL) => 1,
            (IPPROTO_TCP, TCP_KEEPIDLE) => self.keep_idle_s,
            (IPPROTO_TCP, TCP_NODELAY) => u32::from(self.no_delay),
            // As rdma-core returns without a path.
            (IPPROTO_TCP, TCP_MAXSEG) => 2048,
            (IPPROTO_IPV6, IPV6_V6ONLY) => u32::from(self.only_ipv6),
            (SOL_RDMA, RDMA_SQSIZE) => self.send_queue,
            (SOL_RDMA, RDMA_RQSIZE) => self.receive_queue,
            (SOL_RDMA, RDMA_INLINE) => self.inline,
            (SOL_RDMA, RDMA_IOMAPSIZE) => u32::from(self.iomap),
            _ => return Err(Errno::NOT_SUPPORTED),
        };
        Ok(value.cast_signed())
    }
}

fn queue(value: c_int) -> u32 {
    number(value).clamp(QUEUE_LEN_MIN, QUEUE_LEN_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every option, with a value, and the value that `getsockopt` returns for it then.
    const OPTIONS: [(c_int, c_int, c_int, c_int); 16] = [
        (SOL_SOCKET, SO_REUSEADDR, 1, 1),
        (SOL_SOCKET, SO_RCVBUF, 100_000, 200_000),
        (SOL_SOCKET, SO_SNDBUF, 300_000, 600_000),
        (SOL_SOCKET, SO_KEEPALIVE, 7, 1),
        (SOL_SOCKET, SO_OOBINLINE, 1, 1),
        (SOL_SOCKET, SO_LINGER, 0, 0),
        (IPPROTO_TCP, TCP_KEEPCNT, 9, 1),
        (IPPROTO_TCP, TCP_KEEPINTVL, 9, 1),
        (IPPROTO_TCP, TCP_KEEPIDLE, 60, 60),
        (IPPROTO_TCP, TCP_NODELAY, 1, 1),
        (IPPROTO_TCP, TCP_MAXSEG, 1000, 2048),
        (IPPROTO_IPV6, IPV6_V6ONLY, 1, 1),
        (SOL_RDMA, RDMA_SQSIZE, 100, 100),
        (SOL_RDMA, RDMA_RQSIZE, 200, 200),
        (SOL_RDMA, RDMA_INLINE, 32, 32),
        (SOL_RDMA, RDMA_IOMAPSIZE, 300, 256),
    ];

    fn all(options: &Options) -> [c_int; 16] {
        OPTIONS.map(|(level, name, ..)| options.get(level, name).unwrap())
    }

    #[test]
    fn an_option_is_returned_as_it_was_set_and_changes_no_other() {
        let fresh = all(&Options::default());
        let rings = 1 << 18;
        assert_eq!(
            fresh,
            [0, rings, rings, 0, 0, 1, 1, 1, 7200, 0, 2048, 0, 384, 384, 64, 0],
            "defaults"
        );
        for (index, (level, name, value, found)) in OPTIONS.into_iter().enumerate() {
            let mut options = Options::default();
            options.set(true, level, name, value).unwrap();
            let mut expected = fresh;
            expected[index] = found;
            assert_eq!(all(&options), expected, "{level} {name}");
            if level != SOL_RDMA && fresh[index] <= 1 {
                options.set(true, level, name, fresh[index]).unwrap();
                assert_eq!(all(&options), fresh, "{level} {name}");
            }
        }
    }

    #[test]
    fn lengths_are_kept_within_their_ranges() {
        let set = |level, name, value| {
            let mut options = Options::default();
            options.set(true, level, name, value).unwrap();
            options.get(level, name).unwrap()
        };
        for name in [SO_RCVBUF, SO_SNDBUF] {
            assert_eq!([0, 4096, 4097].map(|len| set(SOL_SOCKET, name, len)), [8192, 8192, 8194]);
            let most = 1 << 24;
            assert_eq!([most / 2, most, -1].map(|len| set(SOL_SOCKET, name, len)), [most; 3]);
        }
        for name in [RDMA_SQSIZE, RDMA_RQSIZE] {
            assert_eq!([0, 15, 17].map(|len| set(SOL_RDMA, name, len)), [16, 16, 17]);
            assert_eq!([16_384, 16_385, -1].map(|len| set(SOL_RDMA, name, len)), [16_384; 3]);
        }
        assert_eq!(set(SOL_RDMA, RDMA_IOMAPSIZE, 1 << 20), 127 << 8);
    }

    #[test]
    fn a_socket_with_a_stream_keeps_its_queues() {
        let mut options = Options::default();
        let before = all(&options);
        for (level, name, value, _) in OPTIONS {
            let set = options.set(false, level, name, value);
            assert_eq!(set, if level == SOL_RDMA { Err(Errno::INVALID) } else { Ok(()) }, "{name}");
        }
        let after = all(&options);
        assert_eq!((after[1], after[2], &after[12..]), (before[1], before[2], &before[12..]));
        assert_eq!((after[8], after[9]), (60, 1), "those of TCP may change");
        for value in [0, -1] {
            let set = options.set(true, IPPROTO_TCP, TCP_KEEPIDLE, value);
            assert_eq!(set, Err(Errno::INVALID));
        }
        for (level, name) in [(SOL_SOCKET, 9999), (IPPROTO_TCP, 9999), (SOL_RDMA, 4), (-1, 1)] {
            assert_eq!(options.set(true, level, name, 1), Err(Errno::NOT_SUPPORTED));
            assert_eq!(options.get(level, name), Err(Errno::NOT_SUPPORTED));
        }
    }

    #[test]
    fn a_stream_has_the_sizes_of_its_socket() {
        let mut options = Options::default();
        for (name, value) in [(SO_SNDBUF, 10_000), (SO_RCVBUF, 20_000)] {
            options.set(true, SOL_SOCKET, name, value).unwrap();
        }
        for (name, value) in [(RDMA_SQSIZE, 100), (RDMA_RQSIZE, 200), (RDMA_IOMAPSIZE, 5)] {
            options.set(true, SOL_RDMA, name, value).unwrap();
        }
        let sizes = options.sizes();
        assert_eq!((sizes.send_ring, sizes.receive_ring), (20_000, 40_000));
        assert_eq!((sizes.send_queue, sizes.receive_queue, sizes.iomap), (100, 200, 5));
        // An accepted socket has the options, but not the flags, of its listener.
        options.flags = libc::O_RDWR | libc::O_NONBLOCK;
        let accepted = options.inherited();
        assert_eq!((accepted.flags, accepted.is_told_open), (libc::O_RDWR, true));
        assert_eq!(all(&accepted), all(&options));
    }
}
