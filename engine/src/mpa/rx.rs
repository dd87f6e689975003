//! Reception: finds FPDUs in stream bytes that arrive in any order, verifies them and passes them
//! up. Every valid FPDU is placed exactly once, when it is whole and its start is known; delivery
//! follows stream order; after a fatal error no FPDU is passed up. TCP may free bytes that are
//! reported as taken, unless [`give_up_far`](FpduReceiver::give_up_far) names them. The start of an
//! FPDU is known (RFC 5044 §6) if it follows the delivered part or a valid FPDU; a fault there is
//! an error. A marker beyond a gap is not trusted: if it leads to no valid FPDU, the bytes wait
//! until the gap closes. Whole FPDUs that continue the stream take the fast path in `pass.rs`, if
//! nothing is held or ahead.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod ahead;
mod config;
mod cursor;
mod error;
mod faulty;
mod keep;
mod locate;
mod octets;
mod pass;

use std::mem::offset_of;

use crate::counters::MpaRxCounters;
use crate::limits::ULPDU_LEN_MAX;
use crate::mpa::marker::MarkerGrid;
use crate::mpa::pieces::{PieceList, PieceStore};
use crate::time::Instant;
use crate::types::StreamOffset;

use ahead::Ahead;
use cursor::{Look, look};
use error::Stop;
use faulty::FaultAt;
use locate::{Lead, Located};
use octets::{At, Octets, Slice, Wire};

pub use config::{RxConfig, RxLimits};
pub use error::{MpaError, MpaFault, RxError};
pub use faulty::FaultyFpdu;
pub use octets::{Chunks, HEAD_LEN, Ulpdu};

/// The layer above: DDP placement and RDMAP delivery.
pub trait FpduSink {
    /// Data that delivery needs about a placed FPDU.
    type Token: Copy;
    /// Reason why the layer above refuses an FPDU.
    type Error: Copy;

    /// Takes the ULPDU of a valid FPDU at `at`, once for each, in any order. An error ends
    /// reception.
    fn place(&mut self, ulpdu: &Ulpdu<'_>, at: StreamOffset) -> Result<Self::Token, Self::Error>;

    /// Like [`place`](Self::place), for an FPDU `gap` bytes beyond the delivered part of the
    /// stream.
    // spec: DDP-3-5, MPA-1.2-2
    #[inline]
    fn place_ahead(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        at: StreamOffset,
        gap: u64,
    ) -> Result<Self::Token, Self::Error> {
        let _ = gap;
        self.place(ulpdu, at)
    }

    /// Delivers a placed FPDU, in stream order. An error ends reception.
    fn deliver(&mut self, token: Self::Token) -> Result<(), Self::Error>;

    /// Takes the ULPDU of a valid FPDU that is the next to be delivered. `Some`: the caller
    /// delivers the token at once. `None`: the sink has placed and delivered the FPDU itself.
    /// Errors: as [`place`](Self::place).
    #[inline(always)]
    fn place_next(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        at: StreamOffset,
    ) -> Result<Option<Self::Token>, Self::Error> {
        self.place(ulpdu, at).map(Some)
    }

    /// Decides about a whole FPDU that starts at a trusted position and has a fault. `None` ends
    /// reception, or drops the segment: an endpoint always returns it. For an observer's token the
    /// receiver skips the FPDU by its length and delivers the token in order. The length may be
    /// wrong, too: the observer must doubt all that follows.
    #[cold]
    fn pass_over(&mut self, fpdu: &FaultyFpdu<'_>) -> Option<Self::Token> {
        let _ = fpdu;
        None
    }
}

/// Outcome for some stream bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Taken<E> {
    /// Bytes before this position were used or kept: TCP may acknowledge them. TCP must treat the
    /// others as never received.
    pub end: StreamOffset,
    /// The error, if any. Unless it is droppable, the receiver has stopped and `end` is the end of
    /// the bytes given.
    pub error: Option<RxError<E>>,
}

/// Receives one direction of an MPA stream. `T` is the [`FpduSink`]'s token.
#[derive(Debug)]
#[repr(C)]
pub struct FpduReceiver<T> {
    /// Received bytes at or after `next` that belong to no placed FPDU yet. A piece directly after
    /// a placed FPDU starts where that FPDU ends, so its start is a trusted FPDU start.
    held: PieceList,
    ahead: Ahead<T>,
    /// Start of the first FPDU not yet delivered.
    next: StreamOffset,
    grid: MarkerGrid,
    config: RxConfig,
    stopped: bool,
    counters: MpaRxCounters,
}

