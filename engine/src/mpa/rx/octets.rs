//! Stream bytes in the kinds of memory that reception reads ([`Wire`]), and ULPDUs made of them.

use crate::limits::MARKER_LEN;
use crate::mem::{Scattered, SharedSlice};
use crate::mpa::marker::{FpduLayout, LENGTH_LEN, RUN_LEN};
use crate::mpa::pieces::{PieceList, PieceStore};
use crate::types::StreamOffset;

/// Bytes that [`Ulpdu::head`] makes contiguous: the longest DDP and RDMAP header, rounded up.
pub const HEAD_LEN: usize = 72;

#[inline]
pub(super) const fn after(at: StreamOffset, bytes: usize) -> StreamOffset {
    StreamOffset(at.0.wrapping_add(bytes as u64))
}

/// Stream bytes from some position on, in memory of one kind. Offsets count from that position.
pub(super) trait Wire<'s>: Copy {
    /// The bytes from `at` on, if `at` is not beyond the bytes that are present.
    fn from(&self, at: usize) -> Option<Self>;

    fn split(&self, len: usize) -> Option<(Self, Self)>;

    fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]>;

    /// The run of bytes at `at` that is contiguous in memory, if the byte at `at` is present.
    fn run(&self, at: usize) -> Option<SharedSlice<'s>>;

    fn for_each_run(&self, at: usize, len: usize, each: impl FnMut(SharedSlice<'s>));

    fn with_ulpdu<R>(&self, layout: FpduLayout, pass: impl FnOnce(&Ulpdu<'_>) -> R) -> R;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slice<'s> {
    pub(super) at: StreamOffset,
    pub(super) bytes: &'s [u8],
}

impl<'s> Slice<'s> {
    #[inline]
    pub(super) const fn end(&self) -> StreamOffset {
        after(self.at, self.bytes.len())
    }

    #[inline]
    fn index(&self, at: StreamOffset) -> usize {
        usize::try_from(at.0.wrapping_sub(self.at.0)).unwrap_or(usize::MAX)
    }

    #[inline]
    pub(super) fn get(&self, at: StreamOffset, len: usize) -> Option<&'s [u8]> {
        self.bytes.get(self.index(at)..)?.get(..len)
    }

    pub(super) fn from(&self, at: StreamOffset) -> Self {
        if at <= self.at {
            return *self;
        }
        let bytes = self.bytes.get(self.index(at)..).unwrap_or_default();
        Self { at: at.min(self.end()), bytes }
    }

    pub(super) fn before(&self, at: StreamOffset) -> Self {
        if at <= self.at {
            return Self { bytes: &[], ..*self };
        }
        Self { bytes: self.bytes.get(..self.index(at)).unwrap_or(self.bytes), ..*self }
    }
}

/// All bytes that are present: those of the segment, and the held ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Octets<'s, 'h> {
    pub(super) slice: Slice<'s>,
    pub(super) held: &'h PieceList,
    pub(super) store: &'h PieceStore,
}

impl<'s: 'a, 'h: 'a, 'a> Octets<'s, 'h> {
    /// The run of bytes from `at` on that is contiguous in memory; empty if `at` is not present.
    pub(super) fn run(&self, at: StreamOffset) -> &'a [u8] {
        match self.slice.bytes.get(self.slice.index(at)..) {
            Some(run) if !run.is_empty() => run,
            _ => self.held.run(at, self.store),
        }
    }

    #[inline]
    pub(super) fn read<const N: usize>(&self, at: StreamOffset) -> Option<[u8; N]> {
        match self.slice.get(at, N) {
            Some(octets) => octets.try_into().ok(),
            None => self.gather(at),
        }
    }

    #[cold]
    fn gather<const N: usize>(&self, at: StreamOffset) -> Option<[u8; N]> {
        let mut octets = [0; N];
        let mut done = 0;
        while let Some(rest) = octets.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let run = self.run(after(at, done));
            if run.is_empty() {
                return None;
            }
            let len = run.len().min(rest.len());
            rest.get_mut(..len)?.copy_from_slice(run.get(..len)?);
            done = done.saturating_add(len);
        }
        Some(octets)
    }

    /// End of the contiguous stream bytes that begin at `at`.
    pub(super) fn end_of_run(&self, at: StreamOffset) -> StreamOffset {
        let mut end = at;
        // At most three parts: held before the segment, the segment, held after it.
        for _ in 0..3 {
            if end >= self.slice.at && end < self.slice.end() {
                end = self.slice.end();
            }
            let Some(piece) = self.held.piece_at(end) else { break };
            end = piece.end;
        }
        end
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct At<'a> {
    pub(super) octets: Octets<'a, 'a>,
    pub(super) start: StreamOffset,
}

