//! Bounds and counters of an impaired device.

use super::*;

#[test]
fn the_mtu_is_the_lower_of_both() {
    for (mtu, expected) in [(None, 1500), (Some(1000), 1000), (Some(9000), 1500)] {
        let (a, _b) = pair(LinkConfig::default());
        let impaired = Impair::new(a, ImpairConfig { mtu, ..ImpairConfig::default() }, 1);
        assert_eq!(impaired.capabilities().mtu, expected, "{mtu:?}");
    }
}

/// Exactly `held_max` frames wait, and the peak is kept after they were sent.
#[test]
fn held_frames_have_their_bound_and_peak() {
    let config = ImpairConfig { delay_ns: 500, held_max: 3, ..ImpairConfig::default() };
    let mut link = Link::new(config, 1);
    for _ in 0..5 {
        link.send(0, &[1; 60]);
    }
    assert_eq!((link.a.counters().held_peak, link.a.counters().dropped), (3, 2));
    assert_eq!(link.received(500).len(), 3);
    link.send(1000, &[1; 60]);
    assert_eq!(link.received(1500).len(), 1);
    let counters = *link.a.counters();
    assert_eq!((counters.held_peak, counters.frames, counters.bytes), (3, 6, 360));
}

/// A frame of exactly the path's MTU passes, and a longer one is lost without a word.
#[test]
fn frames_longer_than_the_path_are_lost() {
    for (len, passes) in [(1014, true), (1015, false)] {
        let config = ImpairConfig { path_mtu: Some(1000), ..ImpairConfig::default() };
        let mut link = Link::new(config, 1);
        let mut frame = vec![0; len];
        frame[12..14].copy_from_slice(&[8, 0]);
        link.send(0, &frame);
        assert_eq!(link.received(0).len(), usize::from(passes), "{len}");
        assert_eq!(link.a.counters().dropped, u64::from(!passes));
    }
}