/// Reason why a walk along FPDUs ended. The bytes of the segment before `from` are handled.
enum Halt {
    /// The rest must be held; `located` is an FPDU start that only a marker vouches for.
    Hold { from: StreamOffset, located: Option<StreamOffset> },
    /// The rest cannot be accepted now.
    Refuse { from: StreamOffset },
}

impl<T: Copy> FpduReceiver<T> {
    /// Most segments need everything from here on, except the rarer counters at the end.
    pub(crate) const HOT_FROM: usize = offset_of!(Self, ahead) - size_of::<usize>();

    /// A receiver for the direction whose first full-operation byte is at `origin`.
    #[must_use]
    pub fn new(config: RxConfig, origin: StreamOffset) -> Self {
        Self::with_limits(config, origin, RxLimits::default())
    }

    /// A receiver for the rest of a direction, from the FPDU that starts at `start` on. Full
    /// operation began at `origin` or a multiple of 512 bytes before it. Panics if `start` is
    /// before `origin`.
    #[must_use]
    pub fn resuming(config: RxConfig, origin: StreamOffset, start: StreamOffset) -> Self {
        assert!(origin <= start, "a stream is resumed where it has begun");
        Self { next: start, ..Self::new(config, origin) }
    }

    /// A receiver with other limits.
    #[must_use]
    pub fn with_limits(config: RxConfig, origin: StreamOffset, limits: RxLimits) -> Self {
        // RFC 5044 §4.3: a longer ULPDU would overflow FPDUPTR. An empty ULPDU is never valid.
        let config = RxConfig {
            ulpdu_len_min: config.ulpdu_len_min.max(1),
            ulpdu_len_max: config.ulpdu_len_max.min(ULPDU_LEN_MAX),
            ..config
        };
        Self {
            config,
            grid: MarkerGrid::new(origin, config.markers),
            next: origin,
            ahead: Ahead::new(limits.fpdus_ahead_max),
            held: PieceList::with_pieces_max(limits.pieces_max),
            stopped: false,
            counters: MpaRxCounters::default(),
        }
    }

    /// Takes bytes of the stream at `offset` that were not accepted before, and passes up every
    /// FPDU that they complete. Every call must get the same `store`. `now` serves to measure how
    /// long bytes wait. Panics if bytes that must be held are held already.
    pub fn handle_bytes<S: FpduSink<Token = T>>(
        &mut self,
        now: Instant,
        offset: StreamOffset,
        bytes: &[u8],
        store: &mut PieceStore,
        sink: &mut S,
    ) -> Taken<S::Error> {
        let slice = Slice { at: offset, bytes };
        let end = slice.end();
        // RFC 5044 §8: after an error "MPA MUST NOT" pass or deliver anything more. The bytes are
        // accepted and discarded, so that the peer can still send what follows.
        // spec: MPA-8-5
        if self.stopped || bytes.is_empty() {
            return Taken { end, error: None };
        }
        debug_assert!(offset >= self.next, "bytes that were delivered before");
        store.note_time(now);
        let taken = match self.pass_whole(slice, sink) {
            Ok(rest) if rest.bytes.is_empty() => Ok(end),
            Ok(rest) => self.take(rest, store, sink),
            Err(stop) => Err(stop),
        };
        self.conclude(end, taken, store)
    }

    fn conclude<E>(
        &mut self,
        end: StreamOffset,
        taken: Result<StreamOffset, Stop<E>>,
        store: &mut PieceStore,
    ) -> Taken<E> {
        match taken {
            Ok(end) => Taken { end, error: None },
            Err(Stop { error, accepted }) => {
                if accepted.is_none() {
                    self.stop(store);
                }
                Taken { end: accepted.unwrap_or(end), error: Some(error) }
            }
        }
    }

    /// Returns all memory to `store` and discards whatever arrives from now on. Call it when the
    /// stream ends, and when a droppable error is treated as fatal.
    pub fn stop(&mut self, store: &mut PieceStore) {
        self.stopped = true;
        self.held.clear(store);
        self.count_wait();
        self.ahead.clear();
    }

    /// End of the last FPDU delivered. If the stream ends later, the peer has cut an FPDU short.
    #[must_use]
    pub const fn delivered(&self) -> StreamOffset {
        self.next
    }

    #[must_use]
    pub(crate) fn fpdus_ahead(&self) -> usize {
        self.ahead.len()
    }

    /// Bytes on the stream of the FPDUs placed and not yet delivered.
    #[must_use]
    pub fn bytes_ahead(&self) -> u64 {
        self.ahead.bytes()
    }

    /// Bytes held for FPDUs that are not whole.
    #[must_use]
    pub const fn bytes_held(&self) -> u64 {
        self.held.bytes_held()
    }

