//! FPDUs with a fault, and observers that continue after them.

use crate::mpa::marker::FpduLayout;
use crate::mpa::pieces::PieceStore;
use crate::mpa::rx::cursor::wrong_markers;
use crate::mpa::rx::error::{MpaError, MpaFault, Stop};
use crate::mpa::rx::locate::Located;
use crate::mpa::rx::octets::{At, Marked, Octets, Slice, Ulpdu, after};
use crate::mpa::rx::{FpduReceiver, FpduSink};
use crate::types::StreamOffset;

pub(super) struct FaultAt {
    fault: MpaFault,
    start: StreamOffset,
    fpdu: Option<Located>,
}

impl FaultAt {
    pub(super) const fn whole(fault: MpaFault, fpdu: Located) -> Self {
        Self { fault, start: fpdu.start, fpdu: Some(fpdu) }
    }

    pub(super) const fn at(fault: MpaFault, start: StreamOffset) -> Self {
        Self { fault, start, fpdu: None }
    }

    fn end(&self) -> StreamOffset {
        self.fpdu.map_or(self.start, |fpdu| fpdu.end)
    }
}

/// A whole FPDU with a wrong CRC, or with markers that do not point at its header.
#[derive(Clone, Copy, Debug)]
pub struct FaultyFpdu<'a> {
    fpdu: Marked<At<'a>>,
    error: MpaError,
}

impl<'a> FaultyFpdu<'a> {
    /// First byte on the stream, a leading marker included.
    #[must_use]
    pub const fn start(&self) -> StreamOffset {
        self.fpdu.wire.start
    }

    /// Layout of its bytes and markers.
    #[must_use]
    pub const fn layout(&self) -> FpduLayout {
        self.fpdu.layout
    }

    /// The fault: the CRC, if both CRC and markers are wrong.
    #[must_use]
    pub const fn error(&self) -> MpaError {
        self.error
    }

    /// The ULPDU, as far as the length field can be believed.
    #[must_use]
    pub const fn ulpdu(&'a self) -> Ulpdu<'a> {
        Ulpdu::from_spread(&self.fpdu)
    }

    /// Positions of the markers that do not point at the header of the FPDU.
    pub fn wrong_markers(&self) -> impl Iterator<Item = StreamOffset> {
        let Marked { wire, layout } = self.fpdu;
        wrong_markers(wire, layout).map(move |at| after(wire.start, at))
    }
}

impl<T: Copy> FpduReceiver<T> {
    /// An observer skips it. Returns its end; `None` if there is no room to remember it.
    #[cold]
    pub(super) fn pass_over<S: FpduSink<Token = T>>(
        &mut self,
        wrong: &FaultAt,
        slice: Slice<'_>,
        store: &mut PieceStore,
        sink: &mut S,
    ) -> Result<Option<StreamOffset>, Stop<S::Error>> {
        let vouched = self.config.crc && wrong.fpdu.is_some() && wrong.fault != MpaFault::Crc;
        let stop = || Stop::of_peer(wrong.fault, wrong.start..wrong.end(), slice, vouched);
        let Some(fpdu) = wrong.fpdu else { return Err(stop()) };
        if fpdu.start != self.next && self.ahead.is_full() {
            return Ok(None);
        }
        let octets = Octets { slice, held: &self.held, store };
        let invalid = FaultyFpdu {
            fpdu: Marked { wire: At { octets, start: fpdu.start }, layout: fpdu.layout },
            error: wrong.fault.error(fpdu.start..fpdu.end, slice, vouched),
        };
        let Some(token) = sink.pass_over(&invalid) else { return Err(stop()) };
        self.complete_fpdu(&fpdu, token, store, sink)?;
        Ok(Some(fpdu.end))
    }
}
