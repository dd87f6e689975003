//! One end of a byte stream: credits, the ring that the peer writes into, posted requests. One file
//! because credits, rings and requests change together.
//!
//! 1. The sender writes data into the receiver's ring by RDMA, and sends a message with the length.
//!    It may use the halves of the ring that the receiver has opened, and as many messages as it
//!    has credits.
//! 2. The receiver's application reads the data from the ring.
//! 3. When half of the ring or half of the credits was read, the receiver writes the half that is
//!    free into the sender's target SGL, if there is one, and sends a message with the new limit of
//!    credits.
//!
//! Each end checks the peer's messages against what it gave: more data, or more messages, end the
//! stream. An end cannot check where in its own ring the peer writes.
//!
//! ```text
//! open to the peer   receive ring (two halves) | target SGL (2 entries) | iomap
//! this end's own     send ring | messages that are sent | SGEs that are sent | messages that come
//! ```

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use urnic::{
    Access, Cq, Mr, Pd, Qp, QpConfig, QpRules, RecvWr, Rnic, SendWr, Wc, WcOpcode, WcStatus, WrId,
};

use super::wire::{ConnData, IOMAP_LEN, MESSAGE_LEN, Message, SGE_LEN, Target, iomap, of_iomap};
use crate::errno::Errno;

/// Entries of the target SGL: one for each half of the ring.
const TARGETS: usize = 2;
/// Entries of the send queue for messages of credits and the last message.
const CONTROL_SLOTS: usize = 8;
/// Maximum bytes of one Write: one Write is in flight while the next is copied.
const WRITE_LEN_MAX: usize = 65_536;
/// Minimum room in the send ring for a Write, as in rdma-core.
const ROOM_MIN: usize = 2048;
/// Receives for messages that need no credit: messages of credits and the last messages.
const RECEIVES_MORE: usize = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) send_ring: usize,
    pub(super) receive_ring: usize,
    pub(super) send_queue: u16,
    pub(super) receive_queue: u16,
    pub(super) iomap: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// One of the two ends has announced the end, or the connection was closed in order.
    Disconnected,
    /// The connection was lost, or the peer has broken the protocol.
    Failed(Errno),
}

/// Posted requests that share one completion.
#[derive(Clone, Copy, Debug)]
struct Posted {
    slots: usize,
    octets: usize,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) qp: Qp,
    pub(super) cq: Cq,
    pub(super) pd: Pd,
    sizes: Sizes,
    /// Memory that the peer may write.
    open: Mr,
    /// Memory of this end only.
    own: Mr,
    pub(super) writable: bool,
    pub(super) readable: bool,
    pub(super) end: Option<End>,

    posted: VecDeque<Posted>,
    slots_free: usize,
    ring_at: usize,
    ring_free: usize,
    message_at: usize,
    sge_at: usize,
    /// Opened parts of the peer's ring; the next byte goes to the front of the first one.
    targets: VecDeque<Target>,
    /// Entry of the target SGL that the peer writes next.
    target_at: usize,
    /// Number of data messages sent, modulo 2^16.
    sent: u16,
    sent_max: u16,

    remote_targets: Target,
    remote_target_at: u32,
    pub(super) remote_iomap: u16,

    /// Unread bytes of each data message.
    messages: VecDeque<usize>,
    /// Offset in the receive ring of the next byte to read.
    read_at: usize,
    given: usize,
    readable_free: usize,
    /// Offset in the receive ring of these bytes.
    give_at: usize,
    /// Number of data messages read, modulo 2^16.
    read: u16,
    /// Value of `read` at which new credits are due.
    credits_at: u16,
}

