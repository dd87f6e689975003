//! Histories of published memory, against a model.

use std::collections::{BTreeMap, VecDeque};

use super::liar::Liar;
use super::*;
use crate::published::model::{self, DeviceMessage, Piece, Rig};
use crate::shm::layout::{Header, INLINE, OUTBOX_LEN, PeerMemory, Run};
use crate::shm::message::Message;
use crate::sys::read_mapping::ReadMapping;
use std::os::fd::AsFd;

struct Ends {
    device: Shm,
    path: PathBuf,
    now: u64,
    peer: Option<Peer>,
}

struct Peer {
    liar: Liar,
    regions: BTreeMap<u32, ReadMapping>,
    /// Withdrawals in the order of their messages: region, position.
    leaving: VecDeque<(u32, u32)>,
    /// Position of the next descriptor to take.
    next: u32,
    /// Positions behind the frames that were taken and not returned.
    ends: VecDeque<u32>,
    consumed: u32,
}

impl Ends {
    fn peer(&mut self) -> &mut Peer {
        self.peer.as_mut().unwrap()
    }
}

impl Rig for Ends {
    const SLOTS: usize = REGIONS_MAX;
    const AWAITS_ANSWER: bool = false;
    const IN_ORDER: bool = true;

    fn open(publisher: &Publisher) -> Self {
        let path = path();
        let device = Shm::open(&config(&path, true), publisher).unwrap();
        Self { device, path, now: 0, peer: None }
    }

    fn device(&mut self) -> &mut dyn Device {
        &mut self.device
    }

    fn later(&mut self) -> u64 {
        later(&mut self.now)
    }

    fn meet(&mut self) {
        let liar = Liar::new(&self.path);
        let (regions, leaving, ends) = (BTreeMap::new(), VecDeque::new(), VecDeque::new());
        self.peer = Some(Peer { liar, regions, leaving, next: 0, ends, consumed: 0 });
    }

    fn hang_up(&mut self) {
        self.peer = None;
    }

    fn messages(&mut self) -> Vec<DeviceMessage> {
        let mut messages = Vec::new();
        let Peer { liar, regions, leaving, consumed, .. } = self.peer();
        while let Some(mut message) = liar.channel.receive().unwrap() {
            let count = message.descriptors.len();
            match Message::parse(message.header, &message.body, count).unwrap() {
                Message::Hello { .. } => {
                    let file = message.descriptors.pop().unwrap();
                    let file = file.as_fd().try_clone_to_owned().unwrap();
                    let mapping = ReadMapping::of(file.as_fd(), OUTBOX_LEN).unwrap();
                    liar.theirs = Some((file, PeerMemory::new(mapping)));
                }
                Message::Publish { number: name, len } => {
                    let len = usize::try_from(len).unwrap();
                    let mapping = ReadMapping::of(message.descriptors[0].as_fd(), len).unwrap();
                    let mut number = [0; 8];
                    mapping.copy_out(0, &mut number);
                    let number = u64::from_ne_bytes(number);
                    regions.insert(name, mapping);
                    messages.push(DeviceMessage::Announced { name: name.into(), number });
                }
                Message::Withdraw { number, position } => leaving.push_back((number, position)),
                Message::Wake => {}
                Message::Refuse { .. } => panic!("this peer publishes nothing"),
            }
        }
        while let Some((name, position)) = leaving.front().copied()
            && position.wrapping_sub(*consumed).cast_signed() <= 0
        {
            leaving.pop_front();
            regions.remove(&name);
            messages.push(DeviceMessage::Withdrawn { name: name.into() });
        }
        messages
    }

    fn answer(&mut self, name: u64, accepts: bool) {
        if !accepts {
            let number = u32::try_from(name).unwrap();
            self.peer().liar.say(&Message::Refuse { number }, &[]);
        }
    }

    fn frames(&mut self) -> Vec<Vec<Piece>> {
        let mut frames = Vec::new();
        let Peer { liar, leaving, next, ends, .. } = self.peer();
        let Some((_, memory)) = &liar.theirs else { return frames };
        while *next != memory.produced() {
            let header = Header::from_octets(memory.descriptor(*next));
            let mut pieces = Vec::new();
            for index in 1..=u32::from(header.runs) {
                let run = Run::from_octets(memory.descriptor(next.wrapping_add(index)));
                let is_late = |(name, position): &(u32, u32)| {
                    *name == run.region && position.wrapping_sub(*next).cast_signed() <= 0
                };
                assert!(!leaving.iter().any(is_late), "a frame behind the withdrawal refers to it");
                let name = (run.region != INLINE).then_some(run.region.into());
                let len = usize::try_from(run.len).unwrap();
                pieces.push(Piece { name, at: run.offset, len });
            }
            *next = next.wrapping_add(1 + u32::from(header.runs));
            ends.push_back(*next);
            frames.push(pieces);
        }
        frames
    }

    fn read(&self, Piece { name, at, len }: Piece) -> Vec<u8> {
        let Peer { liar, regions, .. } = self.peer.as_ref().unwrap();
        let (mut octets, at) = (vec![0; len], usize::try_from(at).unwrap());
        if let Some(name) = name {
            regions[&u32::try_from(name).unwrap()].copy_out(at, &mut octets);
        } else {
            let (_, memory) = liar.theirs.as_ref().unwrap();
            memory.inline(at, len).unwrap().copy_out(0, &mut octets);
        }
        octets
    }

    fn give_back(&mut self, index: usize) {
        assert_eq!(index, 0);
        let Peer { liar, ends, consumed, .. } = self.peer();
        *consumed = ends.pop_front().unwrap();
        liar.memory.set_consumed(*consumed);
    }

    fn referred(&mut self) -> u64 {
        self.device.counters().tx_bytes_referred
    }
}

#[test]
fn published_memory_follows_its_model() {
    model::run::<Ends>();
}
