use std::thread;

use super::*;

#[test]
fn posted_queue_keeps_order_and_its_depth_limit() {
    let posted = Posted::new(3);
    assert_eq!((posted.pop(), posted.is_empty()), (None, true));
    assert!((0..3).all(|number| posted.push(number).is_ok()));
    assert_eq!((posted.push(3), posted.len()), (Err(3), 3));
    assert_eq!(posted.pop(), Some(0));
    posted.extend([3].into_iter());
    let mut taken = VecDeque::from([0]);
    posted.take_into(&mut taken, 2);
    assert_eq!((taken.make_contiguous(), posted.len()), (&mut [0, 1, 2][..], 1));
    posted.take_into(&mut taken, 2);
    posted.take_into(&mut taken, 2);
    assert_eq!((taken.make_contiguous(), posted.len()), (&mut [0, 1, 2, 3][..], 0));
}

#[test]
fn empty_queue_takes_all_posted_requests_at_once() {
    let posted = Posted::new(3);
    let mut taken = VecDeque::new();
    for _ in 0..4 {
        assert!((0..3).all(|number| posted.push(number).is_ok()));
        posted.take_into(&mut taken, 1);
        assert_eq!((taken.make_contiguous(), posted.len()), (&mut [0, 1, 2][..], 0));
        taken.clear();
    }
}

#[test]
fn posting_from_two_threads_loses_nothing() {
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
        let mut numbers = VecDeque::new();
        while taken < 2 * EACH {
            posted.take_into(&mut numbers, 4);
            taken += numbers.len();
            sum += numbers.drain(..).sum::<usize>();
            posted.pop().into_iter().for_each(|number| {
                taken += 1;
                sum += number;
            });
        }
        sum
    });
    assert_eq!(sum, EACH * (EACH + 1));
}
