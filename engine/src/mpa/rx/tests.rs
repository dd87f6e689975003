#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "test code")]

mod errors;
mod observe;
mod order;
mod random;
mod vectors;
mod ways;

use std::ops::Range;

use super::*;
use crate::mem::{Scattered, SharedSlice};
use crate::mpa::tx::{Fpdu, RunSink};
use crate::wire::crc32c::Crc32c;

/// A stream of FPDUs as sent by a peer.
struct Stream {
    grid: MarkerGrid,
    origin: StreamOffset,
    octets: Vec<u8>,
    /// Start of each FPDU, and its ULPDU.
    fpdus: Vec<(StreamOffset, Vec<u8>)>,
}

struct Wire<'a> {
    octets: &'a mut Vec<u8>,
    payload: &'a [u8],
    crc: Crc32c,
}

impl RunSink for Wire<'_> {
    fn inline(&mut self, octets: &[u8]) {
        self.crc.update(octets);
        self.octets.extend_from_slice(octets);
    }
    fn payload(&mut self, offset: usize, len: usize) {
        let payload = self.payload;
        self.inline(&payload[offset..offset + len]);
    }
    fn crc(&mut self) {
        self.octets.extend_from_slice(&self.crc.finish().to_le_bytes());
    }
}

impl Stream {
    fn new(origin: u64, markers: bool) -> Self {
        let origin = StreamOffset(origin);
        let grid = MarkerGrid::new(origin, markers);
        Self { grid, origin, octets: Vec::new(), fpdus: Vec::new() }
    }

    /// A stream of different ULPDUs with these lengths.
    fn of(origin: u64, markers: bool, lens: &[usize]) -> Self {
        let mut stream = Self::new(origin, markers);
        for (seed, len) in lens.iter().enumerate() {
            let ulpdu: Vec<u8> =
                (0..*len).map(|n| (n * 7 + n / 251 + seed * 13).to_le_bytes()[0]).collect();
            stream.push(&ulpdu);
        }
        stream
    }

    fn push(&mut self, ulpdu: &[u8]) {
        let start = self.end();
        let (header, payload) = ulpdu.split_at(ulpdu.len().min(18));
        let fpdu = Fpdu::new(self.grid, start, header, payload.len());
        fpdu.emit(&mut Wire { octets: &mut self.octets, payload, crc: Crc32c::new() });
        self.fpdus.push((start, ulpdu.to_vec()));
    }

    fn end(&self) -> StreamOffset {
        self.origin + self.octets.len() as u64
    }

    /// The bytes of FPDU `index`, relative to the origin.
    fn range(&self, index: usize) -> Range<usize> {
        let start = |index: usize| self.fpdus.get(index).map_or_else(|| self.end(), |fpdu| fpdu.0);
        start(index).index_from(self.origin)..start(index + 1).index_from(self.origin)
    }

    /// Corrects the CRC of FPDU `index` after its bytes were changed.
    fn mend_crc(&mut self, index: usize) {
        let Range { start, end } = self.range(index);
        let mut crc = Crc32c::new();
        crc.update(&self.octets[start..end - 4]);
        self.octets[end - 4..end].copy_from_slice(&crc.finish().to_le_bytes());
    }

    fn starts(&self) -> Vec<StreamOffset> {
        self.fpdus.iter().map(|fpdu| fpdu.0).collect()
    }
}

/// The bytes of a ULPDU, run by run.
fn octets_of(ulpdu: &Ulpdu<'_>) -> Vec<u8> {
    let mut octets = Vec::new();
    for chunk in ulpdu.chunks(0) {
        assert!(!chunk.is_empty());
        let at = octets.len();
        octets.resize(at + chunk.len(), 0);
        chunk.copy_out(0, &mut octets[at..]);
    }
    octets
}

/// Records what it receives.
#[derive(Default)]
struct Upper {
    placed: Vec<(StreamOffset, Vec<u8>)>,
    delivered: Vec<StreamOffset>,
    refuse_at: Option<StreamOffset>,
    refuse_delivery_at: Option<StreamOffset>,
    /// True if the sink skips faulty FPDUs; and the skipped FPDUs, with their wrong markers.
    observes: bool,
    passed_over: Vec<(StreamOffset, Vec<u8>, MpaError, Vec<StreamOffset>)>,
}

impl FpduSink for Upper {
    type Token = StreamOffset;
    type Error = &'static str;

