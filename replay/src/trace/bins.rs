//! Rates and ranges over time, in equal parts of it.

use super::marks::Canvas;

/// What there was in one part of the time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bin {
    pub(crate) octets: u64,
    pub(crate) octets_again: u64,
    /// Lowest and highest.
    pub(crate) window: Option<(u64, u64)>,
    pub(crate) rtt: Option<(u64, u64)>,
}

/// All parts.
#[derive(Debug)]
pub(crate) struct Bins {
    canvas: Canvas,
    pub(crate) bins: Vec<Bin>,
}

impl Bins {
    pub(crate) fn new(canvas: &Canvas) -> Self {
        Self { canvas: *canvas, bins: vec![Bin::default(); BINS as usize] }
    }

    /// Time of one part; pauses that are drawn shorter are counted as they are drawn.
    pub(crate) fn bin_ns(&self) -> u64 {
        (self.canvas.drawn_span() / u64::from(BINS)).max(1)
    }

    fn at(&mut self, at_ns: u64) -> &mut Bin {
        let index = self.canvas.column(at_ns, BINS);
        &mut self.bins[index as usize]
    }

    pub(crate) fn octets(&mut self, at_ns: u64, octets: u64, is_again: bool) {
        let bin = self.at(at_ns);
        *(if is_again { &mut bin.octets_again } else { &mut bin.octets }) += octets;
    }

    pub(crate) fn window(&mut self, at_ns: u64, window: u64) {
        widen(&mut self.at(at_ns).window, window);
    }

    pub(crate) fn rtt(&mut self, at_ns: u64, rtt: u64) {
        widen(&mut self.at(at_ns).rtt, rtt);
    }
}

fn widen(range: &mut Option<(u64, u64)>, value: u64) {
    let (low, high) = range.unwrap_or((value, value));
    *range = Some((low.min(value), high.max(value)));
}

/// Parts of the time.
pub(crate) const BINS: u32 = 200;
