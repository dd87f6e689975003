//! Emission of TCP segments as frames: link, IP and TCP headers before gathered payload.

use std::num::NonZeroU16;

use smoltcp::wire::checksum;
use urnic_netdev::frame::Cursor;
use urnic_netdev::{
    Capabilities, Digest, Digests, SharedSlice, TransmitError, TxChecksum, TxFrame,
};

use crate::mem::CRC32C;
use crate::port::interface::outlet::Outlet;
use crate::port::interface::route::Route;
use crate::stream::Fragments;
use crate::stream::carrier::SegmentSink;
use crate::tcp::{self, Flags, SeqNum};

const HEAD_LEN_MAX: usize = Route::HEADERS_LEN_MAX + tcp::HEADER_LEN_MAX;
const TCP_SEQ_AT: usize = 4;
const TCP_CHECKSUM_OFFSET: u16 = 16;
const TCP_CHECKSUM_AT: usize = TCP_CHECKSUM_OFFSET as usize;

/// Adds headers to segments of one connection and hands the frames to the device.
pub(crate) struct Emitter<'a, 'o> {
    route: &'a Route,
    checksum_offload: bool,
    /// The device cuts super-frames.
    device_cuts: bool,
    outlet: &'a mut Outlet<'o>,
    turn: Turn,
    /// A frame was dropped: the next would be dropped, too.
    blocked: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    pub(crate) frames: usize,
    pub(crate) bytes: usize,
}

impl<'a, 'o> Emitter<'a, 'o> {
    pub(crate) fn new(
        route: &'a Route,
        capabilities: &Capabilities,
        outlet: &'a mut Outlet<'o>,
    ) -> Self {
        let checksum_offload = capabilities.tx_checksum;
        let device_cuts = capabilities.segmentation_len_max.is_some();
        let turn = Turn::default();
        Self { route, checksum_offload, device_cuts, outlet, turn, blocked: false }
    }

    pub(crate) const fn turn(&self) -> Turn {
        self.turn
    }

    /// Its share of frames and of bytes is not used up, and the device accepts more.
    #[inline]
    pub(crate) fn may_continue(&self, frames_max: usize, bytes_max: usize) -> bool {
        let has_turn = self.turn.frames < frames_max && self.turn.bytes < bytes_max;
        has_turn && !self.blocked && !self.outlet.is_full()
    }
}

