//! A few segments with their FPDUs, byte by byte: around the first segment that is not aligned.

use std::collections::VecDeque;

use super::Fit;

#[derive(Debug, Default)]
pub(crate) struct Detail {
    pub(crate) segments: VecDeque<(Fit, (u64, u64))>,
    pub(crate) fpdus: VecDeque<(u64, u64)>,
    /// Segments still to record after the first that is not aligned.
    left: Option<usize>,
}

impl Detail {
    pub(crate) fn segment(&mut self, fit: Fit, octets: (u64, u64)) {
        if self.left == Some(0) {
            return;
        }
        self.segments.push_back((fit, octets));
        self.left = match self.left {
            Some(left) => Some(left - 1),
            None if fit == Fit::Aligned => None,
            None => Some(AFTER),
        };
        if self.segments.len() > BEFORE + AFTER {
            self.segments.pop_front();
        }
        if self.left != Some(0) {
            let first = self.segments.front().map_or(0, |(_, (start, _))| *start);
            while self.fpdus.front().is_some_and(|(_, end)| *end <= first) {
                self.fpdus.pop_front();
            }
        }
    }

    pub(crate) fn fpdu(&mut self, octets: (u64, u64)) {
        let last = self.segments.back().map_or(0, |(_, (_, end))| *end);
        if self.left == Some(0) && octets.0 > last {
            return;
        }
        if self.fpdus.len() == FPDUS_MAX {
            self.fpdus.pop_front();
        }
        self.fpdus.push_back(octets);
    }
}

/// Segments shown before and after the first that is not aligned.
const BEFORE: usize = 6;
const AFTER: usize = 18;
const FPDUS_MAX: usize = 1024;
