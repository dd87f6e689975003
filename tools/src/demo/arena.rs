//! Memory that the peer writes, cut into slots: each holds one operation at a time, between guards.

use urnic_engine::mem::{Access, Region};
use urnic_engine::verbs::{Mr, Pd};

use super::Failure;
use super::pattern::{Difference, Pattern, Piece, Random};

#[derive(Clone, Debug)]
pub(super) struct Target {
    slot: usize,
    /// First byte in the arena.
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Slot {
    start: usize,
    capacity: usize,
    /// Last operation: its bytes must stay as verified until the slot is used again.
    last: Option<Target>,
}

#[derive(Debug)]
pub(super) struct Arena {
    name: &'static str,
    pub(super) memory: Mr,
    region: std::sync::Arc<Region>,
    slots: Vec<Slot>,
    /// Free slots by size. The most recently used one is taken first: it is in the cache.
    free: Vec<(usize, Vec<usize>)>,
}

impl Arena {
    /// `classes` has (capacity in bytes, number), smallest capacity first.
    pub(super) fn new(
        name: &'static str,
        pd: &Pd,
        classes: &[(usize, usize)],
        access: Access,
    ) -> anyhow::Result<Self> {
        let (mut slots, mut free, mut end) = (Vec::new(), Vec::new(), GUARD_LEN);
        for &(capacity, count) in classes {
            let first = slots.len();
            for _ in 0..count {
                slots.push(Slot { start: end, capacity, last: None });
                end += capacity + SHIFT_MAX + GUARD_LEN;
            }
            free.push((capacity, (first..slots.len()).rev().collect()));
        }
        let region = Region::anonymous(end)?;
        let memory = pd.reg_region(region.clone(), access)?;
        Ok(Self { name, memory, region, slots, free })
    }

    /// Registers the same memory under another steering tag with its own rights.
    pub(super) fn window(&self, pd: &Pd, access: Access) -> std::io::Result<Mr> {
        pd.reg_region(self.region.clone(), access)
    }

    /// Takes a slot for `len` bytes, at a place that need not be aligned.
    pub(super) fn take(&mut self, len: usize, random: &mut Random) -> Option<(usize, usize)> {
        let fitting = self.free.iter_mut().filter(|(capacity, _)| *capacity >= len);
        let slot = fitting.filter_map(|(_, slots)| slots.pop()).next()?;
        let shift = usize::try_from(random.below(SHIFT_MAX as u64)).expect("less than SHIFT_MAX");
        Some((slot, self.slots[slot].start + shift))
    }

    pub(super) fn has_room(&self) -> bool {
        self.free.iter().any(|(_, slots)| !slots.is_empty())
    }

    /// Returns the range of a slot that is never taken or released.
    pub(super) fn extent(&self, slot: usize) -> (usize, usize) {
        (self.slots[slot].start, self.slots[slot].capacity)
    }

    /// Writes guards around a place and, if it is small, contents that differ from the expected
    /// ones. Checks that the previous operation of the slot is unchanged.
    pub(super) fn arm(
        &mut self,
        slot: usize,
        at: usize,
        pieces: Vec<Piece>,
        pattern: &Pattern,
    ) -> Result<Target, Failure> {
        let len = pieces.iter().map(|piece| piece.len).sum();
        self.check_last(slot, None)?;
        if len <= COMPLEMENT_MAX {
            let mut octets = [0; COMPLEMENT_MAX];
            let expected = pieces.iter().flat_map(|p| &pattern.octets()[p.at..][..p.len]);
            octets.iter_mut().zip(expected).for_each(|(octet, expected)| *octet = !expected);
            self.memory.copy_in(at, &octets[..len]);
        }
        self.memory.copy_in(at - GUARD_LEN, &GUARD);
        self.memory.copy_in(at + len, &GUARD);
        Ok(Target { slot, at, len, pieces })
    }

    /// Guards are checked, too.
    pub(super) fn check(&self, target: &Target, pattern: &mut Pattern) -> Result<(), Failure> {
        let Target { at, len, ref pieces, slot: _ } = *target;
        pattern.compare(&self.memory, at, pieces).map_err(|difference| {
            let Difference { offset, expected, found } = difference;
            Failure::new(format!(
                "byte {offset} of {len} is {found:#04x} and should be {expected:#04x} \
                 ({} offset {})",
                self.name,
                at + offset,
            ))
        })?;
        self.check_guard(at - GUARD_LEN, "before")?;
        self.check_guard(at + len, "behind")
    }

    pub(super) fn release(&mut self, target: Target) {
        let slot = target.slot;
        self.retire(target);
        let capacity = self.slots[slot].capacity;
        let class = self.free.iter_mut().find(|(class, _)| *class == capacity);
        class.expect("every slot belongs to a class").1.push(slot);
    }

