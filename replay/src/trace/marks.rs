//! Marks of a picture: a bounded number for any number of events.
//!
//! Marks in the same cell of a grid as fine as the picture are merged into one that covers and
//! counts them. If there are still too many, the cells are doubled: no event is left out.

use std::collections::BTreeMap;

use super::Extent;
use super::pauses::Pauses;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Canvas {
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) len: u64,
    pub(crate) pauses: Pauses,
}

impl Canvas {
    pub(crate) fn new(extent: &Extent, len: u64) -> Self {
        let first_ns = extent.first_ns.min(u64::MAX - 1);
        let last_ns = extent.last_ns.max(first_ns + 1);
        let pauses = extent.pauses.of(last_ns - first_ns);
        Self { first_ns, last_ns, len: len.max(1), pauses }
    }

    pub(crate) fn with_len(self, len: u64) -> Self {
        Self { len: len.max(1), ..self }
    }

    pub(crate) fn drawn(&self, at_ns: u64) -> u64 {
        let at_ns = at_ns.clamp(self.first_ns, self.last_ns);
        at_ns - self.first_ns - self.pauses.cut_before(at_ns)
    }

    pub(crate) fn drawn_span(&self) -> u64 {
        self.drawn(self.last_ns).max(1)
    }

    pub(crate) const fn span_ns(&self) -> u64 {
        self.last_ns - self.first_ns
    }

    pub(crate) fn column(&self, at_ns: u64, count: u32) -> u32 {
        scale(self.drawn(at_ns), self.drawn_span(), count)
    }

    pub(crate) fn row(&self, octet: u64, count: u32) -> u32 {
        scale(octet.min(self.len), self.len, count)
    }
}

fn scale(part: u64, whole: u64, count: u32) -> u32 {
    let scaled = u128::from(part) * u128::from(count) / u128::from(whole);
    u32::try_from(scaled).unwrap_or(count).min(count.saturating_sub(1))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) at_ns: (u64, u64),
    pub(crate) octets: (u64, u64),
    pub(crate) frame: u64,
    pub(crate) count: u64,
}

#[derive(Debug)]
pub(crate) struct Marks {
    canvas: Canvas,
    cells: BTreeMap<(u32, u32), Mark>,
    columns: u32,
    rows: u32,
    max: usize,
    count: u64,
}

impl Marks {
    pub(crate) const fn new(canvas: Canvas, max: usize) -> Self {
        Self { canvas, cells: BTreeMap::new(), columns: 1024, rows: 512, max, count: 0 }
    }

    /// Creates marks along the bytes, for any time.
    pub(crate) const fn along(canvas: Canvas, max: usize) -> Self {
        Self { canvas, cells: BTreeMap::new(), columns: 1, rows: 1 << 12, max, count: 0 }
    }

    pub(crate) fn add(&mut self, mark: Mark) {
        self.count += mark.count;
        self.merge(mark);
        while self.cells.len() > self.max {
            self.columns = (self.columns / 2).max(1);
            self.rows = (self.rows / 2).max(1);
            for mark in std::mem::take(&mut self.cells).into_values() {
                self.merge(mark);
            }
        }
    }

    fn merge(&mut self, mark: Mark) {
        let column = self.canvas.column(mark.at_ns.0, self.columns);
        let row = self.canvas.row(mark.octets.0, self.rows);
        let known = self.cells.entry((column, row)).or_insert(Mark { count: 0, ..mark });
        known.at_ns = (known.at_ns.0.min(mark.at_ns.0), known.at_ns.1.max(mark.at_ns.1));
        known.octets = (known.octets.0.min(mark.octets.0), known.octets.1.max(mark.octets.1));
        known.frame = known.frame.min(mark.frame);
        known.count += mark.count;
    }

    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Iterates by time, then by byte.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mark> + '_ {
        self.cells.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_few_and_no_event_is_left_out() {
        let canvas = Canvas::new(&Extent { last_ns: 1_000_000, ..Extent::default() }, 1_000_000);
        let mut marks = Marks::new(canvas, 500);
        // All over the picture: more cells than allowed marks.
        for number in 0..100_000_u64 {
            let (at, octet) = (number * 7919 % 1_000_000, number * 104_729 % 1_000_000);
            marks.add(Mark { at_ns: (at, at), octets: (octet, octet), frame: number, count: 1 });
        }
        assert!(marks.iter().count() <= 500);
        assert_eq!(marks.count(), 100_000);
        assert_eq!(marks.iter().map(|mark| mark.count).sum::<u64>(), 100_000);
        for number in 0..100_000_u64 {
            let (at, octet) = (number * 7919 % 1_000_000, number * 104_729 % 1_000_000);
            let is_covered = |mark: &Mark| {
                (mark.at_ns.0..=mark.at_ns.1).contains(&at)
                    && (mark.octets.0..=mark.octets.1).contains(&octet)
            };
            assert!(number % 997 > 0 || marks.iter().any(is_covered), "{number}");
        }
    }

    #[test]
    fn empty_picture_maps_every_value_inside_the_canvas() {
        let canvas = Canvas::new(&Extent { first_ns: 5, last_ns: 5, ..Extent::default() }, 0);
        assert_eq!((canvas.column(u64::MAX, 10), canvas.row(u64::MAX, 10)), (9, 9));
        assert_eq!((canvas.column(0, 10), canvas.row(0, 10)), (0, 0));
    }
}