    fn place(&mut self, ulpdu: &Ulpdu<'_>, at: StreamOffset) -> Result<StreamOffset, &'static str> {
        let octets = octets_of(ulpdu);
        assert_eq!(octets.len(), ulpdu.len());
        let mut scratch = [0; HEAD_LEN];
        assert_eq!(ulpdu.head(&mut scratch), &octets[..octets.len().min(HEAD_LEN)]);
        assert!(ulpdu.as_slice().is_none_or(|slice| slice == octets));
        for from in [1, 13, 18, octets.len() / 2, octets.len()] {
            let mut copy = vec![0; octets.len()];
            let copied = ulpdu.copy_to(from, &mut copy);
            assert_eq!(copy[..copied], octets[from.min(octets.len())..]);
        }
        if self.refuse_at == Some(at) {
            return Err("refused");
        }
        self.placed.push((at, octets));
        Ok(at)
    }

    fn deliver(&mut self, at: StreamOffset) -> Result<(), &'static str> {
        let mut known = self.placed.iter().map(|fpdu| fpdu.0);
        let mut wrong = self.passed_over.iter().map(|fpdu| fpdu.0);
        assert!(known.any(|it| it == at) || wrong.any(|it| it == at), "delivered, not placed");
        if self.refuse_delivery_at == Some(at) {
            return Err("refused behind its placement");
        }
        self.delivered.push(at);
        Ok(())
    }

    fn pass_over(&mut self, fpdu: &FaultyFpdu<'_>) -> Option<StreamOffset> {
        let ulpdu = octets_of(&fpdu.ulpdu());
        assert_eq!(fpdu.layout().ulpdu_len(), fpdu.ulpdu().len());
        let wrong = (fpdu.start(), ulpdu, fpdu.error(), fpdu.wrong_markers().collect());
        self.observes.then(|| self.passed_over.push(wrong))?;
        Some(fpdu.start())
    }
}

/// A receiver with its surroundings.
struct Bench {
    receiver: FpduReceiver<StreamOffset>,
    store: PieceStore,
    upper: Upper,
    origin: StreamOffset,
    now: Instant,
    /// Length of the runs in which segments are given first, for use in place.
    run_len: Option<usize>,
}

impl Bench {
    fn new(stream: &Stream) -> Self {
        Self::with(stream, RxConfig::default())
    }

    fn with(stream: &Stream, config: RxConfig) -> Self {
        let config = RxConfig { markers: stream.grid.is_enabled(), ulpdu_len_min: 1, ..config };
        Self {
            receiver: FpduReceiver::new(config, stream.origin),
            store: PieceStore::default(),
            upper: Upper::default(),
            origin: stream.origin,
            now: Instant::ZERO,
            run_len: None,
        }
    }

    fn give_to(
        &mut self,
        stream: &Stream,
        range: Range<usize>,
    ) -> (usize, Option<RxError<&'static str>>) {
        let Self { receiver, store, upper, .. } = self;
        let offset = self.origin + range.start as u64;
        let bytes = &stream.octets[range];
        let used = self.run_len.map_or(0, |run_len| {
            let runs: Vec<SharedSlice<'_>> =
                bytes.chunks(run_len).map(SharedSlice::from_bytes).collect();
            let octets = Scattered::new(SharedSlice::from_bytes(&[]), &runs);
            let taken = receiver.handle_scattered(offset, &octets, store, upper);
            assert!(
                taken.error.is_none_or(|error| matches!(error, RxError::Sink(_))),
                "none is judged"
            );
            taken.end.index_from(offset)
        });
        let rest = &bytes[used..];
        let taken = receiver.handle_bytes(self.now, offset + used as u64, rest, store, upper);
        (taken.end.index_from(offset), taken.error)
    }

    /// Gives bytes that the receiver must accept completely and without error.
    fn give(&mut self, stream: &Stream, range: Range<usize>) {
        let len = range.len();
        assert_eq!(self.give_to(stream, range), (len, None));
    }

    fn assert_complete(&self, stream: &Stream) {
        let mut placed = self.upper.placed.clone();
        placed.sort();
        assert_eq!(placed, stream.fpdus);
        assert_eq!(self.upper.delivered, stream.starts());
        assert_eq!(self.receiver.delivered(), stream.end());
        assert_eq!(self.receiver.counters().fpdus, stream.fpdus.len() as u64);
        assert_eq!((self.receiver.bytes_held(), self.receiver.fpdus_ahead()), (0, 0));
        assert_eq!((self.store.bytes_held(), self.store.blocks_used()), (0, 0));
    }
}
