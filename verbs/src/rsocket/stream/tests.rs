//! Two ends of a stream, driven step by step: credits, rings, and forbidden messages of a peer.
#![allow(clippy::disallowed_methods, reason = "tests wait for another thread, with a bound")]

use std::thread;
use std::time::{Duration, Instant};

use urnic::{ConnectOptions, Connection, ListenParams, Offer};

use super::*;
use crate::process::{process, startup};

const PATIENCE: Duration = Duration::from_secs(20);
const CREDITS: u16 = 8;
const SIZES: Sizes = Sizes {
    send_ring: 64 << 10,
    receive_ring: 8192,
    send_queue: 32,
    receive_queue: CREDITS,
    iomap: 2,
};

fn stream(sizes: Sizes) -> Stream {
    Stream::new(&process().unwrap().rnic, sizes).unwrap()
}

/// Makes two ends that have exchanged their private data, with their connection.
fn connected(sizes: [Sizes; 2]) -> ([Stream; 2], [Connection; 2]) {
    let [mut a, mut b] = sizes.map(stream);
    let process = process().unwrap();
    let endpoint = &process.network.endpoint;
    let params = ListenParams { startup: startup(), ..ListenParams::default() };
    let listener = endpoint.listen("127.0.0.1:0".parse().unwrap(), params).unwrap();
    let options = ConnectOptions { startup: startup(), ..ConnectOptions::default() };
    let connecting = endpoint.connect(listener.local(), &a.qp, &options).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().unwrap();
    let accepted = request.accept(&b.qp, &Offer { ird: 1, ord: 1, ..Offer::default() }).unwrap();
    let connections = [connecting, accepted].map(|started| started.wait(PATIENCE).unwrap());
    let (of_a, of_b) = (a.conn_data(), b.conn_data());
    a.meet(&of_b);
    b.meet(&of_a);
    ([a, b], connections)
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_micros(100));
    }
}

/// The bytes of a stream from `at` on.
fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

impl Stream {
    /// Sends bytes of the pattern. Returns the number of bytes taken.
    fn send_pattern(&mut self, from: usize, len: usize) -> usize {
        let octets = pattern(from, len);
        let mut copied = 0;
        self.send(len, |mr, at, len| {
            mr.copy_in(at, &octets[copied..copied + len]);
            copied += len;
        })
    }
}

/// Appends bytes of a region.
fn append(octets: &mut Vec<u8>) -> impl FnMut(&Mr, usize, usize) {
    |mr, at, len| {
        let begin = octets.len();
        octets.resize(begin + len, 0);
        mr.copy_out(at, &mut octets[begin..]);
    }
}

#[test]
fn all_credits_may_be_used_while_the_peer_does_not_look() {
    let ([mut a, mut b], _connections) = connected([SIZES; 2]);
    let mut sent = 0;
    // New credits arrive repeatedly, without a half of the ring.
    for round in 1..=5 {
        let all = round * usize::from(CREDITS);
        until("as many messages as there are credits", || {
            assert!(a.look());
            while a.send_pattern(sent, 1) == 1 {
                sent += 1;
            }
            sent >= all
        });
        assert!(!a.can_send() && sent == all, "round {round}: no more than that, {sent}");
        until("all have come", || {
            assert!(b.look(), "round {round}");
            b.messages.len() == usize::from(CREDITS)
        });
        let mut read = Vec::new();
        assert_eq!(b.read(usize::MAX, append(&mut read)), usize::from(CREDITS));
        assert_eq!(read, pattern(sent - usize::from(CREDITS), usize::from(CREDITS)));
        b.give();
        assert_eq!(b.end, None);
    }
}

#[test]
fn peer_may_announce_at_most_its_room_and_credits() {
    let mut one = stream(SIZES);
    assert!(!one.announced(4097), "more than a half of the ring");
    assert!(one.announced(4096) && !one.announced(1));
    let mut one = stream(SIZES);
    assert!((0..CREDITS).all(|_| one.announced(1)));
    assert!(!one.announced(1), "more messages than credits");
}

#[test]
fn peek_and_read_agree_across_the_end_of_the_ring() {
    let ([mut a, mut b], _connections) = connected([SIZES; 2]);
    let (mut sent, mut done) = (0, 0);
    while done < 3 * SIZES.receive_ring {
        until("two messages", || {
            assert!(a.look() && b.look());
            sent += a.send_pattern(sent, 700);
            b.messages.len() >= 2
        });
        let there = b.messages.iter().sum();
        let (mut peeked, mut read) = (Vec::new(), Vec::new());
        assert_eq!(b.peek(usize::MAX, append(&mut peeked)), there);
        assert_eq!(peeked, pattern(done, there));
        // Reads only a part, so that some data is always available.
        let len = b.read(there - 100, append(&mut read));
        assert_eq!((len, &read[..]), (there - 100, &peeked[..there - 100]));
        done += len;
        b.give();
    }
}

