//! Histories of published memory, against a model. The backend may return frames in any order.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::*;
use crate::peer::channel::Channel;
use crate::peer::closer::Closer;
use crate::peer::header::Header;
use crate::published::Publisher;
use crate::published::model::{self, DeviceMessage, Piece, Rig, SOME_SLOTS};
use crate::sys::read_mapping::ReadMapping;
use crate::vhost_user::message::{
    MemoryRegion, PROTOCOL_CONFIGURE_MEM_SLOTS, PROTOCOL_REPLY_ACK, Request,
};
use crate::vhost_user::offload::{HEADER_LEN, INDIRECT, PROTOCOL_FEATURES, VERSION_1};
use crate::virtqueue::{Layout, MemoryTable};

struct Ends {
    device: VirtioUser,
    path: PathBuf,
    now: u64,
    peer: Option<Peer>,
}

/// A backend.
struct Peer {
    channel: Channel,
    /// Memory of the queues.
    table: MemoryTable,
    /// Ring of the frontend's frames.
    layout: Option<Layout>,
    regions: BTreeMap<u64, ReadMapping>,
    /// Index of the next available entry to take.
    next: u16,
    used: u16,
    /// Heads of the chains that were taken and not returned.
    heads: Vec<u16>,
}

impl Ends {
    fn peer(&mut self) -> &mut Peer {
        self.peer.as_mut().unwrap()
    }
}

impl Peer {
    fn reply(&self, id: u32, word: u64) {
        self.channel.send(Header::of_reply(id, 8), &word.to_ne_bytes(), &[]).unwrap();
    }

    /// Returns address, length and flags of the descriptor at the front of `octets`.
    fn descriptor(octets: &[u8]) -> (u64, usize, u16) {
        let address = u64::from_le_bytes(octets[..8].try_into().unwrap());
        let len = u32::from_le_bytes(octets[8..12].try_into().unwrap());
        let flags = u16::from_le_bytes(octets[12..14].try_into().unwrap());
        (address, usize::try_from(len).unwrap(), flags)
    }

    /// Returns the pieces of the chain `head`, without the header in front of the frame.
    fn pieces(&self, layout: &Layout, head: u16) -> Vec<Piece> {
        let mut octets = vec![0; 16];
        let run = layout.descriptors().part(16 * usize::from(head), 16);
        self.table.copy_out(run, &mut octets);
        let (address, len, flags) = Self::descriptor(&octets);
        if flags & 4 != 0 {
            octets.resize(len, 0);
            self.table.copy_out(self.table.user_run(address, len).unwrap(), &mut octets);
        }
        let entries = octets.chunks(16).map(Self::descriptor);
        let mut pieces: Vec<_> = entries.map(|(at, len, _)| self.piece(at, len)).collect();
        pieces[0].at += HEADER_LEN as u64;
        pieces[0].len -= HEADER_LEN;
        pieces
    }

    fn piece(&self, address: u64, len: usize) -> Piece {
        if self.table.user_run(address, len).is_some() {
            return Piece { name: None, at: address, len };
        }
        let (name, mapping) = self.regions.range(..=address).next_back().unwrap();
        let at = address - name;
        assert!(usize::try_from(at).unwrap() + len <= mapping.len());
        Piece { name: Some(*name), at, len }
    }
}

impl Rig for Ends {
    const SLOTS: usize = SOME_SLOTS;
    const AWAITS_ANSWER: bool = true;
    const IN_ORDER: bool = false;

    fn open(publisher: &Publisher) -> Self {
        let path = path();
        let config = VhostUserConfig { listens: true, ..VhostUserConfig::frontend(path.clone()) };
        let mut devices = VirtioUser::open_sharing(&config, 1, publisher).unwrap();
        Self { device: devices.pop().unwrap(), path, now: 0, peer: None }
    }

    fn device(&mut self) -> &mut dyn Device {
        &mut self.device
    }

    fn later(&mut self) -> u64 {
        later(&mut self.now)
    }