impl Stream {
    pub(super) fn new(rnic: &Rnic, sizes: Sizes) -> Result<Self, Errno> {
        let no_memory = |_| Errno::NO_MEMORY;
        let pd = rnic.alloc_pd();
        let send_depth = usize::from(sizes.send_queue);
        let receives = usize::from(sizes.receive_queue) + RECEIVES_MORE;
        let cq = rnic.create_cq(send_depth + receives).map_err(|_| Errno::NO_MEMORY)?;
        let config = QpConfig {
            send_depth,
            recv_depth: receives,
            rules: QpRules::InfiniBand,
            ..QpConfig::new(&cq)
        };
        let qp = pd.create_qp(config).map_err(|_| Errno::NO_MEMORY)?;
        let tables = TARGETS * SGE_LEN + usize::from(sizes.iomap) * IOMAP_LEN;
        let writable = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let open = pd.reg_mr(sizes.receive_ring + tables, writable).map_err(no_memory)?;
        let messages = (send_depth + receives) * MESSAGE_LEN + CONTROL_SLOTS * SGE_LEN;
        let own = pd.reg_mr(sizes.send_ring + messages, Access::LOCAL_WRITE).map_err(no_memory)?;
        let half = sizes.receive_ring / 2;
        let made = Self {
            qp,
            cq,
            pd,
            sizes,
            open,
            own,
            writable: true,
            readable: true,
            end: None,
            posted: VecDeque::with_capacity(send_depth),
            slots_free: send_depth,
            ring_at: 0,
            ring_free: sizes.send_ring,
            message_at: 0,
            sge_at: 0,
            targets: VecDeque::with_capacity(TARGETS),
            target_at: 1,
            sent: 0,
            sent_max: 0,
            remote_targets: Target::default(),
            remote_target_at: 1,
            remote_iomap: 0,
            messages: VecDeque::with_capacity(usize::from(sizes.receive_queue)),
            read_at: 0,
            given: half,
            readable_free: half,
            give_at: half,
            read: 0,
            credits_at: sizes.receive_queue / 2,
        };
        for index in 0..receives {
            made.receive(index)?;
        }
        Ok(made)
    }

    pub(super) fn conn_data(&self) -> ConnData {
        let half = self.half();
        ConnData {
            credits: self.sizes.receive_queue,
            iomap_size: self.sizes.iomap,
            targets: self.target(self.sizes.receive_ring, TARGETS),
            buffer: self.target(0, half),
        }
    }

    /// Applies the peer's private data: its credits, its ring and its tables.
    pub(super) fn meet(&mut self, peer: &ConnData) {
        self.sent_max = peer.credits;
        self.targets.push_back(peer.buffer);
        self.remote_targets = peer.targets;
        self.remote_target_at = 1 % peer.targets.len.max(1);
        self.remote_iomap = peer.iomap_size;
    }

    pub(super) const fn is_met(&self) -> bool {
        self.remote_targets.len > 0
    }

    const fn half(&self) -> usize {
        self.sizes.receive_ring / 2
    }

    /// Returns a range of this end's memory as the peer addresses it.
    fn target(&self, offset: usize, len: usize) -> Target {
        let remote = self.open.remote(offset as u64);
        Target {
            address: remote.to.0,
            key: remote.stag.0,
            len: u32::try_from(len).unwrap_or(u32::MAX),
        }
    }

    fn receive(&self, index: usize) -> Result<(), Errno> {
        let start = self.received_at(index);
        let sge = self.own.sge(start..start + MESSAGE_LEN);
        self.qp.post_recv(RecvWr::new(WrId(index as u64), [sge])).map_err(Errno::from)
    }

    fn received_at(&self, index: usize) -> usize {
        let sent = usize::from(self.sizes.send_queue) * MESSAGE_LEN + CONTROL_SLOTS * SGE_LEN;
        self.sizes.send_ring + sent + index * MESSAGE_LEN
    }

    pub(super) fn fail(&mut self, errno: Errno) {
        if self.end.is_none() {
            self.end = Some(End::Failed(errno));
        }
        (self.readable, self.writable) = (false, false);
    }

    pub(super) fn disconnected(&mut self) {
        if self.end.is_none() {
            self.end = Some(End::Disconnected);
        }
        (self.readable, self.writable) = (false, false);
    }

