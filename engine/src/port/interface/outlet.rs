//! Where a port's frames go: to the device, and when that is full, back to it first of all.
//!
//! TCP, the host stack and the questions for neighbours have each counted a frame as sent when they
//! hand it over. A device may refuse it for lack of room all the same, at any frame: a socket buffer
//! or a queue in the kernel is shared with others. So the port keeps the one frame that was refused,
//! sends nothing else, and offers it again before everything else: a full device loses nothing.

use std::num::NonZeroU16;

use urnic_netdev::{Fragment, TransmitError, TxChecksum, TxFrame};

/// Takes frames of a port until the device is full.
pub(crate) struct Outlet<'a> {
    transmit: &'a mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    refused: &'a mut Refused,
    taken: usize,
}

/// The frame that a full device has refused, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    waits: bool,
    head_len: usize,
    /// The whole frame. Kept for the next one: a device that is full once is so often.
    octets: Vec<u8>,
    checksum: Option<(u16, u16)>,
    segment_size: Option<NonZeroU16>,
}

impl Refused {
    /// Whether a frame waits.
    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }

    #[cold]
    fn keep(&mut self, frame: &TxFrame<'_>) {
        self.octets.resize(frame.len(), 0);
        frame.gather(&mut self.octets);
        self.head_len = frame.head.len();
        self.checksum = match frame.checksum {
            TxChecksum::Complete => None,
            TxChecksum::Partial { start, offset } => Some((start, offset)),
        };
        self.segment_size = frame.segment_size;
        self.waits = true;
    }

    fn offer(
        &self,
        transmit: &mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> Result<(), TransmitError> {
        let (head, payload) = self.octets.split_at(self.head_len);
        let checksum = match self.checksum {
            None => TxChecksum::Complete,
            Some((start, offset)) => TxChecksum::Partial { start, offset },
        };
        let fragment = [Fragment::from_slice(payload)];
        let payload = if payload.is_empty() { &[][..] } else { &fragment };
        transmit(&TxFrame { head, payload, checksum, segment_size: self.segment_size })
    }
}

impl<'a> Outlet<'a> {
    /// Offers the frame that waits; what follows goes behind it.
    pub(crate) fn new(
        refused: &'a mut Refused,
        transmit: &'a mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> Self {
        let mut taken = 0;
        if refused.waits {
            let outcome = refused.offer(transmit);
            // For any other reason it is as lost as on any wire.
            refused.waits = outcome == Err(TransmitError::Full);
            taken = usize::from(outcome.is_ok());
        }
        Self { transmit, refused, taken }
    }

    /// Whether the device takes nothing more now. Nothing is to be handed over then.
    pub(crate) const fn is_full(&self) -> bool {
        self.refused.waits
    }

    /// Frames that the device has taken.
    pub(crate) const fn taken(&self) -> usize {
        self.taken
    }

    /// Hands over a frame. One that a full device refuses is kept, and counts as handed over.
    ///
    /// # Errors
    /// The frame is lost: [`TransmitError::Full`] only when the outlet was full before.
    #[inline(always)]
    pub(crate) fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        if self.refused.waits {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTIAL: TxChecksum = TxChecksum::Partial { start: 3, offset: 1 };

    fn frame<'a>(head: &'a [u8], payload: &'a [Fragment<'a>]) -> TxFrame<'a> {
        TxFrame { head, payload, checksum: PARTIAL, segment_size: NonZeroU16::new(2) }
    }

    /// What a device was offered: octets of the head, all octets, and how they are to be treated.
    type Offered = (usize, Vec<u8>, TxChecksum, Option<NonZeroU16>);

    fn seen(frame: &TxFrame<'_>) -> Offered {
        let mut octets = vec![0; frame.len()];
        frame.gather(&mut octets);
        (frame.head.len(), octets, frame.checksum, frame.segment_size)
    }

    #[test]
    fn a_refused_frame_is_first_when_there_is_room_again_and_the_same() {
        let (mut refused, mut room, mut offered) = (Refused::default(), 1, Vec::new());
        let mut device = |frame: &TxFrame<'_>| {
            offered.push(seen(frame));
            if room == 0 {
                return Err(TransmitError::Full);
            }
            room -= 1;
            Ok(())
        };
        let payload = [Fragment::from_slice(&[5, 6]), Fragment::from_slice(&[7])];
        let mut outlet = Outlet::new(&mut refused, &mut device);
        assert_eq!(outlet.send(&frame(&[1], &[])), Ok(()));
        assert!(!outlet.is_full());
        assert_eq!(outlet.send(&frame(&[2, 3], &payload)), Ok(()), "it is kept");
        assert!(outlet.is_full());
        assert_eq!(outlet.send(&frame(&[9], &[])), Err(TransmitError::Full));
        assert_eq!(outlet.taken(), 1);
        assert!(refused.waits());
        // Full still: it is not lost by being offered.
        assert!(Outlet::new(&mut refused, &mut device).is_full());
        assert!(refused.waits());
        let mut device = |frame: &TxFrame<'_>| {
            offered.push(seen(frame));
            Ok(())
        };
        let mut outlet = Outlet::new(&mut refused, &mut device);
        assert_eq!((outlet.is_full(), outlet.taken()), (false, 1));
        assert_eq!(outlet.send(&frame(&[4], &[])), Ok(()));
        assert_eq!(outlet.taken(), 2);
        assert!(!refused.waits());
        let kept = (2, vec![2, 3, 5, 6, 7], PARTIAL, NonZeroU16::new(2));
        let plain = |octet| (1, vec![octet], PARTIAL, NonZeroU16::new(2));
        assert_eq!(offered, [plain(1), kept.clone(), kept.clone(), kept, plain(4)]);
    }

    #[test]
    fn a_frame_that_is_refused_for_good_is_lost_and_nothing_waits_for_it() {
        let reasons = [TransmitError::LinkDown, TransmitError::TooLong, TransmitError::Refused];
        for reason in reasons {
            let mut refused = Refused::default();
            let mut outlet_error = |_: &TxFrame<'_>| Err(reason);
            let mut outlet = Outlet::new(&mut refused, &mut outlet_error);
            assert_eq!(outlet.send(&frame(&[1], &[])), Err(reason));
            assert!(!outlet.is_full());
            // Nor when it waited before.
            let mut full = |_: &TxFrame<'_>| Err(TransmitError::Full);
            Outlet::new(&mut refused, &mut full).send(&frame(&[1], &[])).unwrap();
            assert!(refused.waits());
            let outlet = Outlet::new(&mut refused, &mut outlet_error);
            assert_eq!((outlet.is_full(), outlet.taken()), (false, 0));
        }
    }
}
