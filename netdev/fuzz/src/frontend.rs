//! urnic's backend, and a frontend that executes a script.

use std::os::fd::OwnedFd;
use std::path::Path;

use urnic_netdev::Device;
use urnic_netdev::vhost_user::{RingCounters, VhostUser, VhostUserConfig};

use super::peer::{self, Peer};
use super::script::{MEMORY_BASE, MEMORY_LEN, Script};
use super::work;

/// Runs a script. Returns the device's counters.
///
/// # Panics
/// If the backend violates an expectation.
pub fn against_backend(script: &[u8]) -> RingCounters {
    let mut script = Script::new(script);
    let setting = script.octet();
    let config = VhostUserConfig {
        offloads: setting & 1 == 0,
        sealed: setting & 2 != 0,
        ..VhostUserConfig::backend(work::path())
    };
    let mut backend = VhostUser::open(&config).expect("a new path");
    let before = work::descriptors();
    let mut now_ns = 0;
    let mut frontend = Frontend::meet(&config.path);
    work::turn(&mut backend, &mut now_ns);
    while let Some(step) = script.step() {
        match step & 0xf {
            0 => frontend.set_up(script.octet()),
            1..=4 => frontend.request(&mut script),
            5 => {
                let len = usize::from(script.octet());
                let octets = script.octets(len);
                let files = peer::files(&mut script, &frontend.memory);
                frontend.send(octets, &files);
            }
            6 => {
                let at = u64::from(script.word()) * 8;
                let len = usize::from(script.octet()) % 64;
                peer::write_at(&frontend.memory, at, script.octets(len));
            }
            7 | 8 => frontend.descriptor(&mut script),
            9 | 10 => frontend.publish(&mut script),
            11 => {
                frontend = Frontend::meet(&config.path);
                work::turn(&mut backend, &mut now_ns);
            }
            _ => work::turn(&mut backend, &mut now_ns),
        }
    }
    work::turn(&mut backend, &mut now_ns);
    let counters = backend.counters();
    drop(frontend);
    // Messages that it has sent before are handled first.
    let mut turns = 0;
    while turns < TURNS_MAX && (turns < TURNS_MIN || backend.link_up()) {
        work::turn(&mut backend, &mut now_ns);
        turns += 1;
    }
    assert!(!backend.link_up(), "the frontend is gone");
    work::await_descriptors(before);
    let good = Frontend::meet(&config.path);
    good.set_up(0);
    for _ in 0..2 {
        work::turn(&mut backend, &mut now_ns);
    }
    assert!(backend.link_up(), "a good one is served");
    counters
}

struct Frontend {
    peer: Option<Peer>,
    memory: OwnedFd,
}

impl Frontend {
    fn meet(path: &Path) -> Self {
        Self { peer: Peer::connect(path), memory: peer::memory(MEMORY_LEN) }
    }

    fn send(&self, octets: &[u8], files: &[OwnedFd]) {
        if let Some(peer) = &self.peer {
            peer.send(octets, files);
        }
    }

    fn say(&self, id: u32, body: &[u8], files: &[OwnedFd]) {
        if let Some(peer) = &self.peer {
            // Answers are received and ignored.
            let _answers = peer.receive();
            peer.say(id, VERSION, body, files);
        }
    }

    /// Sets up one virtqueue pair correctly, without the features that `without` names.
    fn set_up(&self, without: u8) {
        let mut features = FEATURES;
        for (bit, feature) in OPTIONAL.iter().enumerate() {
            if without >> bit & 1 != 0 {
                features &= !feature;
            }
        }
        self.say(2, &features.to_ne_bytes(), &[]);
        let mut table = vec![1, 0, 0, 0, 0, 0, 0, 0];
        table.extend([MEMORY_BASE, MEMORY_LEN, MEMORY_BASE, 0].map(u64::to_ne_bytes).concat());
        self.say(5, &table, &[self.memory.try_clone().expect("a descriptor")]);
        for index in 0..2_u32 {
            let state = |value: u32| [index, value].map(u32::to_ne_bytes).concat();
            self.say(8, &state(QUEUE_SIZE), &[]);
            self.say(10, &state(0), &[]);
            let [descriptors, available, used] = parts(index);
            let mut addresses = state(0);
            addresses.extend([descriptors, used, available, 0].map(u64::to_ne_bytes).concat());
            self.say(9, &addresses, &[]);
            for id in [12, 13] {
                self.say(id, &u64::from(index).to_ne_bytes(), &[peer::event()]);
            }
            self.say(18, &state(1), &[]);
        }
    }

