//! Messages byte by byte, as in the tables of the RFCs.
#![allow(clippy::cast_possible_truncation, reason = "what is made here is shorter than a frame")]

/// DDP and RDMAP control bytes of a whole message (RFC 5040 §4.1), L set.
pub const WRITE: [u8; 2] = [0xC1, 0x40];
pub const READ_REQUEST: [u8; 2] = [0x41, 0x41];
pub const READ_RESPONSE: [u8; 2] = [0xC1, 0x42];
pub const SEND: [u8; 2] = [0x41, 0x43];
pub const SEND_MORE: [u8; 2] = [0x01, 0x43];
pub const SEND_INVALIDATE: [u8; 2] = [0x41, 0x44];
pub const SEND_SOLICITED_INVALIDATE: [u8; 2] = [0x41, 0x46];
pub const TERMINATE: [u8; 2] = [0x41, 0x47];
pub const IMMEDIATE: [u8; 2] = [0x41, 0x48];
pub const ATOMIC_REQUEST: [u8; 2] = [0x41, 0x4A];
pub const ATOMIC_RESPONSE: [u8; 2] = [0x41, 0x4B];

/// Flags of a startup frame.
pub const MARKERS: u8 = 0x80;
pub const CRC: u8 = 0x40;
pub const REJECT: u8 = 0x20;
pub const ENHANCED: u8 = 0x10;

pub const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
pub const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";

/// Returns a startup frame.
pub fn startup(key: [u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let mut frame = key.to_vec();
    frame.extend([flags, revision]);
    frame.extend((private_data.len() as u16).to_be_bytes());
    frame.extend(private_data);
    frame
}

/// Returns a tagged segment.
pub fn tagged(control: [u8; 2], stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = control.to_vec();
    ulpdu.extend(stag.to_be_bytes());
    ulpdu.extend(to.to_be_bytes());
    ulpdu.extend(payload);
    ulpdu
}

/// Returns an untagged segment of queue `qn`.
pub fn untagged(control: [u8; 2], qn: u32, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = control.to_vec();
    ulpdu.extend([0; 4]);
    for field in [qn, msn, mo] {
        ulpdu.extend(field.to_be_bytes());
    }
    ulpdu.extend(payload);
    ulpdu
}

/// Returns a Send of one segment.
pub fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged(SEND, 0, msn, 0, payload)
}

/// Returns a Send with Invalidate of one segment.
pub fn send_invalidate(control: [u8; 2], msn: u32, stag: u32, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = untagged(control, 0, msn, 0, payload);
    ulpdu[2..6].copy_from_slice(&stag.to_be_bytes());
    ulpdu
}

/// Returns an RDMA Write without payload: the most harmless first FPDU.
pub fn empty_write() -> Vec<u8> {
    tagged(WRITE, 1, 0, &[])
}

/// An address in the memory of an end.
pub type Place = (u32, u64);

/// Returns the header of a Read Request.
pub fn read_header(sink: Place, size: u32, source: Place) -> Vec<u8> {
    let mut header = sink.0.to_be_bytes().to_vec();
    header.extend(sink.1.to_be_bytes());
    header.extend(size.to_be_bytes());
    header.extend(source.0.to_be_bytes());
    header.extend(source.1.to_be_bytes());
    header
}

/// Returns a Read Request.
pub fn read_request(msn: u32, sink: Place, size: u32, source: Place) -> Vec<u8> {
    untagged(READ_REQUEST, 1, msn, 0, &read_header(sink, size, source))
}

/// Returns an Atomic Request; `operands` are data, mask, compare, compare mask.
pub fn atomic_request(msn: u32, op: u8, target: Place, operands: [u64; 4]) -> Vec<u8> {
    let mut body = vec![0, 0, 0, op];
    body.extend(0x5A5A_0000_u32.wrapping_add(msn).to_be_bytes());
    body.extend(target.0.to_be_bytes());
    body.extend(target.1.to_be_bytes());
    for operand in operands {
        body.extend(operand.to_be_bytes());
    }
    untagged(ATOMIC_REQUEST, 1, msn, 0, &body)
}

/// Returns an FPDU at byte `at` of a half connection with or without markers.
///
/// Markers are inserted the naive way: one before each byte whose position is due.
pub fn fpdu(ulpdu: &[u8], at: u64, markers: bool) -> Vec<u8> {
    let len = (ulpdu.len() as u16).to_be_bytes();
    fpdu_with_length(len, ulpdu, at, markers)
}

/// Does the same with an arbitrary length field.
pub fn fpdu_with_length(len: [u8; 2], ulpdu: &[u8], at: u64, markers: bool) -> Vec<u8> {
    let mut content = len.to_vec();
    content.extend(ulpdu);
    content.resize(content.len().next_multiple_of(4), 0);
    let mut stream = Vec::new();
    let mut header_at = None;
    for word in content.chunks(4) {
        push_marker_if_due(&mut stream, at, header_at, markers);
        header_at.get_or_insert(stream.len());
        stream.extend(word);
    }
    push_marker_if_due(&mut stream, at, header_at, markers);
    seal(stream)
}

/// Appends the CRC over the bytes.
pub fn seal(mut covered: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c(&covered);
    covered.extend(crc.to_le_bytes());
    covered
}

/// Replaces the CRC of a changed FPDU.
pub fn reseal(fpdu: &[u8]) -> Vec<u8> {
    seal(fpdu[..fpdu.len() - 4].to_vec())
}

fn push_marker_if_due(stream: &mut Vec<u8>, at: u64, header_at: Option<usize>, markers: bool) {
    if markers && (at + stream.len() as u64).is_multiple_of(512) {
        let back = header_at.map_or(0, |header| stream.len() - header);
        stream.extend([0, 0]);
        stream.extend((back as u16).to_be_bytes());
    }
}

/// Splits FPDUs without markers, whose CRCs must be right, into ULPDUs; a rest is an error.
pub fn ulpdus(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while let [high, low, ..] = *stream {
        let len = usize::from(u16::from_be_bytes([high, low]));
        let crc_at = (len + 2).next_multiple_of(4);
        assert!(stream.len() >= crc_at + 4, "half an FPDU: {stream:02x?}");
        let crc = crc32c::crc32c(&stream[..crc_at]).to_le_bytes();
        assert_eq!(stream[crc_at..crc_at + 4], crc, "the victim's CRCs are right");
        found.push(stream[2..2 + len].to_vec());
        stream = &stream[crc_at + 4..];
    }
    assert!(stream.is_empty());
    found
}
