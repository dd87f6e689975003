//! Hostile peers, which write arbitrary messages, rings and descriptors.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::guest::{GUEST_BASE, GUEST_FEATURES, GUEST_LEN, Guest};
use super::{frame, later, path, receive};
use crate::peer::channel::Channel;
use crate::peer::closer::Closer;
use crate::peer::header::Header;
use crate::sys::shared_mapping::{SharedMapping, sealed_memory};
use crate::vhost_user::message::{MemoryRegion, Request};
use crate::vhost_user::{VhostUser, VhostUserConfig, VirtioUser};
use crate::{Device, TxFrame};

/// Valid and invalid messages; after each the backend serves the next frontend.
#[test]
fn requests_that_cannot_be_done_end_the_session_and_nothing_else() {
    let config = VhostUserConfig::backend(path());
    let mut backend = VhostUser::open(&config).unwrap();
    let mut now = 0;
    let file = || sealed_memory(c"test", 4096).unwrap();
    let huge = MemoryRegion { guest: 0, len: u64::MAX, user: 0, offset: 1 };
    let behind = MemoryRegion { guest: 0, len: 4096, user: 0, offset: 1 };
    let cases: [(Request, Vec<OwnedFd>); 9] = [
        (Request::SetFeatures(1 << 63), vec![]),
        (Request::SetProtocolFeatures(1 << 63), vec![]),
        (Request::SetVringSize { index: 0, size: 3 }, vec![]),
        (Request::SetVringSize { index: 2, size: 4 }, vec![]),
        (Request::GetVringBase { index: 255 }, vec![]),
        (Request::SetMemoryTable(vec![huge]), vec![file()]),
        (Request::AddMemoryRegion(behind), vec![file()]),
        (Request::RemoveMemoryRegion(behind), vec![]),
        (Request::SetVringKick { index: 0, has_descriptor: true }, vec![file()]),
    ];
    let mut ended = 0;
    for (request, files) in cases {
        let guest = Guest::new(&config.path, GUEST_FEATURES, || ());
        receive(&mut backend, later(&mut now));
        assert!(backend.link_up(), "before {request:?}");
        guest.say(&request, &files);
        receive(&mut backend, later(&mut now));
        ended += 1;
        assert_eq!(backend.counters().sessions_ended, ended, "{request:?}");
        assert!(!backend.link_up());
    }
    // Bytes of no protocol, and half a message.
    let mut state = 1_u32;
    for _ in 0..50 {
        let mut stream = UnixStream::connect(&config.path).unwrap();
        let octets: Vec<u8> = (0..state as usize % 300)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state.to_le_bytes()[3] & 0x1f
            })
            .collect();
        state = state.wrapping_add(77);
        stream.write_all(&octets).unwrap();
        receive(&mut backend, later(&mut now));
        drop(stream);
        receive(&mut backend, later(&mut now));
    }
    let _guest = Guest::new(&config.path, GUEST_FEATURES, || ());
    receive(&mut backend, later(&mut now));
    receive(&mut backend, later(&mut now));
    assert!(backend.link_up(), "a good one is served");
}

/// Overwrites the first bytes of a shared file until `over` is set.
fn scribble(file: OwnedFd, len: usize, over: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mapping = SharedMapping::of(file.as_fd(), len).unwrap();
        let mut state = 88_172_645_463_325_252_u64;
        while !over.load(Relaxed) {
            for _ in 0..20 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let at = [0, 4096, 8192, 16_384, 20_480, 24_576][(state % 6) as usize];
                let at = at + (state >> 40) as usize % 1100;
                let value = [state, GUEST_BASE + (state >> 44), 0, 3][(state >> 5) as usize & 3];
                mapping.copy_in(at, &value.to_le_bytes()[..1 << ((state >> 8) & 3)]);
            }
            thread::yield_now();
        }
    })
}