/// A whole FPDU with markers among its bytes, or with its bytes in several parts of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marked<W> {
    pub(super) wire: W,
    pub(super) layout: FpduLayout,
}

impl<'a, W: Wire<'a>> Marked<W> {
    /// Each position follows from the one before, so only the first takes divisions.
    #[inline]
    fn for_each_chunk(&self, from: usize, mut each: impl FnMut(SharedSlice<'a>)) {
        let Self { wire, layout } = self;
        let end = layout.ulpdu_len().saturating_add(LENGTH_LEN);
        let mut octet = from.saturating_add(LENGTH_LEN);
        let mut rest = wire.from(layout.wire_of(octet));
        let mut len = layout.run_len_from(octet);
        while octet < end
            && let Some(wire) = rest
        {
            len = len.min(end.saturating_sub(octet));
            wire.for_each_run(0, len, &mut each);
            octet = octet.saturating_add(len);
            rest = wire.from(len.saturating_add(MARKER_LEN));
            len = RUN_LEN;
        }
    }

    #[inline(never)]
    fn chunk(&self, at: usize, rest: usize) -> Option<SharedSlice<'a>> {
        let octet = at.saturating_add(LENGTH_LEN);
        let run = self.wire.run(self.layout.wire_of(octet))?;
        Some(run.part(0, self.layout.run_len_from(octet).min(rest).min(run.len())))
    }

    #[inline(always)]
    fn front<const N: usize>(&self) -> Option<[u8; N]> {
        let unsplit = self.layout.run_len_from(LENGTH_LEN).min(self.layout.ulpdu_len());
        if unsplit >= N { self.wire.read(self.layout.wire_of(LENGTH_LEN)) } else { None }
    }
}

