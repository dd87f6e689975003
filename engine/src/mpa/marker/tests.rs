use proptest::prelude::*;

use super::*;

const ORIGIN: StreamOffset = StreamOffset(20);

fn marked() -> MarkerGrid {
    MarkerGrid::new(ORIGIN, true)
}

fn unmarked() -> MarkerGrid {
    MarkerGrid::new(ORIGIN, false)
}

/// Kind of one byte of the stream, found by walking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Octet {
    Marker { index: usize, first: bool },
    Fpdu(usize),
}

/// Walks an FPDU byte by byte as RFC 5044 §4.3 describes it.
fn walk(grid: MarkerGrid, start: StreamOffset, ulpdu_len: usize) -> Vec<Octet> {
    let mut wire = Vec::new();
    let mut markers = 0;
    for octet in 0..fpdu_len(ulpdu_len) {
        let at = start.0 + wire.len() as u64;
        if grid.enabled && (at - grid.origin.0).is_multiple_of(512) {
            for n in 0..4 {
                wire.push(Octet::Marker { index: markers, first: n == 0 });
            }
            markers += 1;
        }
        wire.push(Octet::Fpdu(octet));
    }
    wire
}

fn agrees_with_walk(grid: MarkerGrid, start: StreamOffset, ulpdu_len: usize) {
    let wire = walk(grid, start, ulpdu_len);
    let layout = grid.layout(start, ulpdu_len);
    assert_eq!(layout.wire_len(), wire.len());
    let header = wire.iter().position(|o| *o == Octet::Fpdu(0)).unwrap();
    assert_eq!(header, grid.leading_len(start));
    let mut before = 0;
    let mut markers = 0;
    for (at, octet) in wire.iter().enumerate() {
        match *octet {
            Octet::Marker { index, first: true } => {
                markers += 1;
                assert_eq!(layout.marker_at(index), at);
                assert_eq!(layout.marker_octet(index), before);
                assert_eq!(usize::from(layout.fpduptr(index)), at.saturating_sub(header));
                let position = start + at as u64;
                assert!(grid.is_marker(position));
                assert_eq!(grid.next_marker(position), Some(position));
                assert_eq!(grid.fpdu_start(position, layout.fpduptr(index)), Some(start));
                assert_eq!(grid.fpdu_start(position, layout.fpduptr(index) | 3), Some(start));
            }
            Octet::Marker { .. } => {}
            Octet::Fpdu(n) => {
                assert_eq!(layout.wire_of(n), at);
                let run = wire[at..].iter().take_while(|o| matches!(o, Octet::Fpdu(_))).count();
                assert!(layout.run_len_from(n) >= run);
                if at + run < wire.len() {
                    assert_eq!(layout.run_len_from(n), run);
                }
                before += 1;
            }
        }
    }
    assert_eq!(layout.marker_count(), markers);
    assert_eq!(layout.wire_of(layout.fpdu_bytes - CRC_LEN), layout.crc_at());
}

#[test]
fn pad_makes_every_fpdu_a_multiple_of_four() {
    for len in 1..2000 {
        assert!(pad_len(len) < 4);
        assert_eq!(fpdu_len(len) % 4, 0);
        assert_eq!(fpdu_len(len), 2 + len + pad_len(len) + 4);
    }
    assert_eq!(fpdu_len(42), 48);
}

// spec: MPA-4.3-2, MPA-4.3-4
#[test]
fn markers_are_every_512_octets_from_the_origin() {
    let grid = MarkerGrid::new(StreamOffset(11), true);
    for at in [11, 523, 1035] {
        assert!(grid.is_marker(StreamOffset(at)));
        assert!(!grid.is_marker(StreamOffset(at + 1)));
    }
    assert_eq!(grid.next_marker(StreamOffset(12)), Some(StreamOffset(523)));
    assert_eq!(unmarked().next_marker(ORIGIN), None);
    assert!(!unmarked().is_marker(ORIGIN));
}

// spec: MPA-4.3-5, MPA-4.3-7
#[test]
fn markers_of_one_fpdu_all_point_at_its_header() {
    let layout = marked().layout(ORIGIN, 1442);
    assert_eq!(layout.marker_count(), 3);
    let values: Vec<u16> = (0..3).map(|i| layout.fpduptr(i)).collect();
    assert_eq!(values, [0, 0x1FC, 0x3FC]);
    let second = marked().layout(ORIGIN + layout.wire_len() as u64, 1442);
    let values: Vec<u16> = (0..3).map(|i| second.fpduptr(i)).collect();
    assert_eq!(values, [0x04C, 0x24C, 0x44C]);
}

// spec: MPA-4.3-6
#[test]
fn a_marker_between_fpdus_leads_the_following_one() {
    let grid = marked();
    let first = grid.layout(ORIGIN, 502);
    assert_eq!(first.wire_len(), 512);
    assert_eq!(first.marker_count(), 1);
    let second = grid.layout(ORIGIN + 512, 1);
    assert_eq!((second.marker_count(), second.fpduptr(0)), (1, 0));
    assert_eq!(grid.leading_len(ORIGIN + 512), 4);
    // A header directly after a marker: pointers reach it, the start includes the marker.
    assert_eq!(grid.fpdu_start(ORIGIN + 1024, 508), Some(ORIGIN + 512));
}

// spec: MPA-4.3-8
#[test]
fn small_fpdus_are_pointed_at_from_the_marker_inside_them() {
    let grid = marked();
    let mut start = ORIGIN;
    for _ in 0..2000 {
        let layout = grid.layout(start, 6);
        for index in 0..layout.marker_count() {
            assert!([0, 4, 8].contains(&layout.fpduptr(index)));
        }
        start = start + layout.wire_len() as u64;
    }
}

