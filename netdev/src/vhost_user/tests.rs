#![allow(clippy::disallowed_methods, reason = "tests wait for threads, with a bound")]

mod bounds;
mod guest;
mod hostile;
mod published;
mod sharing;

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::*;
use crate::digests::tests::{digests_every, expected};
use crate::sys::digester::tests::ADDER;
use crate::{Device, Digests, RxChecksum, SharedSlice, TransmitError, TxChecksum, TxFrame};

/// Returns a socket path that no other test uses.
fn path() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    std::env::temp_dir().join(format!("urnic-vhost-{}-{number}", std::process::id()))
}

/// Advances a clock far enough that a device polls its socket.
fn later(now: &mut u64) -> u64 {
    *now += CONTROL_INTERVAL_NS;
    *now
}

/// Returns an Ethernet frame with TCP over IPv4.
fn frame(payload_len: usize) -> Vec<u8> {
    let mut octets = vec![0; 54];
    octets[12] = 8;
    octets[14] = 0x45;
    let total = u16::try_from(40 + payload_len).unwrap();
    octets[16..18].copy_from_slice(&total.to_be_bytes());
    octets[23] = 6;
    octets[46] = 0x50;
    octets.extend((0..payload_len).map(|i| u8::try_from(i * 7 % 251).unwrap()));
    octets
}

/// Returns all frames that a device has received, with their offloads.
type Received = Vec<(Vec<u8>, RxChecksum, Option<NonZeroU16>)>;

fn receive(device: &mut impl Device, now: u64) -> Received {
    let mut received = Vec::new();
    device.receive(now, 1000, &mut |frame| {
        let octets = frame.gathered(&mut Vec::new()).head.to_vec();
        received.push((octets, frame.checksum, frame.segment_size));
    });
    received
}

/// Opens both ends of a device: the frontend in another thread, while this one polls the backend.
fn pairs(queues: usize, offloads: bool) -> (Vec<VhostUser>, Vec<VirtioUser>) {
    pairs_with(queues, offloads, move |config| VirtioUser::open_queues(config, queues).unwrap())
}

/// Like [`pairs`], with a frontend opened by `open`.
fn pairs_with(
    queues: usize,
    offloads: bool,
    open: impl FnOnce(&VhostUserConfig) -> Vec<VirtioUser> + Send + 'static,
) -> (Vec<VhostUser>, Vec<VirtioUser>) {
    let path = path();
    let config = VhostUserConfig { offloads, ..VhostUserConfig::backend(path.clone()) };
    let mut backend = VhostUser::open_queues(&config, queues).unwrap();
    let frontend = thread::spawn(move || open(&VhostUserConfig::frontend(path)));
    let mut now = 0;
    while !frontend.is_finished() || !backend.iter().all(Device::link_up) {
        for device in &mut backend {
            receive(device, later(&mut now));
        }
        thread::sleep(Duration::from_micros(100));
    }
    let mut frontend = frontend.join().unwrap();
    for device in &mut frontend {
        receive(device, 0);
        assert!(device.link_up());
    }
    (backend, frontend)
}

/// Sends super-frames with digests that the device computes.
fn exchange_digests(from: &mut impl Device, to: &mut impl Device, sent: &TxFrame<'_>) {
    for is_scattered in [false, true] {
        let digests = digests_every(1400, 59_946, is_scattered);
        let digests = Some(Digests { digests: &digests, base: 0, digester: &ADDER });
        let sent = TxFrame { digests, ..*sent };
        from.transmit(0, &sent).unwrap();
        from.flush(0);
        let received = receive(to, 0);
        assert_eq!(received.len(), 1);
        assert!(received[0].0[54..] == expected(sent.payload, sent.digests)[..]);
    }
}

