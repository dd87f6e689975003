//! Prefetching: with many connections the state of the next one is in no cache. Code that reads it
//! field by field waits for memory each time; prefetched lines are loaded in parallel.
#![expect(unsafe_code, reason = "the processor's instruction takes an address")]

use std::collections::VecDeque;
use std::ops::Range;
use std::ptr;

const LINE_LEN: usize = 64;

#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    prefetch_lines(ptr::from_ref(value).cast(), size_of::<T>());
}

#[inline(always)]
pub(crate) fn prefetch_part<T>(value: &T, part: &Range<usize>) {
    prefetch_lines(ptr::from_ref(value).cast::<u8>().wrapping_add(part.start), part.len());
}

/// The cache lines of the oldest entry, or of the slot for the next one if `queue` is empty.
#[inline]
pub(crate) fn prefetch_front<T>(queue: &VecDeque<T>) {
    if queue.capacity() > 0 {
        prefetch_lines(queue.as_slices().0.as_ptr().cast(), size_of::<T>());
    }
}

#[inline(always)]
fn prefetch_lines(base: *const u8, len: usize) {
    let first = base.map_addr(|address| address & !(LINE_LEN - 1));
    let lines = (base.addr() - first.addr() + len).div_ceil(LINE_LEN);
    for line in 0..lines {
        prefetch_line(first.wrapping_add(line * LINE_LEN));
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn prefetch_line(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every x86-64 has the instruction; it changes no visible state, mapped or not.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

/// Other processors do not prefetch.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
const fn prefetch_line(_line: *const u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only visible effect would be a fault: there is none, wherever the bytes are.
    #[test]
    fn prefetching_changes_no_data_and_never_faults() {
        let value = [7_u8; 300];
        prefetch(&value);
        prefetch(&());
        prefetch_part(&value, &(70..300));
        let mut queue = VecDeque::new();
        prefetch_front(&queue);
        for number in 0..100_u64 {
            queue.push_back([number; 20]);
            prefetch_front(&queue);
        }
        assert_eq!((queue.len(), queue[99]), (100, [99; 20]));
        queue.clear();
        prefetch_front(&queue);
        assert_eq!(value, [7; 300]);
    }
}