    fn meet(&mut self) {
        let stream = UnixStream::connect(&self.path).unwrap();
        self.peer = Some(Peer {
            channel: Channel::new(stream, Closer::default()).unwrap(),
            table: MemoryTable::default(),
            layout: None,
            regions: BTreeMap::new(),
            next: 0,
            used: 0,
            heads: Vec::new(),
        });
    }

    fn hang_up(&mut self) {
        self.peer = None;
    }

    fn messages(&mut self) -> Vec<DeviceMessage> {
        let mut messages = Vec::new();
        let peer = self.peer();
        while let Some(message) = peer.channel.receive().unwrap() {
            let id = message.header.request;
            let count = message.descriptors.len();
            let numbers = |it: MemoryRegion| [it.guest, it.user, it.len, it.offset];
            match Request::parse(message.header, &message.body, count).unwrap() {
                Request::GetFeatures => peer.reply(id, VERSION_1 | PROTOCOL_FEATURES | INDIRECT),
                Request::GetProtocolFeatures => {
                    peer.reply(id, PROTOCOL_REPLY_ACK | PROTOCOL_CONFIGURE_MEM_SLOTS);
                }
                Request::GetMemorySlotsMax => peer.reply(id, SOME_SLOTS as u64 + 1),
                Request::SetMemoryTable(regions) => {
                    let file = message.descriptors[0].as_fd();
                    peer.table.add(numbers(regions[0]), file).unwrap();
                    peer.reply(id, 0);
                }
                Request::SetVringAddresses { index: 1, parts } => {
                    peer.layout = Some(Layout::new(&peer.table, 128, parts).unwrap());
                }
                Request::AddMemoryRegion(region) => {
                    let len = usize::try_from(region.len).unwrap();
                    let mapping = ReadMapping::of(message.descriptors[0].as_fd(), len).unwrap();
                    let mut number = [0; 8];
                    mapping.copy_out(0, &mut number);
                    let number = u64::from_ne_bytes(number);
                    peer.regions.insert(region.guest, mapping);
                    messages.push(DeviceMessage::Announced { name: region.guest, number });
                }
                Request::RemoveMemoryRegion(region) => {
                    let mapping = peer.regions.remove(&region.guest).unwrap();
                    assert_eq!(mapping.len() as u64, region.len);
                    messages.push(DeviceMessage::Withdrawn { name: region.guest });
                }
                _ => {}
            }
        }
        messages
    }

    fn answer(&mut self, name: u64, accepts: bool) {
        let peer = self.peer();
        peer.reply(37, u64::from(!accepts));
        if !accepts {
            peer.regions.remove(&name);
        }
    }

    fn frames(&mut self) -> Vec<Vec<Piece>> {
        let peer = self.peer();
        let mut frames = Vec::new();
        let Some(layout) = peer.layout else { return frames };
        while peer.next != layout.available_index(&peer.table) {
            let head = layout.available_entry(&peer.table, peer.next);
            peer.next = peer.next.wrapping_add(1);
            peer.heads.push(head);
            frames.push(peer.pieces(&layout, head));
        }
        frames
    }

    fn read(&self, Piece { name, at, len }: Piece) -> Vec<u8> {
        let peer = self.peer.as_ref().unwrap();
        let mut octets = vec![0; len];
        match name {
            Some(name) => {
                peer.regions[&name].copy_out(usize::try_from(at).unwrap(), &mut octets);
            }
            None => peer.table.copy_out(peer.table.user_run(at, len).unwrap(), &mut octets),
        }
        octets
    }

    fn give_back(&mut self, index: usize) {
        let peer = self.peer();
        let layout = peer.layout.unwrap();
        let head = peer.heads.remove(index);
        layout.set_used_entry(&peer.table, peer.used, head, 0);
        peer.used = peer.used.wrapping_add(1);
        layout.set_used_index(&peer.table, peer.used);
    }

    fn referred(&mut self) -> u64 {
        self.device.counters().referred_tx_bytes
    }
}

#[test]
fn published_memory_follows_its_model() {
    model::run::<Ends>();
}
