//! Payload is copied in user space 0 times on transmit and once on receive.
//!
//! The test looks through all of its own writable memory for octets of the payload. They may be in
//! the region they were sent from, in the region they were placed in, and in buffers of the device;
//! whatever the engine copies on the way, and leaves anywhere, is found. What unaligned arrival has
//! to hold shows that it would be.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::cell::RefCell;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use common::{A, B, End, TCP_PORT, all_access, poller};
use urnic::driver::Lockstep;
use urnic::mem::Region;
use urnic::mpa::startup::{Offer, StartupConfig};
use urnic::port::{ConnectParams, ConnectionCounters, ListenParams, LowerLayer, PortEvent};
use urnic::stream::StreamEvent;
use urnic::time::Instant;
use urnic::types::WrId;
use urnic::verbs::{Cq, Mr, RecvWr, SendWr, WcStatus};
use urnic_netdev::impair::{Impair, ImpairConfig};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_netdev::{Capabilities, Device, Fragment, RxFrame, TransmitError, TxFrame};

/// Octets of each message: many frames, the last one not full.
const MESSAGE_LEN: usize = 200 * 1024;
/// Octets of one word of the payload: a mark that is nowhere else, and which word it is.
const WORD_LEN: usize = 8;

/// One word of the payload of a scene. The mark is put together here, so that no constant looks
/// like it; memory that an earlier scene has freed has marks of that one.
fn word(scene: u8, index: usize) -> [u8; WORD_LEN] {
    let index = u32::try_from(index).unwrap().to_be_bytes();
    let mark = std::hint::black_box(0x1e_u8);
    [mark ^ 0xff, mark ^ 0x55, mark ^ 0xa7, mark ^ 0x0c, scene, index[1], index[2], index[3]]
}

/// Where a run of memory is.
fn addresses(fragment: &Fragment<'_>) -> Range<usize> {
    let start = fragment.as_ptr().addr();
    start..start + fragment.len()
}

/// What a device was handed, and what it handed over.
#[derive(Debug, Default)]
struct Seen {
    /// Where memory is that payload may be sent from.
    source: Range<usize>,
    /// Octets of frames' payload from there.
    from_source: u64,
    /// Octets of frames' payload from anywhere else: what frames FPDUs, or was copied.
    from_elsewhere: u64,
    /// Where received frames were.
    buffers: Vec<Range<usize>>,
}

/// A device whose traffic is looked at.
#[derive(Debug)]
struct Watched<D> {
    device: D,
    seen: Rc<RefCell<Seen>>,
}

impl<D: Device> Device for Watched<D> {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        let seen = &self.seen;
        self.device.receive(now_ns, burst, &mut |frame| {
            seen.borrow_mut().buffers.push(addresses(&Fragment::from_slice(frame.bytes)));
            sink(frame);
        })
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        self.device.transmit(now_ns, frame)?;
        let mut seen = self.seen.borrow_mut();
        for fragment in frame.payload {
            let (octets, at) = (fragment.len() as u64, addresses(fragment));
            if seen.source.start <= at.start && at.end <= seen.source.end {
                seen.from_source += octets;
            } else {
                seen.from_elsewhere += octets;
            }
        }
        Ok(())
    }

    fn transmit_room(&self) -> usize {
        self.device.transmit_room()
    }

    fn flush(&mut self, now_ns: u64) {
        self.device.flush(now_ns);
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.device.next_arrival_ns()
    }
}

type Port = Watched<Impair<MemoryDevice>>;

/// Two ends on watched devices, with payload at one and room for it at the other.
struct Scene {
    /// Which one, in the marks of its payload.
    number: u8,
    link: Lockstep<Port, Port>,
    ends: [End; 2],
    seen: [Rc<RefCell<Seen>>; 2],
    /// Payload of the first end, room of the second; kept by region to know where they are.
    regions: [Arc<Region>; 2],
    memory: [Mr; 2],
}

