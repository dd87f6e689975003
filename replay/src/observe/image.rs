//! Memory that the observer invents for the steering tags it sees.

use std::collections::BTreeMap;
use std::ops::Bound;

use sha2::{Digest, Sha256};

use super::pages::{PAGE_LEN, PageFile, Slot};
use crate::limits::{
    EXTENTS_MAX, HOLE_BYTES_MAX, IMAGE_BYTES_MAX, IMAGE_MEMORY_MAX, Room, SPAN_MAX, STAGS_MAX,
};
use crate::report::hex;

/// Bytes placed under one steering tag: sparse, over all 64 bits of tagged offset.
#[derive(Debug, Default)]
pub(crate) struct Image {
    /// Extents by the offset of the first byte. They do not overlap; within a page no two are
    /// adjacent, and none extends into a second page: adding to one never moves more than a page.
    extents: BTreeMap<u64, Extent>,
    bytes: u64,
}

#[derive(Debug)]
enum Extent {
    Kept(Vec<u8>),
    /// A whole page, in the file.
    Filed(Slot),
}

impl Extent {
    const fn len(&self) -> usize {
        match self {
            Self::Kept(octets) => octets.len(),
            Self::Filed(_) => PAGE_LEN,
        }
    }
}

#[derive(Debug)]
pub(crate) struct ImageBudget {
    stags: Room,
    extents: Room,
    octets: Room,
    memory: Room,
    /// Bytes of memory that must stay free before whole pages go to the file.
    memory_spare: usize,
    pages: PageFile,
    hole_bytes: u64,
    is_off: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

impl ImageBudget {
    pub(crate) fn new() -> Self {
        Self::of(STAGS_MAX, EXTENTS_MAX, IMAGE_BYTES_MAX, HOLE_BYTES_MAX)
    }

    fn of(stags: usize, extents: usize, octets: usize, hole_bytes: u64) -> Self {
        let [stags, extents, octets] = [stags, extents, octets].map(Room::new);
        let (memory, memory_spare) = (Room::new(IMAGE_MEMORY_MAX), IMAGE_MEMORY_MAX / 2);
        let pages = PageFile::default();
        Self { stags, extents, octets, memory, memory_spare, pages, hole_bytes, is_off: false }
    }

    pub(crate) fn off() -> Self {
        Self { is_off: true, ..Self::of(0, 0, 0, 0) }
    }

    pub(crate) const fn is_off(&self) -> bool {
        self.is_off
    }

    pub(crate) fn image(&mut self) -> Option<Image> {
        self.stags.take(1).then(Image::default)
    }

    pub(crate) fn release(&mut self, image: &Image) {
        self.stags.give(1);
        self.extents.give(image.extents.len());
        self.octets.give(usize::try_from(image.bytes).expect("as many as were taken"));
        for extent in image.extents.values() {
            match extent {
                Extent::Kept(octets) => self.memory.give(octets.len()),
                Extent::Filed(slot) => self.pages.release(*slot),
            }
        }
    }

    /// Takes all or nothing.
    const fn take(&mut self, octets: usize, extents: usize) -> bool {
        let has_room = self.octets.left() >= octets
            && self.memory.left() >= octets
            && self.extents.left() >= extents;
        has_room
            && self.octets.take(octets)
            && self.memory.take(octets)
            && self.extents.take(extents)
    }

    /// Stores a whole page in the file if memory is short.
    fn extent(&mut self, octets: Vec<u8>) -> Extent {
        if octets.len() == PAGE_LEN
            && self.memory.left() < self.memory_spare
            && let Ok(slot) = self.pages.keep(&octets)
        {
            self.memory.give(PAGE_LEN);
            return Extent::Filed(slot);
        }
        Extent::Kept(octets)
    }
}

impl Image {
    /// Places bytes that end at or before 2⁶⁴. After an error some of them may have been placed.
    pub(crate) fn place(
        &mut self,
        at: u64,
        bytes: &[u8],
        budget: &mut ImageBudget,
    ) -> Result<(), OutOfMemory> {
        let mut done = 0;
        while done < bytes.len() {
            let position = at.wrapping_add(done as u64);
            let left_of_page = PAGE_LEN - usize::try_from(position % PAGE_LEN as u64).unwrap_or(0);
            let len = left_of_page.min(bytes.len() - done);
            self.place_in_page(position, &bytes[done..done + len], budget)?;
            done += len;
        }
        Ok(())
    }

    /// Overwrites bytes if all were written before, as applications do that reuse a buffer.
    fn place_again(
        &mut self,
        page: u64,
        at: u64,
        bytes: &[u8],
        pages: &PageFile,
    ) -> Result<bool, OutOfMemory> {
        let Some((first, extent)) = self.extents.range_mut(page..=at).next_back() else {
            return Ok(false);
        };
        let start = offset_in(*first, at);
        match extent {
            Extent::Kept(octets) => {
                let place = octets.get_mut(start..).and_then(|rest| rest.get_mut(..bytes.len()));
                let is_there = place.is_some();
                if let Some(place) = place {
                    place.copy_from_slice(bytes);
                }
                Ok(is_there)
            }
            Extent::Filed(slot) => {
                pages.write(*slot, start, bytes).map_err(|_| OutOfMemory)?;
                Ok(true)
            }
        }
    }

