//! Payload is copied in user space once on receive. It is not copied on transmit, except Read
//! Responses, which are copied once, and counted.
//!
//! The test searches all of its own writable memory for bytes of the payload. They may be in the
//! source region, in the destination region, and in buffers of the device. Any other copy that the
//! engine leaves somewhere is found. Unaligned arrival, where the engine must hold data, proves
//! that the search works.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::cell::RefCell;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use urnic_engine::mem::Region;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ConnectParams, ConnectionCounters, LowerLayer, PortConfig};
use urnic_engine::stream::SendPath;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Cq, Mr, RecvWr, SendWr, WcStatus};
use urnic_netdev::impair::{Impair, ImpairConfig};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_netdev::{Capabilities, Device, RxFrame, SharedSlice, TransmitError, TxFrame};
use urnic_testkit::isolate::in_own_process;
use urnic_testkit::pair::{A, B, End, Pair, all_access, config};

/// Bytes of each message: many frames, the last one not full.
const MESSAGE_LEN: usize = 200 * 1024;
/// Bytes of one word of the payload: a unique mark, and the index of the word.
const WORD_LEN: usize = 8;

/// Returns one word of a scene's payload. The mark is computed here, so that no constant looks like
/// it; memory that an earlier scene has freed contains that scene's marks.
fn word(scene: u8, index: usize) -> [u8; WORD_LEN] {
    let index = u32::try_from(index).unwrap().to_be_bytes();
    let mark = std::hint::black_box(0x1e_u8);
    [mark ^ 0xff, mark ^ 0x55, mark ^ 0xa7, mark ^ 0x0c, scene, index[1], index[2], index[3]]
}

/// Returns the addresses of a run of memory.
fn addresses(fragment: &SharedSlice<'_>) -> Range<usize> {
    let start = fragment.as_ptr().addr();
    start..start + fragment.len()
}

/// Frames that a device was given, and frames that it delivered.
#[derive(Debug, Default)]
struct Seen {
    /// Memory from which payload may be sent.
    source: Range<usize>,
    /// Bytes of frames' payload from that memory.
    from_source: u64,
    /// Bytes of frames' payload from other memory: FPDU framing, or copies.
    from_elsewhere: u64,
    /// Number of frames.
    frames: usize,
    /// Number of runs of memory with their payload.
    runs: usize,
    /// Buffers of received frames.
    buffers: Vec<Range<usize>>,
}

/// A device whose traffic is observed.
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
            seen.borrow_mut().buffers.push(addresses(&SharedSlice::from_bytes(frame.head)));
            sink(frame);
        })
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        self.device.transmit(now_ns, frame)?;
        let mut seen = self.seen.borrow_mut();
        seen.frames += 1;
        seen.runs += frame.payload.len();
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

/// Two ends on observed devices: the first has the payload, the second the memory for it.
struct Scene {
    /// Number of the scene in the marks of its payload.
    number: u8,
    pair: Pair<Port>,
    seen: [Rc<RefCell<Seen>>; 2],
    /// Payload of the first end, destination of the second; the regions give their addresses.
    regions: [Arc<Region>; 2],
    memory: [Mr; 2],
}

impl Scene {
    fn connect(
        link: LinkConfig,
        impair: ImpairConfig,
        startup: StartupConfig,
        send_path: SendPath,
    ) -> Self {
        static SCENES: AtomicU8 = AtomicU8::new(0);
        let number = SCENES.fetch_add(1, Ordering::Relaxed);
        let seen: [Rc<RefCell<Seen>>; 2] = Default::default();
        let (device_a, device_b) = memory::pair(link);
        let watched = |device, which: usize, seed| Watched {
            device: Impair::new(device, impair, seed),
            seen: Rc::clone(&seen[which]),
        };
        let mut pair = Pair::new(
            [End::new(1), End::new(2)],
            [A, B].map(|address| PortConfig { send_path, ..config(address) }),
            [watched(device_a, 0, 3), watched(device_b, 1, 4)],
        );
        let offer = Offer { private_data: b"", ird: 8, ord: 8 };
        let lower_layer = LowerLayer::default();
        pair.establish(&ConnectParams { startup, offer, lower_layer }, B.into(), &offer);
        let regions = [0, 1].map(|_| Region::anonymous(MESSAGE_LEN).unwrap());
        let memory = [0, 1].map(|i| {
            let region = Arc::clone(&regions[i]);
            [&pair.a, &pair.b][i].pd.reg_region(region, all_access()).unwrap()
        });
        for index in 0..MESSAGE_LEN / WORD_LEN {
            memory[0].copy_in(index * WORD_LEN, &word(number, index));
        }
        let scene = Self { number, pair, seen, regions, memory };
        for (seen, region) in scene.seen.iter().zip(&scene.regions) {
            let source = addresses(&region.slice(0, MESSAGE_LEN).unwrap());
            *seen.borrow_mut() = Seen { source, ..Seen::default() };
        }
        scene
    }