    /// Sends any request, with the right length unless the script changes it.
    fn request(&self, script: &mut Script<'_>) {
        let id = REQUESTS[usize::from(script.octet()) % REQUESTS.len()];
        let form = script.octet();
        let mut body = Vec::new();
        match id {
            5 => {
                let count = u32::from(form & 7) + 1;
                body.extend([count, 0].map(u32::to_ne_bytes).concat());
                for _ in 0..count {
                    (0..4).for_each(|_| body.extend(script.number().to_ne_bytes()));
                }
            }
            37 | 38 => (0..5).for_each(|_| body.extend(script.number().to_ne_bytes())),
            8..=11 | 18 => {
                let value = u32::try_from(script.number() & 0xffff_ffff).unwrap_or(0);
                body.extend([u32::from(form & 3), value].map(u32::to_ne_bytes).concat());
                if id == 9 {
                    (0..4).for_each(|_| body.extend(script.number().to_ne_bytes()));
                }
            }
            2 | 12..=14 | 16 => body.extend(script.number().to_ne_bytes()),
            _ => {}
        }
        if form & 0xc0 == 0xc0 {
            body.truncate(usize::from(script.octet()));
        }
        let wanted = usize::from(matches!(id, 12..=14 | 37)) + usize::from(id == 5) * 8;
        let files = match form & 0x30 {
            0x30 => peer::files(script, &self.memory),
            _ if id == 5 => (0..body.len().saturating_sub(8) / 32)
                .map(|_| self.memory.try_clone().expect("a descriptor"))
                .collect(),
            _ => (0..wanted)
                .map(|_| match id {
                    37 => self.memory.try_clone().expect("a descriptor"),
                    _ => peer::event(),
                })
                .collect(),
        };
        if let Some(peer) = &self.peer {
            let _answers = peer.receive();
            peer.say(id, VERSION | u32::from(form & 8), &body, &files);
        }
    }

    /// Writes an entry of a descriptor table.
    fn descriptor(&self, script: &mut Script<'_>) {
        let which = script.octet();
        let [table, ..] = parts(u32::from(which & 1));
        let at = table - MEMORY_BASE + u64::from(which >> 1) % u64::from(QUEUE_SIZE) * 16;
        let mut entry = script.number().to_ne_bytes().to_vec();
        let len = u32::try_from(script.number() & 0xffff_ffff).unwrap_or(0);
        entry.extend(len.to_ne_bytes());
        entry.extend(u16::from(script.octet() & 7).to_ne_bytes());
        entry.extend(u16::from(script.octet()).to_ne_bytes());
        peer::write_at(&self.memory, at, &entry);
    }

    /// Writes an entry of an available ring, and its index.
    fn publish(&self, script: &mut Script<'_>) {
        let which = script.octet();
        let [_, ring, _] = parts(u32::from(which & 1));
        let slot = u64::from(which >> 1) % u64::from(QUEUE_SIZE);
        peer::write_at(
            &self.memory,
            ring - MEMORY_BASE + 4 + slot * 2,
            &script.word().to_ne_bytes(),
        );
        let index = u16::from(script.octet());
        let flags = u16::from(script.octet() & 1);
        let front = [flags, index].map(u16::to_ne_bytes).concat();
        peer::write_at(&self.memory, ring - MEMORY_BASE, &front);
    }
}

/// Returns the addresses of a queue's parts: descriptors, available ring, used ring.
fn parts(index: u32) -> [u64; 3] {
    [0, 4096, 8192].map(|at| MEMORY_BASE + u64::from(index) * 16_384 + at)
}

const VERSION: u32 = 1;
const QUEUE_SIZE: u32 = 64;
const VERSION_1: u64 = 1 << 32;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const MRG_RXBUF: u64 = 1 << 15;
const INDIRECT: u64 = 1 << 28;
const EVENT_INDEX: u64 = 1 << 29;
/// Features that a frontend may leave out.
const OPTIONAL: [u64; 5] = [PROTOCOL_FEATURES, MRG_RXBUF, INDIRECT, EVENT_INDEX, VERSION_1];
const FEATURES: u64 = VERSION_1 | PROTOCOL_FEATURES | MRG_RXBUF | INDIRECT | EVENT_INDEX;
/// All requests, and some unknown ones.
const REQUESTS: [u32; 22] =
    [1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 36, 37, 38, 6, 24, 40];
/// Turns in which all messages that fit into the socket are handled, 64 in each, if the link was
/// down before.
const TURNS_MIN: usize = 32;
/// Turns for the same, if the link is up.
const TURNS_MAX: usize = 1000;