    fn place_in_page(
        &mut self,
        at: u64,
        bytes: &[u8],
        budget: &mut ImageBudget,
    ) -> Result<(), OutOfMemory> {
        let page = at - at % PAGE_LEN as u64;
        if self.place_again(page, at, bytes, &budget.pages)? {
            return Ok(());
        }
        let end_in_page = offset_in(page, at) + bytes.len();
        // The first byte after them, if it is in the page: an extent there is adjacent.
        let upto = page + (end_in_page as u64).min(PAGE_LEN as u64 - 1);
        let behind = (Bound::Excluded(at), Bound::Included(upto));
        let before = self.extents.range_mut(page..=at).next_back();
        let before = before.filter(|(first, extent)| offset_in(**first, at) <= extent.len());
        let before = before.map(|(first, _)| *first);
        let reached: Vec<u64> =
            before.into_iter().chain(self.extents.range(behind).map(|(first, _)| *first)).collect();
        let len_before: usize = reached.iter().map(|first| self.extents[first].len()).sum();
        let first = reached.first().map_or(at, |first| at.min(*first));
        let end_before =
            reached.last().map_or(0, |last| offset_in(page, *last) + self.extents[last].len());
        let len = end_before.max(end_in_page) - offset_in(page, first);
        // All bytes between the reached extents are now written.
        let more = len - len_before;
        if !budget.take(more, usize::from(reached.is_empty())) {
            return Err(OutOfMemory);
        }
        self.bytes += more as u64;
        let mut merged = match before {
            Some(before) => self.remove_kept(before),
            None => Vec::new(),
        };
        // At most the page: small additions do not move the whole extent each time.
        let capacity = len.next_power_of_two().min(PAGE_LEN);
        merged.reserve_exact(capacity - merged.len().min(capacity));
        merged.resize(len, 0);
        for other in reached.iter().filter(|other| Some(**other) != before) {
            let octets = self.remove_kept(*other);
            let start = offset_in(first, *other);
            merged[start..start + octets.len()].copy_from_slice(&octets);
        }
        let start = offset_in(first, at);
        merged[start..start + bytes.len()].copy_from_slice(bytes);
        self.extents.insert(first, budget.extent(merged));
        budget.extents.give(reached.len().saturating_sub(1));
        Ok(())
    }

    fn remove_kept(&mut self, first: u64) -> Vec<u8> {
        match self.extents.remove(&first) {
            Some(Extent::Kept(octets)) => octets,
            _ => unreachable!("an extent that is less than a page was found"),
        }
    }

