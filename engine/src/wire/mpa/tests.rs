use super::*;

#[test]
fn fpdus_are_padded_to_four_octets() {
    for ulpdu_len in 0..=2000 {
        assert!(pad_len(ulpdu_len) < 4);
        assert!(fpdu_len(ulpdu_len).is_multiple_of(4));
        assert_eq!(fpdu_len(ulpdu_len), 2 + ulpdu_len + pad_len(ulpdu_len) + 4);
    }
    assert_eq!([0, 1, 2, 3, 42].map(pad_len), [2, 1, 0, 3, 0]);
    assert_eq!(fpdu_len(2), 8);
    assert_eq!(pad_len(usize::MAX), 3);
}

// spec: MPA-4.2-1, MPA-4.2-2
#[test]
fn marker_low_bits_and_reserved_field_are_ignored() {
    assert_eq!(Marker::from_bytes([0, 0, 0, 0x17]), Marker { fpduptr: 0x14 });
    assert_eq!(Marker::from_bytes([0xFF, 0xFF, 0x01, 0xFC]), Marker { fpduptr: 0x1FC });
    assert_eq!(Marker { fpduptr: 0x3FF }.to_bytes(), [0, 0, 0x03, 0xFC]);
    assert_eq!(Marker { fpduptr: 65280 }.to_bytes(), [0, 0, 0xFF, 0]);
}