/// Sends frames of many lengths, one of them a super-frame, from `from` to `to`.
fn exchange(from: &mut impl Device, to: &mut impl Device, offloads: bool) {
    let mut expected = VecDeque::new();
    for len in (0..1400).step_by(97) {
        let octets = frame(len);
        let payload = [SharedSlice::from_bytes(&octets[54..]), SharedSlice::from_bytes(b"end")];
        let sent = TxFrame { payload: &payload, ..TxFrame::whole(&octets[..54]) };
        from.transmit(0, &sent).unwrap();
        expected.push_back([&octets[..], b"end"].concat());
    }
    from.flush(0);
    for (octets, checksum, size) in receive(to, 0) {
        assert!(octets == expected.pop_front().unwrap());
        assert_eq!((checksum, size), (RxChecksum::Unverified, None));
    }
    assert!(expected.is_empty());
    let octets = frame(60_000);
    let payload: Vec<_> = octets[54..].chunks(777).map(SharedSlice::from_bytes).collect();
    let size = NonZeroU16::new(1400);
    let checksum = TxChecksum::Partial { start: 34, offset: 16 };
    let sent = TxFrame {
        head: &octets[..54],
        payload: &payload,
        checksum,
        segment_size: size,
        digests: None,
    };
    if offloads {
        exchange_digests(from, to, &sent);
        from.transmit(0, &sent).unwrap();
        from.flush(0);
        let received = receive(to, 0);
        assert_eq!(received.len(), 1);
        assert!(received[0].0 == octets);
        assert_eq!((received[0].1, received[0].2), (RxChecksum::Valid, size));
    } else {
        assert_eq!(from.capabilities().segmentation_len_max, None);
        assert!(!from.capabilities().tx_checksum);
        assert_eq!(from.transmit(0, &sent), Err(TransmitError::TooLong));
    }
}

#[test]
fn frames_go_both_ways_with_offloads_and_without() {
    for offloads in [true, false] {
        let (mut backend, mut frontend) = pairs(1, offloads);
        for _ in 0..20 {
            exchange(&mut frontend[0], &mut backend[0], offloads);
            exchange(&mut backend[0], &mut frontend[0], offloads);
        }
        let super_frames = if offloads { 3 } else { 0 };
        let frames = 20 * (15 + super_frames);
        for counters in [backend[0].counters(), frontend[0].counters()] {
            assert_eq!((counters.frames_rx, counters.frames_tx), (frames, frames));
            assert_eq!((counters.chains_refused, counters.frames_refused), (0, 0));
        }
        // Bytes that one end copies in, the other end copies out or hands over in place, without
        // the header.
        let (frontend, backend) = (frontend[0].counters(), backend[0].counters());
        for (sent, came) in [(frontend, backend), (backend, frontend)] {
            let came_bytes = came.copied_rx_bytes + came.in_place_rx_bytes;
            assert_eq!(sent.copied_tx_bytes + 12 * frames, came_bytes);
            let most = 20 * super_frames * 60_000;
            let in_place = most - most / 300..=most;
            assert!(in_place.contains(&came.in_place_rx_bytes), "{came:?}");
        }
    }
}

#[test]
fn each_pair_of_queues_has_its_own_frames() {
    let (mut backend, mut frontend) = pairs(3, true);
    for (backend, frontend) in backend.iter_mut().zip(&mut frontend) {
        exchange(frontend, backend, true);
        exchange(backend, frontend, true);
    }
    drop(frontend);
    let mut now = 1 << 40;
    for device in &mut backend {
        receive(device, later(&mut now));
        assert!(!device.link_up(), "the frontend is gone");
        assert_eq!(device.transmit(now, &TxFrame::whole(&frame(9))), Err(TransmitError::LinkDown));
    }
}