impl SegmentSink for Emitter<'_, '_> {
    fn emit(
        &mut self,
        header: &tcp::Header,
        payload: &[SharedSlice<'_>],
        digests: &[Digest],
        segment_size: Option<NonZeroU16>,
    ) {
        match segment_size {
            Some(size) if !self.device_cuts => self.emit_run(header, payload, digests, size),
            _ => self.emit_frame(header, payload, digests, segment_size),
        }
    }
}

impl Emitter<'_, '_> {
    fn emit_frame(
        &mut self,
        header: &tcp::Header,
        payload: &[SharedSlice<'_>],
        digests: &[Digest],
        segment_size: Option<NonZeroU16>,
    ) {
        let payload_len: usize = payload.iter().map(SharedSlice::len).sum();
        let mut head = Head::new(self.route, header, payload_len);
        let checksum = head.seal(self.checksum_offload, payload);
        let digests = left_to_device(digests, 0);
        let frame = TxFrame { head: head.octets(), payload, checksum, segment_size, digests };
        let sent = self.outlet.send(&frame);
        self.note(sent, frame.head.len() + payload_len);
    }

    /// Cuts a super-frame into segments of `size` bytes with a frame each. Only the sequence number
    /// differs between them; PSH and FIN belong to the last.
    fn emit_run(
        &mut self,
        header: &tcp::Header,
        payload: &[SharedSlice<'_>],
        digests: &[Digest],
        size: NonZeroU16,
    ) {
        let mut left: usize = payload.iter().map(SharedSlice::len).sum();
        let ends = header.flags & (Flags::PSH | Flags::FIN);
        let mut header = tcp::Header { flags: header.flags - ends, ..header.clone() };
        let mut segment_len = usize::from(size.get()).min(left);
        let mut head = Head::new(self.route, &header, segment_len);
        let mut rest = Cursor::of(payload);
        let mut parts = Fragments::new();
        let mut is_first = true;
        let (mut rest_of_digests, mut at) = (digests, 0);
        while left > 0 {
            if left <= segment_len && (left < segment_len || !ends.is_empty()) {
                segment_len = left;
                header.flags |= ends;
                head = Head::new(self.route, &header, segment_len);
            }
            parts.clear();
            rest.take(segment_len, |part| parts.push(part));
            let checksum = head.seal(self.checksum_offload, &parts);
            let octets = head.octets();
            let (payload, end) = (&parts[..], at + segment_len);
            let digests = digests_before(&mut rest_of_digests, at, end);
            let frame = TxFrame { head: octets, payload, checksum, segment_size: None, digests };
            at = end;
            // TCP has counted the whole super-frame as sent.
            let sent =
                if is_first { self.outlet.send(&frame) } else { self.outlet.send_behind(&frame) };
            let frame_len = octets.len() + segment_len;
            self.note(sent, frame_len);
            left -= segment_len;
            header.seq = header.seq.plus(u32::try_from(segment_len).unwrap_or(u32::MAX));
            head.set_seq(header.seq);
            is_first = false;
        }
    }

    fn note(&mut self, sent: Result<(), TransmitError>, frame_len: usize) {
        match sent {
            Ok(()) => {
                self.turn.frames += 1;
                self.turn.bytes += frame_len;
            }
            // Dropped here as if lost on the link; TCP retransmits.
            Err(_) => self.blocked = true,
        }
    }
}

/// The frame begins at `base` of the offsets of the digests.
#[inline]
fn left_to_device(digests: &[Digest], base: u32) -> Option<Digests<'_>> {
    (!digests.is_empty()).then_some(Digests { digests, base, digester: &CRC32C })
}

/// Takes the digests of a super-frame that are in the frame with its bytes from `at` to `end`.
#[inline]
fn digests_before<'a>(rest: &mut &'a [Digest], at: usize, end: usize) -> Option<Digests<'a>> {
    if rest.is_empty() {
        return None;
    }
    // Nearly always one.
    let count = rest.iter().take_while(|digest| (digest.at as usize) < end).count();
    let own;
    (own, *rest) = rest.split_at(count);
    left_to_device(own, u32::try_from(at).unwrap_or(u32::MAX))
}

struct Head {
    octets: [u8; HEAD_LEN_MAX],
    len: usize,
    tcp_at: usize,
    pseudo: u16,
}

impl Head {
    #[inline]
    fn new(route: &Route, header: &tcp::Header, payload_len: usize) -> Self {
        let mut octets = [0; HEAD_LEN_MAX];
        let tcp_at = route.headers_len();
        let tcp_len = header.len();
        let len = tcp_at + tcp_len;
        let pseudo = route.write_headers(&mut octets, tcp_len + payload_len, header.ecn);
        header.emit(&mut octets[tcp_at..len]);
        Self { octets, len, tcp_at, pseudo }
    }

    #[inline]
    fn octets(&self) -> &[u8] {
        &self.octets[..self.len]
    }

    #[inline]
    fn set_seq(&mut self, seq: SeqNum) {
        let at = self.tcp_at + TCP_SEQ_AT;
        self.octets[at..at + 4].copy_from_slice(&seq.0.to_be_bytes());
    }