impl<'s> Wire<'s> for &'s [u8] {
    #[inline(always)]
    fn from(&self, at: usize) -> Option<Self> {
        self.get(at..)
    }

    #[inline(always)]
    fn split(&self, len: usize) -> Option<(Self, Self)> {
        self.split_at_checked(len)
    }

    #[inline(always)]
    fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.get(at..)?.first_chunk().copied()
    }

    #[inline(always)]
    fn run(&self, at: usize) -> Option<SharedSlice<'s>> {
        self.get(at..).map(SharedSlice::from_bytes)
    }

    #[inline(always)]
    fn for_each_run(&self, at: usize, len: usize, mut each: impl FnMut(SharedSlice<'s>)) {
        if let Some(run) = self.get(at..).and_then(|run| run.get(..len)) {
            each(SharedSlice::from_bytes(run));
        }
    }

    #[inline(always)]
    fn with_ulpdu<R>(&self, layout: FpduLayout, pass: impl FnOnce(&Ulpdu<'_>) -> R) -> R {
        match layout.unsplit_ulpdu_at() {
            Some(at) => {
                let ulpdu = self.get(at..).and_then(|ulpdu| ulpdu.get(..layout.ulpdu_len()));
                pass(&Ulpdu::from_slice(ulpdu.unwrap_or_default()))
            }
            None => pass(&Ulpdu::from_marked_slice(&Marked { wire: *self, layout })),
        }
    }
}

impl<'s> Wire<'s> for Scattered<'s> {
    #[inline(always)]
    fn from(&self, at: usize) -> Option<Self> {
        self.split_at_checked(at).map(|(_, from)| from)
    }

    #[inline(always)]
    fn split(&self, len: usize) -> Option<(Self, Self)> {
        self.split_at_checked(len)
    }

    #[inline(always)]
    fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.from(at)?.read()
    }

    #[inline(always)]
    fn run(&self, at: usize) -> Option<SharedSlice<'s>> {
        self.from(at)?.runs().next()
    }

    #[inline(always)]
    fn for_each_run(&self, at: usize, len: usize, mut each: impl FnMut(SharedSlice<'s>)) {
        let from = self.from(at).and_then(|from| from.split_at_checked(len));
        let Some((octets, _)) = from else { return };
        match octets.as_run() {
            Some(run) => each(run),
            None => octets.runs().for_each(each),
        }
    }

    #[inline(always)]
    fn with_ulpdu<R>(&self, layout: FpduLayout, pass: impl FnOnce(&Ulpdu<'_>) -> R) -> R {
        let unsplit = layout.unsplit_ulpdu_at().and_then(|at| self.from(at));
        match unsplit.and_then(|ulpdu| ulpdu.split_at_checked(layout.ulpdu_len())) {
            Some((ulpdu, _)) => pass(&Ulpdu::from_scattered(ulpdu)),
            None => pass(&Ulpdu::from_marked(&Marked { wire: *self, layout })),
        }
    }
}

impl<'s> Wire<'s> for At<'s> {
    /// Does not look whether the bytes are present: reading them does.
    #[inline(always)]
    fn from(&self, at: usize) -> Option<Self> {
        Some(Self { start: after(self.start, at), ..*self })
    }

    #[inline(always)]
    fn split(&self, len: usize) -> Option<(Self, Self)> {
        let is_present = self.octets.slice.get(self.start, len).is_some()
            || self.octets.end_of_run(self.start) >= after(self.start, len);
        Some((*self, self.from(len)?)).filter(|_| is_present)
    }

    #[inline(always)]
    fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.octets.read(after(self.start, at))
    }

    #[inline(always)]
    fn run(&self, at: usize) -> Option<SharedSlice<'s>> {
        let run = self.octets.run(after(self.start, at));
        (!run.is_empty()).then(|| SharedSlice::from_bytes(run))
    }

    #[inline(always)]
    fn for_each_run(&self, at: usize, len: usize, mut each: impl FnMut(SharedSlice<'s>)) {
        let mut done = 0_usize;
        while done < len
            && let Some(run) = self.run(at.saturating_add(done))
        {
            let run = run.part(0, run.len().min(len.saturating_sub(done)));
            each(run);
            done = done.saturating_add(run.len());
        }
        debug_assert!(done == len, "present bytes are missing");
    }

    #[inline(always)]
    fn with_ulpdu<R>(&self, layout: FpduLayout, pass: impl FnOnce(&Ulpdu<'_>) -> R) -> R {
        // Common case: all of the FPDU is in the segment.
        match self.octets.slice.get(self.start, layout.wire_len()) {
            Some(wire) => wire.with_ulpdu(layout, pass),
            None => pass(&Ulpdu::from_spread(&Marked { wire: *self, layout })),
        }
    }
}

/// The ULPDU of a valid FPDU. Its bytes may lie in several places.
#[derive(Clone, Copy, Debug)]
pub struct Ulpdu<'a> {
    source: Source<'a>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    Contiguous(&'a [u8]),
    Scattered(Scattered<'a>),
    MarkedSlice(&'a Marked<&'a [u8]>),
    Marked(&'a Marked<Scattered<'a>>),
    Spread(&'a Marked<At<'a>>),
}

impl<'a> Ulpdu<'a> {
    pub(super) const fn from_spread(fpdu: &'a Marked<At<'a>>) -> Self {
        Self { source: Source::Spread(fpdu), len: fpdu.layout.ulpdu_len() }
    }

    pub(super) const fn from_scattered(octets: Scattered<'a>) -> Self {
        Self { source: Source::Scattered(octets), len: octets.len() }
    }

    pub(super) const fn from_marked_slice(fpdu: &'a Marked<&'a [u8]>) -> Self {
        Self { source: Source::MarkedSlice(fpdu), len: fpdu.layout.ulpdu_len() }
    }

    pub(super) const fn from_marked(fpdu: &'a Marked<Scattered<'a>>) -> Self {
        Self { source: Source::Marked(fpdu), len: fpdu.layout.ulpdu_len() }
    }

    /// A ULPDU in one slice.
    #[must_use]
    pub const fn from_slice(octets: &'a [u8]) -> Self {
        Self { source: Source::Contiguous(octets), len: octets.len() }
    }

