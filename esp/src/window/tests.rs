use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// All numbers received, and nothing else.
#[derive(Default)]
struct Model {
    received: BTreeSet<u64>,
}

impl Model {
    fn is_new(&self, number: u64, size: u64) -> bool {
        let top = self.received.last().copied().unwrap_or(0);
        number != 0 && number + size > top && !self.received.contains(&number)
    }

    /// Infers by the definition: of the numbers with this lower half, the first that is not left of
    /// the window.
    fn infer(&self, low: u32, size: u64) -> Option<u64> {
        let top = self.received.last().copied().unwrap_or(0);
        let bottom = i128::from(top) - i128::from(size) + 1;
        let cycle = 1_i128 << 32;
        let first = i128::from(low) + (bottom - i128::from(low)).div_euclid(cycle) * cycle;
        let number = if first < bottom { first + cycle } else { first };
        u64::try_from(number).ok()
    }
}

/// Steps to the next number: forwards, backwards, and far forwards.
fn steps() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 1_i64..3,
        4 => -70_i64..70,
        2 => -1100_i64..1100,
        1 => -5000_i64..5000,
        1 => Just(1_i64 << 20),
    ]
}

proptest! {
    /// The window accepts exactly what a set of all received numbers accepts.
    // spec: SEC-I-3, SEC-I-13
    #[test]
    fn the_window_is_like_a_set(
        start in prop_oneof![Just(1_u64), Just((1 << 32) - 600), Just(u64::MAX - (1 << 33))],
        size in prop_oneof![Just(0_usize), Just(1024), Just(1025), Just(4000), Just(usize::MAX)],
        steps in proptest::collection::vec(steps(), 1..400),
    ) {
        let (mut window, mut model) = (Window::new(size), Model::default());
        let size = window.size();
        let mut next = start;
        // Inference begins near the first number.
        window.mark(start);
        model.received.insert(start);
        for step in steps {
            next = next.saturating_add_signed(step);
            prop_assert_eq!(window.is_new(next), model.is_new(next, size), "{}", next);
            let low = u32::try_from(next & 0xffff_ffff).unwrap();
            prop_assert_eq!(window.infer(low), model.infer(low, size), "{}", next);
            if window.is_new(next) {
                window.mark(next);
                model.received.insert(next);
            }
            prop_assert_eq!(window.top(), *model.received.last().unwrap());
            prop_assert!(!window.is_new(next));
        }
    }
}

#[test]
fn sizes_have_limits() {
    let sizes = [0, 1024, 1025, 1 << 16, usize::MAX].map(|size| Window::new(size).size());
    assert_eq!(sizes, [1024, 1024, 1025, 1 << 16, 1 << 16]);
}

#[test]
fn the_first_number_is_one() {
    let mut window = Window::new(1024);
    assert!(!window.is_new(0) && window.is_new(1) && window.is_new(5));
    window.mark(5);
    assert!(!window.is_new(0) && window.is_new(1) && !window.is_new(5));
    assert_eq!(Window::new(1024).infer(7), Some(7));
    assert_eq!(Window::new(1024).infer(u32::MAX), None, "of the cycle before the first");
}

// spec: SEC-I-13
#[test]
fn the_upper_half_is_inferred_at_the_edges_of_a_cycle() {
    let mut window = Window::new(1024);
    let cycle = 1_u64 << 32;
    window.mark(cycle - 1);
    assert_eq!(window.infer(0), Some(cycle));
    assert_eq!(window.infer(u32::MAX - 1023), Some(cycle - 1024));
    assert_eq!(window.infer(u32::MAX - 1024), Some(2 * cycle - 1025), "left of the window");
    window.mark(cycle + 5);
    assert_eq!(window.infer(u32::MAX), Some(cycle - 1));
    assert_eq!(window.infer(6), Some(cycle + 6));
    window.mark(u64::MAX);
    assert_eq!(window.infer(u32::MAX), Some(u64::MAX));
    assert_eq!(window.infer(0), None, "there is no next cycle");
}
