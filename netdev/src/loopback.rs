//! Middleware that returns frames for the interface's own link address to it. Links do not: without
//! this, two processes of one host could not connect by the address of their interface.

use std::collections::VecDeque;
use std::num::NonZeroU16;

use crate::{
    Device, Medium, RxChecksum, RxFrame, TransmitError, TxChecksum, TxFrame, forward_device,
};

/// Most bytes of waiting frames: a burst of the longest. Without room for one, all frames are
/// `Full`.
const WAITING_BYTES_MAX: usize = 64 * FRAME_LEN_MAX;
/// Longest frame: the longest IP datagram behind a tagged link header.
const FRAME_LEN_MAX: usize = 65_535 + 22;
/// Most allocations kept for later frames.
const SPARE_MAX: usize = 64;

/// Device that receives the frames that it sends to its own link address.
#[derive(Debug)]
pub struct Loopback<D> {
    inner: D,
    mac: Option<[u8; 6]>,
    waiting: VecDeque<Own>,
    waiting_bytes: usize,
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Own {
    octets: Vec<u8>,
    checksum: RxChecksum,
    segment_size: Option<NonZeroU16>,
}

impl<D: Device> Loopback<D> {
    /// Wraps `inner`, whose link address is `mac`.
    #[must_use]
    pub fn new(inner: D, mac: [u8; 6]) -> Self {
        let mac = (inner.capabilities().medium == Medium::Ethernet).then_some(mac);
        Self { inner, mac, waiting: VecDeque::new(), waiting_bytes: 0, spare: Vec::new() }
    }

    const fn own_room(&self) -> usize {
        WAITING_BYTES_MAX.saturating_sub(self.waiting_bytes) / FRAME_LEN_MAX
    }

    #[cold]
    fn take(&mut self, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        self.inner.capabilities().check(frame)?;
        if self.own_room() == 0 {
            return Err(TransmitError::Full);
        }
        let mut octets = self.spare.pop().unwrap_or_default();
        octets.resize(frame.len(), 0);
        frame.gather(&mut octets);
        self.waiting_bytes += octets.len();
        // Bytes that never left memory need no checksum. The receiver checks a complete one.
        let checksum = match frame.checksum {
            TxChecksum::Partial { .. } => RxChecksum::Valid,
            TxChecksum::Complete => RxChecksum::Unverified,
        };
        self.waiting.push_back(Own { octets, checksum, segment_size: frame.segment_size });
        Ok(())
    }

    #[cold]
    fn deliver(&mut self, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        let mut delivered = 0;
        while delivered < burst
            && let Some(Own { octets, checksum, segment_size }) = self.waiting.pop_front()
        {
            sink(RxFrame::whole(&octets, checksum, segment_size));
            delivered += 1;
            self.waiting_bytes -= octets.len();
            if self.spare.len() < SPARE_MAX {
                self.spare.push(octets);
            }
        }
        delivered
    }
}

impl<D: Device> Device for Loopback<D> {
    forward_device!(self => self.inner; capabilities, flush, link_up, refusals, check_interval_ns, readiness);

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        let own = if self.waiting.is_empty() { 0 } else { self.deliver(burst, sink) };
        own + self.inner.receive(now_ns, burst - own, sink)
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        if self.mac.is_some() && frame.head.first_chunk() == self.mac.as_ref() {
            return self.take(frame);
        }
        if asks_for_itself(frame.head) {
            // The sender repeats a request that was lost.
            let _lost = self.take(frame);
        }
        self.inner.transmit(now_ns, frame)
    }

    fn transmit_room(&self) -> usize {
        let room = self.inner.transmit_room();
        // Any of the next frames may be for the interface itself.
        if self.mac.is_some() { room.min(self.own_room()) } else { room }
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        if self.waiting.is_empty() { self.inner.next_arrival_ns() } else { Some(0) }
    }
}