impl Scene {
    fn connect(link: LinkConfig, impair: ImpairConfig, startup: StartupConfig) -> Self {
        static SCENES: AtomicU8 = AtomicU8::new(0);
        let number = SCENES.fetch_add(1, Ordering::Relaxed);
        let lower_layer = LowerLayer::default();
        let seen: [Rc<RefCell<Seen>>; 2] = Default::default();
        let (device_a, device_b) = memory::pair(link);
        let watched = |device, which: usize, seed| Watched {
            device: Impair::new(device, impair, seed),
            seen: Rc::clone(&seen[which]),
        };
        let ends = [End::new(1), End::new(2)];
        let link = Lockstep::new(
            poller(&ends[0].rnic, A, watched(device_a, 0, 3)),
            poller(&ends[1].rnic, B, watched(device_b, 1, 4)),
        );
        let regions = [0, 1].map(|_| Region::anonymous(MESSAGE_LEN).unwrap());
        let memory = [0, 1].map(|i| {
            let region = Arc::clone(&regions[i]);
            ends[i].pd.reg_region(region, all_access()).unwrap()
        });
        for index in 0..MESSAGE_LEN / WORD_LEN {
            memory[0].copy_in(index * WORD_LEN, &word(number, index));
        }
        let mut scene = Self { number, link, ends, seen, regions, memory };
        let listen = ListenParams { startup, lower_layer, ..ListenParams::default() };
        scene.link.b.port.listen(TCP_PORT, listen).unwrap();
        let offer = Offer { private_data: b"", ird: 8, ord: 8 };
        let params = ConnectParams { startup, offer, lower_layer };
        let to = (B, TCP_PORT).into();
        let id = scene.link.a.port.connect(Instant::ZERO, to, &scene.ends[0].qp, &params).unwrap();
        scene.ends[0].connection = Some(id);
        scene.run_until(|scene| {
            let is_request = |event: &StreamEvent| matches!(event, StreamEvent::Request(_));
            if let Some(at) = scene.ends[1].events.iter().position(is_request) {
                scene.ends[1].events.remove(at);
                let id = scene.ends[1].connection.unwrap();
                scene.link.b.port.accept(id, &scene.ends[1].qp, &offer).unwrap();
            }
            let is_up = |event: &StreamEvent| matches!(event, StreamEvent::Established(_));
            scene.ends.iter().all(|end| end.events.iter().any(is_up))
        });
        for (seen, region) in scene.seen.iter().zip(&scene.regions) {
            let source = addresses(&region.slice(0, MESSAGE_LEN).unwrap().fragment());
            *seen.borrow_mut() = Seen { source, ..Seen::default() };
        }
        scene
    }

    fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let mut is_over = false;
        while !done(self) {
            let events = self.ends.each_ref().map(|end| &end.events);
            assert!(!is_over, "something is under way in scene {}: {events:?}", self.number);
            is_over = !self.link.step();
            let ports = [&mut self.link.a.port, &mut self.link.b.port];
            for (port, end) in ports.into_iter().zip(&mut self.ends) {
                while let Some(event) = port.poll_event() {
                    match event {
                        PortEvent::Incoming { connection, .. } => end.connection = Some(connection),
                        PortEvent::Stream { event, .. } => end.events.push(event),
                        other => panic!("unexpected {other:?}"),
                    }
                }
            }
        }
    }

    fn wait(&mut self, cq: &Cq) {
        let mut wc = None;
        self.run_until(|_| {
            wc = cq.poll();
            wc.is_some()
        });
        assert_eq!(wc.unwrap().status, WcStatus::Success);
    }

    /// Moves the payload from the first end to the second; every octet arrives.
    fn transfer(&mut self, operation: &str) {
        let cqs = [self.ends[0].cq.clone(), self.ends[1].cq.clone()];
        let all = 0..MESSAGE_LEN;
        match operation {
            "write" => {
                let (from, to) = (self.memory[0].sge(all), self.memory[1].remote(0));
                self.ends[0].qp.post_send(SendWr::write(WrId(1), to, [from])).unwrap();
                self.wait(&cqs[0]);
            }
            "send" => {
                let (from, to) = (self.memory[0].sge(all.clone()), self.memory[1].sge(all));
                self.ends[1].qp.post_recv(RecvWr::new(WrId(2), [to])).unwrap();
                self.ends[0].qp.post_send(SendWr::send(WrId(1), [from])).unwrap();
                self.wait(&cqs[0]);
                self.wait(&cqs[1]);
            }
            _ => {
                // RFC 5044 §7.1.2 (4): the responder sends nothing before the initiator has.
                let first =
                    SendWr::write(WrId(3), self.memory[1].remote(0), [self.memory[0].sge(0..0)]);
                self.ends[0].qp.post_send(first).unwrap();
                self.wait(&cqs[0]);
                let (from, to) = (self.memory[0].remote(0), self.memory[1].sge(all));
                self.ends[1].qp.post_send(SendWr::read(WrId(1), from, to)).unwrap();
                self.wait(&cqs[1]);
            }
        }
        let mut octets = vec![0; WORD_LEN];
        for index in 0..MESSAGE_LEN / WORD_LEN {
            self.memory[1].copy_out(index * WORD_LEN, &mut octets);
            assert_eq!(octets, word(self.number, index), "{operation}: word {index} has arrived");
        }
    }

    fn counters(&self) -> [ConnectionCounters; 2] {
        let id = |which: usize| self.ends[which].connection.unwrap();
        [self.link.a.port.counters(id(0)).unwrap(), self.link.b.port.counters(id(1)).unwrap()]
    }

    /// Octets of payload in this process that are neither where they were sent from, nor where they
    /// belong, nor in a buffer of the device.
    fn copies(&self) -> u64 {
        let mut known: Vec<_> =
            self.seen.iter().flat_map(|seen| seen.borrow().buffers.clone()).collect();
        known.extend(self.seen.iter().map(|seen| seen.borrow().source.clone()));
        words_in_memory(self.number, |at| known.iter().any(|range| range.contains(&at)))
    }
}

