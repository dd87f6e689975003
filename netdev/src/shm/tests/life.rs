//! Peers that connect, close and reconnect.

use super::liar::{Liar, header, inline};
use super::*;
use crate::shm::message::Message;

/// Frames in both directions, one of them by reference.
fn exchange(a: &mut Shm, b: &mut Shm, memory: &PublishedMemory) {
    let (head, payload) = (head(), octets(1000, 5));
    fill(memory, 0, &payload);
    for round in 0..4 {
        let [from, to] = if round % 2 == 0 { [&mut *a, &mut *b] } else { [&mut *b, &mut *a] };
        from.transmit(0, &frame(&head, &[part(memory, 0, 1000)])).unwrap();
        from.flush(0);
        let received = receive(to, 0);
        assert!(received.len() == 1 && received[0].octets[54..] == payload, "round {round}");
    }
}

#[test]
fn a_peer_that_restarts_is_met_again_by_either_end() {
    let publisher = Publisher::new();
    let memory = publisher.allocate(4096).unwrap();
    for stays_listening in [true, false] {
        let path = path();
        let [stays, comes] = [stays_listening, !stays_listening].map(|end| config(&path, end));
        let mut now = 0;
        let open = |config: &ShmConfig| {
            let (config, publisher) = (config.clone(), publisher.clone());
            thread::spawn(move || Shm::open(&config, &publisher).unwrap())
        };
        let first = (!stays_listening).then(|| open(&comes).join().unwrap());
        let opening = open(&stays);
        let (mut stays, mut other) = match first {
            // The remaining end answers the connecting end.
            Some(mut other) => {
                while !opening.is_finished() {
                    receive(&mut other, later(&mut now));
                }
                (opening.join().unwrap(), Some(other))
            }
            None => (opening.join().unwrap(), None),
        };
        for round in 0..5 {
            let mut peer = other.take().unwrap_or_else(|| {
                let opening = open(&comes);
                while !opening.is_finished() {
                    receive(&mut stays, later(&mut now));
                    thread::sleep(Duration::from_micros(100));
                }
                opening.join().unwrap()
            });
            while !(stays.link_up() && peer.link_up()) {
                receive(&mut stays, later(&mut now));
                receive(&mut peer, now);
            }
            exchange(&mut stays, &mut peer, &memory);
            assert!(stays.counters().tx_bytes_referred > 0);
            // The last frame of a closing peer is not lost.
            peer.transmit(now, &frame(&head(), &[part(&memory, 0, 900)])).unwrap();
            peer.flush(now);
            drop(peer);
            let last = receive(&mut stays, later(&mut now));
            assert_eq!(last.len(), 1);
            assert!(!stays.link_up(), "round {round}");
            assert_eq!(stays.counters().sessions_ended, round + 1);
            assert_eq!(stays.transmit(now, &frame(&head(), &[])), Err(TransmitError::LinkDown));
        }
        drop(stays);
        assert!(!path.exists(), "the socket went with its maker");
    }
}

#[test]
fn an_end_that_connects_needs_its_peer_and_the_same_settings() {
    let path = path();
    let error = Shm::open(&config(&path, false), &Publisher::new()).unwrap_err();
    assert!(error.to_string().contains("start the end that listens"), "{error}");
    let mut listening = Shm::open(&config(&path, true), &Publisher::new()).unwrap();
    assert!(Shm::open(&config(&path, true), &Publisher::new()).is_err());
    let other = ShmConfig { mtu: 9000, ..config(&path, false) };
    let opening = thread::spawn(move || Shm::open(&other, &Publisher::new()).unwrap_err());
    let mut now = 0;
    while !opening.is_finished() {
        receive(&mut listening, later(&mut now));
    }
    let error = opening.join().unwrap().to_string();
    assert!(error.contains("its MTU is 1500, and 9000 here"), "{error}");
    receive(&mut listening, later(&mut now));
    assert!(!listening.link_up());
}

#[test]
fn a_peer_may_vanish_at_any_time() {
    let config = config(&path(), true);
    let publisher = Publisher::new();
    let memory = publisher.allocate(4096).unwrap();
    let mut device = Shm::open(&config, &publisher).unwrap();
    let mut now = 0;
    let states: [&State<'_>; 8] = [
        // Before its first message: before and after the device has noticed the connection.
        &|_, _, _| (),
        &|_, device, now| assert!(receive(device, later(now)).is_empty()),
        // After Hello.
        &|liar, _, _| liar.hello(),
        &|liar, device, now| {
            liar.hello();
            receive(device, later(now));
        },
        // With memory published but not handled.
        &|liar, _, _| {
            liar.hello();
            liar.say(&Message::Publish { number: 1, len: OUTBOX as u64 }, &[&liar.file]);
        },
        // While it writes a frame.
        &|liar, device, now| {
            liar.hello();
            receive(device, later(now));
            liar.put_frame(&[inline(0, 100)]);
            liar.memory.put_descriptor(liar.position, header(10, 3).to_octets());
        },
        // With frames to it in the ring.
        &|liar, device, now| {
            liar.hello();
            receive(device, later(now));
            receive(device, later(now));
            for _ in 0..10 {
                device.transmit(*now, &frame(&head(), &[part(&memory, 0, 900)])).unwrap();
            }
            device.flush(*now);
            assert_eq!(device.counters().frames_tx_referred_unread, 10);
        },
        // With half a message sent.
        &|liar, _, _| {
            liar.hello();
            let (header, _) = Message::Wake.encode();
            rustix::io::write(&liar.channel, &header.to_octets()[..5]).unwrap();
        },
    ];
    for (index, state) in states.iter().enumerate() {
        for _ in 0..3 {
            let mut liar = Liar::silent(&config.path);
            state(&mut liar, &mut device, &mut now);
            drop(liar);
            let mut turns = 0;
            let ended = device.counters().sessions_ended;
            while device.counters().sessions_ended == ended {
                receive(&mut device, later(&mut now));
                turns += 1;
                assert!(turns < 10, "state {index}");
            }
            assert!(!device.link_up());
            assert_eq!(device.counters().frames_tx_referred_unread, 0);
        }
    }
    // The next peer is accepted.
    let mut liar = Liar::new(&config.path);
    receive(&mut device, later(&mut now));
    receive(&mut device, later(&mut now));
    assert!(device.link_up());
    liar.put_frame(&[inline(0, 60)]);
    assert_eq!(receive(&mut device, now).len(), 1);
}

/// Actions before a peer vanishes.
type State<'a> = dyn Fn(&mut Liar, &mut Shm, &mut u64) + 'a;

/// Length of an outbox.
const OUTBOX: usize = layout::OUTBOX_LEN;