#[test]
fn sleeping_end_is_woken_by_a_frame() {
    let (mut backend, mut frontend) = pairs(1, true);
    let is_ready = |device: &dyn Device| {
        let descriptor = device.readiness().expect("a descriptor");
        let mut descriptors =
            [rustix::event::PollFd::from_borrowed_fd(descriptor, rustix::event::PollFlags::IN)];
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut descriptors, Some(&at_once)).unwrap() > 0
    };
    let both: [&mut dyn Device; 2] = [&mut backend[0], &mut frontend[0]];
    let [a, b] = both;
    for (from, to) in [(true, false), (false, true), (true, false)] {
        let [sender, sleeper]: [&mut dyn Device; 2] =
            if from && !to { [&mut *a, &mut *b] } else { [&mut *b, &mut *a] };
        // Earlier events were handled.
        sleeper.receive(0, 1000, &mut |_| ());
        sleeper.readiness();
        sleeper.receive(0, 1000, &mut |_| ());
        assert!(!is_ready(sleeper), "nothing has come");
        sender.transmit(0, &TxFrame::whole(&frame(100))).unwrap();
        sender.flush(0);
        assert!(is_ready(sleeper), "a frame has come");
        let mut count = 0;
        sleeper.receive(0, 1000, &mut |_| count += 1);
        assert_eq!(count, 1);
        // Between two polls of its queue.
        sender.transmit(0, &TxFrame::whole(&frame(100))).unwrap();
        sender.flush(0);
        assert!(is_ready(sleeper), "a frame came before it slept");
        sleeper.receive(0, 1000, &mut |_| ());
    }
}

#[test]
fn a_full_queue_says_so_and_has_room_again() {
    let (mut backend, mut frontend) = pairs(1, true);
    let octets = frame(1000);
    for is_backend in [true, false] {
        let [sender, other]: [&mut dyn Device; 2] = if is_backend {
            [&mut backend[0], &mut frontend[0]]
        } else {
            [&mut frontend[0], &mut backend[0]]
        };
        let mut sent = 0;
        loop {
            match sender.transmit(0, &TxFrame::whole(&octets)) {
                Ok(()) => sent += 1,
                Err(error) => {
                    assert_eq!(error, TransmitError::Full);
                    break;
                }
            }
        }
        assert_eq!((sent, sender.transmit_room()), (128, 0));
        sender.flush(0);
        let mut came = 0;
        other.receive(0, 1000, &mut |_| came += 1);
        assert_eq!(came, sent);
        assert!(sender.transmit_room() > 0);
        sender.transmit(0, &TxFrame::whole(&octets)).unwrap();
        sender.flush(0);
        other.receive(0, 1000, &mut |_| ());
    }
}

#[test]
fn either_end_waits_for_a_peer_that_left() {
    let path = path();
    let config = VhostUserConfig::backend(path.clone());
    let listening = VhostUserConfig { listens: true, ..VhostUserConfig::frontend(path.clone()) };
    let connecting = VhostUserConfig { listens: false, ..config.clone() };
    // Each end in turn is the remaining one.
    for (stays, comes) in
        [(config, VhostUserConfig::frontend(path.clone())), (connecting, listening)]
    {
        let mut now = 0;
        let mut frontend_first = (!stays.listens).then(|| VirtioUser::open(&comes).unwrap());
        let mut backend = VhostUser::open(&stays).unwrap();
        for round in 0..3 {
            let coming = comes.clone();
            let mut frontend = match frontend_first.take() {
                Some(frontend) => frontend,
                None => {
                    let opening = thread::spawn(move || VirtioUser::open(&coming).unwrap());
                    while !opening.is_finished() {
                        receive(&mut backend, later(&mut now));
                        thread::sleep(Duration::from_micros(100));
                    }
                    opening.join().unwrap()
                }
            };
            while !(backend.link_up() && frontend.link_up()) {
                receive(&mut frontend, later(&mut now));
                receive(&mut backend, later(&mut now));
            }
            exchange(&mut frontend, &mut backend, true);
            exchange(&mut backend, &mut frontend, true);
            drop(frontend);
            receive(&mut backend, later(&mut now));
            assert!(!backend.link_up(), "round {round}");
        }
        assert_eq!(backend.counters().sessions_ended, 3);
    }
    assert!(!path.exists(), "the socket went with its maker");
    let error = VirtioUser::open(&VhostUserConfig::frontend(path)).unwrap_err();
    assert!(error.to_string().contains("start the backend first"), "{error}");
}

#[test]
fn settings_out_of_range_are_refused() {
    let config = VhostUserConfig::backend(path());
    assert!(VhostUser::open_queues(&config, 0).is_err());
    assert!(VhostUser::open_queues(&config, 65).is_err());
    let config = VhostUserConfig { mtu: 70_000, ..config };
    assert!(VhostUser::open(&config).unwrap_err().to_string().contains("MTU"));
}
