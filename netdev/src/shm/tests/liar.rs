//! A hostile peer with its socket and its outbox, controlled by a test.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::peer::channel::Channel;
use crate::peer::closer::Closer;
use crate::shm::layout::{Header, INLINE, OUTBOX_LEN, OwnMemory, PeerMemory, Run};
use crate::shm::message::Message;
use crate::sys::read_mapping::ReadMapping;

pub(super) struct Liar {
    pub(super) channel: Channel,
    pub(super) memory: OwnMemory,
    pub(super) file: OwnedFd,
    /// Next position to write.
    pub(super) position: u32,
    /// The device's outbox.
    pub(super) theirs: Option<(OwnedFd, PeerMemory)>,
}

impl Liar {
    /// Connects without a message.
    pub(super) fn silent(path: &Path) -> Self {
        let channel = Channel::new(UnixStream::connect(path).unwrap(), Closer::default()).unwrap();
        let (file, memory) = OwnMemory::new().unwrap();
        Self { channel, memory, file, position: 0, theirs: None }
    }

    /// Connects, and sends Hello.
    pub(super) fn new(path: &Path) -> Self {
        let liar = Self::silent(path);
        liar.hello();
        liar
    }

    pub(super) fn hello(&self) {
        self.say(&Message::Hello { mtu: 1500, outbox_len: OUTBOX_LEN as u64 }, &[&self.file]);
    }

    pub(super) fn say(&self, message: &Message, files: &[&OwnedFd]) {
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        message.send(&self.channel, &files).unwrap();
    }

    /// Closes the socket. The memory remains.
    pub(super) fn hang_up(&mut self) {
        self.channel = Channel::new(UnixStream::pair().unwrap().0, Closer::default()).unwrap();
    }

    /// Returns the device's messages.
    pub(super) fn hear(&mut self) -> Vec<Message> {
        let mut heard = Vec::new();
        while let Ok(Some(mut message)) = self.channel.receive() {
            let count = message.descriptors.len();
            let parsed = Message::parse(message.header, &message.body, count).unwrap();
            if let Message::Hello { .. } = parsed {
                let file = message.descriptors.pop().unwrap().as_fd().try_clone_to_owned().unwrap();
                let mapping = ReadMapping::of(file.as_fd(), OUTBOX_LEN).unwrap();
                self.theirs = Some((file, PeerMemory::new(mapping)));
            }
            heard.push(parsed);
        }
        heard
    }

    /// Puts descriptors into its ring, and publishes them.
    pub(super) fn put(&mut self, header: Header, runs: &[Run]) {
        self.memory.put_descriptor(self.position, header.to_octets());
        for (index, run) in (1..).zip(runs) {
            self.memory.put_descriptor(self.position.wrapping_add(index), run.to_octets());
        }
        self.position = self.position.wrapping_add(1 + u32::try_from(runs.len()).unwrap());
        self.memory.set_produced(self.position);
    }

    /// Puts a frame of these runs.
    pub(super) fn put_frame(&mut self, runs: &[Run]) {
        let len = runs.iter().map(|run| run.len).sum();
        self.put(header(len, runs.len()), runs);
    }
}

pub(super) fn header(len: u32, runs: usize) -> Header {
    Header { len, runs: u16::try_from(runs).unwrap(), offload: [0; 10] }
}

pub(super) const fn run(region: u32, offset: u64, len: u32) -> Run {
    Run { region, len, offset }
}

/// Returns a run in the outbox itself.
pub(super) const fn inline(offset: u64, len: u32) -> Run {
    run(INLINE, offset, len)
}
