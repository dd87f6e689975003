//! Model of published memory, for the tests of the devices that send by reference: random histories
//! of an owner that publishes and withdraws, a device that sends, and a peer that reads.
//!
//! - No frame that the peer has not read refers to a withdrawn region, or to one not announced (and
//!   accepted, where the device waits for that).
//! - Every byte of a frame is unchanged until the peer has read it, even if its region was
//!   withdrawn, or other memory has got its addresses.
//! - Regions are announced once each, oldest first, up to the peer's number, and withdrawn in the
//!   order in which the device learned of it.
//! - At rest, the peer has exactly the regions that exist, and the device refers to each of them.
//! - After a crash of the peer, and after the device, only the owner has a region's file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::published::{PublishedMemory, Publisher};
use crate::sys::published::tests::{fill, fragment};
use crate::{Device, SharedSlice, TransmitError, TxFrame};

pub(crate) trait Rig: Sized {
    const SLOTS: usize;
    /// True if the device refers to a region only after the peer has accepted it.
    const AWAITS_ANSWER: bool;
    const IN_ORDER: bool;

    fn open(publisher: &Publisher) -> Self;
    fn device(&mut self) -> &mut dyn Device;
    /// Advances the clock far enough that the device polls its socket.
    fn later(&mut self) -> u64;
    fn meet(&mut self);
    /// Closes the peer's socket, and forgets all that the peer had.
    fn hang_up(&mut self);
    fn messages(&mut self) -> Vec<DeviceMessage>;
    fn answer(&mut self, name: u64, accepts: bool);
    fn frames(&mut self) -> Vec<Vec<Piece>>;
    /// Reads bytes of a frame that was not returned.
    fn read(&self, piece: Piece) -> Vec<u8>;
    fn give_back(&mut self, index: usize);
    fn referred(&mut self) -> u64;
}

#[derive(Debug)]
pub(crate) enum DeviceMessage {
    /// `number` is the first word in the region.
    Announced {
        name: u64,
        number: u64,
    },
    Withdrawn {
        name: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) name: Option<u64>,
    pub(crate) at: u64,
    pub(crate) len: usize,
}

#[derive(Debug)]
struct Known {
    number: u64,
    accepted: Option<bool>,
    /// Turns of the device before the answer, where the device waits for it.
    answered: u64,
}

struct Model<R> {
    rig: R,
    dice: ChaCha8Rng,
    publisher: Publisher,
    owned: BTreeMap<u64, PublishedMemory>,
    withdrawn: BTreeMap<u64, u64>,
    created: u64,
    turns: u64,
    known: BTreeMap<u64, Known>,
    unanswered: VecDeque<u64>,
    refused: BTreeSet<u64>,
    latest: Option<u64>,
    last_withdrawal: u64,
    sent: VecDeque<Vec<u8>>,
    held: VecDeque<(Vec<u8>, Vec<Piece>)>,
}

const HEAD: [u8; 60] = [9; 60];
const REGION_LENS: [usize; 3] = [4096, 5000, 20_000];
/// Fragments from this length on are sent by reference.
const REFERRED_LEN_MIN: usize = 256;
static OWN: [u8; 400] = [7; 400];

/// Returns the contents of a region: its number, and bytes that no other region has there.
fn contents(number: u64, len: usize) -> Vec<u8> {
    let salt = usize::try_from(number).unwrap();
    let octet = |i: usize| u8::try_from((i * 7 + i / 250 + salt * 13) % 251).unwrap();
    let mut octets: Vec<_> = (0..len).map(octet).collect();
    octets[..8].copy_from_slice(&number.to_ne_bytes());
    octets
}

