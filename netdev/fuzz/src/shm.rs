//! urnic's end of an `shm` link, and a peer that executes a script.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use urnic_netdev::Device;
use urnic_netdev::published::{PublishedMemory, Publisher};
use urnic_netdev::shm::{Shm, ShmConfig, ShmCounters};

use super::peer::{self, Peer};
use super::script::Script;
use super::work;

/// Runs a script. Returns the device's counters.
///
/// # Panics
/// If the device violates an expectation.
pub fn against_shm(script: &[u8]) -> ShmCounters {
    let mut script = Script::new(script);
    let config = ShmConfig { path: work::path(), listens: true, mtu: MTU, peer: None };
    let publisher = Publisher::new();
    let mut published = vec![publisher.allocate(4096).expect("memory")];
    let mut device = Shm::open(&config, &publisher).expect("a new path");
    let mut now_ns = 0;
    let before = work::descriptors();
    let mut other = Other::meet(&config.path);
    work::turn(&mut device, &mut now_ns);
    while let Some(step) = script.step() {
        match step & 0xf {
            12 => {
                other = Other::meet(&config.path);
                work::turn(&mut device, &mut now_ns);
            }
            13 if published.len() > 4 => published.truncate(1),
            13 => published.push(publisher.allocate(4096).expect("memory")),
            14 | 15 => work::turn(&mut device, &mut now_ns),
            step => other.act(step, &mut script),
        }
    }
    work::turn(&mut device, &mut now_ns);
    let counters = device.counters();
    drop(other);
    published.truncate(1);
    // Messages that it has sent before are handled first.
    let mut turns = 0;
    while turns < TURNS_MAX && (turns < TURNS_MIN || device.link_up()) {
        work::turn(&mut device, &mut now_ns);
        turns += 1;
    }
    assert!(!device.link_up(), "the peer is gone");
    work::await_descriptors(before);
    let good = Other::meet(&config.path);
    good.hello();
    for _ in 0..8 {
        work::turn(&mut device, &mut now_ns);
    }
    assert!(device.link_up(), "a good one is used");
    counters
}

struct Other {
    peer: Option<Peer>,
    /// Valid memory for an outbox, created like that of an end of a link.
    outbox: PublishedMemory,
    outbox_file: OwnedFd,
    /// Valid memory to publish.
    _region: PublishedMemory,
    region: OwnedFd,
    /// Number of descriptors written.
    position: u32,
    /// The device's outbox.
    theirs: Option<OwnedFd>,
}

impl Other {
    fn meet(path: &Path) -> Self {
        let (outbox, outbox_file) = made(OUTBOX_LEN);
        let (_region, region) = made(REGION_LEN);
        let peer = Peer::connect(path);
        Self { peer, outbox, outbox_file, _region, region, position: 0, theirs: None }
    }

    /// Executes one step of a script.
    fn act(&mut self, step: u8, script: &mut Script<'_>) {
        match step {
            0 => self.hello(),
            1 => {
                let (version, mtu) = (u32::from(script.octet()), u32::from(script.octet()) * 25);
                let len = script.number();
                let files = peer::files(script, &self.region);
                self.say_hello(version, mtu, len, &files);
            }
            2 => {
                let (number, len) = (u32::from(script.octet()), script.number());
                let files = peer::files(script, &self.region);
                self.say(2, &[&number.to_ne_bytes()[..], &len.to_ne_bytes()].concat(), &files);
            }
            3 => {
                let (number, ahead) = (u32::from(script.octet()), u32::from(script.octet()));
                let position = self.position.wrapping_add(ahead);
                self.say(3, &[number, position].map(u32::to_ne_bytes).concat(), &[]);
            }
            4 => self.say(4, &u32::from(script.octet()).to_ne_bytes(), &[]),
            5 => {
                let (id, len) = (u32::from(script.octet() & 7), usize::from(script.octet()) % 32);
                let body = script.octets(len);
                let files = peer::files(script, &self.region);
                self.say(id, body, &files);
            }
            6 => {
                let len = usize::from(script.octet());
                let octets = script.octets(len);
                let files = peer::files(script, &self.region);
                if let Some(peer) = &self.peer {
                    peer.send(octets, &files);
                }
            }
            9 => {
                let at = u64::from(script.octet() & 3) * 128;
                let position = self.position.wrapping_add(script.half());
                self.write(at, &position.to_ne_bytes());
            }
            10 => {
                let at = u64::from(script.word()) * 16;
                let len = usize::from(script.octet()) % 48;
                self.write(at, script.octets(len));
            }
            11 => self.consume(),
            _ => self.put_frame(script),
        }
    }