#[test]
fn a_frontend_that_scribbles_over_its_memory_does_no_harm() {
    let config = VhostUserConfig::backend(path());
    let mut backend = VhostUser::open(&config).unwrap();
    let octets = frame(9000);
    let mut now = 0;
    let mut worked = 0;
    // Sixty turns are enough if the other thread has a processor of its own.
    for turn in 0..6000 {
        let counters = backend.counters();
        let refused = counters.chains_refused + counters.frames_refused;
        if turn >= 60 && counters.queues_ended > 0 && refused > 0 {
            break;
        }
        let guest = Guest::new(&config.path, GUEST_FEATURES, || ());
        receive(&mut backend, later(&mut now));
        let over = Arc::new(AtomicBool::new(false));
        let file = guest.file.try_clone().unwrap();
        let scribbler = scribble(file, GUEST_LEN, Arc::clone(&over));
        for _ in 0..100 {
            worked += backend.receive(now, 64, &mut |frame| {
                assert!(frame.gathered(&mut Vec::new()).len() < 66_000)
            });
            for _ in 0..4 {
                worked +=
                    usize::from(backend.transmit(now, &TxFrame::whole(&octets[..1000])).is_ok());
            }
            backend.flush(now);
            let _descriptor = backend.readiness();
            let _room = backend.transmit_room();
            thread::yield_now();
        }
        over.store(true, Relaxed);
        scribbler.join().unwrap();
        drop(guest);
        receive(&mut backend, later(&mut now));
    }
    let counters = backend.counters();
    assert!(worked > 0 && counters.queues_ended > 0, "{worked} {counters:?}");
    assert!(counters.chains_refused + counters.frames_refused > 0, "{counters:?}");
    let _guest = Guest::new(&config.path, GUEST_FEATURES, || ());
    receive(&mut backend, later(&mut now));
    assert!(backend.link_up(), "a good one is served");
}

/// A backend that accepts everything, has the memory, and writes arbitrary bytes.
#[test]
fn a_backend_that_scribbles_over_the_memory_does_no_harm() {
    let path = path();
    let listener = UnixListener::bind(&path).unwrap();
    let (mut broken, mut worked) = (0, 0);
    let octets = frame(1000);
    let opening = path.clone();
    let over = Arc::new(AtomicBool::new(false));
    let backends = {
        let over = Arc::clone(&over);
        thread::spawn(move || {
            while !over.load(Relaxed) {
                let mut channel =
                    Channel::new(listener.accept().unwrap().0, Closer::default()).unwrap();
                let mut scribbler = None;
                let stop = Arc::new(AtomicBool::new(false));
                while let Ok(message) = channel.receive() {
                    let Some(mut message) = message else {
                        thread::sleep(Duration::from_micros(50));
                        continue;
                    };
                    let id = message.header.request;
                    let word = match id {
                        1 => GUEST_FEATURES,
                        15 => 8,
                        5 => {
                            let file = message.descriptors.pop().unwrap();
                            let file = file.as_fd().try_clone_to_owned().unwrap();
                            scribbler = Some(scribble(file, 1 << 20, Arc::clone(&stop)));
                            0
                        }
                        _ => continue,
                    };
                    let _gone = channel.send(Header::of_reply(id, 8), &word.to_ne_bytes(), &[]);
                }
                stop.store(true, Relaxed);
                if let Some(scribbler) = scribbler {
                    scribbler.join().unwrap();
                }
            }
        })
    };
    let mut frontend = VirtioUser::open(&VhostUserConfig::frontend(opening)).unwrap();
    let mut now = 0;
    // At least twenty seconds, if other processes use the processor.
    for _ in 0..400_000 {
        worked += frontend.receive(later(&mut now), 64, &mut |frame| {
            assert!(frame.gathered(&mut Vec::new()).len() < 66_000);
        });
        worked += usize::from(frontend.transmit(now, &TxFrame::whole(&octets)).is_ok());
        frontend.flush(now);
        let _descriptor = frontend.readiness();
        broken = frontend.counters().queues_ended;
        if broken > 10 && worked > 0 {
            break;
        }
        thread::sleep(Duration::from_micros(50));
    }
    assert!(broken > 1 && worked > 0, "{broken} {worked} {:?}", frontend.counters());
    over.store(true, Relaxed);
    drop(frontend);
    let _last = UnixStream::connect(&path);
    backends.join().unwrap();
    let _gone = std::fs::remove_file(&path);
}
