//! Slots for connections, each identified by a number. The slot freed last is used next. A slot's
//! address is computed without reading it, so it can be prefetched.

use std::ops::{Index, IndexMut, Range};

use crate::mem::region::prefetch::prefetch_part;

#[derive(Debug)]
pub(super) struct Slots<T> {
    places: Vec<Option<T>>,
    /// Free slots; the last one is used next.
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    pub(super) const fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn vacant(&self) -> u32 {
        let behind = || number(self.places.len());
        self.free.last().copied().unwrap_or_else(behind)
    }

    pub(super) fn insert(&mut self, one: T) {
        match self.free.pop() {
            Some(place) => self.places[place as usize] = Some(one),
            None => self.places.push(Some(one)),
        }
    }

    /// Panics if the slot is empty.
    pub(super) fn remove(&mut self, number: u32) -> T {
        let one = self.places[number as usize].take().expect("it has a place");
        self.free.push(number);
        one
    }

    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.places.get(number as usize)?.as_ref()
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.places.get_mut(number as usize)?.as_mut()
    }

    /// `parts` are offsets in `T`: with the tag of `Option<T>` first, earlier bytes are prefetched.
    #[inline(always)]
    pub(super) fn prefetch(&self, number: u32, parts: &[Range<usize>]) {
        if let Some(place) = self.places.get(number as usize) {
            parts.iter().for_each(|part| prefetch_part(place, part));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbered = self.places.iter().enumerate();
        numbered.filter_map(|(place, one)| Some((number(place), one.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten()
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, number: u32) -> &T {
        self.get(number).expect("it has a place")
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    #[inline(always)]
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.get_mut(number).expect("it has a place")
    }
}

fn number(place: usize) -> u32 {
    u32::try_from(place).expect("bounded by CONNECTIONS_MAX")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vacant_slot_is_reused_before_growth() {
        let mut slots = Slots::new();
        for number in 0..5 {
            assert_eq!(slots.vacant(), number);
            slots.insert(10 * number);
        }
        assert_eq!((slots.remove(1), slots.remove(3), slots.len()), (10, 30, 3));
        assert_eq!((slots.get(1), slots.get(3), slots.get(5)), (None, None, None));
        assert_eq!(slots.get_mut(3), None);
        let all: Vec<_> = slots.iter().collect();
        assert_eq!(all, [(0, &0), (2, &20), (4, &40)]);
        slots.prefetch(1, &[0..4, 0..1]);
        slots.prefetch(5, &[0..4, 0..1]);
        for (expected, one) in [(3, 7), (1, 8), (5, 9)] {
            assert_eq!(slots.vacant(), expected);
            slots.insert(one);
            assert_eq!(slots[expected], one);
        }
        slots.iter_mut().for_each(|one| *one += 1);
        assert_eq!(slots.iter().map(|(_, one)| *one).sum::<u32>(), 1 + 9 + 21 + 8 + 41 + 10);
        for number in 0..6 {
            slots.remove(number);
        }
        assert!(slots.is_empty());
    }
}