    fn wait(&mut self, cq: &Cq) {
        assert_eq!(self.pair.wait(cq).status, WcStatus::Success, "in scene {}", self.number);
    }

    /// Moves the payload from the first end to the second, and checks every byte.
    fn transfer(&mut self, operation: &str) {
        let cqs = [self.pair.a.cq.clone(), self.pair.b.cq.clone()];
        let all = 0..MESSAGE_LEN;
        match operation {
            "write" => {
                let (from, to) = (self.memory[0].sge(all), self.memory[1].remote(0));
                self.pair.a.qp.post_send(SendWr::write(WrId(1), to, [from])).unwrap();
                self.wait(&cqs[0]);
            }
            "send" => {
                let (from, to) = (self.memory[0].sge(all.clone()), self.memory[1].sge(all));
                self.pair.b.qp.post_recv(RecvWr::new(WrId(2), [to])).unwrap();
                self.pair.a.qp.post_send(SendWr::send(WrId(1), [from])).unwrap();
                self.wait(&cqs[0]);
                self.wait(&cqs[1]);
            }
            _ => {
                // RFC 5044 §7.1.2 (4): the responder sends nothing before the initiator does.
                let first =
                    SendWr::write(WrId(3), self.memory[1].remote(0), [self.memory[0].sge(0..0)]);
                self.pair.a.qp.post_send(first).unwrap();
                self.wait(&cqs[0]);
                let (from, to) = (self.memory[0].remote(0), self.memory[1].sge(all));
                self.pair.b.qp.post_send(SendWr::read(WrId(1), from, to)).unwrap();
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
        let Pair { link, a, b } = &self.pair;
        [(&link.a.port, a), (&link.b.port, b)]
            .map(|(port, end)| port.counters(end.connection.unwrap()).unwrap())
    }

    /// Returns the bytes of payload in this process that are outside the source, the destination
    /// and the buffers of the device.
    fn copies(&self) -> u64 {
        let mut known: Vec<_> =
            self.seen.iter().flat_map(|seen| seen.borrow().buffers.clone()).collect();
        known.extend(self.seen.iter().map(|seen| seen.borrow().source.clone()));
        words_in_memory(self.number, |at| known.iter().any(|range| range.contains(&at)))
    }
}

/// Returns the bytes in words of the payload, in writable memory of this process outside of
/// `known`.
fn words_in_memory(scene: u8, known: impl Fn(usize) -> bool) -> u64 {
    const CHUNK: usize = 1 << 20;
    let mut chunk = vec![0; CHUNK + WORD_LEN - 1];
    let own = addresses(&SharedSlice::from_bytes(&chunk));
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
            // Memory that was unmapped meanwhile, or is not readable, holds no payload.
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

/// Maximum bytes of an FPDU besides payload: MPA's length, the DDP header, pad and CRC.
const FRAMING_MAX: u64 = 2 + 18 + 3 + 4;
/// Maximum bytes of payload that calls may leave on the stack: words of this test itself.
const STRAY_MAX: u64 = 256;

/// Asserts that a clean link copies nothing on transmit, and once on receive. With markers this
/// must be requested.
fn copies_once(link: LinkConfig, startup: StartupConfig) {
    let path = if startup.markers { SendPath::Gather } else { SendPath::Auto };
    for operation in ["write", "send", "read"] {
        let mut scene = Scene::connect(link, ImpairConfig::default(), startup, path);
        scene.transfer(operation);
        let what = format!("{operation} with {startup:?}");
        let [sender, receiver] = scene.counters();
        let sent = scene.seen[0].borrow();
        // A Read Response is a snapshot of memory at the time of framing.
        let snapshot = if operation == "read" { MESSAGE_LEN as u64 } else { 0 };
        assert_eq!(sender.rdma_tx.bytes_snapshot, snapshot, "{what}");
        assert_eq!(sender.rdma_tx.bytes_kept, 0, "{what}: no FPDU was cut");
        assert_eq!(sender.rdma_tx.bytes_staged, 0, "{what}: the device copies by itself");
        assert_eq!(
            sent.from_source,
            MESSAGE_LEN as u64 - snapshot,
            "{what}: sent from where it is"
        );
        let markers = 4 * (MESSAGE_LEN as u64 / 400 + 2);
        let framing = sender.fpdus_framed * FRAMING_MAX + u64::from(startup.markers) * markers;
        assert!(
            sent.from_elsewhere - snapshot <= framing,
            "{what}: {} octets are no framing of {} FPDUs",
            sent.from_elsewhere,
            sender.fpdus_framed
        );
        assert!(receiver.rdma.bytes_placed >= MESSAGE_LEN as u64, "{what}");
        assert!(receiver.rdma.bytes_placed <= MESSAGE_LEN as u64 + 64, "{what}: placed once");
        assert_eq!(receiver.mpa.bytes_held, 0, "{what}");
        drop(sent);
        let copies = scene.copies();
        // Snapshot blocks are reused, and may hold none of the payload afterwards.
        assert!(copies <= snapshot + STRAY_MAX, "{what}: {copies} octets of payload were copied");
        assert!(snapshot == 0 || copies > STRAY_MAX, "{what}: the snapshot is found");
    }
}

fn link() -> LinkConfig {
    LinkConfig { latency_ns: 10_000, ..LinkConfig::default() }
}

/// One test in a process of its own: another thread's payload would be taken for a copy, and its
/// memory would be searched.
#[test]
fn payload_is_copied_once() {
    in_own_process("copies::payload_is_copied_once", every_path_copies_once);
}

fn every_path_copies_once() {
    for markers in [false, true] {
        let startup = StartupConfig { markers, ..StartupConfig::default() };
        copies_once(link(), startup);
        let mut super_frames = link();
        super_frames.super_frame_len_max = std::num::NonZeroUsize::new(65_000);
        super_frames.tx_checksum = true;
        copies_once(super_frames, startup);
        a_copy_would_be_noticed(startup);
        for link in [link(), super_frames] {
            staged_payload_is_copied_once(link, startup, SendPath::Stage);
            if markers {
                staged_payload_is_copied_once(link, startup, SendPath::Auto);
            }
        }
    }
}

/// Asserts that the engine copies payload and counts it if it is set to stage, or if markers would
/// restart the digest of each of their runs.
fn staged_payload_is_copied_once(link: LinkConfig, startup: StartupConfig, path: SendPath) {
    for operation in ["write", "send", "read"] {
        let mut scene = Scene::connect(link, ImpairConfig::default(), startup, path);
        scene.transfer(operation);
        let [sender, _] = scene.counters();
        let sent = scene.seen[0].borrow();
        let what = format!("{operation} with {startup:?}, {path:?}");
        assert_eq!(sent.from_source, 0, "{what}: not from where it is");
        // A Read Response was copied already, and is sent from the copy.
        let staged = if operation == "read" { 0 } else { MESSAGE_LEN as u64 };
        assert_eq!(sender.rdma_tx.bytes_staged, staged, "{what}: each octet once");
        assert!(sent.from_elsewhere >= MESSAGE_LEN as u64, "{what}");
        if staged > 0 {
            assert!(sent.runs <= sent.frames, "{what}: a frame's payload is one run");
        }
    }
}

/// Asserts that copies are found: unaligned arrival makes the engine hold pieces of FPDUs, which
/// are counted copies.
fn a_copy_would_be_noticed(startup: StartupConfig) {
    let impair = ImpairConfig { resegment: 0.3, ..ImpairConfig::default() };
    let mut scene = Scene::connect(link(), impair, startup, SendPath::Gather);
    scene.transfer("write");
    let [_, receiver] = scene.counters();
    assert!(receiver.mpa.bytes_held > 1000, "{:?}", receiver.mpa);
    let copies = scene.copies();
    assert!(copies > 4 * STRAY_MAX, "{copies} octets of {} held", receiver.mpa.bytes_held);
}