    /// Counts since the beginning.
    #[must_use]
    pub const fn counters(&self) -> &MpaRxCounters {
        &self.counters
    }

    /// Returns true if there is neither a held byte nor an FPDU ahead of the delivered part.
    #[inline]
    fn has_nothing_apart(&self) -> bool {
        // Both are checked: an FPDU may be placed ahead while no byte is held.
        self.held.is_empty() && self.ahead.is_empty()
    }

    pub(crate) const fn place_out_of_order(&mut self, wanted: bool) {
        self.config.out_of_order = wanted;
    }

    // spec: MPA-5.1-4, MPA-6-2, TCP-A.4-1, TCP-A.4-2
    fn take<S: FpduSink<Token = T>>(
        &mut self,
        slice: Slice<'_>,
        store: &mut PieceStore,
        sink: &mut S,
    ) -> Result<StreamOffset, Stop<S::Error>> {
        let next_before = self.next;
        let run_start = self.run_start(slice.at);
        let halt = if run_start == self.next || self.ahead.ends_at(run_start) {
            self.walk(run_start, None, slice, store, sink)?
        } else if self.config.out_of_order && self.grid.is_enabled() {
            self.walk_from_marker(run_start, slice, store, sink)?
        } else {
            Halt::Hold { from: slice.at, located: None }
        };
        if self.next != next_before {
            self.resume(slice.end(), store, sink)?;
            self.held.advance(self.next, store);
        }
        Ok(self.keep_rest(&halt, slice, store))
    }

    #[inline]
    fn run_start(&self, at: StreamOffset) -> StreamOffset {
        if self.held.is_empty() {
            return at;
        }
        self.held.piece_ending_at(at).map_or(at, |piece| piece.start)
    }

    /// `start` is trusted, unless a marker led to it: `verified` is then the first FPDU.
    fn walk<S: FpduSink<Token = T>>(
        &mut self,
        mut start: StreamOffset,
        mut verified: Option<Located>,
        slice: Slice<'_>,
        store: &mut PieceStore,
        sink: &mut S,
    ) -> Result<Halt, Stop<S::Error>> {
        loop {
            let by_marker = verified.is_some();
            let fpdu = match verified.take() {
                Some(fpdu) => fpdu,
                None => match self.check(start, slice, store) {
                    Ok(Some(fpdu)) => fpdu,
                    Ok(None) => return Ok(Halt::Hold { from: start, located: None }),
                    Err(wrong) => match self.pass_over(&wrong, slice, store, sink)? {
                        Some(end) => {
                            start = end;
                            continue;
                        }
                        None => return Ok(Halt::Refuse { from: start }),
                    },
                },
            };
            if !self.accept(&fpdu, slice, store, sink)? {
                if start < slice.end() {
                    self.count_refusal();
                }
                return Ok(Halt::Refuse { from: start });
            }
            self.counters.fpdus_by_marker =
                self.counters.fpdus_by_marker.wrapping_add(u64::from(by_marker));
            // spec: MPA-5.2-1
            start = fpdu.end;
        }
    }

    #[inline(always)]
    fn check(
        &mut self,
        start: StreamOffset,
        slice: Slice<'_>,
        store: &PieceStore,
    ) -> Result<Option<Located>, FaultAt> {
        let octets = Octets { slice, held: &self.held, store };
        match look(&self.config, self.grid, start, At { octets, start }) {
            Look::Valid { layout, .. } => Ok(Some(Located::new(start, layout, slice))),
            Look::Faulty { layout, fault } => {
                let fpdu = Located::new(start, layout, slice);
                self.count_fault(&fpdu, fault);
                Err(FaultAt::whole(fault, fpdu))
            }
            // spec: MPA-8-2
            // RFC 5044 §8: "when the gap closes", the lengths must meet the start that a marker
            // gave.
            Look::Partial { end: Some(end) } if self.ahead.conflicts_with(start, end) => {
                self.counters.marker_errors = self.counters.marker_errors.wrapping_add(1);
                Err(FaultAt::at(MpaFault::Marker, start))
            }
            Look::Partial { .. } => Ok(None),
            Look::BadLength => {
                trace_length(start);
                Err(FaultAt::at(MpaFault::UlpduLength, start))
            }
        }
    }

