//! Gathers every part of the sent bytes once more, as TCP does for a retransmission: each byte is
//! the same, headers and the end of the message included. Messages take no needless FPDU.

use super::*;

/// Payload of a full FPDU of a Write in a segment of this many bytes.
const EMSS: usize = 1448;
const FULL: usize = EMSS - 2 - TAGGED - 4;

/// Frames everything that `end` has to send, without sending it. Returns its start.
fn frame(end: &mut End) -> StreamOffset {
    let start = end.layered.stream_mut().framed_end();
    loop {
        let before = end.layered.stream_mut().framed_end();
        let (mut scratch, mut fragments) = (Scratch::default(), Fragments::new());
        end.layered.octets_to_send(&mut scratch, EMSS, 4 << 20, &mut fragments);
        drop(fragments);
        let framed = end.layered.stream_mut().framed_end();
        // Like a port: whole runs, too.
        let mut room = Room { segment_len: EMSS, fragments: FRAGMENTS_MAX, cut: Cut::Always };
        let last = framed.index_from(before).min(EMSS);
        end.layered.stream_mut().frame_alike(last, 8, &mut room);
        if end.layered.stream_mut().framed_end() == before {
            return start;
        }
    }
}

/// The bytes in `range`, as gathered into a frame.
fn gathered(end: &mut End, range: Range<StreamOffset>, copied: bool) -> Vec<u8> {
    let stream = end.layered.stream_mut();
    stream.keep_cut(&range);
    let path = if copied { SendPath::Stage } else { SendPath::Gather };
    let (mut scratch, mut fragments) = (Scratch::new(path, 0), Fragments::new());
    let mut frame = FrameBuilder::new(&mut scratch, &mut fragments);
    stream.gather(range, &mut frame);
    frame.finish();
    let mut octets = Vec::new();
    for fragment in &fragments {
        let at = octets.len();
        octets.resize(at + fragment.len(), 0);
        fragment.copy_out(0, &mut octets[at..]);
    }
    octets
}

/// Requests whose messages end with a full FPDU, with a shorter one, and with less than four bytes.
fn requests(a: &End, b: &End, id: u64, len: usize) -> Vec<SendWr> {
    let (remote, source) = (b.memory.remote(7), a.memory.sge(0..len));
    let immediate = SendOp::RdmaWriteImmediate { remote, immediate: 9, solicited: true };
    vec![
        SendWr::write(WrId(id), remote, [source.clone()]),
        SendWr::send(WrId(id + 1), [source.clone()]),
        SendWr::new(WrId(id + 2), immediate, [source]),
        SendWr::read(WrId(id + 3), b.memory.remote(3), a.memory.sge(LEN..LEN + len)),
    ]
}

// spec: DDP-3-2, TCP-A.1-4
#[test]
fn any_retransmitted_part_has_its_original_octets() {
    for (markers, copied) in [(false, false), (true, false), (false, true), (true, true)] {
        for len in [0, 1, FULL - 1, FULL, 5 * FULL, 5 * FULL + 1, 6 * FULL - 3, 12_000] {
            let config = StartupConfig { markers, immediates: true, ..StartupConfig::default() };
            let [mut a, mut b] = started_with(config);
            a.memory.copy_in(0, &(0..=250).cycle().take(len).collect::<Vec<u8>>());
            for wr in requests(&a, &b, 1, len) {
                a.qp.post_send(wr).unwrap();
            }
            check(&mut a, copied);
            for _ in 0..4 {
                b.qp.post_recv(RecvWr::new(WrId(1), [b.memory.sge(0..LEN)])).unwrap();
            }
            pass(&mut a, &mut b);
            // The Response is kept from its framing on.
            check(&mut b, copied);
            pass(&mut b, &mut a);
            assert_eq!(a.statuses().len(), 4, "{len} {markers}");
        }
    }
}

/// Compares all bytes that `end` frames with each part of them.
fn check(end: &mut End, copied: bool) {
    let start = frame(end);
    let stop = end.layered.stream_mut().framed_end();
    let boundaries: Vec<_> =
        end.full().tx.boundaries().into_iter().filter(|at| *at >= start).collect();
    let all = gathered(end, start..stop, copied);
    assert_eq!(all.len() as u64, stop.bytes_since(start));
    for (first, from) in boundaries.iter().enumerate() {
        for to in &boundaries[first + 1..] {
            let range = from.index_from(start)..to.index_from(start);
            assert!(gathered(end, *from..*to, copied) == all[range.clone()], "{range:?}");
        }
    }
    // Parts of FPDUs: all of these FPDUs are kept from then on.
    for at in (1..all.len().saturating_sub(90)).step_by(97) {
        let range = start + at as u64..start + (at + 90) as u64;
        assert!(gathered(end, range, copied) == all[at..at + 90], "{at}");
    }
}

/// A message that fills its FPDUs has no empty one after them.
#[test]
fn a_message_takes_no_fpdu_more_than_its_octets_need() {
    for alike in [true, false] {
        for full in 1..12 {
            for (len, fpdus) in
                [(full * FULL - 1, full), (full * FULL, full), (full * FULL + 1, full + 1)]
            {
                let [mut a, b] = started();
                let before = a.layered.fpdus_framed();
                let write = SendWr::write(WrId(1), b.memory.remote(0), [a.memory.sge(0..len)]);
                a.qp.post_send(write).unwrap();
                if alike {
                    frame(&mut a);
                } else {
                    assert!(a.write(4 << 20, 0).is_empty());
                }
                assert_eq!(a.layered.fpdus_framed() - before, fpdus as u64, "{len} {alike}");
            }
        }
    }
}
