//! Whole reports of invented sessions, as JSON and as text.

use serde_json::json;
use urnic_engine::wire::mpa::StartupKind;
use urnic_engine::wire::rdmap::Opcode;

use super::build::{fpdu, startup, tagged};
use super::*;
use crate::report::{Report, text};

/// A peer-to-peer connection: a Write in two segments in the wrong order, a Read, a retransmitted
/// Send, and a Terminate about the Write.
fn session() -> Vec<u8> {
    let mut talk = Talk {
        mss: Some(1460),
        window: 1000,
        window_scale: [Some(2), Some(7)],
        now_us: 5_000_000,
        ..Talk::empty()
    };
    let (first, second) = (talk.seq[INITIATOR], talk.seq[RESPONDER]);
    talk.frame(INITIATOR, first, 2, &[]);
    talk.seq[INITIATOR] += 1;
    talk.wait(30).frame(RESPONDER, second, 0x12, &[]);
    talk.seq[RESPONDER] = second.wrapping_add(1);
    let begun = talk.seq[INITIATOR];
    talk.wait(10).frame(INITIATOR, begun, 0x10, &[]);
    for (side, kind, word, data) in [
        (INITIATOR, StartupKind::Request, [0x80, 4, 0x80, 8], &b"ask\0"[..]),
        (RESPONDER, StartupKind::Reply, [0x80, 8, 0x80, 4], &[0xff]),
    ] {
        let mut frame = startup(kind, false, &[&word[..], data].concat());
        // S, and revision 2.
        frame[16] |= 0x10;
        frame[17] = 2;
        talk.wait(60).send(side, &frame);
    }
    let part = |to: u64, last, fill| fpdu(&tagged(Opcode::RdmaWrite, 3, to, last, &[fill; 64]));
    let (one, two) = (part(0x100, false, 1), part(0x140, true, 2));
    talk.wait(100).fpdu(INITIATOR, &write(0, 0, b""));
    let seq = talk.seq[INITIATOR];
    talk.skip(INITIATOR, u32::try_from(one.len()).unwrap());
    talk.wait(100).send(INITIATOR, &two);
    talk.wait(100).frame(INITIATOR, seq, 0x10, &one);
    talk.wait(100).fpdu(INITIATOR, &send(1, b"hello"));
    let again = talk.seq[INITIATOR].wrapping_sub(32);
    talk.wait(100).frame(INITIATOR, again, 0x10, &fpdu(&send(1, b"hello")));
    talk.wait(100).fpdu(INITIATOR, &read_request(1, 9, 0x20, 8));
    talk.wait(100).fpdu(RESPONDER, &read_response(9, 0x20, &[7; 8]));
    let mut stop = terminate([0x11, 1, 0xc0, 0]);
    stop.extend(78_u16.to_be_bytes());
    stop.extend(&tagged(Opcode::RdmaWrite, 3, 0x140, true, &[]));
    talk.wait(100).fpdu(RESPONDER, &stop);
    talk.file
}

#[test]
#[expect(clippy::too_many_lines, reason = "the whole of a report")]
fn the_json_of_a_session_is_complete() {
    let expected = json!({
        "connections": [
            {
                "directions": [
                    {
                        "buffers": [
                            {
                                "bytes": 128,
                                "first_offset": 256,
                                "sha256": "c7cb1b830887ee9f6eed38b47264115651a7b0767e3179ed842682a8b8657f49",
                                "stag": "0x00000003"
                            }
                        ],
                        "bytes_held_peak": 84,
                        "bytes_placed": 133,
                        "bytes_placed_out_of_order": 0,
                        "bytes_sent": 332,
                        "crc_bad": 0,
                        "crc_good": 5,
                        "fpdus": 5,
                        "fpdus_by_marker": 0,
                        "fpdus_by_opcode": {
                            "rdma_write": 3,
                            "read_request": 1,
                            "send": 1
                        },
                        "fpdus_out_of_order": 0,
                        "from": "initiator",
                        "marker_errors": 0,
                        "markers": 0,
                        "messages": {
                            "rdma_write": 2,
                            "read_request": 1,
                            "send": 1
                        },
                        "mss": 1460,
                        "segments": 7,
                        "segments_aligned": 6,
                        "segments_judged": 6,
                        "segments_out_of_order": 1,
                        "segments_retransmitted": 1,
                        "terminate": [],
                        "window_max": 128000
                    },
                    {
                        "buffers": [
                            {
                                "bytes": 8,
                                "first_offset": 32,
                                "sha256": "81dcbecf88d35d828096dfd9f9b24b252f90ea14529d6198734f562b5c56c705",
                                "stag": "0x00000009"
                            }
                        ],
                        "bytes_held_peak": 0,
                        "bytes_placed": 8,
                        "bytes_placed_out_of_order": 0,
                        "bytes_sent": 97,
                        "crc_bad": 0,
                        "crc_good": 2,
                        "fpdus": 2,
                        "fpdus_by_marker": 0,
                        "fpdus_by_opcode": {
                            "read_response": 1,
                            "terminate": 1
                        },
                        "fpdus_out_of_order": 0,
                        "from": "responder",
                        "marker_errors": 0,
                        "markers": 0,
                        "messages": {
                            "read_response": 1,
                            "terminate": 1
                        },
                        "mss": 1460,
                        "segments": 3,
                        "segments_aligned": 2,
                        "segments_judged": 2,
                        "segments_out_of_order": 0,
                        "segments_retransmitted": 0,
                        "terminate": [
                            {
                                "about": "RDMA Write of 64 bytes to STag 0x00000003 at 0x140",
                                "code": 1,
                                "layer": 1,
                                "text": "DDP tagged buffer error: base or bounds violation",
                                "type": 1
                            }
                        ],
                        "window_max": 4000
                    }
                ],
                "findings": [
                    {
                        "frame": 5,
                        "rule": "RFC 6581 §9.2",
                        "severity": "note",
                        "should": "Nothing: both ends agree on it.",
                        "text": "peer-to-peer model: the RTR message is a zero-length RDMA Write"
                    },
                    {
                        "costs": "The connection, and all operations in flight.",
                        "frame": 13,
                        "rule": "RFC 5040 §4.8",
                        "severity": "warning",
                        "should": "Look at the segment that the Terminate names, and at the memory that its sender had registered.",
                        "text": "responder: ends the stream with Terminate 1/1/01: DDP tagged buffer error: base or bounds violation"
                    }
                ],
                "first_ns": 5_000_000_000_u64,
                "handshake_ns": 40000,
                "initiator": "10.0.0.1:40000",
                "mpa": {
                    "accepted": true,
                    "crc": true,
                    "initiator_private_data": "61736b00",
                    "ird": 4,
                    "markers": {
                        "to_initiator": false,
                        "to_responder": false
                    },
                    "ord": 8,
                    "peer_to_peer": true,
                    "responder_ird": 8,
                    "responder_ord": 4,
                    "responder_private_data": "ff",
                    "revision": 2
                },
                "responder": "10.0.0.2:7174",
                "span_ns": 860000
            }
        ],
        "file": "test",
        "findings": [],
        "first_ns": 5_000_000_000_u64,
        "frames": 13,
        "frames_corrupt": 0,
        "frames_skipped": 0,
        "span_ns": 960000
    });
    assert_eq!(serde_json::to_value(replay(&session())).unwrap(), expected);
}