    /// As [`release`](Self::release), for slots that are never taken.
    pub(super) fn retire(&mut self, target: Target) {
        let slot = target.slot;
        self.slots[slot].last = Some(target);
    }

    pub(super) fn check_all(&mut self, pattern: &mut Pattern) -> Result<(), Failure> {
        (0..self.slots.len()).try_for_each(|slot| self.check_last(slot, Some(pattern)))
    }

    /// Checks the guards of the last operation, and its bytes if a pattern is given.
    fn check_last(&mut self, slot: usize, pattern: Option<&mut Pattern>) -> Result<(), Failure> {
        let Some(last) = self.slots[slot].last.take() else { return Ok(()) };
        let result = match pattern {
            Some(pattern) => self.check(&last, pattern),
            None => self
                .check_guard(last.at - GUARD_LEN, "before")
                .and_then(|()| self.check_guard(last.at + last.len, "behind")),
        };
        result.map_err(|failure| failure.within("after its operation was verified"))
    }

    fn check_guard(&self, at: usize, side: &str) -> Result<(), Failure> {
        let mut found = [0; GUARD_LEN];
        self.memory.copy_out(at, &mut found);
        if found == GUARD {
            return Ok(());
        }
        let Difference { offset, expected, found } = Difference::between(&GUARD, &found, at);
        Err(Failure::new(format!(
            "the guard {side} the granted range was changed from {expected:#04x} to {found:#04x} \
             ({} offset {offset})",
            self.name,
        )))
    }
}

const GUARD_LEN: usize = 64;
const GUARD: [u8; GUARD_LEN] = [0xC3; GUARD_LEN];
/// Bytes by which the place in a slot varies.
const SHIFT_MAX: usize = 64;
/// Longest operation whose place first gets the complement of the expected bytes. Longer ones
/// cannot match the previous contents of the slot by chance.
const COMPLEMENT_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use urnic_engine::verbs::{Rnic, RnicConfig};

    use super::*;

    fn arena() -> (Arena, Pattern, Random) {
        let pd = Rnic::new(RnicConfig { seed: 1.into() }).alloc_pd();
        let arena = Arena::new("sink", &pd, &[(100, 2), (1000, 1)], Access::LOCAL_WRITE).unwrap();
        (arena, Pattern::new(1, 4096), Random::new(1))
    }

    fn filled(arena: &mut Arena, pattern: &Pattern, random: &mut Random) -> Target {
        let (slot, at) = arena.take(80, random).unwrap();
        let piece = Piece { at: 11, len: 80 };
        let target = arena.arm(slot, at, vec![piece], pattern).unwrap();
        arena.memory.copy_in(at, &pattern.octets()[11..91]);
        target
    }

    #[test]
    fn untouched_target_does_not_verify() {
        let (mut arena, mut pattern, mut random) = arena();
        for len in [1, 80] {
            let (slot, at) = arena.take(len, &mut random).unwrap();
            let piece = Piece { at: 0, len };
            let target = arena.arm(slot, at, vec![piece], &pattern).unwrap();
            assert!(arena.check(&target, &mut pattern).is_err());
        }
    }

    #[test]
    fn write_outside_its_target_is_found() {
        let (mut arena, mut pattern, mut random) = arena();
        let target = filled(&mut arena, &pattern, &mut random);
        arena.check(&target, &mut pattern).unwrap();
        for at in [target.at - 1, target.at - GUARD_LEN, target.at + 80, target.at + 143] {
            arena.memory.copy_in(at, &[0]);
            let failure = arena.check(&target, &mut pattern).unwrap_err();
            assert!(failure.to_string().contains("guard"), "{failure}");
            arena.memory.copy_in(at, &GUARD[..1]);
        }
    }

    #[test]
    fn a_write_after_verification_is_found() {
        let (mut arena, mut pattern, mut random) = arena();
        let target = filled(&mut arena, &pattern, &mut random);
        let at = target.at;
        arena.check(&target, &mut pattern).unwrap();
        arena.release(target);
        arena.memory.copy_in(at + 5, &[0, 0]);
        assert!(arena.check_all(&mut pattern).is_err());
    }

    #[test]
    fn slots_run_out_and_come_back() {
        let (mut arena, pattern, mut random) = arena();
        let first = filled(&mut arena, &pattern, &mut random);
        assert!(arena.take(100, &mut random).is_some());
        assert!(arena.take(100, &mut random).is_some(), "a large slot serves a small operation");
        assert!(arena.take(100, &mut random).is_none());
        assert!(arena.take(1001, &mut random).is_none());
        arena.release(first);
        assert!(arena.take(100, &mut random).is_some());
    }
}
