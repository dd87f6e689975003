//! Rates and ranges over time, in equal intervals.

use super::marks::Canvas;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bin {
    pub(crate) octets: u64,
    pub(crate) octets_again: u64,
    pub(crate) window: Option<(u64, u64)>,
    pub(crate) rtt: Option<(u64, u64)>,
}

#[derive(Debug)]
pub(crate) struct Bins {
    canvas: Canvas,
    count: u32,
    pub(crate) bins: Vec<Bin>,
}

impl Bins {
    /// Makes bins of at least `step_ns`, the step of the timestamps: a shorter one would have the
    /// rate of a frame in no time.
    pub(crate) fn new(canvas: &Canvas, step_ns: u64) -> Self {
        let steps = canvas.drawn_span() / step_ns.max(1);
        let count = u32::try_from(steps).unwrap_or(u32::MAX).clamp(1, BINS_MAX);
        Self { canvas: *canvas, count, bins: vec![Bin::default(); count as usize] }
    }

    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    /// Shortened pauses count as they are drawn.
    pub(crate) fn bin_ns(&self) -> u64 {
        (self.canvas.drawn_span() / u64::from(self.count)).max(1)
    }

    fn at(&mut self, at_ns: u64) -> &mut Bin {
        let index = self.canvas.column(at_ns, self.count);
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

const BINS_MAX: u32 = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Extent;

    #[test]
    fn no_part_is_shorter_than_the_step_of_timestamps() {
        let canvas = Canvas::new(&Extent { last_ns: 1_000_000, ..Extent::default() }, 1);
        for (step_ns, count) in [(0, 200), (1, 200), (5000, 200), (10_000, 100), (2_000_000, 1)] {
            let mut bins = Bins::new(&canvas, step_ns);
            assert_eq!((bins.count(), bins.bins.len()), (count, count as usize), "{step_ns}");
            assert_eq!(bins.bin_ns(), 1_000_000 / u64::from(count));
            bins.octets(1_000_000, 7, false);
            assert_eq!(bins.bins.last().map(|bin| bin.octets), Some(7));
        }
    }
}
