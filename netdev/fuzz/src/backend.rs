//! urnic's frontend, and a backend that executes a script.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use urnic_netdev::published::{PublishedBlock, Publisher};
use urnic_netdev::vhost_user::{RingCounters, VhostUserConfig, VirtioUser};
use urnic_netdev::{Device, SharedSlice};

use super::peer::{self, Peer};
use super::script::Script;
use super::work;

/// Runs a script. Returns the device's counters.
///
/// # Panics
/// If the frontend violates an expectation.
pub fn against_frontend(script: &[u8]) -> RingCounters {
    let mut script = Script::new(script);
    let publisher = Publisher::new();
    let (path, mut frontend) = open(script.octet(), &publisher);
    let mut published = vec![block(&publisher)];
    let mut now_ns = 0;
    let before = work::descriptors();
    let mut backend = Backend::meet(&path);
    turn(&mut frontend, &mut now_ns, &published);
    while let Some(step) = script.step() {
        match step & 0xf {
            0..=2 => {
                backend.listen();
                backend.answer(None);
            }
            3 | 4 => {
                backend.listen();
                let word = script.number();
                backend.answer(Some(word));
            }
            5 => {
                let (id, flags) = (u32::from(script.octet()), u32::from(script.octet() & 15));
                let len = usize::from(script.octet()) % 32;
                let body = script.octets(len);
                let files = peer::files(&mut script, &backend.own);
                backend.say(id, flags, body, &files);
            }
            6 => {
                let len = usize::from(script.octet());
                let octets = script.octets(len);
                let files = peer::files(&mut script, &backend.own);
                if let Some(peer) = &backend.peer {
                    peer.send(octets, &files);
                }
            }
            7 | 8 => backend.write(&mut script),
            9 | 10 => backend.give_back(&mut script),
            12 => backend.fill(&mut script),
            11 => {
                backend = Backend::meet(&path);
                turn(&mut frontend, &mut now_ns, &published);
            }
            13 if published.len() > PUBLISHED_MAX => published.truncate(1),
            13 => published.push(block(&publisher)),
            _ => turn(&mut frontend, &mut now_ns, &published),
        }
    }
    turn(&mut frontend, &mut now_ns, &published);
    let counters = frontend.counters();
    drop(backend);
    published.truncate(1);
    // Messages that it has sent before are handled first.
    let mut turns = 0;
    while turns < TURNS_MAX && (turns < TURNS_MIN || frontend.link_up()) {
        work::turn(&mut frontend, &mut now_ns);
        turns += 1;
    }
    assert!(!frontend.link_up(), "the backend is gone");
    work::await_descriptors(before);
    let mut good = Backend::meet(&path);
    for _ in 0..10 {
        work::turn(&mut frontend, &mut now_ns);
        good.listen();
        good.answer(None);
    }
    assert!(frontend.link_up(), "a good one is used");
    counters
}

/// Opens a frontend. Returns also its socket's path.
fn open(options: u8, publisher: &Publisher) -> (PathBuf, VirtioUser) {
    let path = work::path();
    let plain = VhostUserConfig::frontend(path.clone());
    let config = VhostUserConfig { listens: true, offloads: options & 1 == 0, ..plain };
    let opened = if options & 2 == 0 {
        VirtioUser::open_queues(&config, 1)
    } else {
        VirtioUser::open_sharing(&config, 1, publisher)
    };
    (path, opened.expect("a new path").pop().expect("one was asked for"))
}

fn block(publisher: &Publisher) -> PublishedBlock {
    publisher.allocate_blocks(1, BLOCK_LEN).expect("memory").pop().expect("one")
}

/// Polls the frontend, with frames of published memory, shared or not.
fn turn(frontend: &mut VirtioUser, now_ns: &mut u64, published: &[PublishedBlock]) {
    let payload: Vec<_> = published.iter().map(|block| SharedSlice::from_bytes(block)).collect();
    work::turn_with(frontend, now_ns, &payload);
}

struct Backend {
    peer: Option<Peer>,
    /// A descriptor to send where none is required.
    own: OwnedFd,
    /// Memory of the frontend.
    memory: Option<OwnedFd>,
    /// Offsets of its queues' parts in that memory: descriptors, used ring, available ring.
    queues: [[u64; 3]; 2],
    /// User address of the memory's first byte.
    base: u64,
    /// Received bytes that are not parsed yet.
    octets: Vec<u8>,
    /// Requests that wait for an answer.
    asked: Vec<u32>,
}

impl Backend {
    fn meet(path: &Path) -> Self {
        Self {
            peer: Peer::connect(path),
            own: peer::event(),
            memory: None,
            queues: [[0; 3]; 2],
            base: 0,
            octets: Vec::new(),
            asked: Vec::new(),
        }
    }

