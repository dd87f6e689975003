//! Bytes of Ethernet and IP, built and parsed without the engine.

pub(crate) const ETHERNET_LEN: usize = 14;

/// Offsets of the addresses in an untagged IPv4 frame.
pub(crate) const SOURCE_AT: usize = 26;
pub(crate) const DESTINATION_AT: usize = 30;

/// Returns the internet checksum (RFC 1071), ready for its field.
pub(crate) fn checksum(octets: &[u8]) -> [u8; 2] {
    let mut sum: u32 = octets
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// Returns the length of the IP datagram in an untagged frame; 0 for other frames.
pub(crate) fn datagram_len(frame: &[u8]) -> usize {
    match frame[12..14] {
        [0x08, 0x00] => usize::from(u16::from_be_bytes([frame[16], frame[17]])),
        [0x86, 0xdd] => 40 + usize::from(u16::from_be_bytes([frame[18], frame[19]])),
        _ => 0,
    }
}

/// Returns true if an untagged IPv4 or IPv6 frame carries TCP.
pub(crate) fn is_tcp(frame: &[u8]) -> bool {
    match frame[12..14] {
        [0x08, 0x00] => frame[23] == 6,
        [0x86, 0xdd] => frame[20] == 6,
        _ => false,
    }
}

/// Recomputes the checksums of an untagged IPv4 frame with TCP.
pub(crate) fn seal(frame: &mut [u8]) {
    const TCP_AT: usize = ETHERNET_LEN + 20;
    frame[24..26].fill(0);
    let sum = checksum(&frame[ETHERNET_LEN..TCP_AT]);
    frame[24..26].copy_from_slice(&sum);
    let end = ETHERNET_LEN + datagram_len(frame);
    frame[TCP_AT + 16..TCP_AT + 18].fill(0);
    let mut pseudo = frame[SOURCE_AT..TCP_AT].to_vec();
    pseudo.extend([0, 6]);
    pseudo.extend(((end - TCP_AT) as u16).to_be_bytes());
    pseudo.extend(&frame[TCP_AT..end]);
    let sum = checksum(&pseudo);
    frame[TCP_AT + 16..TCP_AT + 18].copy_from_slice(&sum);
}

/// Returns the ICMP or ICMPv6 message about a frame from a router at the frame's destination
/// address, of this kind, with this word behind its checksum.
pub(crate) fn icmp_about(frame: &[u8], kind: u8, code: u8, word: u32) -> Vec<u8> {
    let mut reply = frame[6..12].to_vec();
    reply.extend(&frame[..6]);
    reply.extend(&frame[12..14]);
    let quoted = &frame[ETHERNET_LEN..];
    let mut icmp = vec![kind, code, 0, 0];
    icmp.extend(word.to_be_bytes());
    if frame[12] == 0x08 {
        icmp.extend(&quoted[..28]);
        let sum = checksum(&icmp);
        icmp[2..4].copy_from_slice(&sum);
        let mut ip = vec![0x45, 0, 0, 20 + icmp.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0];
        ip.extend(&quoted[16..20]);
        ip.extend(&quoted[12..16]);
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum);
        reply.extend(ip);
    } else {
        icmp.extend(&quoted[..60]);
        let (own, peer) = (&quoted[8..24], &quoted[24..40]);
        let mut pseudo = [peer, own].concat();
        pseudo.extend([0, 0, 0, icmp.len() as u8, 0, 0, 0, 58]);
        pseudo.extend(&icmp);
        let sum = checksum(&pseudo);
        icmp[2..4].copy_from_slice(&sum);
        reply.extend([0x60, 0, 0, 0, 0, icmp.len() as u8, 58, 64]);
        reply.extend(peer);
        reply.extend(own);
    }
    reply.extend(icmp);
    reply
}

/// Returns the frame as fragments of at most `len` bytes of payload each, a multiple of 8; last
/// first.
pub(crate) fn fragments_of(frame: &[u8], len: usize, id: u32) -> Vec<Vec<u8>> {
    let header_len = if frame[12] == 0x08 { 20 } else { 40 };
    let payload_at = ETHERNET_LEN + header_len;
    let payload = &frame[payload_at..ETHERNET_LEN + datagram_len(frame)];
    let count = payload.len().div_ceil(len);
    let mut fragments = Vec::new();
    for (index, part) in payload.chunks(len).enumerate() {
        let more = index + 1 < count;
        let mut fragment = frame[..payload_at].to_vec();
        if header_len == 20 {
            let word = (index * len / 8) as u16 | if more { 0x2000 } else { 0 };
            fragment[16..18].copy_from_slice(&((20 + part.len()) as u16).to_be_bytes());
            fragment[18..20].copy_from_slice(&(id as u16).to_be_bytes());
            fragment[20..22].copy_from_slice(&word.to_be_bytes());
            fragment[24..26].fill(0);
            let sum = checksum(&fragment[14..34]);
            fragment[24..26].copy_from_slice(&sum);
        } else {
            let word = (index * len) as u16 | u16::from(more);
            fragment[18..20].copy_from_slice(&((8 + part.len()) as u16).to_be_bytes());
            let next = std::mem::replace(&mut fragment[20], 44);
            fragment.extend([next, 0]);
            fragment.extend(word.to_be_bytes());
            fragment.extend(id.to_be_bytes());
        }
        fragment.extend(part);
        fragments.push(fragment);
    }
    fragments.reverse();
    fragments
}
