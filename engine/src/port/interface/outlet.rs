//! Outlet of a port's frames: hands them to the device. Its users count a frame as sent when they
//! hand it over, but a device may refuse it for lack of room at any frame: a socket buffer or a
//! queue in the kernel is shared with others. So the port keeps a refused frame and the rest of its
//! super-frame, sends nothing else, and offers them again first.

use std::collections::VecDeque;
use std::num::NonZeroU16;

use urnic_netdev::{SharedSlice, TransmitError, TxChecksum, TxFrame};

pub(crate) struct Outlet<'a> {
    transmit: &'a mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    refused: &'a mut Refused,
    taken: usize,
}

/// The refused frame, and the rest of its super-frame.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    frames: VecDeque<RefusedFrame>,
    /// The allocation is kept: a device that was full once is often full again.
    octets: Vec<u8>,
    at: usize,
}

#[derive(Debug)]
struct RefusedFrame {
    len: usize,
    head_len: usize,
    checksum: TxChecksum,
    segment_size: Option<NonZeroU16>,
}

impl Refused {
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        !self.frames.is_empty()
    }

    #[cold]
    fn keep(&mut self, frame: &TxFrame<'_>) {
        if !self.waits() {
            self.octets.clear();
            self.at = 0;
        }
        let (start, len) = (self.octets.len(), frame.len());
        self.octets.resize(start + len, 0);
        frame.gather(&mut self.octets[start..]);
        let TxFrame { checksum, segment_size, .. } = *frame;
        let head_len = frame.head.len();
        self.frames.push_back(RefusedFrame { len, head_len, checksum, segment_size });
    }

    /// Offers the oldest waiting frame, which continues to wait while the device is full.
    fn offer(
        &mut self,
        transmit: &mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> Option<Result<(), TransmitError>> {
        let &RefusedFrame { len, head_len, checksum, segment_size } = self.frames.front()?;
        let (head, payload) = self.octets[self.at..self.at + len].split_at(head_len);
        let fragment = [SharedSlice::from_bytes(payload)];
        let payload = if payload.is_empty() { &[][..] } else { &fragment };
        let outcome = transmit(&TxFrame { head, payload, checksum, segment_size, digests: None });
        // A frame that is refused for another reason is dropped as if lost on the link.
        if outcome != Err(TransmitError::Full) {
            self.frames.pop_front();
            self.at += len;
        }
        Some(outcome)
    }
}

impl<'a> Outlet<'a> {
    /// Offers the waiting frames first, until `room` are taken.
    pub(crate) fn new(
        refused: &'a mut Refused,
        room: usize,
        transmit: &'a mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> Self {
        let mut taken = 0;
        while taken < room
            && let Some(outcome) = refused.offer(transmit)
            && outcome != Err(TransmitError::Full)
        {
            taken += usize::from(outcome.is_ok());
        }
        Self { transmit, refused, taken }
    }