/// Octets in words of the payload, in writable memory of this process but for what is `known`.
fn words_in_memory(scene: u8, known: impl Fn(usize) -> bool) -> u64 {
    const CHUNK: usize = 1 << 20;
    let mut chunk = vec![0; CHUNK + WORD_LEN - 1];
    let own = addresses(&Fragment::from_slice(&chunk));
    let memory = File::open("/proc/self/mem").unwrap();
    let first = word(scene, 0);
    let mut found = 0;
    for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let mut fields = line.split_whitespace();
        let (range, rights) = (fields.next().unwrap(), fields.next().unwrap());
        if !rights.starts_with("rw") {
            continue;
        }
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
        for at in (start..end).step_by(CHUNK) {
            let len = chunk.len().min(end - at);
            // What was unmapped meanwhile, or never was ours to read, holds no payload.
            let Ok(len) = memory.read_at(&mut chunk[..len], at as u64) else { continue };
            for (i, octets) in chunk[..len].windows(WORD_LEN).enumerate().take(CHUNK) {
                if octets[0] == first[0] && octets[..5] == first[..5] {
                    let place = at + i;
                    found += u64::from(!own.contains(&place) && !known(place)) * WORD_LEN as u64;
                }
            }
        }
    }
    found
}

/// Octets of an FPDU that are not payload: MPA's length, the DDP header, pad and CRC.
const FRAMING_MAX: u64 = 2 + 18 + 3 + 4;
/// Octets of payload that calls may leave on the stack: the words of this test itself.
const STRAY_MAX: u64 = 256;

/// A clean link: nothing is copied on transmit, and once on receive.
fn copies_once(link: LinkConfig, startup: StartupConfig) {
    for operation in ["write", "send", "read"] {
        let mut scene = Scene::connect(link, ImpairConfig::default(), startup);
        scene.transfer(operation);
        let what = format!("{operation} with {startup:?}");
        let [sender, receiver] = scene.counters();
        let sent = scene.seen[0].borrow();
        assert_eq!(sent.from_source, MESSAGE_LEN as u64, "{what}: sent from where it is");
        let markers = 4 * (sent.from_source / 400 + 2);
        let framing = sender.fpdus_framed * FRAMING_MAX + u64::from(startup.markers) * markers;
        assert!(
            sent.from_elsewhere <= framing,
            "{what}: {} octets are no framing of {} FPDUs",
            sent.from_elsewhere,
            sender.fpdus_framed
        );
        assert!(receiver.rdma.bytes_placed >= MESSAGE_LEN as u64, "{what}");
        assert!(receiver.rdma.bytes_placed <= MESSAGE_LEN as u64 + 64, "{what}: placed once");
        assert_eq!(receiver.mpa.bytes_held, 0, "{what}");
        drop(sent);
        let copies = scene.copies();
        assert!(copies <= STRAY_MAX, "{what}: {copies} octets of payload were copied");
    }
}

fn link() -> LinkConfig {
    LinkConfig { latency_ns: 10_000, ..LinkConfig::default() }
}

/// One test: another thread's payload would be taken for a copy.
#[test]
fn payload_is_copied_only_to_where_it_belongs() {
    for markers in [false, true] {
        let startup = StartupConfig { markers, ..StartupConfig::default() };
        copies_once(link(), startup);
        let mut super_frames = link();
        super_frames.super_frame_len_max = std::num::NonZeroUsize::new(65_000);
        super_frames.tx_checksum = true;
        copies_once(super_frames, startup);
        a_copy_would_be_noticed(startup);
    }
}

/// Unaligned arrival makes the engine hold pieces of FPDUs: copies, counted, and found.
fn a_copy_would_be_noticed(startup: StartupConfig) {
    let impair = ImpairConfig { resegment: 0.3, ..ImpairConfig::default() };
    let mut scene = Scene::connect(link(), impair, startup);
    scene.transfer("write");
    let [_, receiver] = scene.counters();
    assert!(receiver.mpa.bytes_held > 1000, "{:?}", receiver.mpa);
    let copies = scene.copies();
    assert!(copies > 4 * STRAY_MAX, "{copies} octets of {} held", receiver.mpa.bytes_held);
}