    /// Takes completions. Returns `false` if the peer has broken the protocol.
    pub(super) fn look(&mut self) -> bool {
        while let Some(wc) = self.cq.poll() {
            if wc.opcode == WcOpcode::Recv {
                // Receives of a connection that is over are flushed.
                if wc.status == WcStatus::Success && !self.received(&wc) {
                    self.fail(Errno(libc::ECONNRESET));
                    return false;
                }
            } else if wc.status == WcStatus::Success {
                if let Some(done) = self.posted.pop_front() {
                    self.slots_free += done.slots;
                    self.ring_free += done.octets;
                }
            } else {
                self.fail(Errno(libc::ECONNRESET));
            }
        }
        true
    }

    fn received(&mut self, wc: &Wc) -> bool {
        let Ok(index) = usize::try_from(wc.wr_id.0) else { return false };
        if usize::try_from(wc.byte_len) != Ok(MESSAGE_LEN) {
            return false;
        }
        let mut octets = [0; MESSAGE_LEN];
        self.own.copy_out(self.received_at(index), &mut octets);
        let Some(message) = Message::of(octets) else { return false };
        // A connection that is over takes no receives.
        let _over = self.receive(index);
        match message {
            Message::Data(octets) => return self.announced(octets),
            Message::Credits(up_to) => {
                self.sent_max = up_to;
                self.take_target();
            }
            // rdma-core counts this message among the data messages when it sends one. It is not for
            // the application, so it counts as read at once.
            Message::Iomap(_) => self.read = self.read.wrapping_add(1),
            Message::KeepAlive => {}
            Message::Shutdown if self.writable => self.readable = false,
            Message::Shutdown | Message::Disconnect => {
                self.disconnected();
                // A request behind it may have failed before this message was processed.
                self.end = Some(End::Disconnected);
            }
        }
        true
    }

    /// Records data that the peer announces. Returns false if it exceeds what the peer was given.
    fn announced(&mut self, octets: u32) -> bool {
        let Ok(octets) = usize::try_from(octets) else { return false };
        let is_given =
            octets <= self.given && self.messages.len() < usize::from(self.sizes.receive_queue);
        if is_given {
            self.given -= octets;
            self.messages.push_back(octets);
        }
        is_given
    }

    /// Takes the entries that the peer has written into the target SGL. Each Write arrives before
    /// its message of credits. An entry that is not written has the length 0.
    fn take_target(&mut self) {
        while self.targets.len() < TARGETS {
            let at = self.sizes.receive_ring + self.target_at * SGE_LEN;
            let mut octets = [0; SGE_LEN];
            self.open.copy_out(at, &mut octets);
            let target = Target::of(octets);
            if target.len == 0 {
                return;
            }
            self.open.copy_in(at, &[0; SGE_LEN]);
            self.targets.push_back(target);
            self.target_at = (self.target_at + 1) % TARGETS;
        }
    }

    /// Gives the peer new credits, and opens a half of the ring, once half of the credits or of the
    /// ring was read. Does nothing while the send queue lacks room.
    pub(super) fn give(&mut self) {
        let is_due = (self.read.wrapping_sub(self.credits_at).cast_signed()) >= 0;
        let half = self.half();
        let gives_ring = self.readable_free >= half;
        if self.end.is_some() || !(is_due || gives_ring) || self.slots_free < 3 {
            return;
        }
        self.credits_at = self.read.wrapping_add(self.sizes.receive_queue / 2);
        if gives_ring {
            let octets = self.target(self.give_at, half).to_octets();
            let start = self.sizes.send_ring
                + usize::from(self.sizes.send_queue) * MESSAGE_LEN
                + self.sge_at * SGE_LEN;
            self.sge_at = (self.sge_at + 1) % CONTROL_SLOTS;
            self.own.copy_in(start, &octets);
            let at = u64::from(self.remote_target_at) * SGE_LEN as u64;
            let sge = self.own.sge(start..start + SGE_LEN);
            let write = SendWr::write(WrId(0), self.remote_targets.at(at), [sge]).unsignaled();
            if self.qp.post_send(write).is_err() {
                return self.fail(Errno(libc::ECONNRESET));
            }
            self.remote_target_at = (self.remote_target_at + 1) % self.remote_targets.len.max(1);
            self.readable_free -= half;
            self.given += half;
            self.give_at = (self.give_at + half) % self.sizes.receive_ring;
        }
        let credits = self.read.wrapping_add(self.sizes.receive_queue);
        self.say(Message::Credits(credits), if gives_ring { 1 } else { 0 }, 0);
    }