    /// Hand over nothing while the device is full.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.refused.waits()
    }

    pub(crate) const fn taken(&self) -> usize {
        self.taken
    }

    /// Hands over a frame. A frame that a full device refuses is kept, and counts as handed over.
    /// Fails with [`TransmitError::Full`] only if the outlet was full before: the frame is dropped.
    #[inline(always)]
    pub(crate) fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        if self.refused.waits() {
            return Err(TransmitError::Full);
        }
        match (self.transmit)(frame) {
            Ok(()) => {
                self.taken += 1;
                Ok(())
            }
            Err(TransmitError::Full) => {
                self.refused.keep(frame);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Hands over a further frame of a super-frame. If the device has become full, it is kept
    /// behind the others. On an error it is dropped, but not for lack of room.
    #[inline(always)]
    pub(crate) fn send_behind(&mut self, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        if self.refused.waits() {
            self.refused.keep(frame);
            return Ok(());
        }
        self.send(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTIAL: TxChecksum = TxChecksum::Partial { start: 3, offset: 1 };

    fn frame<'a>(head: &'a [u8], payload: &'a [SharedSlice<'a>]) -> TxFrame<'a> {
        TxFrame {
            head,
            payload,
            checksum: PARTIAL,
            segment_size: NonZeroU16::new(2),
            digests: None,
        }
    }

    /// The device's view of a frame: bytes of the head, all bytes, checksum state and segment size.
    type Offered = (usize, Vec<u8>, TxChecksum, Option<NonZeroU16>);

    fn seen(frame: &TxFrame<'_>) -> Offered {
        let mut octets = vec![0; frame.len()];
        frame.gather(&mut octets);
        (frame.head.len(), octets, frame.checksum, frame.segment_size)
    }

    #[test]
    fn refused_frame_is_sent_first_and_unchanged_when_there_is_room() {
        let (mut refused, mut room, mut offered) = (Refused::default(), 1, Vec::new());
        let mut device = |frame: &TxFrame<'_>| {
            offered.push(seen(frame));
            if room == 0 {
                return Err(TransmitError::Full);
            }
            room -= 1;
            Ok(())
        };
        let payload = [SharedSlice::from_bytes(&[5, 6]), SharedSlice::from_bytes(&[7])];
        let mut outlet = Outlet::new(&mut refused, 64, &mut device);
        assert_eq!(outlet.send(&frame(&[1], &[])), Ok(()));
        assert!(!outlet.is_full());
        assert_eq!(outlet.send(&frame(&[2, 3], &payload)), Ok(()), "it is kept");
        assert!(outlet.is_full());
        assert_eq!(outlet.send(&frame(&[9], &[])), Err(TransmitError::Full));
        assert_eq!(outlet.taken(), 1);
        assert!(refused.waits());
        // Still full: a frame is not lost by being offered.
        assert!(Outlet::new(&mut refused, 64, &mut device).is_full());
        assert!(refused.waits());
        let mut device = |frame: &TxFrame<'_>| {
            offered.push(seen(frame));
            Ok(())
        };
        let mut outlet = Outlet::new(&mut refused, 64, &mut device);
        assert_eq!((outlet.is_full(), outlet.taken()), (false, 1));
        assert_eq!(outlet.send(&frame(&[4], &[])), Ok(()));
        assert_eq!(outlet.taken(), 2);
        assert!(!refused.waits());
        let kept = (2, vec![2, 3, 5, 6, 7], PARTIAL, NonZeroU16::new(2));
        let plain = |octet| (1, vec![octet], PARTIAL, NonZeroU16::new(2));
        assert_eq!(offered, [plain(1), kept.clone(), kept.clone(), kept, plain(4)]);
    }

    #[test]
    fn permanently_refused_frame_is_dropped_and_blocks_nothing() {
        let reasons = [TransmitError::LinkDown, TransmitError::TooLong, TransmitError::Refused];
        for reason in reasons {
            let mut refused = Refused::default();
            let mut outlet_error = |_: &TxFrame<'_>| Err(reason);
            let mut outlet = Outlet::new(&mut refused, 64, &mut outlet_error);
            assert_eq!(outlet.send(&frame(&[1], &[])), Err(reason));
            assert!(!outlet.is_full());
            // Nor if it waited before.
            let mut full = |_: &TxFrame<'_>| Err(TransmitError::Full);
            Outlet::new(&mut refused, 64, &mut full).send(&frame(&[1], &[])).unwrap();
            assert!(refused.waits());
            let outlet = Outlet::new(&mut refused, 64, &mut outlet_error);
            assert_eq!((outlet.is_full(), outlet.taken()), (false, 0));
        }
    }

    #[test]
    fn the_rest_of_a_run_waits_behind_the_frame_that_was_refused() {
        let (mut refused, mut offered) = (Refused::default(), Vec::new());
        let mut full = |_: &TxFrame<'_>| Err(TransmitError::Full);
        let mut outlet = Outlet::new(&mut refused, 64, &mut full);
        let payload = [SharedSlice::from_bytes(&[7, 8])];
        assert_eq!(outlet.send(&frame(&[1], &[])), Ok(()));
        assert_eq!(outlet.send_behind(&frame(&[2], &payload)), Ok(()));
        assert_eq!(outlet.send_behind(&frame(&[3], &[])), Ok(()));
        assert_eq!(outlet.send(&frame(&[4], &[])), Err(TransmitError::Full), "of another run");
        let mut device = |frame: &TxFrame<'_>| {
            offered.push(seen(frame).1);
            Ok(())
        };
        let outlet = Outlet::new(&mut refused, 2, &mut device);
        assert_eq!((outlet.is_full(), outlet.taken()), (true, 2), "no more than there is room for");
        let mut outlet = Outlet::new(&mut refused, 64, &mut device);
        assert_eq!((outlet.is_full(), outlet.taken()), (false, 1));
        assert_eq!(outlet.send_behind(&frame(&[5], &[])), Ok(()));
        assert_eq!(offered, [vec![1], vec![2, 7, 8], vec![3], vec![5]]);
    }
}