impl<R: Rig> Model<R> {
    fn new(seed: u64) -> Self {
        let publisher = Publisher::new();
        let mut model = Self {
            rig: R::open(&publisher),
            dice: ChaCha8Rng::seed_from_u64(seed),
            publisher,
            owned: BTreeMap::new(),
            withdrawn: BTreeMap::new(),
            created: 0,
            turns: 0,
            known: BTreeMap::new(),
            unanswered: VecDeque::new(),
            refused: BTreeSet::new(),
            latest: None,
            last_withdrawal: 0,
            sent: VecDeque::new(),
            held: VecDeque::new(),
        };
        model.meet();
        model
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.dice.next_u32()).unwrap() % end
    }

    fn step(&mut self) {
        match self.below(64) {
            0..8 => self.publish(),
            8..14 => self.withdraw(),
            14..30 => self.transmit(),
            30..40 => self.turn(),
            40..46 => self.handle_messages(),
            46..52 => self.answer(),
            52..61 => self.read(),
            61..63 => self.rest(),
            _ => self.crash(),
        }
    }

    fn publish(&mut self) {
        if self.owned.len() == 2 * SOME_SLOTS {
            return;
        }
        let len = REGION_LENS[self.below(REGION_LENS.len())];
        let memory = self.publisher.allocate(len).unwrap();
        fill(memory.as_ptr(), len, 0, &contents(self.created, len));
        self.owned.insert(self.created, memory);
        self.created += 1;
    }

    fn withdraw(&mut self) {
        if let Some(number) = self.any_number() {
            self.owned.remove(&number);
            self.withdrawn.insert(number, self.turns);
        }
    }

    fn any_number(&mut self) -> Option<u64> {
        let count = self.owned.len();
        if count == 0 {
            return None;
        }
        let at = self.below(count);
        self.owned.keys().nth(at).copied()
    }

    /// Sends a frame of a few pieces of published and other memory.
    fn transmit(&mut self) {
        let mut parts = Vec::new();
        for _ in 0..=self.below(4) {
            let (at, len) = (self.below(40), 100 + self.below(250));
            let number = if self.below(5) == 0 { None } else { self.any_number() };
            parts.push((number, at, len));
        }
        self.transmit_parts(&parts);
        if self.below(4) > 0 {
            self.flush();
        }
    }

    fn transmit_parts(&mut self, parts: &[(Option<u64>, usize, usize)]) {
        let mut octets = HEAD.to_vec();
        let mut payload = Vec::new();
        for (number, at, len) in parts {
            if let Some(number) = number {
                let memory = &self.owned[number];
                payload.push(fragment(memory.as_ptr(), memory.len(), *at, *len));
                octets.extend_from_slice(&contents(*number, memory.len())[*at..at + len]);
            } else {
                payload.push(SharedSlice::from_bytes(&OWN[*at..at + len]));
                octets.extend_from_slice(&OWN[*at..at + len]);
            }
        }
        if !R::AWAITS_ANSWER {
            // This device looks for changes before each frame.
            self.turns += 1;
        }
        let frame = TxFrame { payload: &payload, ..TxFrame::whole(&HEAD) };
        match self.rig.device().transmit(0, &frame) {
            Ok(()) => self.sent.push_back(octets),
            outcome => assert_eq!(outcome, Err(TransmitError::Full)),
        }
    }

    fn flush(&mut self) {
        self.rig.device().flush(0);
    }

    fn turn(&mut self) {
        let now = self.rig.later();
        self.rig.device().receive(now, 64, &mut |_| panic!("this peer sends no frames"));
        self.turns += 1;
    }

    fn handle_messages(&mut self) {
        for message in self.rig.messages() {
            match message {
                DeviceMessage::Announced { name, number } => {
                    assert!(self.latest < Some(number), "region {number} is announced late");
                    self.latest = Some(number);
                    let known = Known { number, accepted: None, answered: 0 };
                    assert!(self.known.insert(name, known).is_none(), "a name is used twice");
                    let count = self.known.values().filter(|it| it.accepted != Some(false));
                    assert!(count.count() <= R::SLOTS, "more regions than the peer accepts");
                    self.unanswered.push_back(name);
                }
                DeviceMessage::Withdrawn { name } => {
                    let known = self.known.remove(&name).expect("an announced region");
                    let since = self.withdrawn[&known.number].max(known.answered);
                    assert!(since >= self.last_withdrawal, "withdrawn in another order");
                    self.last_withdrawal = since;
                    assert!(!R::AWAITS_ANSWER || known.accepted == Some(true));
                    self.unanswered.retain(|other| *other != name);
                    let refers = |piece: &Piece| piece.name == Some(name);
                    let is_used = self.held.iter().any(|(_, pieces)| pieces.iter().any(refers));
                    assert!(!is_used, "a frame refers to a withdrawn region");
                }
            }
        }
    }

    fn answer(&mut self) {
        self.handle_messages();
        let accepts = self.below(8) > 0;
        self.answer_one(accepts);
    }

    fn answer_one(&mut self, accepts: bool) {
        let Some(name) = self.unanswered.pop_front() else { return };
        self.rig.answer(name, accepts);
        let known = self.known.get_mut(&name).unwrap();
        known.accepted = Some(accepts);
        if R::AWAITS_ANSWER {
            known.answered = self.turns;
        }
        if !accepts {
            self.refused.insert(known.number);
            if R::AWAITS_ANSWER {
                self.known.remove(&name);
            }
        }
    }

    fn read(&mut self) {
        self.take();
        if self.held.is_empty() {
            return;
        }
        let index = if R::IN_ORDER { 0 } else { self.below(self.held.len()) };
        self.give_back(index);
    }

    fn take(&mut self) {
        self.handle_messages();
        for pieces in self.rig.frames() {
            for name in pieces.iter().filter_map(|piece| piece.name) {
                let known = self.known.get(&name).expect("a region that the peer has");
                assert!(!R::AWAITS_ANSWER || known.accepted == Some(true));
            }
            self.held.push_back((self.sent.pop_front().unwrap(), pieces));
        }
    }

    /// Checks the bytes of a frame at the last moment, and returns it.
    fn give_back(&mut self, index: usize) {
        let (expected, pieces) = self.held.remove(index).unwrap();
        let is_refused = |name: u64| self.known[&name].accepted == Some(false);
        // A frame that was sent before the device has handled a refusal is dropped.
        if !pieces.iter().filter_map(|piece| piece.name).any(is_refused) {
            let octets: Vec<_> = pieces.iter().flat_map(|piece| self.rig.read(*piece)).collect();
            assert!(octets == expected, "the bytes of a frame have changed");
        }
        self.rig.give_back(index);
    }

    /// Handles everything that is due at either end, and compares.
    fn rest(&mut self) {
        for _ in 0..8 {
            self.flush();
            self.turn();
            self.take();
            while !self.held.is_empty() {
                self.give_back(0);
            }
            while !self.unanswered.is_empty() {
                self.answer_one(true);
            }
        }
        assert!(self.sent.is_empty(), "a frame was not published");
        let usable = self.known.values().filter(|region| region.accepted == Some(true));
        let there: BTreeSet<_> = usable.map(|region| region.number).collect();
        let expected = self.owned.keys().copied();
        let expected: BTreeSet<_> = expected.filter(|it| !self.refused.contains(it)).collect();
        assert!(there.is_subset(&expected), "{there:?} of {expected:?} at rest");
        assert_eq!(there.len(), expected.len().min(R::SLOTS));
        self.no_one_else_has_files();
        for number in self.owned.keys().copied().collect::<Vec<_>>() {
            let before = self.rig.referred();
            self.transmit_parts(&[(Some(number), 3, REFERRED_LEN_MIN)]);
            let is_referred = self.rig.referred() > before;
            assert_eq!(is_referred, there.contains(&number), "region {number}");
        }
    }

    fn crash(&mut self) {
        self.rig.hang_up();
        self.known.clear();
        self.unanswered.clear();
        self.refused.clear();
        self.sent.clear();
        self.held.clear();
        (self.latest, self.last_withdrawal) = (None, 0);
        let mut turns = 0;
        while self.rig.device().link_up() {
            self.turn();
            turns += 1;
            assert!(turns < 4, "a closed socket ends the session");
        }
        self.no_one_else_has_files();
        self.meet();
    }

    fn meet(&mut self) {
        self.rig.meet();
        let mut turns = 0;
        while !self.rig.device().link_up() {
            self.turn();
            self.handle_messages();
            turns += 1;
            assert!(turns < 16, "a peer that connects is met");
        }
    }

    fn no_one_else_has_files(&self) {
        self.publisher.look(|_, regions| {
            assert_eq!(regions.len(), self.owned.len());
            assert!(regions.iter().all(|region| Arc::strong_count(&region.file) == 1));
        });
    }

    fn end(self) {
        let Self { rig, publisher, .. } = self;
        assert!(publisher.has_devices());
        drop(rig);
        assert!(!publisher.has_devices());
        publisher.look(|_, regions| {
            assert!(regions.iter().all(|region| Arc::strong_count(&region.file) == 1));
        });
    }
}

/// Fewer regions than most histories publish.
pub(crate) const SOME_SLOTS: usize = 5;

pub(crate) fn run<R: Rig>() {
    for seed in 0..24 {
        let mut model = Model::<R>::new(seed);
        for _ in 0..200 {
            model.step();
        }
        model.rest();
        model.end();
    }
}
