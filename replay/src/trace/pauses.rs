//! Pauses of a connection, which pictures shorten so that they are not mostly empty.

/// Pauses in the order of time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pauses {
    /// Start and end; unused entries are empty.
    pauses: [(u64, u64); PAUSES_MAX],
    drawn_ns: u64,
}

impl Pauses {
    pub(crate) fn note(&mut self, from_ns: u64, until_ns: u64) {
        let len = |(from, until): (u64, u64)| until.saturating_sub(from);
        let shortest = self.pauses.iter_mut().min_by_key(|pause| len(**pause));
        if let Some(shortest) = shortest
            && len((from_ns, until_ns)) > len(*shortest)
        {
            *shortest = (from_ns, until_ns);
        }
    }

    /// Keeps the pauses that are long compared with the rest of `span_ns`.
    pub(crate) fn of(mut self, span_ns: u64) -> Self {
        let len = |(from, until): (u64, u64)| until.saturating_sub(from);
        let rest = |pauses: &[(u64, u64)]| {
            let paused = pauses.iter().fold(0, |sum: u64, pause| sum.saturating_add(len(*pause)));
            span_ns.saturating_sub(paused)
        };
        let least = rest(&self.pauses) / 3;
        for pause in &mut self.pauses {
            if len(*pause) <= least {
                *pause = (0, 0);
            }
        }
        let rest = rest(&self.pauses);
        self.drawn_ns = (rest / 16).max(1);
        self.pauses.sort_unstable();
        // If the clock jumps, pauses overlap: then no pause is shortened.
        let overlap = self.pauses.windows(2).any(|pair| pair[1].0 < pair[0].1);
        if overlap { Self::default() } else { self }
    }

    /// Time that is not drawn, of all time before `at_ns`.
    pub(crate) fn cut_before(&self, at_ns: u64) -> u64 {
        self.iter()
            .map(|(from, until)| {
                let len = until - from;
                let cut = len.saturating_sub(self.drawn_ns);
                let passed = at_ns.clamp(from, until) - from;
                let cut = u128::from(cut) * u128::from(passed) / u128::from(len);
                u64::try_from(cut).unwrap_or(0)
            })
            .sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.pauses.iter().copied().filter(|(from, until)| from < until)
    }
}

const PAUSES_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pauses_are_shortened_and_time_never_goes_back() {
        let mut pauses = Pauses::default();
        for (from, until) in [(100, 110), (200, 5200), (5300, 5301), (5400, 9400), (9500, 9502)] {
            pauses.note(from, until);
        }
        let pauses = pauses.of(10_000);
        assert_eq!(pauses.iter().collect::<Vec<_>>(), [(200, 5200), (5400, 9400)]);
        assert_eq!([200, 5200, 9999].map(|at| pauses.cut_before(at)), [0, 4938, 4938 + 3938]);
        let drawn: Vec<u64> = (0..10_000).map(|at| at - pauses.cut_before(at)).collect();
        assert!(drawn.is_sorted());
    }

    #[test]
    fn pauses_of_a_clock_that_jumps_are_left_as_they_are() {
        let mut pauses = Pauses::default();
        pauses.note(0, 900);
        pauses.note(500, 1000);
        assert_eq!(pauses.of(1000).iter().count(), 0);
    }
}