    /// Places a valid FPDU, and delivers all FPDUs that are in order now. Returns false, without
    /// placing it, if the list of FPDUs ahead is full.
    #[inline(always)]
    fn accept<S: FpduSink<Token = T>>(
        &mut self,
        fpdu: &Located,
        slice: Slice<'_>,
        store: &mut PieceStore,
        sink: &mut S,
    ) -> Result<bool, Stop<S::Error>> {
        let in_order = fpdu.start == self.next;
        if !in_order && self.ahead.is_full() {
            return Ok(false);
        }
        self.count_valid(fpdu.layout.marker_count());
        let octets = Octets { slice, held: &self.held, store };
        let Located { start, layout, .. } = *fpdu;
        let placed = At { octets, start }.with_ulpdu(layout, |ulpdu| {
            if in_order {
                sink.place(ulpdu, start)
            } else {
                sink.place_ahead(ulpdu, start, start.0.saturating_sub(self.next.0))
            }
        });
        let token = placed.map_err(Stop::of_sink)?;
        self.counters.fpdus = self.counters.fpdus.wrapping_add(1);
        if !in_order {
            self.counters.fpdus_out_of_order = self.counters.fpdus_out_of_order.wrapping_add(1);
        }
        self.complete_fpdu(fpdu, token, store, sink)?;
        Ok(true)
    }

    /// Delivers a placed FPDU and its placed successors if it is next in order, else keeps its
    /// token. Releases its held bytes.
    #[inline(always)]
    fn complete_fpdu<S: FpduSink<Token = T>>(
        &mut self,
        fpdu: &Located,
        token: T,
        store: &mut PieceStore,
        sink: &mut S,
    ) -> Result<(), Stop<S::Error>> {
        if !fpdu.in_segment {
            self.held.remove(fpdu.start, fpdu.end, store);
            self.count_wait();
        }
        if fpdu.start != self.next {
            self.ahead.insert(fpdu.start, fpdu.end, token);
            return Ok(());
        }
        self.next = fpdu.end;
        sink.deliver(token).map_err(Stop::of_sink)?;
        // spec: DDP-4.1-4, DDP-5.3-4, RDMAP-5.5-10, RDMAP-5.5-16, TCP-A.3-5, EXT-6-1
        while let Some((end, token)) = self.ahead.pop_at(self.next) {
            self.next = end;
            sink.deliver(token).map_err(Stop::of_sink)?;
        }
        Ok(())
    }

    /// Finds an FPDU in or around a segment beyond a gap by its markers, and continues from it.
    // spec: MPA-3-6
    fn walk_from_marker<S: FpduSink<Token = T>>(
        &mut self,
        run_start: StreamOffset,
        slice: Slice<'_>,
        store: &mut PieceStore,
        sink: &mut S,
    ) -> Result<Halt, Stop<S::Error>> {
        match self.find_lead(run_start, slice, store) {
            Lead::None => Ok(Halt::Hold { from: slice.at, located: None }),
            Lead::Partial(start) => Ok(Halt::Hold { from: slice.at, located: Some(start) }),
            // Not an error yet, since only a marker vouches for the start. But accepting corrupt
            // bytes would make the error fatal later, when the gap closes.
            Lead::Corrupt(start) => {
                let from = self.hold_before(start, slice, store).unwrap_or(start);
                Ok(Halt::Refuse { from })
            }
            Lead::Found(fpdu) => {
                // If there is no room for the bytes before it, nothing after them may be used.
                if let Some(from) = self.hold_before(fpdu.start, slice, store) {
                    self.count_refusal();
                    return Ok(Halt::Refuse { from });
                }
                self.walk(fpdu.start, Some(fpdu), slice, store, sink)
            }
        }
    }

    /// Once for each FPDU with a right CRC: where it is passed up or found to be wrong.
    #[inline(always)]
    fn count_valid(&mut self, markers: usize) {
        let counters = &mut self.counters;
        counters.crc_good = counters.crc_good.wrapping_add(u64::from(self.config.crc));
        counters.markers = counters.markers.wrapping_add(markers as u64);
    }

    #[cold]
    fn count_fault(&mut self, fpdu: &Located, fault: MpaFault) {
        let ulpdu_len = fpdu.layout.ulpdu_len();
        tracing::debug!(target: "urnic::mpa", start = %fpdu.start, ulpdu_len, %fault, "FPDU refused");
        let counters = &mut self.counters;
        match fault {
            MpaFault::Crc => counters.crc_bad = counters.crc_bad.wrapping_add(1),
            MpaFault::Marker => {
                counters.marker_errors = counters.marker_errors.wrapping_add(1);
                self.count_valid(fpdu.layout.marker_count());
            }
            MpaFault::UlpduLength => {}
        }
    }
}

#[cold]
fn trace_length(start: StreamOffset) {
    let fault = MpaFault::UlpduLength;
    tracing::debug!(target: "urnic::mpa", %start, %fault, "FPDU refused");
}

#[cfg(test)]
mod tests;