    fn say(&self, id: u32, body: &[u8], files: &[OwnedFd]) {
        if let Some(peer) = &self.peer {
            peer.say(id, 1, body, files);
        }
    }

    fn hello(&self) {
        let file = self.outbox_file.try_clone().expect("a descriptor");
        self.say_hello(1, u32::try_from(MTU).unwrap_or(0), OUTBOX_LEN as u64, &[file]);
    }

    fn say_hello(&self, version: u32, mtu: u32, len: u64, files: &[OwnedFd]) {
        let numbers = [version, mtu].map(u32::to_ne_bytes).concat();
        self.say(1, &[&b"urnicshm"[..], &numbers, &len.to_ne_bytes()].concat(), files);
    }

    /// Writes to the outbox, if the offset is inside. Uses /proc/self/mem, since the file is sealed
    /// and its mapping belongs to the publisher.
    fn write(&self, at: u64, octets: &[u8]) {
        let start = self.outbox.as_ptr().addr() as u64;
        if at + octets.len() as u64 <= OUTBOX_LEN as u64 {
            let memory = File::options().write(true).open("/proc/self/mem").expect("own memory");
            memory.write_all_at(octets, start + at).expect("a mapping that is writable");
        }
    }

    fn put(&mut self, descriptor: &[u8]) {
        let slot = u64::from(self.position % RING_LEN);
        self.write(RING_AT + slot * 16, descriptor);
        self.position = self.position.wrapping_add(1);
    }

    /// Puts a frame of a few runs, valid or not.
    fn put_frame(&mut self, script: &mut Script<'_>) {
        let shape = script.octet();
        let count = u16::from(shape & 3) + 1;
        let mut runs = Vec::new();
        let mut sum = 0_u32;
        for _ in 0..count {
            let region = u32::from(script.octet() & 3);
            let (len, offset) = (script.half(), script.number());
            sum = sum.wrapping_add(len);
            runs.push(
                [&[region, len].map(u32::to_ne_bytes).concat()[..], &offset.to_ne_bytes()].concat(),
            );
        }
        let said = if shape & 0x10 == 0 { count } else { u16::from(script.octet()) };
        let len = if shape & 0x20 == 0 { sum } else { script.half() };
        let mut header = [&len.to_ne_bytes()[..], &said.to_ne_bytes(), &[0; 10]].concat();
        let offload = if shape & 0x40 == 0 { &[] } else { script.octets(10) };
        header[6..6 + offload.len()].copy_from_slice(offload);
        self.put(&header);
        for run in runs {
            self.put(&run);
        }
        if shape & 0x80 == 0 {
            self.write(0, &self.position.to_ne_bytes());
        }
    }

    /// Declares all of the device's frames as read.
    fn consume(&mut self) {
        let Some(peer) = &self.peer else { return };
        let is_outbox = |file: &OwnedFd| len_of(file) == OUTBOX_LEN as u64;
        if let Some(file) = peer.receive().files.into_iter().find(is_outbox) {
            self.theirs = Some(file);
        }
        let produced = self.theirs.as_ref().and_then(|file| peer::read_at(file, 0));
        let octets = produced.unwrap_or(0).to_le_bytes();
        self.write(128, &octets[..4]);
    }
}

fn len_of(file: &OwnedFd) -> u64 {
    let file = File::from(file.try_clone().expect("a descriptor"));
    file.metadata().map_or(0, |about| about.len())
}

/// Creates memory that others can only read. Returns also its file.
fn made(len: usize) -> (PublishedMemory, OwnedFd) {
    let is_memory = |number: &String| {
        let path = fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
        path.to_string_lossy().starts_with("/memfd:urnic published")
    };
    let numbers = || -> Vec<String> {
        let entries = fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
        let numbers = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        numbers.filter(is_memory).collect()
    };
    let before = numbers();
    let memory = Publisher::new().allocate(len).expect("memory");
    let is_new = |number: &String| !before.contains(number);
    let number = numbers().into_iter().find(is_new).expect("it was just made");
    let file = File::open(format!("/proc/self/fd/{number}")).expect("a file in memory");
    (memory, file.into())
}

const MTU: usize = 1500;
/// Layout of an outbox: words, 128 bytes apart, and the ring.
const RING_AT: u64 = 4096;
const RING_LEN: u32 = 16_384;
const OUTBOX_LEN: usize = 4096 + 16_384 * 16 + 66 * 65_664;
/// Length of the memory to publish.
const REGION_LEN: usize = 65_535;
/// Turns in which all messages that fit into the socket are handled, 64 in each, if the link was
/// down before.
const TURNS_MIN: usize = 32;
/// Turns for the same, if the link is up.
const TURNS_MAX: usize = 1000;
