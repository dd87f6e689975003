//! Limits of a peer's use of the device's process: time in a call, and reads of its ring.

use super::hostile::{HELLO, greeted, met};
use super::liar::{Liar, header, inline};
use super::*;
use crate::peer::closer::tests::{CLOSES_MAX, LINGER, lingering};
use crate::peer::tell::tests::is_readable;
use crate::shm::message::Message;

#[test]
fn receive_never_blocks_on_closing_a_descriptor() {
    let config = config(&path(), true);
    let mut device = Shm::open(&config, &Publisher::new()).unwrap();
    let mut now = 0;
    let begun = std::time::Instant::now();
    let publish = Message::Publish { number: 1, len: 4096 };
    let cases: [&[Message]; 3] =
        [&[publish], &[Message::Publish { number: 0, len: 4096 }, publish], &[HELLO]];
    for messages in cases {
        let liar = greeted(&mut device, &config, &mut now);
        let mut kept = Vec::new();
        for message in messages {
            let (socket, far) = lingering();
            liar.say(message, &[&socket]);
            kept.push(far);
        }
        receive(&mut device, later(&mut now));
        drop(liar);
        receive(&mut device, later(&mut now));
    }
    greeted(&mut device, &config, &mut now);
    assert!(begun.elapsed() < LINGER);
}

#[test]
fn the_device_sleeps_while_sockets_of_earlier_peers_are_not_closed() {
    let config = config(&path(), true);
    let mut device = Shm::open(&config, &Publisher::new()).unwrap();
    device.be_stuck();
    let mut now = 0;
    for count in 0..=CLOSES_MAX {
        let liar = Liar::silent(&config.path);
        // The first one ends the session, the second stays unread.
        for _ in 0..2 {
            liar.say(&Message::Publish { number: 0, len: 4096 }, &[]);
        }
        for _ in 0..2 {
            device.readiness();
            receive(&mut device, later(&mut now));
        }
        assert!(!is_readable(device.readiness().unwrap()), "after {count}");
    }
    assert_eq!(device.counters().sessions_ended, CLOSES_MAX as u64);
}

/// A fault of the peer may appear while a frame is sent: the session ends at the next call of the device.
#[test]
fn a_fault_that_shows_while_sending_wakes_the_device() {
    let config = config(&path(), true);
    let mut now = 0;
    let (mut device, liar) = met(&config, &Publisher::new(), &mut now);
    let head = head();
    let send = |device: &mut Shm| {
        device.transmit(0, &frame(&head, &[])).unwrap();
        device.flush(0);
    };
    send(&mut device);
    assert!(!is_readable(device.readiness().unwrap()));
    // It has read more than there is.
    liar.memory.set_consumed(1000);
    send(&mut device);
    assert!(is_readable(device.readiness().unwrap()));
    receive(&mut device, later(&mut now));
    assert_eq!((device.link_up(), device.counters().sessions_ended), (false, 1));
}

/// Reads no run of a frame before the peer has published all of its runs.
#[test]
fn no_descriptor_is_read_before_it_is_said_to_be_written() {
    let config = config(&path(), true);
    let mut now = 0;
    for written in 1..=3_u32 {
        let (mut device, mut liar) = met(&config, &Publisher::new(), &mut now);
        let runs = [inline(0, 60), inline(60, 60)];
        let begun = liar.position;
        liar.memory.put_descriptor(begun, header(120, 2).to_octets());
        for (index, run) in (1..).zip(&runs) {
            liar.memory.put_descriptor(begun + index, run.to_octets());
        }
        liar.position = begun + written;
        liar.memory.set_produced(liar.position);
        let received = receive(&mut device, later(&mut now));
        assert_eq!(
            (received.len(), device.link_up()),
            if written == 3 { (1, true) } else { (0, false) }
        );
    }
}