    pub(crate) fn first_offset(&self) -> Option<u64> {
        self.extents.first_key_value().map(|(first, _)| *first)
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Hexadecimal, from the lowest to the highest byte written; holes count as zero. `None` if the
    /// range exceeds [`SPAN_MAX`], or the holes of all images their limit.
    pub(crate) fn sha256(&self, budget: &mut ImageBudget) -> Option<String> {
        let (&last, extent) = self.extents.last_key_value()?;
        let first = self.first_offset()?;
        let span = u128::from(last - first) + extent.len() as u128;
        if span > SPAN_MAX {
            return None;
        }
        let holes = u64::try_from(span).ok()?.checked_sub(self.bytes)?;
        budget.hole_bytes = budget.hole_bytes.checked_sub(holes)?;
        let mut digest = Sha256::new();
        let mut at = u128::from(first);
        let mut page = [0; PAGE_LEN];
        for (start, extent) in &self.extents {
            digest_zeros(&mut digest, u128::from(*start) - at);
            match extent {
                Extent::Kept(octets) => digest.update(octets),
                Extent::Filed(slot) => {
                    budget.pages.read(*slot, &mut page).ok()?;
                    digest.update(page);
                }
            }
            at = u128::from(*start) + extent.len() as u128;
        }
        Some(hex(&digest.finalize()))
    }
}

fn offset_in(from: u64, at: u64) -> usize {
    usize::try_from(at - from).expect("no more than a page")
}

fn digest_zeros(digest: &mut Sha256, mut count: u128) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    while count > 0 {
        let len = usize::try_from(count).unwrap_or(usize::MAX).min(ZEROS.len());
        digest.update(&ZEROS[..len]);
        count -= len as u128;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
    fn memory_is_bounded_by_pieces_and_by_octets() {
        let mut budget = ImageBudget::of(2, 2, 4, 0);
        let mut image = budget.image().unwrap();
        assert_eq!(image.place(0, &[1], &mut budget), Ok(()));
        assert_eq!(image.place(1 << 40, &[1], &mut budget), Ok(()));
        assert_eq!(image.place(1 << 50, &[1], &mut budget), Err(OutOfMemory), "a third piece");
        assert_eq!(image.place(1, &[1], &mut budget), Ok(()), "joins the first");
        assert_eq!(image.place(2, &[1, 1], &mut budget), Err(OutOfMemory), "a fifth byte");
        assert_eq!(image.place(2, &[1], &mut budget), Ok(()));
        assert_eq!(image.place(0, &[7, 7, 7], &mut budget), Ok(()), "written already");
        assert_eq!(image.bytes(), 4);
        budget.release(&image);
        let mut next = budget.image().unwrap();
        assert_eq!(next.place(5, &[1, 2, 3, 4], &mut budget), Ok(()), "all of it is there again");
        assert_eq!(next.place(1 << 20, &[], &mut budget), Ok(()));
        assert!(budget.image().is_some() && budget.image().is_none(), "two steering tags");
    }

    #[test]
    fn a_piece_costs_what_it_holds_and_not_its_page() {
        let mut budget = ImageBudget::new();
        let mut image = Image::default();
        for at in [0, 4095, 4096, 8191] {
            image.place(at, &[1], &mut budget).unwrap();
        }
        assert!(capacities(&image).all(|capacity| capacity < 16));
        // Piece by piece, as segments arrive: one extent for each page, and never longer than the
        // page.
        let mut image = Image::default();
        for at in (0..40_000).step_by(100) {
            image.place(at, &[3; 100], &mut budget).unwrap();
        }
        assert_eq!(image.extents.len(), 10);
        assert!(capacities(&image).all(|capacity| capacity <= PAGE_LEN));
    }

    fn capacities(image: &Image) -> impl Iterator<Item = usize> {
        image.extents.values().map(|extent| match extent {
            Extent::Kept(octets) => octets.capacity(),
            Extent::Filed(_) => panic!("nothing was filed"),
        })
    }

    #[test]
    fn much_that_is_placed_goes_to_a_file_and_is_digested_from_there() {
        let mut budget = ImageBudget::new();
        let mut image = budget.image().unwrap();
        let model: Vec<u8> = (0..=250).cycle().take(2 * IMAGE_MEMORY_MAX).collect();
        for (index, octets) in model.chunks(1440).enumerate() {
            image.place(1440 * index as u64, octets, &mut budget).unwrap();
        }
        assert!(budget.memory.left() >= budget.memory_spare - PAGE_LEN, "half of it is in memory");
        assert_eq!(image.sha256(&mut budget), Some(sha(&model)));
        // Parts of pages are not filed, so memory is used up.
        let mut other = budget.image().unwrap();
        let placed = (0..)
            .find(|page| other.place(page * PAGE_LEN as u64, &[1; 4000], &mut budget).is_err());
        let most = (IMAGE_MEMORY_MAX / 2 / 4000) as u64;
        assert!(placed.is_some_and(|pages| (most - 2..=most + 2).contains(&pages)), "{placed:?}");
        budget.release(&other);
        budget.release(&image);
        assert_eq!(budget.memory.left(), IMAGE_MEMORY_MAX);
    }

    #[test]
    fn the_work_for_holes_is_bounded_over_all_images() {
        let mut budget = ImageBudget::of(100, 100, 100, 25_000);
        let mut image = Image::default();
        image.place(0, &[1; 5], &mut budget).unwrap();
        image.place(20_000, &[1; 5], &mut budget).unwrap();
        assert!(image.sha256(&mut budget).is_some());
        assert_eq!(image.sha256(&mut budget), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn image_agrees_with_plain_memory(
            writes in proptest::collection::vec((3900_usize..4400, 1_usize..200, any::<u8>()), 1..60),
            files_pages in any::<bool>(),
        ) {
            let mut budget = ImageBudget::new();
            if files_pages {
                budget.memory_spare = usize::MAX;
            }
            let mut image = budget.image().unwrap();
            let mut model = vec![None; 5000];
            for (at, len, value) in writes {
                image.place(at as u64, &vec![value; len], &mut budget).unwrap();
                model[at..at + len].fill(Some(value));
            }
            let first = model.iter().position(Option::is_some).unwrap();
            let last = model.iter().rposition(Option::is_some).unwrap();
            let octets: Vec<u8> = model[first..=last].iter().map(|one| one.unwrap_or(0)).collect();
            prop_assert_eq!(image.first_offset(), Some(first as u64));
            prop_assert_eq!(image.bytes(), model.iter().flatten().count() as u64);
            prop_assert_eq!(image.sha256(&mut budget), Some(sha(&octets)));
            // All bytes are returned, and no two extents of a page are adjacent.
            let runs = (0..model.len() - 1).filter(|at| {
                model[*at].is_some() && (model[at + 1].is_none() || (at + 1) % PAGE_LEN == 0)
            });
            prop_assert_eq!(image.extents.len(), runs.count());
            budget.release(&image);
            prop_assert!(budget.octets.take(IMAGE_BYTES_MAX) && budget.extents.take(EXTENTS_MAX));
            prop_assert!(budget.memory.take(IMAGE_MEMORY_MAX));
        }
    }
}