#[test]
fn pointers_that_no_fpdu_can_have_are_refused() {
    let grid = marked();
    assert_eq!(grid.fpdu_start(ORIGIN + 512, 512), None, "a marker stands there");
    assert_eq!(grid.fpdu_start(ORIGIN + 512, 516), None, "before the stream");
    assert_eq!(grid.fpdu_start(ORIGIN, 0xFFFC), None, "before offset zero");
}

// spec: MPA-4.3-13
#[test]
fn the_largest_fpdu_keeps_its_pointers_in_16_bits() {
    let mut ptr_max = 0;
    let mut len_max = 0;
    for phase in (0..512).step_by(4) {
        let layout = marked().layout(ORIGIN + phase, ULPDU_LEN_MAX);
        let last = layout.marker_count() - 1;
        let header = marked().leading_len(ORIGIN + phase);
        let distance = layout.marker_at(last) - header;
        assert_eq!(usize::from(layout.fpduptr(last)), distance);
        ptr_max = ptr_max.max(distance);
        len_max = len_max.max(layout.wire_len());
    }
    assert_eq!(ptr_max, 65280);
    assert_eq!(len_max, 65288);
}

// spec: MPA-4.5-1, MPA-4.5-2
#[test]
fn mulpdu_has_the_values_of_the_formula() {
    let with = [(1460, 1442), (1448, 1430), (8960, 8882), (8948, 8870), (1461, 1442)];
    for (emss, expected) in with.into_iter().chain([(1459, 1438), (536, 522)]) {
        assert_eq!(mulpdu(emss, true), expected, "EMSS {emss}");
    }
    for (emss, expected) in [(1460, 1454), (1448, 1442), (8960, 8954), (536, 530)] {
        assert_eq!(mulpdu(emss, false), expected, "EMSS {emss}");
    }
}

// spec: MPA-3-2, MPA-4.5-3
#[test]
fn mulpdu_stays_within_its_bounds_for_every_emss() {
    for emss in 0..=65535 {
        for markers in [false, true] {
            assert!((MULPDU_MIN..=ULPDU_LEN_MAX).contains(&mulpdu(emss, markers)));
        }
    }
    assert_eq!(mulpdu(65495, true), 64768);
    assert_eq!(mulpdu(65495, false), 64768);
    assert_eq!(mulpdu(138, true), 128);
    assert_eq!(mulpdu(100, true), 128);
}

// spec: MPA-4.5-4
#[test]
fn an_fpdu_of_mulpdu_fits_the_segment_at_every_phase_without_pad() {
    for emss in 160..=9000 {
        let unpadded = mulpdu(emss, false);
        assert_eq!((unpadded % 4, pad_len(unpadded)), (2, 0));
        assert!(fpdu_len(unpadded) <= emss);
        let len = mulpdu(emss, true);
        assert_eq!((len % 4, pad_len(len)), (2, 0));
        for phase in (0..512).step_by(4) {
            assert!(marked().layout(ORIGIN + phase, len).wire_len() <= emss, "{emss} {phase}");
        }
    }
}

// spec: MPA-3-3, MPA-4.5-5
#[test]
fn the_dynamic_mulpdu_is_the_largest_that_fits_the_room() {
    for markers in [false, true] {
        let grid = MarkerGrid::new(ORIGIN, markers);
        for phase in (0..512).step_by(4) {
            let start = ORIGIN + phase;
            for room in (0..200).chain(480..560).chain(1000..1060).chain(1440..1464) {
                match grid.mulpdu_for_room(start, room) {
                    None => assert!(grid.layout(start, 1).wire_len() > room),
                    Some(len) => {
                        assert!(grid.layout(start, len).wire_len() <= room);
                        assert!(grid.layout(start, len + 1).wire_len() > room);
                    }
                }
            }
        }
    }
    assert_eq!(unmarked().mulpdu_for_room(ORIGIN, 70_000), Some(ULPDU_LEN_MAX));
    assert_eq!(marked().mulpdu_for_room(ORIGIN, usize::MAX), Some(ULPDU_LEN_MAX));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn arithmetic_agrees_with_a_naive_walk(
        enabled: bool, origin in 0u64..1 << 40, words in 0u64..1000, ulpdu_len in 1usize..2600,
    ) {
        // An FPDU cannot start directly after a marker: that marker would lead it.
        prop_assume!(words % 128 != 1);
        let grid = MarkerGrid::new(StreamOffset(origin), enabled);
        agrees_with_walk(grid, StreamOffset(origin + 4 * words), ulpdu_len);
    }

    #[test]
    fn any_pointer_of_any_marker_is_answered(origin: u32, nth in 0u64..1000, ptr: u16) {
        let grid = MarkerGrid::new(StreamOffset(u64::from(origin)), true);
        let marker = StreamOffset(u64::from(origin) + 512 * nth);
        if let Some(start) = grid.fpdu_start(marker, ptr) {
            prop_assert!(start <= marker && start.0 >= u64::from(origin));
        }
    }
}

// spec: MPA-4.3-9, MPA-4.3-11
#[test]
fn arithmetic_agrees_with_a_walk_at_every_phase() {
    for phase in (0..512).step_by(4).filter(|phase| *phase != 4) {
        for ulpdu_len in [1, 6, 42, 494, 498, 502, 506, 510, 1010, 1014] {
            agrees_with_walk(marked(), ORIGIN + phase, ulpdu_len);
        }
    }
}