    /// Length in bytes, at least the configured minimum.
    #[must_use]
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a ULPDU that was passed up is never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// All of the ULPDU, if it lies in one slice.
    #[must_use]
    #[inline]
    pub const fn as_slice(&self) -> Option<&'a [u8]> {
        if let Source::Contiguous(octets) = self.source { Some(octets) } else { None }
    }

    /// Copies the first `N` bytes; `None` if the ULPDU is shorter.
    #[must_use]
    #[inline(always)]
    pub fn front<const N: usize>(&self) -> Option<[u8; N]> {
        // By reference: a copy of the enum would be read with loads of other sizes than the stores
        // just made, which the processor could not forward.
        match &self.source {
            Source::Contiguous(octets) => octets.first_chunk().copied(),
            Source::Scattered(octets) => octets.read(),
            // Common case: no marker among the first bytes.
            Source::MarkedSlice(fpdu) => fpdu.front().or_else(|| self.split_front()),
            Source::Marked(fpdu) => fpdu.front().or_else(|| self.split_front()),
            Source::Spread(_) => self.split_front(),
        }
    }

    #[inline(never)]
    fn split_front<const N: usize>(&self) -> Option<[u8; N]> {
        let mut front = [0; N];
        (self.copy_to(0, &mut front) == N).then_some(front)
    }

    /// The first [`HEAD_LEN`] bytes, or all if the ULPDU is shorter, in contiguous memory that does
    /// not change: in `scratch` unless they are in one piece of a slice.
    #[must_use]
    #[inline]
    pub fn head<'h>(&self, scratch: &'h mut [u8; HEAD_LEN]) -> &'h [u8]
    where
        'a: 'h,
    {
        let first = match self.source {
            Source::Contiguous(octets) => octets,
            Source::MarkedSlice(Marked { wire, layout }) => {
                let run = wire.get(layout.wire_of(LENGTH_LEN)..).unwrap_or_default();
                run.get(..layout.run_len_from(LENGTH_LEN)).unwrap_or(run)
            }
            Source::Scattered(_) | Source::Marked(_) | Source::Spread(_) => &[],
        };
        if let Some(head) = first.get(..self.len.min(HEAD_LEN)) {
            return head;
        }
        let copied = self.copy_to(0, scratch);
        scratch.get(..copied).unwrap_or_default()
    }

    /// Iterator over the bytes from `from` on, as non-empty runs in order.
    // spec: MPA-3-5
    #[inline]
    pub const fn chunks(&self, from: usize) -> Chunks<'a> {
        Chunks { ulpdu: *self, at: from }
    }

    /// Calls `each` with the bytes from `from` on, in runs as [`chunks`](Self::chunks) gives them.
    #[inline]
    pub(crate) fn for_each_chunk(&self, from: usize, mut each: impl FnMut(SharedSlice<'a>)) {
        match &self.source {
            Source::Contiguous(octets) => {
                each(SharedSlice::from_bytes(octets.get(from..).unwrap_or_default()));
            }
            Source::Scattered(octets) => {
                octets.for_each_run(from, octets.len().saturating_sub(from), each);
            }
            Source::MarkedSlice(fpdu) => fpdu.for_each_chunk(from, each),
            Source::Marked(fpdu) => fpdu.for_each_chunk(from, each),
            Source::Spread(fpdu) => fpdu.for_each_chunk(from, each),
        }
    }

    /// Copies bytes from `from` on to `out` until either ends. Returns the number of bytes copied.
    pub fn copy_to(&self, from: usize, out: &mut [u8]) -> usize {
        let mut done = 0;
        for chunk in self.chunks(from) {
            let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) else { break };
            let len = chunk.len().min(rest.len());
            if let Some(to) = rest.get_mut(..len) {
                chunk.copy_out(0, to);
            }
            done = done.saturating_add(len);
        }
        done
    }
}

/// The bytes of a [`Ulpdu`] as runs in order; see [`Ulpdu::chunks`].
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    ulpdu: Ulpdu<'a>,
    at: usize,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = SharedSlice<'a>;

    #[inline]
    fn next(&mut self) -> Option<SharedSlice<'a>> {
        let rest = self.ulpdu.len.checked_sub(self.at).filter(|rest| *rest > 0)?;
        let chunk = match self.ulpdu.source {
            Source::Contiguous(octets) => SharedSlice::from_bytes(octets.get(self.at..)?),
            Source::Scattered(octets) => octets.split_at_checked(self.at)?.1.runs().next()?,
            Source::MarkedSlice(fpdu) => fpdu.chunk(self.at, rest)?,
            Source::Marked(fpdu) => fpdu.chunk(self.at, rest)?,
            Source::Spread(fpdu) => fpdu.chunk(self.at, rest)?,
        };
        self.at = self.at.saturating_add(chunk.len());
        Some(chunk)
    }
}