#[test]
fn data_leaves_places_for_messages_of_credits() {
    let many = Sizes { receive_queue: 64, ..SIZES };
    let ([mut a, _b], _connections) = connected([SIZES, many]);
    // Takes no completions meanwhile.
    let sent = std::iter::repeat_with(|| a.send_pattern(0, 1)).take_while(|sent| *sent > 0).count();
    assert!(sent < 64, "places end before credits");
    assert!(a.slots_free >= CONTROL_SLOTS, "{}", a.slots_free);
}

#[test]
fn memory_that_was_mapped_is_found_up_to_its_end() {
    let ([mut a, mut b], _connections) = connected([SIZES; 2]);
    let memory = a.pd.reg_mr(300, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let part = |offset: u64, len| {
        let remote = memory.remote(offset);
        Target { address: remote.to.0, key: remote.stag.0, len }
    };
    let (first, second) = (part(0, 100), part(100, 200));
    // One entry is across the end of the ring, in two pieces.
    a.ring_at = SIZES.send_ring - 5;
    assert!(a.send_iomap(0, 5000, first) && a.send_iomap(1, 5100, second));
    until("both are mapped", || {
        assert!(b.look());
        b.iomapped(5000) == Some(first) && b.iomapped(5100) == Some(second)
    });
    assert_eq!(b.iomapped(5099).map(|target| target.len), Some(1));
    assert_eq!(b.iomapped(5299).map(|target| target.len), Some(1));
    assert_eq!((b.iomapped(4999), b.iomapped(5300)), (None, None));
    // Writes up to the end of the mapped memory, and nothing beyond.
    let octets = [7; 150];
    let written = b.write_at(first, octets.len(), |mr, at, len| mr.copy_in(at, &octets[..len]));
    assert_eq!(written, 100);
    let mut there = [0; 300];
    until("it is written", || {
        assert!(b.look());
        memory.copy_out(0, &mut there);
        there[99] == 7
    });
    assert!(there[..100] == [7; 100] && there[100..] == [0; 200]);
}

#[test]
fn a_shutdown_ends_one_direction_and_a_disconnect_both() {
    let ([mut a, mut b], _connections) = connected([SIZES; 2]);
    assert!(a.try_end(Message::Shutdown));
    until("nothing more is readable", || b.look() && !b.readable);
    assert_eq!((b.writable, b.end), (true, None));
    assert_eq!(b.send_pattern(0, 8), 8);
    until("the other direction goes on", || a.look() && a.has_data());
    assert!(a.try_end(Message::Disconnect));
    until("the end", || b.look() && b.end == Some(End::Disconnected));
    assert_eq!((b.readable, b.writable), (false, false));
}

/// Each message of an rsocket has four bytes.
#[test]
fn a_message_of_another_length_ends_the_stream() {
    for len in [0, 3] {
        let ([mut a, mut b], _connections) = connected([SIZES; 2]);
        a.post(SendWr::send(WrId(0), [a.own.sge(0..len)]), 1, 0);
        until("it is refused", || !b.look());
        assert_eq!(b.end, Some(End::Failed(Errno(libc::ECONNRESET))), "{len}");
        assert_eq!((b.readable, b.writable), (false, false));
    }
}

/// A peer without credits has a ring, and a peer without a ring has credits: each is given alone.
/// Bytes that an end has not sent yet stay unchanged meanwhile.
#[test]
fn a_half_of_the_ring_is_given_as_soon_as_it_was_read() {
    let sizes = [Sizes { iomap: 5, ..SIZES }, SIZES];
    let ([mut a, mut b], _connections) = connected(sizes);
    assert_eq!((a.remote_iomap, b.remote_iomap), (SIZES.iomap, 5), "each has the other's");
    let half = SIZES.receive_ring / 2;
    let unsent = pattern(7, SIZES.send_ring);
    b.own.copy_in(0, &unsent);
    let (mut sent, mut done) = (0, 0);
    while done < 5 * half {
        until("a message as long as a half", || {
            assert!(a.look() && b.look());
            if sent == done {
                sent += a.send_pattern(sent, half);
            }
            b.messages.iter().sum::<usize>() == half
        });
        let mut read = Vec::new();
        assert_eq!(b.read(usize::MAX, append(&mut read)), half);
        assert_eq!(read, pattern(done, half));
        done += half;
        b.give();
    }
    let mut found = vec![0; SIZES.send_ring];
    b.own.copy_out(0, &mut found);
    assert!(found == unsent);
}