    /// Writes the complete checksum, or the partial one for a device that completes it.
    #[inline]
    fn seal(&mut self, offload: bool, payload: &[SharedSlice<'_>]) -> TxChecksum {
        let at = self.tcp_at + TCP_CHECKSUM_AT;
        let (value, state) = if offload {
            // The field holds the folded sum of the pseudo-header, not inverted.
            let start = u16::try_from(self.tcp_at).expect("headers are at most 54 bytes");
            (self.pseudo, TxChecksum::Partial { start, offset: TCP_CHECKSUM_OFFSET })
        } else {
            self.octets[at..at + 2].fill(0);
            let tcp = checksum::data(&self.octets[self.tcp_at..self.len]);
            (!checksum::combine(&[self.pseudo, tcp, sum_of(payload)]), TxChecksum::Complete)
        };
        self.octets[at..at + 2].copy_from_slice(&value.to_be_bytes());
        state
    }
}

/// Returns the internet checksum's sum over scattered bytes, not inverted (RFC 1071).
fn sum_of(payload: &[SharedSlice<'_>]) -> u16 {
    let mut total = 0;
    let mut odd = false;
    for fragment in payload {
        let sum = fragment.ones_complement_sum();
        // RFC 1071 §2 (B): a part that begins at an odd position counts with its bytes swapped.
        let sum = if odd { sum.swap_bytes() } else { sum };
        total = checksum::combine(&[total, sum]);
        odd ^= fragment.len() % 2 == 1;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::interface::outlet::Refused;
    use crate::port::interface::route::LinkHeader;
    use crate::tcp::{Ecn, Options, Timestamps};

    const LINK: LinkHeader = LinkHeader { source: [2; 6], destination: [4; 6], tag: None };

    fn routes() -> [Route; 2] {
        let v6 = |last: u16| std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into();
        [
            Route::new(Some(LINK), [10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
            Route::new(Some(LINK), v6(1), v6(2)),
        ]
    }

    fn capabilities(tx_checksum: bool) -> Capabilities {
        Capabilities {
            medium: urnic_netdev::Medium::Ethernet,
            mtu: 1500,
            segmentation_len_max: None,
            tx_checksum,
            fragments_max: usize::MAX,
            gather_len_min: 0,
            tx_digest: false,
        }
    }

    fn header(seq: u32, flags: Flags) -> tcp::Header {
        let timestamps = Some(Timestamps { value: 5, echo: 6 });
        tcp::Header {
            src_port: 1,
            dst_port: 2,
            seq: SeqNum(seq),
            ack: SeqNum(7),
            flags,
            window: 8,
            options: Options { timestamps, ..Options::default() },
            ecn: Ecn::Capable0,
        }
    }

    #[test]
    fn a_digest_that_begins_where_a_frame_ends_is_of_the_next() {
        let digest = |at| Digest { from: 0, at, register: 0, is_scattered: false };
        let digests = [96, 100, 196].map(digest);
        let mut rest = &digests[..];
        let mut take = |at, end| {
            let found = digests_before(&mut rest, at, end)?;
            Some((found.base, found.digests.len()))
        };
        assert_eq!(take(0, 100), Some((0, 1)));
        assert_eq!(take(100, 200), Some((100, 2)));
        assert_eq!(take(200, 300), None);
    }

    type Emitted = Vec<(Vec<u8>, TxChecksum, Option<NonZeroU16>)>;

    /// Returns the frames that the device gets for what `emit` emits, and the totals of the turn.
    fn emitted(
        route: &Route,
        offload: bool,
        emit: impl FnOnce(&mut Emitter<'_, '_>),
    ) -> (Emitted, [usize; 2]) {
        let (mut frames, mut refused) = (Vec::new(), Refused::default());
        let mut device = |frame: &TxFrame<'_>| {
            let mut octets = vec![0; frame.len()];
            frame.gather(&mut octets);
            frames.push((octets, frame.checksum, frame.segment_size));
            Ok(())
        };
        let mut outlet = Outlet::new(&mut refused, 64, &mut device);
        let mut emitter = Emitter::new(route, &capabilities(offload), &mut outlet);
        emit(&mut emitter);
        let Turn { frames: count, bytes } = emitter.turn();
        (frames, [count, bytes])
    }

    /// Holds for any fragments of the payload, and for a shorter last segment.
    #[test]
    fn a_run_is_the_frames_of_its_segments() {
        let octets: Vec<u8> = (0..=255).cycle().take(400).collect();
        let last = Flags::ACK | Flags::PSH | Flags::FIN;
        for (len, fragment_len) in [(400, 1000), (400, 37), (399, 100), (301, 1), (101, 101)] {
            for (route, offload) in
                routes().iter().flat_map(|route| [(route, false), (route, true)])
            {
                let payload: Vec<_> =
                    octets[..len].chunks(fragment_len).map(SharedSlice::from_bytes).collect();
                // Sequence numbers wrap inside the super-frame.
                let seq = u32::MAX - 150;
                let size = NonZeroU16::new(100);
                let run = emitted(route, offload, |emitter| {
                    emitter.emit(&header(seq, last), &payload, &[], size);
                });
                let one_by_one = emitted(route, offload, |emitter| {
                    for (index, segment) in octets[..len].chunks(100).enumerate() {
                        let is_last = (index + 1) * 100 >= len;
                        let flags = if is_last { last } else { Flags::ACK };
                        let at = u32::try_from(index * 100).unwrap();
                        let header = header(seq.wrapping_add(at), flags);
                        emitter.emit(&header, &[SharedSlice::from_bytes(segment)], &[], None);
                    }
                });
                assert_eq!(run, one_by_one, "{len} octets in fragments of {fragment_len}");
            }
        }
    }

    #[test]
    fn a_run_that_fills_the_device_loses_nothing() {
        let octets: Vec<u8> = (0..=255).cycle().take(400).collect();
        let route = &routes()[0];
        let emit = |emitter: &mut Emitter<'_, '_>| {
            let payload = [SharedSlice::from_bytes(&octets)];
            emitter.emit(&header(1, Flags::ACK), &payload, &[], NonZeroU16::new(100));
        };
        let (all, turn) = emitted(route, true, emit);
        let (mut frames, mut refused) = (Vec::new(), Refused::default());
        for rooms in [[1, 0, 1, 1, 1], [0, 4, 0, 0, 0], [2, 1, 0, 0, 1], [3, 0, 1, 0, 0]] {
            for (round, room) in rooms.into_iter().enumerate() {
                let mut left = room;
                let mut device = |frame: &TxFrame<'_>| {
                    if left == 0 {
                        return Err(TransmitError::Full);
                    }
                    left -= 1;
                    let mut octets = vec![0; frame.len()];
                    frame.gather(&mut octets);
                    frames.push((octets, frame.checksum, frame.segment_size));
                    Ok(())
                };
                let mut outlet = Outlet::new(&mut refused, 64, &mut device);
                if round == 0 {
                    let mut emitter = Emitter::new(route, &capabilities(true), &mut outlet);
                    emit(&mut emitter);
                    let Turn { frames, bytes } = emitter.turn();
                    assert_eq!([frames, bytes], turn, "what waits is handed over");
                }
                assert_eq!(outlet.taken(), room);
            }
            assert!(!refused.waits());
            assert_eq!(std::mem::take(&mut frames), all, "{rooms:?}");
        }
    }

    /// The frames that a device accepts after a drop are sent.
    #[test]
    fn a_frame_of_a_run_that_is_lost_takes_no_other_with_it() {
        let octets = [7; 300];
        let (mut offered, mut refused) = (0, Refused::default());
        let mut device = |_: &TxFrame<'_>| {
            offered += 1;
            if offered == 2 { Err(TransmitError::Refused) } else { Ok(()) }
        };
        let mut outlet = Outlet::new(&mut refused, 64, &mut device);
        let route = &routes()[0];
        let mut emitter = Emitter::new(route, &capabilities(true), &mut outlet);
        let payload = [SharedSlice::from_bytes(&octets)];
        emitter.emit(&header(1, Flags::ACK), &payload, &[], NonZeroU16::new(100));
        assert_eq!(emitter.turn().frames, 2);
        assert!(!emitter.may_continue(64, usize::MAX), "the turn ends");
        assert_eq!((outlet.taken(), offered), (2, 3));
    }
}
