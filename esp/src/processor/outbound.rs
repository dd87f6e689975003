//! Sent packets: policy, association, sealing (RFC 4301 §5.1).

use std::ops::Range;

use super::{Esp, Event};
use crate::association::{FRONT_MAX, Purpose, Sealer};
use crate::counters::DropReason;
use crate::policy::{Action, Direction, Template};
use crate::wire::ip::{Flow, Header};

/// Result for a packet to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outbound {
    /// Send the packet as it is.
    Clear,
    /// Send the ESP packet that is at these bytes of the buffer.
    Sealed(Range<usize>),
    /// The packet was copied: it waits for an association.
    Waits,
    /// The packet is dropped.
    Dropped(DropReason),
}

/// Returns the associations that a packet needs.
pub(super) const fn purpose(template: &Template, flow: &Flow) -> Purpose {
    let (source, destination) = template.ends_for(flow);
    Purpose { request: template.request, mode: template.mode, source, destination }
}

impl Esp {
    /// Handles the IP packet that begins at `at` of `buffer`, and whose transport checksum is
    /// complete.
    ///
    /// The buffer needs room: [`FRONT_MAX`] bytes before `at`, and
    /// [`BACK_MAX`](crate::association::BACK_MAX) behind the packet. A sealed packet is there, too,
    /// and begins before `at`; the payload does not move. A link header that was before `at` must
    /// be written again before the sealed packet.
    pub fn outbound(&mut self, now_ns: u64, buffer: &mut [u8], at: usize) -> Outbound {
        let Some(header) = buffer.get(at..).and_then(Header::parse) else {
            return self.refuse(DropReason::Malformed);
        };
        match self.spd.decide(Direction::Out, &header.flow).0 {
            Action::Discard => self.refuse(DropReason::Policy),
            Action::Bypass => {
                self.counters.bypassed_out += 1;
                Outbound::Clear
            }
            Action::Protect(template) => {
                let purpose = purpose(&template, &header.flow);
                let sealed = self.seal(now_ns, buffer, at, &header, purpose);
                sealed.unwrap_or_else(|| {
                    let packet = &buffer[at..at + header.len];
                    self.wait(now_ns, purpose, &header.flow, packet)
                })
            }
        }
    }

    fn refuse(&mut self, reason: DropReason) -> Outbound {
        self.counters.drop(reason);
        Outbound::Dropped(reason)
    }

    /// Seals the packet by the newest association that can; returns `None` if there is none.
    fn seal(
        &mut self,
        now_ns: u64,
        buffer: &mut [u8],
        at: usize,
        header: &Header,
        purpose: Purpose,
    ) -> Option<Outbound> {
        let sealers = self.outbound.get_mut(&purpose)?;
        let can = |sealer: &&mut Sealer| {
            sealer.is_for(&header.flow) && !sealer.has_ended(now_ns, header.len)
        };
        let Some(sealer) = sealers.iter_mut().rev().find(can) else {
            self.remove_ended(now_ns, purpose, header.len);
            return None;
        };
        let spi = sealer.spi();
        match sealer.seal(now_ns, buffer, at, header) {
            Ok(range) => {
                self.counters.sealed.add(header.len);
                if sealer.take_soft(now_ns) {
                    let direction = Direction::Out;
                    self.raise(Event::Expire { direction, spi, purpose, hard: false });
                }
                Some(Outbound::Sealed(range))
            }
            Err(reason) => Some(self.refuse(reason)),
        }
    }

    /// Removes the associations that cannot seal a packet of `len` bytes, and reports their end.
    #[cold]
    fn remove_ended(&mut self, now_ns: u64, purpose: Purpose, len: usize) {
        let Some(sealers) = self.outbound.get_mut(&purpose) else { return };
        let mut ended = Vec::new();
        sealers.retain(|sealer| {
            let has_ended = sealer.has_ended(now_ns, len);
            ended.extend(has_ended.then_some(sealer.spi()));
            !has_ended
        });
        if sealers.is_empty() {
            self.outbound.remove(&purpose);
        }
        self.outbound_count -= ended.len();
        for spi in ended {
            self.raise(Event::Expire { direction: Direction::Out, spi, purpose, hard: true });
        }
    }

    /// Keeps a packet until there is an association, and asks for one.
    #[cold]
    fn wait(&mut self, now_ns: u64, purpose: Purpose, flow: &Flow, packet: &[u8]) -> Outbound {
        let pushed = self.waiting.push(now_ns, purpose, packet);
        (0..pushed.dropped).for_each(|_| self.counters.drop(DropReason::WaitingFull));
        if pushed.is_first {
            self.expect(self.waiting.deadline());
            if let (_, Some(policy)) = self.spd.decide(Direction::Out, flow) {
                let selector = policy.selector.clone();
                self.raise(Event::Acquire { purpose, selector, flow: *flow });
            }
        }
        if pushed.is_kept {
            self.counters.waited += 1;
            Outbound::Waits
        } else {
            Outbound::Dropped(DropReason::WaitingFull)
        }
    }

    /// Writes the next packet that is due to `buffer`: a NAT-keepalive, or one that waited for its
    /// association. Returns its place, or `None` if none is due. `before` is the room that the
    /// caller needs before it, for a link header.
    ///
    /// A packet that does not fit the buffer is dropped.
    pub fn poll_transmit(
        &mut self,
        now_ns: u64,
        buffer: &mut [u8],
        before: usize,
    ) -> Option<Range<usize>> {
        while let Some(purpose) = self.keepalives.pop_front() {
            let sealers = self.outbound.get_mut(&purpose);
            let newest = sealers.and_then(|sealers| sealers.last_mut());
            let room = buffer.get_mut(before..)?;
            let Some(sealer) = newest else { continue };
            let is_wanted = sealer.wants_keepalive(now_ns);
            let written = is_wanted.then(|| sealer.write_keepalive(now_ns, room)).flatten();
            // The next one, also if a packet made this one needless.
            let deadline_ns = sealer.deadline();
            self.expect(deadline_ns);
            if let Some(len) = written {
                return Some(before..before + len);
            }
        }
        let at = before + FRONT_MAX;
        while let Some(packet) = self.waiting.next_released() {
            let Some(room) = buffer.get_mut(at..at + packet.len()) else {
                self.counters.drop(DropReason::NoRoom);
                continue;
            };
            room.copy_from_slice(&packet);
            match self.outbound(now_ns, buffer, at) {
                Outbound::Clear => return Some(at..at + packet.len()),
                Outbound::Sealed(range) => return Some(range),
                Outbound::Waits | Outbound::Dropped(_) => {}
            }
        }
        None
    }
}
