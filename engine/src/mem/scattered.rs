//! Bytes in several runs of memory that may change.

use urnic_netdev::SharedSlice;

/// Bytes in several runs of memory, in order. Refers to the runs, and copies as cheaply as a slice.
#[derive(Clone, Copy, Debug)]
pub struct Scattered<'a> {
    first: SharedSlice<'a>,
    rest: &'a [SharedSlice<'a>],
    /// Length in bytes, at most that of the runs.
    len: usize,
}

impl<'a> Scattered<'a> {
    /// The bytes of `first`, followed by those of `rest`.
    #[must_use]
    pub fn new(first: SharedSlice<'a>, rest: &'a [SharedSlice<'a>]) -> Self {
        let len = first.len() + rest.iter().map(SharedSlice::len).sum::<usize>();
        Self { first, rest, len }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `at` bytes, and the bytes after them; `None` if there are fewer than `at`.
    #[must_use]
    #[inline]
    pub fn split_at_checked(&self, at: usize) -> Option<(Self, Self)> {
        let left = self.len.checked_sub(at)?;
        let front = Self { len: at, ..*self };
        if at < self.first.len() {
            let first = self.first.part(at, self.first.len() - at);
            return Some((front, Self { first, len: left, ..*self }));
        }
        let (mut into, mut rest) = (at - self.first.len(), self.rest);
        while let Some((run, behind)) = rest.split_first() {
            rest = behind;
            if into < run.len() {
                let first = run.part(into, run.len() - into);
                return Some((front, Self { first, rest, len: left }));
            }
            into -= run.len();
        }
        Some((front, Self { first: SharedSlice::from_bytes(&[]), rest, len: left }))
    }

    /// All bytes, if they are in one run.
    #[must_use]
    #[inline]
    pub fn as_run(&self) -> Option<SharedSlice<'a>> {
        (self.len <= self.first.len()).then(|| self.first.part(0, self.len))
    }

    /// Non-empty runs in order.
    #[inline]
    pub fn runs(&self) -> impl Iterator<Item = SharedSlice<'a>> + use<'a> {
        std::iter::once(self.first)
            .chain(self.rest.iter().copied())
            .scan(self.len, |left, run| {
                let len = run.len().min(*left);
                let is_over = *left == 0;
                *left -= len;
                (!is_over).then(|| run.part(0, len))
            })
            .filter(|run| !run.is_empty())
    }

    /// Copies the first bytes to `out`, until either ends. Returns the number of bytes copied.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let mut done = 0;
        for run in self.runs() {
            let len = run.len().min(out.len() - done);
            run.part(0, len).copy_out(0, &mut out[done..done + len]);
            done += len;
            if done == out.len() {
                break;
            }
        }
        done
    }

    /// Copies the first `N` bytes; `None` if there are fewer.
    #[must_use]
    #[inline]
    pub fn read<const N: usize>(&self) -> Option<[u8; N]> {
        let mut octets = [0; N];
        if N <= self.first.len() && N <= self.len {
            self.first.copy_out(0, &mut octets);
            return Some(octets);
        }
        (self.copy_to(&mut octets) == N).then_some(octets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn octets(scattered: &Scattered<'_>) -> Vec<u8> {
        let mut all = vec![0; scattered.len()];
        assert_eq!(scattered.copy_to(&mut all), all.len());
        let runs: Vec<u8> = scattered
            .runs()
            .flat_map(|run| {
                assert!(!run.is_empty());
                let mut octets = vec![0; run.len()];
                run.copy_out(0, &mut octets);
                octets
            })
            .collect();
        assert_eq!(runs, all);
        all
    }

    #[test]
    fn every_split_has_the_octets_before_and_behind_it() {
        let rest = [&b""[..], b"cde", b"", b"f", b"ghij", b""].map(SharedSlice::from_bytes);
        for first in [&b"ab"[..], b""] {
            let all = Scattered::new(SharedSlice::from_bytes(first), &rest);
            let expected = [first, b"cdefghij"].concat();
            assert_eq!((octets(&all), all.len()), (expected.clone(), expected.len()));
            for at in 0..=expected.len() {
                let (front, back) = all.split_at_checked(at).unwrap();
                assert_eq!((&octets(&front)[..], &octets(&back)[..]), expected.split_at(at));
                for again in 0..=back.len() {
                    let (front, back) = back.split_at_checked(again).unwrap();
                    let (expected_front, expected_back) = expected[at..].split_at(again);
                    assert_eq!(
                        (&octets(&front)[..], &octets(&back)[..]),
                        (expected_front, expected_back)
                    );
                }
                assert_eq!(
                    back.read::<3>().map(|read| read.to_vec()),
                    expected[at..].get(..3).map(<[u8]>::to_vec)
                );
                assert_eq!(
                    front.read::<2>().map(|read| read.to_vec()),
                    expected[..at].get(..2).map(<[u8]>::to_vec)
                );
            }
            assert!(all.split_at_checked(expected.len() + 1).is_none());
        }
    }

    #[test]
    fn copy_stops_at_the_end_of_the_destination() {
        let rest = [SharedSlice::from_bytes(b"cd")];
        let all = Scattered::new(SharedSlice::from_bytes(b"ab"), &rest);
        let mut three = [0; 3];
        assert_eq!(all.copy_to(&mut three), 3);
        assert_eq!(&three, b"abc");
    }
}
