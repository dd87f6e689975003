//! The peer's end of the socket: messages with descriptors, valid or not.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    sendmsg, socket_with,
};

use super::script::Script;

/// Most descriptors of a message here: one more than the protocol allows.
const DESCRIPTORS_MAX: usize = 9;

/// A process at the other end of a device's socket.
pub struct Peer {
    stream: UnixStream,
}

/// Received bytes and descriptors.
pub struct Received {
    pub octets: Vec<u8>,
    pub files: Vec<OwnedFd>,
}

impl Peer {
    /// Connects. `None` if the device accepts no other peer now.
    pub fn connect(path: &Path) -> Option<Self> {
        // Non-blocking, since a full backlog would block a connection.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
        Some(Self { stream: socket.into() })
    }

    /// Sends bytes with descriptors. Ignores a closed socket.
    pub fn send(&self, octets: &[u8], files: &[OwnedFd]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: Vec<_> = files.iter().take(DESCRIPTORS_MAX).map(AsFd::as_fd).collect();
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _closed = sendmsg(&self.stream, &[IoSlice::new(octets)], &mut control, flags);
    }

    /// Sends a message.
    pub fn say(&self, id: u32, flags: u32, body: &[u8], files: &[OwnedFd]) {
        let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let header = [id, flags, len].map(u32::to_ne_bytes).concat();
        self.send(&[&header, body].concat(), files);
    }

    /// Receives all bytes and descriptors that the device has sent.
    pub fn receive(&self) -> Received {
        let mut received = Received { octets: Vec::new(), files: Vec::new() };
        let mut buffer = [0; 4096];
        loop {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let mut parts = [IoSliceMut::new(&mut buffer)];
            let Ok(message) = recvmsg(&self.stream, &mut parts, &mut control, flags) else { break };
            for one in control.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = one {
                    received.files.extend(files);
                }
            }
            if message.bytes == 0 {
                break;
            }
            received.octets.extend_from_slice(&buffer[..message.bytes]);
        }
        received
    }
}

/// Creates a memory file that cannot shrink.
pub fn memory(len: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create(c"fuzz", flags).expect("memory");
    ftruncate(&file, len).expect("a new file may grow");
    fcntl_add_seals(&file, SealFlags::SHRINK).expect("a new file may be sealed");
    file
}

/// Length of a file without pages, which claims to be memory of this length.
const SPARSE_LEN: u64 = 1 << 44;

/// Creates an event.
pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an event")
}

/// Returns the descriptors that the script selects.
pub fn files(script: &mut Script<'_>, own: &OwnedFd) -> Vec<OwnedFd> {
    let choice = script.octet();
    let file = || match choice >> 4 {
        0..=5 => own.try_clone().expect("a descriptor"),
        6..=12 => event(),
        13 => memory(4096),
        14 => memory(SPARSE_LEN),
        _ => OwnedFd::from(File::open("/dev/null").expect("/dev/null")),
    };
    (0..choice & 0xf).take(DESCRIPTORS_MAX).map(|_| file()).collect()
}

/// Writes to an offset of the memory, if it is inside.
pub fn write_at(memory: &OwnedFd, at: u64, octets: &[u8]) {
    let file = File::from(memory.try_clone().expect("a descriptor"));
    let len = file.metadata().map_or(0, |about| about.len());
    if at.checked_add(octets.len() as u64).is_some_and(|end| end <= len) {
        file.write_all_at(octets, at).expect("memory can be written");
    }
}

/// Returns eight bytes of the memory.
pub fn read_at(memory: &OwnedFd, at: u64) -> Option<u64> {
    let mut octets = [0; 8];
    let file = File::from(memory.try_clone().expect("a descriptor"));
    file.read_exact_at(&mut octets, at).ok()?;
    Some(u64::from_le_bytes(octets))
}
