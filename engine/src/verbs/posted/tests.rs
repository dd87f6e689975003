use std::thread;

use super::*;

#[test]
fn it_takes_its_depth_and_no_more_in_order() {
    let posted = Posted::new(3);
    assert_eq!((posted.pop(), posted.is_empty()), (None, true));
    assert!((0..3).all(|number| posted.push(number).is_ok()));
    assert_eq!((posted.push(3), posted.len()), (Err(3), 3));
    assert_eq!(posted.pop(), Some(0));
    posted.extend([3].into_iter());
    let mut taken = Vec::new();
    posted.take(2, |number| taken.push(number));
    posted.take(2, |number| taken.push(number));
    posted.take(2, |number| taken.push(number));
    assert_eq!((taken, posted.len()), (vec![1, 2, 3], 0));
}

#[test]
fn nothing_is_lost_between_threads() {
    const EACH: usize = 10_000;
    let posted = Posted::new(16);
    let sum = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for number in 1..=EACH {
                    while posted.push(number).is_err() {
                        thread::yield_now();
                    }
                }
            });
        }
        let (mut taken, mut sum) = (0, 0);
        while taken < 2 * EACH {
            posted.take(4, |number| {
                taken += 1;
                sum += number;
            });
            posted.pop().into_iter().for_each(|number| {
                taken += 1;
                sum += number;
            });
        }
        sum
    });
    assert_eq!(sum, EACH * (EACH + 1));
}
