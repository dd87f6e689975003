//! Fast path for the next data segment of a one-way transfer ("header prediction"; RFC 7323
//! Appendix D assumes it). Requires a segment in ESTABLISHED that is next in order, fits the
//! window, acknowledges nothing new and has no SACK blocks. The effect is that of
//! [`Tcb::handle_segment`], which processes every other segment. `tests/sim.rs` compares both ways
//! for each segment of each transfer.

use std::ops::Range;

use super::arrive::Arrival;
use super::connection::Tcb;
use super::header::{Flags, Header};
use super::state::State;
use super::timer::Timer;
use crate::time::Instant;
use crate::types::StreamOffset;

#[derive(Clone, Debug)]
pub(crate) struct NextData {
    pub(crate) range: Range<StreamOffset>,
    segments: usize,
    /// Its PSH flag: nothing follows this segment at once.
    push: bool,
}

impl Tcb {
    /// Processes the segment except its data, whose kept part the caller reports to
    /// [`finish_next`](Self::finish_next). `None`, with nothing changed:
    /// [`handle_segment`](Self::handle_segment) must process it.
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
        self.keepalive.received_at = now;
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

    #[inline]
    fn brings_no_news(&self, header: &Header) -> bool {
        header.options.sack.is_empty()
            && self.snd.awaits_no_news()
            && !self.timers.is_set(Timer::Persist)
            && !self.timers.is_set(Timer::Reordering)
    }

    /// Commits the bytes up to `kept`. Decides when to acknowledge them.
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
        let committed_before = self.rcv.committed_bytes();
        let arrival = Arrival::in_order(range.clone(), segments, push, committed_before);
        let committed = self.commit(range.start..kept);
        committed.expect("what continues the stream always has room");
        self.finish_arrival(now, &arrival, kept < range.end);
    }
}
