//! Super-frames, where the device behind takes them.

use super::*;

/// A path carries the segments of a super-frame, so impairments apply to the segments.
#[test]
fn a_super_frame_is_as_long_as_its_segments_and_is_not_damaged() {
    let config = ImpairConfig { path_mtu: Some(1500), ..ImpairConfig::default() };
    let (a, mut b) = pair(LinkConfig {
        mtu: 9000,
        super_frame_len_max: NonZeroUsize::new(65_000),
        tx_checksum: true,
        ..LinkConfig::default()
    });
    let mut a = Impair::new(a, config, 9);
    // Known later than the offloads that it has.
    a.set_config(ImpairConfig { corrupt: 1.0, corrupt_bits_max: 4, ..config });
    let bytes = Segment::new(1, &[7; 8000]).frame();
    let payload = [SharedSlice::from_bytes(&bytes[54..])];
    let mut send = |size| {
        let frame = TxFrame {
            head: &bytes[..54],
            payload: &payload,
            checksum: TxChecksum::Partial { start: 34, offset: 16 },
            segment_size: NonZeroU16::new(size),
            digests: None,
        };
        a.transmit(0, &frame).unwrap();
        a.flush(0);
        let mut came = Vec::new();
        b.receive(0, 8, &mut |frame| came.push(frame.head[54..].to_vec()));
        came
    };
    assert_eq!(send(1460), [bytes[54..].to_vec()], "40 octets of headers, and 1460");
    assert_eq!(send(1461), [[0_u8; 0]; 0]);
    assert_eq!((a.counters().dropped, a.counters().corrupted), (1, 0));
}
