//! Forward RTO-recovery: detects that the retransmission timer was too early (RFC 5682 §2.1, with
//! SACK §3.1), for connections without timestamps. The sender transmits new data instead of the
//! next old segment. If bytes are acknowledged then that were sent only once, they were in flight
//! when the timer expired.

use super::SendHalf;
use super::recovery::{Disorder, Recovery};
use crate::time::Instant;
use crate::types::StreamOffset;

/// The event that the algorithm waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Frto {
    /// None: there was no timeout, or it is repaired in the usual way.
    #[default]
    Off,
    /// Step 2: only the first segment was retransmitted.
    First,
    /// Step 3: the first segment was acknowledged. At most this many bytes of new data may follow,
    /// and nothing old.
    Second { new_bytes: u64 },
}

/// RFC 5682 §2.1 step 2b: "transmit up to two new (previously unsent) segments".
const NEW_SEGMENTS: u64 = 2;

impl SendHalf {
    /// `first`: the first retransmission timeout since the last progress.
    pub(super) fn begin_frto(&mut self, first: bool) {
        // Step 1: not inside another recovery, whose retransmissions would be taken for originals.
        let applies = first && self.recovery == Recovery::Open && !self.has_timestamps();
        self.frto = if applies { Frto::First } else { Frto::Off };
        // The layer above asks again if it has more to send.
        self.starved &= !applies;
    }

    pub(super) const fn holds_back(&self) -> bool {
        matches!(self.frto, Frto::Second { .. })
    }

    /// Takes an acknowledgment after a timeout, which SACKs `sacked` bytes for the first time.
    /// Returns true if the timeout was spurious and is undone.
    pub(super) fn on_frto_ack(&mut self, now: Instant, ack: &Disorder<'_>, sacked: u64) -> bool {
        let Recovery::Timeout { until } = self.recovery else {
            self.frto = Frto::Off;
            return false;
        };
        let advanced = ack.acked.bytes > 0;
        if !advanced && sacked == 0 && !ack.duplicate {
            return false;
        }
        match std::mem::take(&mut self.frto) {
            Frto::Off => {}
            // §3.1 step 2: the SACK option shows what a duplicate answers. "Stay in step 2 and wait
            // for the next new acknowledgment."
            Frto::First if self.has_sack() && !advanced => self.frto = Frto::First,
            Frto::First => self.frto = self.after_first(advanced && self.board.una() < until),
            Frto::Second { .. } => {
                if self.is_original_acknowledged(ack, sacked, until) {
                    // Step 3b: a segment sent once, before the timeout, is acknowledged: the
                    // acknowledgment before was not for the retransmission, either.
                    if let Some(original) = ack.delivered.original {
                        self.rack.go_back_to(now, original);
                    }
                    return self.undo_recovery();
                }
                // Step 3a: a new segment has arrived, and the next old one has not. cwnd is two
                // segments, one from the timeout, one from step 2: "no more than 3 * MSS".
                if !self.has_sack() {
                    self.board.duplicate_ack(u64::from(self.emss()));
                }
            }
        }
        false
    }

    /// Ends the algorithm after a duplicate, or the end of all that was in flight (step 2a).
    /// Otherwise step 2b, if there is something to send and room for it.
    fn after_first(&self, is_partial: bool) -> Frto {
        let emss = u64::from(self.emss());
        let has_new = self.starved && self.window_room() >= emss;
        if is_partial && has_new {
            Frto::Second { new_bytes: NEW_SEGMENTS * emss }
        } else {
            Frto::Off
        }
    }

    /// Step 3: the acknowledgment reports new bytes, and with SACK, none beyond what was sent then.
    fn is_original_acknowledged(
        &self,
        ack: &Disorder<'_>,
        sacked: u64,
        until: StreamOffset,
    ) -> bool {
        let advanced = ack.acked.bytes > 0;
        if !self.has_sack() {
            return advanced;
        }
        let beyond = ack.delivered.original.is_some_and(|delivery| delivery.end > until);
        (advanced || sacked > 0) && !beyond
    }

    pub(super) const fn note_new_data(&mut self, bytes: u64) {
        if let Frto::Second { new_bytes } = &mut self.frto {
            *new_bytes = new_bytes.saturating_sub(bytes);
        }
    }
}
