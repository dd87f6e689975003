//! Table of connection numbers by the hashes of their addresses, seven entries in a cache line. The
//! addresses are compared in the connection. So the table of ten thousand connections has 128 KiB,
//! and a look-up usually reads one cache line. An entry is in the line of its hash or, if that was
//! full, in the next line that had room. Each line counts the entries that were stored in a later
//! line because it was full. A look-up stops at a line whose count is 0.

#[derive(Debug, Default)]
pub(super) struct Table {
    /// Empty, or a power of two in length.
    lines: Vec<Line>,
    len: usize,
}

const ENTRIES: usize = 7;
/// On average, before the number of lines doubles: one entry in ten is then in another line.
const ENTRIES_USUAL: usize = 5;
const VACANT: u32 = u32::MAX;

/// Most bytes per entry: when the table has just doubled.
pub(super) const ENTRY_BYTES_MAX: usize = 2 * size_of::<Line>() / ENTRIES_USUAL + 1;

#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Line {
    hashes: [u32; ENTRIES],
    numbers: [u32; ENTRIES],
    /// Entries that are in a later line because this one was full.
    passed: u32,
}

const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    const EMPTY: Self = Self { hashes: [0; ENTRIES], numbers: [VACANT; ENTRIES], passed: 0 };

    #[inline(always)]
    fn position(&self, hash: u32, is_right: impl Fn(u32) -> bool) -> Option<usize> {
        // Without a branch for each: the processor could not predict which entry matches.
        let equal = |place| u32::from(self.hashes[place] == hash) << place;
        let mut places = (0..ENTRIES).fold(0, |places, place| places | equal(place));
        while places != 0 {
            let place = places.trailing_zeros() as usize;
            let number = self.numbers[place];
            if number != VACANT && is_right(number) {
                return Some(place);
            }
            places &= places - 1;
        }
        None
    }
}

impl Table {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    const fn home(&self, hash: u32) -> usize {
        hash as usize & (self.lines.len() - 1)
    }

    /// Beginning with the line of this hash.
    #[inline(always)]
    fn places(&self, hash: u32) -> impl Iterator<Item = usize> + use<> {
        let count = self.lines.len();
        let home = if count == 0 { 0 } else { self.home(hash) };
        (home..home + count).map(move |line| line & (count - 1))
    }

    #[inline(always)]
    fn position(&self, hash: u32, is_right: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        for at in self.places(hash) {
            let line = &self.lines[at];
            if let Some(place) = line.position(hash, &is_right) {
                return Some((at, place));
            }
            if line.passed == 0 {
                return None;
            }
        }
        None
    }

    #[inline]
    pub(super) fn find(&self, hash: u32, is_right: impl Fn(u32) -> bool) -> Option<u32> {
        self.position(hash, is_right).map(|(at, place)| self.lines[at].numbers[place])
    }

    pub(super) fn insert(&mut self, hash: u32, number: u32) {
        debug_assert!(number != VACANT, "numbers are bounded by limits");
        if self.len == ENTRIES_USUAL * self.lines.len() {
            self.grow();
        }
        self.len += 1;
        self.place(hash, number);
    }

    fn place(&mut self, hash: u32, number: u32) {
        for at in self.places(hash) {
            let line = &mut self.lines[at];
            if let Some(place) = line.numbers.iter().position(|number| *number == VACANT) {
                (line.hashes[place], line.numbers[place]) = (hash, number);
                return;
            }
            line.passed += 1;
        }
        unreachable!("there is room for more entries than are let in");
    }

    fn grow(&mut self) {
        let count = (2 * self.lines.len()).max(1);
        let before = std::mem::replace(&mut self.lines, vec![Line::EMPTY; count]);
        for line in before {
            for (hash, number) in line.hashes.into_iter().zip(line.numbers) {
                if number != VACANT {
                    self.place(hash, number);
                }
            }
        }
    }

    /// Returns true if there was one.
    pub(super) fn remove(&mut self, hash: u32, number: u32) -> bool {
        let Some((found, place)) = self.position(hash, |other| other == number) else {
            return false;
        };
        for at in self.places(hash).take_while(|at| *at != found) {
            self.lines[at].passed -= 1;
        }
        self.lines[found].numbers[place] = VACANT;
        self.len -= 1;
        true
    }

    /// Returns true if there was one.
    pub(super) fn renumber(&mut self, hash: u32, from: u32, to: u32) -> bool {
        let found = self.position(hash, |other| other == from);
        if let Some((at, place)) = found {
            self.lines[at].numbers[place] = to;
        }
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a different hash for each number; with `collide`, one hash for each eight numbers.
    fn hash(number: u32, collide: bool) -> u32 {
        let of = if collide { number / 8 } else { number };
        of.wrapping_mul(0x9e37_79b9) ^ of.wrapping_mul(0x85eb_ca6b) >> 16
    }

    fn find(table: &Table, number: u32, collide: bool) -> Option<u32> {
        table.find(hash(number, collide), |other| other == number)
    }

    #[test]
    fn entry_is_found_until_its_removal() {
        for collide in [false, true] {
            let mut table = Table::default();
            assert_eq!(find(&table, 0, collide), None);
            for number in 0..10_000 {
                table.insert(hash(number, collide), number);
            }
            assert!(!table.remove(hash(0, collide), 10_000));
            for number in (0..10_000).filter(|number| number % 3 != 0) {
                assert!(table.remove(hash(number, collide), number));
                assert!(!table.remove(hash(number, collide), number));
            }
            for number in 0..10_000 {
                let expected = (number % 3 == 0).then_some(number);
                assert_eq!(find(&table, number, collide), expected, "{collide}");
            }
            for number in (0..10_000).step_by(3) {
                assert!(table.remove(hash(number, collide), number));
            }
            assert_eq!(table.len(), 0);
            // No line counts a passing entry: a look-up in vain reads one line.
            assert!(table.lines.iter().all(|line| line.passed == 0));
        }
    }

    #[test]
    fn inserting_and_removing_does_not_grow_the_table() {
        let mut table = Table::default();
        for number in 0..100_000 {
            table.insert(hash(number, false), number);
            if let Some(old) = number.checked_sub(1000) {
                assert!(table.remove(hash(old, false), old));
            }
        }
        assert_eq!((table.len(), table.lines.len()), (1000, 256));
        assert!((99_000..100_000).all(|number| find(&table, number, false) == Some(number)));
    }

    #[test]
    fn rename_changes_a_number_under_the_same_hash() {
        let mut table = Table::default();
        (0..100).for_each(|number| table.insert(hash(number, true), number));
        assert!(table.renumber(hash(17, true), 17, 1017));
        assert!(!table.renumber(hash(17, true), 17, 1017));
        assert_eq!(table.find(hash(17, true), |number| number == 1017), Some(1017));
        assert_eq!(find(&table, 17, true), None);
        assert_eq!(find(&table, 18, true), Some(18));
    }
}
