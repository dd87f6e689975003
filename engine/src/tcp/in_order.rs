//! The fast path in: the next segment of a transfer that goes one way, which brings nothing but data.
//!
//! A few comparisons tell it from any other ("header prediction", RFC 7323 Appendix D takes it for granted
//! where it orders the checks). What it does to the connection is what [`Tcb::handle_segment`] would do;
//! anything that is not like this takes that way.

use std::ops::Range;

use super::arrive::Arrival;
use super::connection::Tcb;
use super::header::{Flags, Header};
use super::state::State;
use super::timer::Timer;
use crate::time::Instant;
use crate::types::StreamOffset;

/// A segment that is the next one, and all of whose bytes are new.
#[derive(Clone, Debug)]
pub(crate) struct NextData {
    pub(crate) range: Range<StreamOffset>,
    /// Wire segments it stands for.
    segments: usize,
    /// Its sender had no more to send.
    push: bool,
}

impl Tcb {
    /// Takes a segment but for its data, if it is the next of a connection that is established, with
    /// nothing in it that is news but its bytes, all of which fit the window. `None`: nothing has
    /// changed, and it is for [`handle_segment`](Self::handle_segment).
    ///
    /// What is kept of its bytes is to be told to [`finish_next`](Self::finish_next), before the next
    /// segment.
    #[inline]
    pub(crate) fn take_next(
        &mut self,
        now: Instant,
        header: &Header,
        payload_len: usize,
        segments: usize,
    ) -> Option<NextData> {
        let push = header.flags.contains(Flags::PSH);
        let una = self.snd.board.una();
        let is_plain = (header.flags - Flags::PSH) == Flags::ACK
            && self.state == State::Established
            && header.ack == self.snd.space.seq_at(una)
            && self.brings_no_news(header);
        if !is_plain {
            return None;
        }
        if self.timestamps.agreed {
            // RFC 7323 §5.3 R1.
            let timestamps = header.options.timestamps?;
            if self.timestamps.is_old(now, timestamps.value) {
                return None;
            }
        }
        let range = self.rcv.next_range(header.seq, payload_len)?;
        self.counters.segments_received += segments as u64;
        self.keepalive.heard_at = now;
        self.keepalive.unanswered = 0;
        self.snd.update_window(now, header, una);
        if let Some(timestamps) = header.options.timestamps.filter(|_| self.timestamps.agreed) {
            self.timestamps.update(now, timestamps.value, header.seq);
        }
        if self.ecn.agreed {
            let waiting = self.acks.has_unacknowledged();
            self.ecn.on_data(header, waiting.then(|| self.rcv.ack_number()));
        }
        Some(NextData { range, segments, push })
    }

    /// Whether an acknowledgment of SND.UNA that comes with data sets nothing going.
    #[inline]
    fn brings_no_news(&self, header: &Header) -> bool {
        header.options.sack.is_empty()
            && self.snd.awaits_no_news()
            && !self.timers.is_set(Timer::Persist)
            && !self.timers.is_set(Timer::Reordering)
    }

    /// The layer above keeps the bytes up to `kept`. Decides when to acknowledge them.
    #[inline]
    pub(crate) fn finish_next(&mut self, now: Instant, next: NextData, kept: StreamOffset) {
        let NextData { range, segments, push } = next;
        if kept != range.end {
            return self.finish_part(now, range, kept, segments, push);
        }
        let len = range.end.index_from(range.start);
        self.rcv.commit_next(range.end);
        self.acknowledge_data(now, segments, len, push);
    }

    #[cold]
    fn finish_part(
        &mut self,
        now: Instant,
        range: Range<StreamOffset>,
        kept: StreamOffset,
        segments: usize,
        push: bool,
    ) {
        let arrival = Arrival::in_order(range.clone(), segments, push, self.rcv.committed_bytes());
        let committed = self.commit(range.start..kept);
        committed.expect("what continues the stream always has room");
        self.finish_arrival(now, &arrival, true);
    }
}
