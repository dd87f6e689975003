//! Amount received before anything is sent.

use std::collections::VecDeque;

use urnic_netdev::{Capabilities, Device, RxChecksum, RxFrame, TransmitError, TxFrame};

use super::{RECEIVE_BURST, RECEIVE_BYTES, RECEIVE_PORTION, receive_burst};

/// The lengths of frames that have arrived, and the number of calls of `receive`.
#[derive(Debug)]
struct Arrived {
    lens: VecDeque<usize>,
    calls: usize,
}

impl Device for Arrived {
    fn capabilities(&self) -> Capabilities {
        unreachable!("receiving does not ask")
    }

    fn receive(&mut self, _now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        self.calls += 1;
        let count = burst.min(self.lens.len());
        for len in self.lens.drain(..count) {
            let checksum = RxChecksum::Unverified;
            sink(RxFrame::whole(&vec![0; len], checksum, None));
        }
        count
    }

    fn transmit(&mut self, _now_ns: u64, _frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        unreachable!("nothing is sent")
    }
}

/// Returns the number of frames taken at once from those with `lens`, and the number of calls.
fn taken(lens: impl IntoIterator<Item = usize>) -> (usize, usize) {
    let mut device = Arrived { lens: lens.into_iter().collect(), calls: 0 };
    let mut seen = 0;
    let received = receive_burst(&mut device, 0, &mut |_| seen += 1);
    assert_eq!(received, seen);
    (received, device.calls)
}

#[test]
fn burst_of_short_frames_takes_two_receive_calls() {
    assert_eq!(taken(vec![60; 1000]), (RECEIVE_BURST, 2));
    assert_eq!(taken(vec![1514; 1000]), (RECEIVE_BURST, 2));
    assert_eq!(taken(vec![0; 1000]), (RECEIVE_BURST, 2), "frames without octets are frames");
}

#[test]
fn few_frames_take_one_call_per_portion_and_one_more() {
    assert_eq!(taken([]), (0, 1));
    assert_eq!(taken([60]), (1, 1));
    assert_eq!(taken([60; RECEIVE_PORTION]), (RECEIVE_PORTION, 2));
    assert_eq!(taken([60; RECEIVE_BURST - 1]), (RECEIVE_BURST - 1, 2));
}

#[test]
fn super_frames_are_answered_after_a_portion() {
    assert_eq!(taken(vec![65_550; 64]), (RECEIVE_PORTION, 1));
    let (received, _) = taken(vec![9014; 64]);
    assert!((RECEIVE_BYTES / 9014..=RECEIVE_BYTES / 9014 + 1).contains(&received), "{received}");
}

#[test]
fn super_frames_after_short_frames_are_at_most_a_burst() {
    let lens = [vec![60; RECEIVE_PORTION], vec![65_550; 1000]].concat();
    assert_eq!(taken(lens), (RECEIVE_BURST, 2));
    // Frames that grow shorter cause no endless calls.
    let lens = [vec![40_000; RECEIVE_PORTION], vec![60; 1000]].concat();
    let (received, calls) = taken(lens);
    assert_eq!(received, RECEIVE_BURST);
    assert!(calls <= RECEIVE_BURST / 2, "{calls} calls");
}
