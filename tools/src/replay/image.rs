//! Memory that the observer makes up for the steering tags it sees.

use std::collections::BTreeMap;
use std::ops::Range;

use sha2::{Digest, Sha256};

use super::ranges::RangeSet;
use super::report::hex;

/// What was placed under one steering tag: sparse, over all 64 bits of tagged offset.
#[derive(Debug, Default)]
pub(super) struct Image {
    /// By page number.
    pages: BTreeMap<u64, Box<Page>>,
    written: RangeSet,
    bytes: u64,
}

/// Bounds the memory of all images of a file, and the work to digest them.
#[derive(Debug)]
pub(super) struct ImageBudget {
    pages: usize,
    hole_octets: u64,
}

/// No memory is left for images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutOfMemory;

impl ImageBudget {
    pub(super) const fn new() -> Self {
        Self { pages: PAGES_MAX, hole_octets: HOLE_OCTETS_MAX }
    }

    #[cfg(test)]
    const fn of(pages: usize, hole_octets: u64) -> Self {
        Self { pages, hole_octets }
    }
}

impl Image {
    /// Places octets at a tagged offset. The caller made sure that they end at or before 2⁶⁴.
    ///
    /// # Errors
    /// When the budget is used up; some of the octets may have been placed then.
    pub(super) fn place(
        &mut self,
        at: u64,
        bytes: &[u8],
        budget: &mut ImageBudget,
    ) -> Result<(), OutOfMemory> {
        let mut done = 0;
        while done < bytes.len() {
            let position = at.wrapping_add(done as u64);
            let (number, offset) = split(position);
            let len = (PAGE_LEN - offset).min(bytes.len() - done);
            let page = match self.pages.get_mut(&number) {
                Some(page) => page,
                None => {
                    budget.pages = budget.pages.checked_sub(1).ok_or(OutOfMemory)?;
                    self.pages.entry(number).or_insert_with(|| Box::new([0; PAGE_LEN]))
                }
            };
            page[offset..offset + len].copy_from_slice(&bytes[done..done + len]);
            let start = u128::from(position);
            let new = self.written.insert(start..start + len as u128);
            self.bytes += u64::try_from(new).expect("no more than a page");
            done += len;
        }
        Ok(())
    }

    /// The lowest offset written; `None` when nothing was.
    pub(super) fn first_offset(&self) -> Option<u64> {
        self.written.span().and_then(|span| u64::try_from(span.start).ok())
    }

    /// Distinct octets written.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// SHA-256, in hexadecimal, over everything from the lowest to the highest octet written; octets
    /// never written count as zero. `None` when that is more than [`SPAN_MAX`], or when the holes of
    /// all images together are more than this tool is willing to digest.
    pub(super) fn sha256(&self, budget: &mut ImageBudget) -> Option<String> {
        let span = self.written.span()?;
        if span.end - span.start > SPAN_MAX {
            return None;
        }
        let holes = span.end - span.start - u128::from(self.bytes);
        budget.hole_octets = budget.hole_octets.checked_sub(u64::try_from(holes).ok()?)?;
        let mut digest = Sha256::new();
        let mut at = span.start;
        for range in self.written.iter() {
            digest_zeros(&mut digest, range.start - at);
            self.digest_written(&mut digest, range.clone());
            at = range.end;
        }
        Some(hex(&digest.finalize()))
    }

    fn digest_written(&self, digest: &mut Sha256, range: Range<u128>) {
        let mut at = range.start;
        while at < range.end {
            let position = u64::try_from(at).expect("tagged offsets have 64 bits");
            let (number, offset) = split(position);
            let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let len = (PAGE_LEN - offset).min(left);
            let page = self.pages.get(&number).expect("octets written are in a page");
            digest.update(&page[offset..offset + len]);
            at += len as u128;
        }
    }
}

/// The page of a position, and where in it.
fn split(position: u64) -> (u64, usize) {
    let len = PAGE_LEN as u64;
    let offset = usize::try_from(position % len).expect("below the length of a page");
    (position / len, offset)
}

fn digest_zeros(digest: &mut Sha256, mut count: u128) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    while count > 0 {
        let len = usize::try_from(count).unwrap_or(usize::MAX).min(ZEROS.len());
        digest.update(&ZEROS[..len]);
        count -= len as u128;
    }
}

type Page = [u8; PAGE_LEN];

const PAGE_LEN: usize = 4096;
/// Pages of all images of a file together: 2 GiB.
const PAGES_MAX: usize = (2 << 30) / PAGE_LEN;
/// Octets never written, over all images of a file, that are digested: 4 GiB.
const HOLE_OCTETS_MAX: u64 = 4 << 30;
/// The longest image that is digested: 1 GiB.
const SPAN_MAX: u128 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn sha(bytes: &[u8]) -> String {
        hex(&Sha256::digest(bytes))
    }

    #[test]
    fn holes_are_zero_and_the_last_write_wins() {
        let mut budget = ImageBudget::new();
        let mut image = Image::default();
        let base = 0x7f00_0000_0ff0;
        let mut model = vec![0; 20_000];
        for (at, len, value) in [(19_000, 1000, 1), (0, 50, 2), (4000, 9000, 3), (30, 4000, 4)] {
            image.place(base + at as u64, &vec![value; len], &mut budget).unwrap();
            model[at..at + len].fill(value);
        }
        assert_eq!(image.first_offset(), Some(base));
        assert_eq!(image.bytes(), 1000 + 13_000);
        assert_eq!(image.sha256(&mut budget), Some(sha(&model)));
    }

    #[test]
    fn the_ends_of_the_address_space_are_one_image_too_wide_to_digest() {
        let mut budget = ImageBudget::new();
        let mut image = Image::default();
        image.place(u64::MAX - 3, &[1, 2, 3, 4], &mut budget).unwrap();
        assert_eq!(image.sha256(&mut budget), Some(sha(&[1, 2, 3, 4])));
        image.place(0, &[9], &mut budget).unwrap();
        assert_eq!((image.first_offset(), image.bytes()), (Some(0), 5));
        assert_eq!(image.sha256(&mut budget), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut budget = ImageBudget::of(2, 0);
        let mut image = Image::default();
        assert_eq!(image.place(0, &[1], &mut budget), Ok(()));
        assert_eq!(image.place(1 << 40, &[1], &mut budget), Ok(()));
        assert_eq!(image.place(1 << 50, &[1], &mut budget), Err(OutOfMemory));
        assert_eq!(image.place(1, &[1], &mut budget), Ok(()));
        assert_eq!(image.bytes(), 3);
    }

    #[test]
    fn the_work_for_holes_is_bounded_over_all_images() {
        let mut budget = ImageBudget::of(100, 25_000);
        let mut image = Image::default();
        image.place(0, &[1; 5], &mut budget).unwrap();
        image.place(20_000, &[1; 5], &mut budget).unwrap();
        assert!(image.sha256(&mut budget).is_some());
        assert_eq!(image.sha256(&mut budget), None);
    }
}
