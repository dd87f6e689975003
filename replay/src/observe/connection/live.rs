//! State of a connection during a live capture.

use super::{Direction, ReplayedConnection, State};
use crate::observe::direction::Shared;
use crate::observe::passed::LiveFigures;
use crate::read::packet::Segment;

impl ReplayedConnection {
    pub(crate) fn is_mpa(&self) -> bool {
        self.sides.iter().any(|side| side.startup().is_some())
    }

    pub(crate) fn is_other(&self) -> bool {
        !self.is_mpa() && self.sides.iter().any(Direction::is_lost)
    }

    pub(crate) const fn note_reset(&mut self) {
        self.is_reset = true;
    }

    pub(crate) fn note_lost(
        &mut self,
        side: usize,
        segment: &Segment<'_>,
        frame: u64,
        shared: &mut Shared,
    ) {
        if self.sides[1 - side].note_lost(segment, shared)
            && let Some(comments) = &self.findings.comments
        {
            let from = self.name(1 - side);
            comments.line(
                frame,
                &format!(
                    "acknowledges bytes that the capture lacks: FPDUs of the {from} are no longer \
                     followed"
                ),
            );
        }
    }

    pub(crate) fn add_figures(&self, figures: &mut LiveFigures) {
        let is_over = self.is_reset
            || self.state == State::Refused
            || self.sides.iter().all(|side| side.is_finished);
        figures.connections += 1;
        figures.connections_open += u64::from(!is_over);
        for side in &self.sides {
            side.add_figures(figures, is_over);
        }
    }
}