#[test]
fn the_text_of_a_session_is_complete() {
    let told = text::of(&Report { files: vec![replay(&session())] });
    let expected = r#"test: 13 frames, 0 skipped, in 960 µs

  10.0.0.1:40000 → 10.0.0.2:7174
  begins with the capture, data for 860 µs, handshake 40 µs
  MPA revision 2, accepted, CRC, no markers, IRD 4 ORD 8 answered by IRD 8 ORD 4, peer to peer; private data of the initiator: "ask"; private data of the responder: ff
  ┌──────────────────────────────────┬────────────────┬────────────────┐
  │                                  ┆ from initiator ┆ from responder │
  ╞══════════════════════════════════╪════════════════╪════════════════╡
  │ rate on average                  ┆    3.09 Mbit/s ┆     902 kbit/s │
  │ bytes sent                       ┆            332 ┆             97 │
  │ MSS of the other end             ┆          1 460 ┆          1 460 │
  │ window of the other end, at most ┆         128 kB ┆           4 kB │
  │ data segments                    ┆              7 ┆              3 │
  │   in full operation, judged      ┆              6 ┆              2 │
  │     aligned with FPDUs           ┆    6 (100.0 %) ┆    2 (100.0 %) │
  │   out of order                   ┆     1 (14.3 %) ┆              0 │
  │   retransmitted                  ┆     1 (14.3 %) ┆              0 │
  │ FPDUs                            ┆              5 ┆              2 │
  │   found by a marker              ┆              0 ┆              0 │
  │   out of order                   ┆              0 ┆              0 │
  │ CRCs right                       ┆              5 ┆              2 │
  │ CRCs wrong                       ┆              0 ┆              0 │
  │ markers                          ┆              0 ┆              0 │
  │   wrong                          ┆              0 ┆              0 │
  │ bytes placed                     ┆            133 ┆              8 │
  │   out of order                   ┆              0 ┆              0 │
  │ bytes held, at most              ┆             84 ┆              0 │
  │ messages                         ┆              4 ┆              2 │
  │   rdma_write                     ┆   2 in 3 FPDUs ┆              0 │
  │   read_request                   ┆              1 ┆              0 │
  │   read_response                  ┆              0 ┆              1 │
  │   send                           ┆              1 ┆              0 │
  │   terminate                      ┆              0 ┆              1 │
  └──────────────────────────────────┴────────────────┴────────────────┘
  responder sent Terminate 1/1/01: DDP tagged buffer error: base or bounds violation, about RDMA Write of 64 bytes to STag 0x00000003 at 0x140
  initiator: bytes placed were placed, or would have been, had all their memory been registered
  ┌────────────┬────────────┬──────────────┬───────┬───────────────────┐
  │ written by ┆ STag       ┆ first offset ┆ bytes ┆ SHA-256           │
  ╞════════════╪════════════╪══════════════╪═══════╪═══════════════════╡
  │ initiator  ┆ 0x00000003 ┆        0x100 ┆   128 ┆ c7cb1b830887ee9f… │
  │ responder  ┆ 0x00000009 ┆         0x20 ┆     8 ┆ 81dcbecf88d35d82… │
  └────────────┴────────────┴──────────────┴───────┴───────────────────┘
  note: frame 5: peer-to-peer model: the RTR message is a zero-length RDMA Write (RFC 6581 §9.2)
  warning: frame 13: responder: ends the stream with Terminate 1/1/01: DDP tagged buffer error: base or bounds violation (RFC 5040 §4.8)
"#;
    assert_eq!(told.trim_end(), expected.trim_end());
    let mut later = replay(&session());
    later.first_ns = later.first_ns.map(|first_ns| first_ns - 2_000);
    let told = text::of(&Report { files: vec![later] });
    assert!(told.contains("\n  begins 2 µs into the capture, data for 860 µs, handshake 40 µs\n"));
}
