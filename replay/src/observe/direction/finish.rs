//! Final findings and report of a direction.

use super::{Around, Direction, Phase};
use crate::figures::plural;
use crate::judge::findings::Kind;
use crate::observe::alignment::Alignment;
use crate::observe::image::ImageBudget;
use crate::observe::recut::Evidence;
use crate::report::DirectionReport;

impl Direction {
    /// Returns true if the stream was delivered without a gap.
    pub(crate) fn finish(&mut self, around: &mut Around<'_>) -> bool {
        self.decide_alignment(around);
        self.report_unseen(around);
        let is_whole = self.report_gaps(around);
        let from = around.from;
        let Phase::Full(origin, full) = &mut self.phase else { return false };
        let Alignment { aligned, unaligned, crc_alone, places, .. } = self.alignment;
        let tally = &full.tally;
        let where_cut = Evidence {
            places,
            is_offloaded: self.behaviour.is_offloaded(),
            is_at_sender: self.is_at_sender,
            has_long_fpdus: tally.too_long.times > 0,
        }
        .told();
        tally.note_lengths(from, self.behaviour.mss, origin.frame, around.findings);
        if unaligned > crc_alone {
            let frame = origin.frame;
            around.findings.add(Kind::Unaligned, from, frame, || {
                format!(
                    "{unaligned} of {} segments do not hold whole FPDUs from beginning to end: {where_cut}",
                    unaligned + aligned
                )
            });
        }
        if crc_alone > 0 {
            let frame = origin.frame;
            around.findings.add(Kind::CrcAlone, from, frame, || {
                format!("{crc_alone} segments hold nothing but the CRC of an FPDU, as siw does")
            });
        }
        let (delivered, end) = (full.tally.delivered_end().0, self.tcp.rcv_nxt().0);
        if is_whole
            && self.is_finished
            && delivered < end
            && !around.findings.has(Kind::UlpduLength)
        {
            let frame = self.last_frame;
            around.findings.add(Kind::CutFpdu, from, frame, || {
                format!("closes inside an FPDU: {} bytes are left over", end - delivered)
            });
        }
        is_whole
    }

    /// Returns true if the capture lacks none.
    fn report_gaps(&self, around: &mut Around<'_>) -> bool {
        let from = around.from;
        let run_end = self.seen.end_of_run(0);
        let Some(span) = self.seen.span().filter(|span| span.end > run_end) else { return true };
        let gaps = self.seen.missing(0..span.end);
        let first = gaps.first().cloned().unwrap_or(0..0);
        let (bytes, count) = (gaps.iter().map(|gap| gap.end - gap.start).sum::<u128>(), gaps.len());
        let after = u64::try_from(first.end).unwrap_or(u64::MAX);
        let frame = self.arrivals.first_frame_after(after).unwrap_or(self.last_frame);
        let acked = u128::from(self.behaviour.acks.end());
        let known =
            gaps.iter().map(|gap| gap.end.min(acked).saturating_sub(gap.start)).sum::<u128>();
        let ack_frame = self.behaviour.acks.last_frame();
        around.findings.add(Kind::Gap, from, frame, || {
            let fate = match known {
                0 => "no acknowledgment of them is in the capture: they were lost, or came later".to_owned(),
                _ if known == bytes => format!(
                    "the other end acknowledges them by frame {ack_frame}: they came, and the capture missed \
                     their frames"
                ),
                _ => format!(
                    "the other end acknowledges {known} of them by frame {ack_frame}: those came, and the \
                     capture missed their frames"
                ),
            };
            format!(
                "the capture lacks {bytes} bytes in {}, the first at stream byte {}; {fate}; \
                 without markers nothing behind a gap can be decoded",
                plural(count as u64, "gap"),
                first.start
            )
        });
        if self.lost_bytes > 0 {
            let bytes = self.lost_bytes;
            around.findings.add(Kind::WaitingFull, from, frame, || {
                format!("{bytes} bytes beyond the gap were not kept")
            });
        }
        false
    }

    /// Reports bytes after the last captured ones that the other end acknowledges.
    fn report_unseen(&self, around: &mut Around<'_>) {
        // RFC 9293 §3.4: a FIN takes a sequence number, and its frame may be missing, too.
        let acked = self.behaviour.acks.end().saturating_sub(1);
        if acked <= self.high || !matches!(self.phase, Phase::Full(..)) {
            return;
        }
        let (bytes, from) = (acked + 1 - self.high, around.from);
        around.findings.add(Kind::Unseen, from, self.behaviour.acks.last_frame(), || {
            format!(
                "the other end acknowledges {bytes} bytes behind the last that the capture has: they came, \
                 and the capture missed their frames"
            )
        });
    }

    pub(crate) fn report(&self, from: &'static str, images: &mut ImageBudget) -> DirectionReport {
        let mut out = DirectionReport {
            from,
            segments: self.segments,
            bytes_sent: self.bytes_sent,
            mss: self.behaviour.mss,
            window_max: self.behaviour.window_max,
            segments_judged: self.alignment.aligned + self.alignment.unaligned,
            segments_aligned: self.alignment.aligned,
            segments_out_of_order: self.segments_out_of_order,
            segments_retransmitted: self.segments_retransmitted,
            ..DirectionReport::default()
        };
        if let Phase::Full(_, full) = &self.phase {
            full.tally.report(full.mpa.counters(), images, &mut out);
        }
        out
    }
}
