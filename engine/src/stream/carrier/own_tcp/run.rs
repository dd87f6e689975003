//! Data sent at once: a run of equal segments, or bytes without regard to FPDU boundaries.

use crate::limits::{FRAGMENTS_MAX, FRAME_PAYLOAD_MAX, RUN_LEN_MAX};
use crate::stream::carrier::own_tcp::{OwnTcp, TxLimits};
use crate::stream::{Cut, Room};
use crate::types::StreamOffset;

impl OwnTcp {
    /// Adds segments of exactly `segment_len` bytes to the run that starts at `start`; the last may
    /// be shorter. Returns the bytes of the whole run: at most `budget`, unless the first segment
    /// alone exceeds it. If the device does not cut super-frames, the port cuts the run: TCP and
    /// the message are examined only once.
    pub(super) fn extend_run(
        &mut self,
        start: StreamOffset,
        segment_len: usize,
        budget: usize,
        limits: &TxLimits,
        room: &mut Room,
    ) -> usize {
        if limits.super_frame_len_max == 0 {
            let frames_max = limits.bytes_max.div_ceil(segment_len).min(limits.frames_max);
            let len_max = frames_max.saturating_mul(segment_len).min(RUN_LEN_MAX).min(budget);
            return self.extend_frames(start, segment_len, len_max, limits, room);
        }
        let len_max = limits.super_frame_len_max.min(FRAME_PAYLOAD_MAX).min(budget);
        if segment_len * 2 > len_max {
            return segment_len;
        }
        // A segment joins the run only with whole FPDUs: the device cuts at `segment_len`.
        if room.cut == Cut::Always {
            room.cut = Cut::IfWorthwhile;
        }
        let mut total = self.extend_alike(start, segment_len, len_max, room);
        while total + segment_len <= len_max && room.fragments > 0 {
            room.segment_len = segment_len;
            let before = room.fragments;
            let grown = self.stream.frame_segment(room).index_from(start);
            let added = grown - total;
            total = grown;
            if added != segment_len {
                break;
            }
            // The fragments that are left do not suffice for one more segment like the last.
            if room.fragments < before - room.fragments {
                break;
            }
            // The first segment may have held the end of a message; the next one continues.
            total = self.extend_alike(start, segment_len, len_max, room);
        }
        total
    }

    /// The port sends these segments in a frame each. The run ends with the segment after which a
    /// new message must begin: that segment carries PSH.
    fn extend_frames(
        &mut self,
        start: StreamOffset,
        segment_len: usize,
        len_max: usize,
        limits: &TxLimits,
        room: &mut Room,
    ) -> usize {
        let mut total = segment_len;
        // The device's limit holds for one frame; all frames of the run share the list.
        let mut fragments = FRAGMENTS_MAX - (limits.fragments_max - room.fragments);
        while total + segment_len <= len_max && self.stream.is_amid_message() {
            // Each segment holds one FPDU like the last, whose fragments fitted.
            room.fragments = fragments;
            total = self.extend_alike(start, segment_len, len_max, room);
            fragments = room.fragments;
            // `frame_segment` frames the first FPDU of a segment whatever number of fragments it
            // needs: half of the list must be free. Also, a run must not make a segment shorter.
            let has_room = total + segment_len <= len_max && fragments >= FRAGMENTS_MAX / 2;
            if !has_room || segment_len < self.tcp.emss() {
                break;
            }
            let most = fragments.min(limits.fragments_max);
            *room = Room { segment_len, fragments: most, cut: Cut::IfWorthwhile };
            let grown = self.stream.frame_segment(room).index_from(start);
            fragments -= most - room.fragments;
            let added = grown - total;
            total = grown;
            if added != segment_len {
                break;
            }
        }
        total
    }

    /// Segments of one FPDU like the last, up to `len_max`. Returns the bytes of the run.
    fn extend_alike(
        &mut self,
        start: StreamOffset,
        segment_len: usize,
        len_max: usize,
        room: &mut Room,
    ) -> usize {
        let total = self.stream.framed_end().index_from(start);
        let segments = len_max.saturating_sub(total) / segment_len;
        if segments == 0 {
            return total;
        }
        self.stream.frame_alike(segment_len, segments, room);
        self.stream.framed_end().index_from(start)
    }

    pub(super) fn fill_unaligned(
        &mut self,
        start: StreamOffset,
        len_max: usize,
        room: &mut Room,
    ) -> usize {
        loop {
            let framed = self.stream.framed_end().index_from(start);
            if framed >= len_max || room.fragments == 0 {
                return framed.min(len_max);
            }
            // FPDUs of full size, cut wherever a segment ends, as on a byte stream.
            room.segment_len = self.tcp.emss();
            if self.stream.frame_segment(room).index_from(start) == framed {
                return framed;
            }
        }
    }
}