    /// Sends a message that completes the `behind` unsignaled requests before it, too.
    fn say(&mut self, message: Message, behind: usize, octets: usize) {
        let start = self.sizes.send_ring + self.message_at * MESSAGE_LEN;
        self.message_at = (self.message_at + 1) % usize::from(self.sizes.send_queue);
        self.own.copy_in(start, &message.to_octets());
        let sge = self.own.sge(start..start + MESSAGE_LEN);
        self.post(SendWr::send(WrId(0), [sge]), behind + 1, octets);
    }

    fn post(&mut self, wr: SendWr, slots: usize, octets: usize) {
        if self.qp.post_send(wr).is_err() {
            return self.fail(Errno(libc::ECONNRESET));
        }
        self.slots_free -= slots;
        self.ring_free -= octets;
        self.posted.push_back(Posted { slots, octets });
    }

    /// Sends the last message, unless the stream is over. Returns false if there is no room.
    pub(super) fn try_end(&mut self, message: Message) -> bool {
        let has_room = self.slots_free > 0;
        if has_room && self.end.is_none() {
            self.say(message, 0, 0);
        }
        has_room
    }

    /// Returns true if all posted requests have completed, or never will.
    pub(super) fn is_sent(&self) -> bool {
        self.posted.is_empty() || self.end.is_some()
    }

    fn has_room(&self) -> bool {
        self.slots_free >= CONTROL_SLOTS + 2 && self.ring_free >= ROOM_MIN
    }

    pub(super) fn can_send(&self) -> bool {
        self.has_room() && self.sent != self.sent_max && !self.targets.is_empty()
    }

    fn gather(
        &mut self,
        len: usize,
        mut copy: impl FnMut(&Mr, usize, usize),
    ) -> [(usize, usize); 2] {
        let first = len.min(self.sizes.send_ring - self.ring_at);
        copy(&self.own, self.ring_at, first);
        copy(&self.own, 0, len - first);
        let pieces = [(self.ring_at, first), (0, len - first)];
        self.ring_at = (self.ring_at + len) % self.sizes.send_ring;
        pieces
    }

    fn write(&self, to: urnic::RemoteBuffer, pieces: [(usize, usize); 2]) -> SendWr {
        let used = pieces.into_iter().filter(|(_, len)| *len > 0);
        SendWr::write(WrId(0), to, used.map(|(at, len)| self.own.sge(at..at + len)))
    }

    /// Sends at most `len` bytes of data, and returns the number of bytes for which there was room.
    /// `copy` gets a region, an offset and a length, and copies the next bytes there.
    pub(super) fn send(&mut self, len: usize, copy: impl FnMut(&Mr, usize, usize)) -> usize {
        if !self.can_send() {
            return 0;
        }
        let Some(target) = self.targets.front_mut() else { return 0 };
        let room = usize::try_from(target.len).unwrap_or(usize::MAX);
        let len = len.min(WRITE_LEN_MAX).min(self.ring_free).min(room);
        let to = target.at(0);
        // It is at most the length of the target, which has 32 bits.
        let octets = u32::try_from(len).unwrap_or(0);
        target.address = target.address.wrapping_add(u64::from(octets));
        target.len -= octets;
        if target.len == 0 {
            self.targets.pop_front();
            self.take_target();
        }
        let pieces = self.gather(len, copy);
        let write = self.write(to, pieces).unsignaled();
        if self.qp.post_send(write).is_err() {
            self.fail(Errno(libc::ECONNRESET));
            return 0;
        }
        self.sent = self.sent.wrapping_add(1);
        self.say(Message::Data(octets), 1, len);
        len
    }

