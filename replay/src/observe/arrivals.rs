//! Frames that brought the bytes of a stream.

use std::collections::BTreeMap;
use std::ops::Range;

use urnic_engine::types::StreamOffset;

use crate::limits::{Holding, Room};

#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    frames: BTreeMap<u64, (u64, u64, u64)>,
}

impl Arrivals {
    /// Records bytes that come for the first time, if there is room.
    pub(crate) fn note(
        &mut self,
        (start, end): (u64, u64),
        (frame, at_ns): (u64, u64),
        held: &mut Holding,
        room: &mut Room,
    ) {
        if held.take(room) && self.frames.insert(start, (end, frame, at_ns)).is_some() {
            held.give(1, room);
        }
    }

    pub(crate) fn frame_before(&self, end: StreamOffset) -> Option<u64> {
        let (_, &(to, frame, _)) = self.frames.range(..end.0).next_back()?;
        (to >= end.0).then_some(frame)
    }

    pub(crate) fn begins_in(&self, octets: Range<u64>) -> bool {
        self.frames.range(octets).next().is_some()
    }

    pub(crate) fn times_of(&self, (start, end): (u64, u64)) -> Option<(u64, u64)> {
        let first = self.frames.range(..=start).next_back().map_or(start, |(from, _)| *from);
        let times = self.frames.range(first..end).map(|(_, &(_, _, at_ns))| at_ns);
        Some((times.clone().min()?, times.max()?))
    }

    pub(crate) fn first_frame_after(&self, start: u64) -> Option<u64> {
        self.frames.range(start..).next().map(|(_, &(_, frame, _))| frame)
    }

    pub(crate) fn forget_before(
        &mut self,
        delivered: StreamOffset,
        held: &mut Holding,
        room: &mut Room,
    ) {
        while let Some(entry) = self.frames.first_entry() {
            if entry.get().0 > delivered.0 {
                break;
            }
            entry.remove();
            held.give(1, room);
        }
    }
}