    fn say(&self, id: u32, flags: u32, body: &[u8], files: &[OwnedFd]) {
        if let Some(peer) = &self.peer {
            peer.say(id, flags, body, files);
        }
    }

    /// Reads the frontend's requests.
    fn listen(&mut self) {
        let Some(peer) = &self.peer else { return };
        let received = peer.receive();
        self.octets.extend(received.octets);
        let is_memory = |file: &OwnedFd| {
            let file = File::from(file.try_clone().expect("a descriptor"));
            file.metadata().is_ok_and(|about| about.len() > BLOCK_LEN as u64)
        };
        if let Some(memory) = received.files.into_iter().find(is_memory) {
            self.memory = Some(memory);
        }
        let number = |octets: &[u8], at: usize| {
            let octets = octets.get(at..at + 8).and_then(|octets| octets.first_chunk());
            octets.map_or(0, |octets| u64::from_ne_bytes(*octets))
        };
        while let Some(header) = self.octets.first_chunk::<12>() {
            let [id, flags, len] =
                [0, 4, 8].map(|at| u32::from_ne_bytes(std::array::from_fn(|k| header[at + k])));
            let end = 12 + len as usize;
            let Some(body) = self.octets.get(12..end) else { break };
            match id {
                // Its user addresses begin here.
                5 => self.base = number(body, 24),
                9 => {
                    let base = self.base;
                    let queue = body.first().map_or(0, |index| usize::from(index & 1));
                    self.queues[queue] = [8, 16, 24].map(|at| number(body, at).wrapping_sub(base));
                }
                _ => {}
            }
            if matches!(id, 1 | 15 | 17 | 11 | 36) || flags & NEED_REPLY != 0 {
                self.asked.push(id);
            }
            self.octets.drain(..end);
        }
    }

    /// Answers all requests, correctly or with this word.
    fn answer(&mut self, word: Option<u64>) {
        for id in std::mem::take(&mut self.asked) {
            let right = match id {
                1 => FEATURES,
                15 => PROTOCOL_REPLY_ACK | PROTOCOL_CONFIGURE_MEM_SLOTS,
                17 => 1,
                36 => SLOTS,
                _ => 0,
            };
            let word = word.unwrap_or(right);
            self.say(id, VERSION | REPLY, &word.to_ne_bytes(), &[]);
        }
    }

    /// Overwrites the memory, in or beside a part of a queue.
    fn write(&self, script: &mut Script<'_>) {
        let which = script.octet();
        let part = self.queues[usize::from(which & 1)][usize::from(which >> 1) % 3];
        let at = part.wrapping_add(u64::from(script.octet()) * u64::from(1 + (which >> 4)));
        let len = usize::from(script.octet()) % 48;
        if let Some(memory) = &self.memory {
            peer::write_at(memory, at, script.octets(len));
        }
    }

    /// Writes the header of a frame into the buffer that an entry of the descriptor table names.
    fn fill(&self, script: &mut Script<'_>) {
        let entry = u64::from(script.octet());
        let (offload, count) = (script.octets(10), u16::from(script.octet()));
        let Some(memory) = &self.memory else { return };
        let Some(address) = peer::read_at(memory, self.queues[0][0].wrapping_add(entry * 16))
        else {
            return;
        };
        let mut header = [0; 12];
        header[..offload.len()].copy_from_slice(offload);
        header[10..].copy_from_slice(&count.to_le_bytes());
        peer::write_at(memory, address.wrapping_sub(self.base), &header);
    }

    /// Writes an entry of a used ring, and its index.
    fn give_back(&self, script: &mut Script<'_>) {
        let which = script.octet();
        let [_, ring, _] = self.queues[usize::from(which & 1)];
        let slot = u64::from(which >> 1);
        let id = u32::try_from(script.number() & 0xffff_ffff).unwrap_or(0);
        let len = u32::try_from(script.number() & 0xffff_ffff).unwrap_or(0);
        let entry = [id, len].map(u32::to_ne_bytes).concat();
        let index = u16::from(script.octet());
        if let Some(memory) = &self.memory {
            peer::write_at(memory, ring.wrapping_add(4 + slot * 8), &entry);
            peer::write_at(memory, ring.wrapping_add(2), &index.to_ne_bytes());
        }
    }
}

const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;
const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
const PROTOCOL_CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
/// Virtio 1.0, protocol features, merged buffers, event indices, indirect tables.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 15 | 1 << 29 | 1 << 28;
/// Memory slots, including the queues' memory: fewer than the maximum.
const SLOTS: u64 = 4;
/// Length of a block of published memory, and the most such blocks, less one.
const BLOCK_LEN: usize = 300;
const PUBLISHED_MAX: usize = 4;
/// Turns in which all messages that fit into the socket are handled, 64 in each, if the link was
/// down before.
const TURNS_MIN: usize = 32;
/// Turns for the same, if the link is up.
const TURNS_MAX: usize = 1000;