    /// Tells the peer the memory for an offset of its `riowrite`; false if there is no room.
    pub(super) fn send_iomap(&mut self, index: u16, offset: u64, target: Target) -> bool {
        if !self.can_send() {
            return false;
        }
        let octets = iomap(offset, target);
        let mut taken = 0;
        let pieces = self.gather(IOMAP_LEN, |own, at, len| {
            own.copy_in(at, &octets[taken..taken + len]);
            taken += len;
        });
        let table = u64::from(self.remote_targets.len) * SGE_LEN as u64;
        let to = self.remote_targets.at(table + u64::from(index) * IOMAP_LEN as u64);
        let write = self.write(to, pieces).unsignaled();
        if self.qp.post_send(write).is_err() {
            self.fail(Errno(libc::ECONNRESET));
            return true;
        }
        self.sent = self.sent.wrapping_add(1);
        self.say(Message::Iomap(u32::from(index)), 1, IOMAP_LEN);
        true
    }

    /// Returns the peer's memory for this offset of `riowrite`, to the end of the mapping.
    pub(super) fn iomapped(&self, offset: u64) -> Option<Target> {
        let table = self.sizes.receive_ring + TARGETS * SGE_LEN;
        (0..usize::from(self.sizes.iomap)).find_map(|index| {
            let mut octets = [0; IOMAP_LEN];
            self.open.copy_out(table + index * IOMAP_LEN, &mut octets);
            let (start, target) = of_iomap(octets);
            let skipped = offset.checked_sub(start)?;
            let left = u64::from(target.len).checked_sub(skipped).filter(|left| *left > 0)?;
            let address = target.address.wrapping_add(skipped);
            Some(Target { address, len: u32::try_from(left).unwrap_or(0), ..target })
        })
    }

    /// Writes to the peer's memory without a message. Returns the number of bytes taken.
    pub(super) fn write_at(
        &mut self,
        target: Target,
        len: usize,
        copy: impl FnMut(&Mr, usize, usize),
    ) -> usize {
        if !self.has_room() {
            return 0;
        }
        let room = usize::try_from(target.len).unwrap_or(usize::MAX);
        let len = len.min(WRITE_LEN_MAX).min(self.ring_free).min(room);
        let pieces = self.gather(len, copy);
        self.post(self.write(target.at(0), pieces), 1, len);
        len
    }

    pub(super) fn has_data(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Reads at most `len` bytes of available data, and returns their number. `copy` gets a region,
    /// an offset and a length, and copies the bytes from there, in order.
    pub(super) fn read(&mut self, len: usize, mut copy: impl FnMut(&Mr, usize, usize)) -> usize {
        let mut done = 0;
        while done < len
            && let Some(message) = self.messages.front_mut()
        {
            let part = (*message).min(len - done).min(self.sizes.receive_ring - self.read_at);
            copy(&self.open, self.read_at, part);
            *message -= part;
            if *message == 0 {
                self.messages.pop_front();
                self.read = self.read.wrapping_add(1);
            }
            self.read_at = (self.read_at + part) % self.sizes.receive_ring;
            self.readable_free += part;
            done += part;
        }
        done
    }

    /// Like [`read`](Self::read), but leaves the data unread.
    pub(super) fn peek(&self, len: usize, mut copy: impl FnMut(&Mr, usize, usize)) -> usize {
        let there: usize = self.messages.iter().sum();
        let len = len.min(there);
        let first = len.min(self.sizes.receive_ring - self.read_at);
        copy(&self.open, self.read_at, first);
        copy(&self.open, 0, len - first);
        len
    }
}
