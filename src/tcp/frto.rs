//! Forward RTO-recovery: was the retransmission timer too early? (RFC 5682 §2.1)
//!
//! For connections without timestamps and without SACK, where no acknowledgment tells which copy it
//! is for. Instead of the next old segment, new data goes: what is acknowledged then, and was sent
//! only once, was under way when the timer ran out.

use super::congestion::Controller;
use super::recovery::{Disorder, Recovery};
use super::send::Sender;

/// What the algorithm waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Frto {
    /// Nothing: there was no timeout, or it is repaired in the usual way.
    #[default]
    Off,
    /// Step 2: only the first segment went again.
    First,
    /// Step 3: that was acknowledged. So many octets of new data may follow it, and nothing old.
    Second { new_octets: u64 },
}

/// RFC 5682 §2.1 step 2b: "transmit up to two new (previously unsent) segments".
const NEW_SEGMENTS: u64 = 2;
/// Step 3a: "set the congestion window to no more than 3 * MSS".
const SEGMENTS_MAX: u64 = 3;

impl Sender {
    /// The retransmission timer ran out. `first`: nothing has gone again since the last progress.
    pub(super) fn begin_frto(&mut self, first: bool) {
        let tells_copies_apart = self.has_sack() || self.has_timestamps();
        // Step 1: not inside of another recovery, whose copies would be taken for originals.
        let applies = first && self.recovery == Recovery::Open && !tells_copies_apart;
        self.frto = if applies { Frto::First } else { Frto::Off };
        // The layer above asks again if it has more to send.
        self.starved &= !applies;
    }

    /// Whether old segments wait for what becomes of new ones.
    pub(super) const fn holds_back(&self) -> bool {
        matches!(self.frto, Frto::Second { .. })
    }

    /// Takes an acknowledgment after a timeout; true when that was too early, and is undone.
    pub(super) fn on_frto_ack(&mut self, ack: &Disorder<'_>) -> bool {
        let Recovery::Timeout { until } = self.recovery else {
            self.frto = Frto::Off;
            return false;
        };
        let advanced = ack.acked.octets > 0;
        if !advanced && !ack.duplicate {
            return false;
        }
        let emss = u64::from(self.emss());
        match std::mem::take(&mut self.frto) {
            Frto::Off => {}
            Frto::First => {
                // Step 2a: a duplicate, or the end of all that was under way. Step 2b, unless there
                // is nothing to send or no room for it.
                let new_octets = NEW_SEGMENTS * emss;
                let has_new = self.starved && self.window_room() >= emss;
                if advanced && self.board.una() < until && has_new {
                    self.frto = Frto::Second { new_octets };
                }
            }
            // Step 3b: what was sent once is acknowledged.
            Frto::Second { .. } if advanced => return self.undo_recovery(),
            Frto::Second { .. } => {
                // Step 3a: a new segment has arrived, and the next old one has not.
                self.congestion.limit(SEGMENTS_MAX * emss);
                self.board.duplicate_ack(emss);
            }
        }
        false
    }

    /// New data went out.
    pub(super) const fn note_new_data(&mut self, octets: u64) {
        if let Frto::Second { new_octets } = &mut self.frto {
            *new_octets = new_octets.saturating_sub(octets);
        }
    }
}