/// An ARP request (RFC 826) for the sender's own address, which no other host answers.
fn asks_for_itself(head: &[u8]) -> bool {
    let untagged = match head.get(12..14) {
        Some([0x81, 0x00]) => head.get(16..),
        _ => head.get(12..),
    };
    let Some([0x08, 0x06, arp @ ..]) = untagged else { return false };
    let is_request = arp.get(6..8) == Some(&[0, 1]);
    is_request && arp.get(14..18).is_some_and(|sender| Some(sender) == arp.get(24..28))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{LinkConfig, pair};

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn head(destination: [u8; 6], len: usize) -> Vec<u8> {
        let mut head = destination.to_vec();
        head.resize(len, 7);
        head
    }

    fn received(device: &mut impl Device, burst: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        device.receive(1 << 40, burst, &mut |frame| frames.push(frame.head.to_vec()));
        frames
    }

    #[test]
    fn frames_to_the_interface_itself_come_back_and_no_others() {
        let (a, mut b) = pair(LinkConfig::default());
        let mut a = Loopback::new(a, OWN);
        let (own, other) = (head(OWN, 60), head([2, 0, 0, 0, 0, 2], 60));
        assert_eq!(a.next_arrival_ns(), None);
        for octets in [&own, &other, &own] {
            a.transmit(0, &TxFrame::whole(octets)).unwrap();
        }
        a.flush(0);
        assert_eq!(a.next_arrival_ns(), Some(0), "it is there already");
        assert_eq!(received(&mut a, 1), std::slice::from_ref(&own));
        assert_eq!(received(&mut a, 64), [own]);
        assert_eq!(received(&mut b, 64), [other]);
    }

    #[test]
    fn query_for_its_own_address_reaches_both() {
        let (a, mut b) = pair(LinkConfig::default());
        let mut a = Loopback::new(a, OWN);
        let request = |target: u8, tag: &[u8]| {
            let mut frame = [[0xff; 6], OWN].concat();
            frame.extend(tag);
            frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
            frame.extend(OWN);
            frame.extend([10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, target]);
            frame
        };
        for tag in [&[][..], &[0x81, 0, 0, 5]] {
            a.transmit(0, &TxFrame::whole(&request(2, tag))).unwrap();
            assert!(received(&mut a, 64).is_empty());
            a.transmit(0, &TxFrame::whole(&request(1, tag))).unwrap();
            a.flush(0);
            assert_eq!(received(&mut a, 64), [request(1, tag)]);
            assert_eq!(received(&mut b, 64), [request(2, tag), request(1, tag)]);
        }
    }

    #[test]
    fn a_full_device_takes_more_once_some_is_received() {
        let (a, _b) = pair(LinkConfig::default());
        let mut a = Loopback::new(a, OWN);
        let own = head(OWN, 1000);
        assert_eq!(
            a.transmit(0, &TxFrame::whole(&head(OWN, 1 << 16))),
            Err(TransmitError::TooLong)
        );
        assert_eq!(a.transmit_room(), 64);
        let mut taken = 0;
        while a.transmit_room() > 0 {
            assert_eq!(a.transmit(0, &TxFrame::whole(&own)), Ok(()), "{taken} before");
            taken += 1;
        }
        assert_eq!(taken, (WAITING_BYTES_MAX - FRAME_LEN_MAX) / 1000 + 1);
        assert_eq!(a.transmit(0, &TxFrame::whole(&own)), Err(TransmitError::Full));
        assert_eq!(received(&mut a, 1).len(), 1);
        assert_eq!((a.transmit_room(), a.transmit(0, &TxFrame::whole(&own))), (1, Ok(())));
    }

    /// The sender has not filled in a partial checksum; a complete one is still to be checked.
    #[test]
    fn own_frames_are_as_right_as_their_checksums() {
        let (a, _b) = pair(LinkConfig { tx_checksum: true, ..LinkConfig::default() });
        let mut a = Loopback::new(a, OWN);
        let own = head(OWN, 60);
        let partial = TxChecksum::Partial { start: 34, offset: 16 };
        for checksum in [partial, TxChecksum::Complete] {
            a.transmit(0, &TxFrame { checksum, ..TxFrame::whole(&own) }).unwrap();
        }
        let mut found = Vec::new();
        a.receive(0, 64, &mut |frame| found.push(frame.checksum));
        assert_eq!(found, [RxChecksum::Valid, RxChecksum::Unverified]);
    }

    #[test]
    fn a_burst_is_of_own_and_other_frames_together() {
        let (a, mut b) = pair(LinkConfig::default());
        let mut a = Loopback::new(a, OWN);
        for _ in 0..3 {
            a.transmit(0, &TxFrame::whole(&head(OWN, 60))).unwrap();
            b.transmit(0, &TxFrame::whole(&head(OWN, 61))).unwrap();
        }
        b.flush(0);
        let counts = [2, 2, 2, 2].map(|burst| received(&mut a, burst).len());
        assert_eq!(counts, [2, 2, 2, 0]);
    }
}
