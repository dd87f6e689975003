//! Full operation of one direction: bytes that TCP's rules accept go through MPA to the observer.

use urnic_engine::mpa::MpaFault;
use urnic_engine::mpa::rx::{FpduReceiver, RxError};
use urnic_engine::tcp::ReceiveHalf;
use urnic_engine::time::Instant;
use urnic_engine::types::StreamOffset;

use super::{Around, Shared};
use crate::judge::findings::Kind;
use crate::limits::Holding;
use crate::observe::arrivals::Arrivals;
use crate::observe::observer::{Observer, Token};
use crate::observe::tally::Tally;
use crate::trace::SideTrace;

#[derive(Debug)]
pub(super) struct Full {
    pub(super) mpa: FpduReceiver<Token>,
    pub(super) tally: Tally,
}

impl Full {
    /// Returns the number of accepted bytes.
    pub(super) fn offer(
        &mut self,
        tcp: &ReceiveHalf,
        start: u64,
        bytes: &[u8],
        (frame, arrivals, trace): (u64, &Arrivals, Option<&mut SideTrace>),
        held: &mut Holding,
        around: &mut Around<'_>,
    ) -> usize {
        let start = StreamOffset(start);
        let end = start + bytes.len() as u64;
        // A live endpoint makes the same checks of its TCP before it passes a segment up.
        if tcp.next_missing(start..end) != Some(start..end) || !tcp.can_commit(&(start..end)) {
            return 0;
        }
        let (from, now_ns) = (around.from, around.now_ns);
        let Shared { store, notes, starts, images, .. } = &mut *around.shared;
        let mut observer = Observer {
            tally: &mut self.tally,
            findings: &mut *around.findings,
            requested: &mut *around.requested,
            answered: &mut *around.answered,
            budget: images,
            held,
            notes,
            starts,
            arrivals,
            segment: (start, bytes),
            frame,
            from,
            now_ns,
            trace,
        };
        let taken = self.mpa.handle_bytes(Instant::ZERO, start, bytes, store, &mut observer);
        if let Some(error) = taken.error {
            let (kind, text) = match error {
                RxError::Mpa(error) if error.fault == MpaFault::Marker => (Kind::Marker, error),
                RxError::Mpa(error) => (Kind::UlpduLength, error),
                RxError::Sink(never) => match never {},
            };
            let at = self.mpa.delivered();
            around.findings.add(kind, from, frame, || {
                format!("{text}, at or after stream byte {at}: nothing beyond it is decoded")
            });
            // An endpoint would end the stream here.
            self.mpa.stop(store);
            self.tally.forget_order();
            return bytes.len();
        }
        taken.end.index_from(start)
    }
}
