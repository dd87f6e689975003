//! Sending and receiving, and mapping memory that peers write.

use std::sync::Arc;

use libc::c_int;
use urnic::{Mr, Region};

use super::iomap;
use super::socket::{Phase, Socket, State, failure};
use super::stream::Stream;
use crate::errno::Errno;
use crate::event_queue::locked;

/// A position in the application's memory, which is in pieces.
pub(super) trait Cursor {
    fn left(&self) -> usize;
    /// Copies the next `len` bytes from or to offset `at` of a region.
    fn copy(&mut self, mr: &Mr, at: usize, len: usize);
}

fn writable(stream: &Stream) -> Result<(), Errno> {
    match stream.end {
        _ if stream.writable => Ok(()),
        None => Err(Errno(libc::EPIPE)),
        Some(_) => Err(failure(stream.end).unwrap_or(Errno(libc::ECONNRESET))),
    }
}

impl State {
    /// Sends data after the pending entries of the iomap.
    fn send(
        &mut self,
        mut part: impl FnMut(&mut Stream) -> Result<usize, Errno>,
    ) -> Option<Result<usize, Errno>> {
        if let Err(errno) = self.stream()? {
            return Some(Err(errno));
        }
        let Self { phase, iomaps, .. } = self;
        let Phase::Open(stream, _) = phase else { return None };
        if let Err(errno) = writable(stream) {
            return Some(Err(errno));
        }
        if iomaps.has_untold() {
            iomap::tell(stream, iomaps)?;
        }
        match part(stream) {
            Ok(0) if stream.end.is_none() => None,
            Ok(0) => Some(writable(stream).map(|()| 0)),
            sent => Some(sent),
        }
    }
}

impl Socket {
    /// Sends part after part. Returns the number of bytes sent, also if the rest failed.
    fn send_parts(
        &self,
        flags: c_int,
        cursor: &mut impl Cursor,
        mut part: impl FnMut(&mut Stream, &mut dyn Cursor) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let nonblocking = self.is_nonblocking(flags);
        let _alone = locked(&self.sending);
        let mut sent = 0;
        while cursor.left() > 0 {
            let more = self
                .wait(nonblocking, None, |state| state.send(|stream| part(stream, &mut *cursor)));
            match more {
                Ok(more) => sent += more,
                Err(_) if sent > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        self.turn();
        Ok(sent)
    }

    pub(super) fn send(&self, flags: c_int, cursor: &mut impl Cursor) -> Result<usize, Errno> {
        if cursor.left() == 0 {
            return self.wait(self.is_nonblocking(flags), None, |state| {
                state.stream().map(|stream| stream.and_then(|stream| writable(stream)).map(|()| 0))
            });
        }
        self.send_parts(flags, cursor, |stream, cursor| {
            Ok(stream.send(cursor.left(), |mr, at, len| cursor.copy(mr, at, len)))
        })
    }

    /// Writes as far as the peer has mapped memory there.
    pub(super) fn write_at(
        &self,
        flags: c_int,
        offset: u64,
        cursor: &mut impl Cursor,
    ) -> Result<usize, Errno> {
        const NOTHING_MAPPED: Errno = Errno(libc::EFAULT);
        let mut at = offset;
        let all = cursor.left();
        let written = self.send_parts(flags, cursor, |stream, cursor| {
            let target = stream.iomapped(at).ok_or(NOTHING_MAPPED)?;
            let written =
                stream.write_at(target, cursor.left(), |mr, at, len| cursor.copy(mr, at, len));
            at = at.wrapping_add(written as u64);
            Ok(written)
        });
        match written {
            // As in rdma-core, memory that is not mapped is not written, and that is no error.
            Err(NOTHING_MAPPED) => Ok(all - cursor.left()),
            written => written,
        }
    }

    pub(super) fn receive(&self, flags: c_int, cursor: &mut impl Cursor) -> Result<usize, Errno> {
        let nonblocking = self.is_nonblocking(flags);
        let (waits_for_all, peeks) = (flags & libc::MSG_WAITALL != 0, flags & libc::MSG_PEEK != 0);
        let _alone = locked(&self.receiving);
        let mut received = 0;
        loop {
            let more = self.wait(nonblocking, None, |state| {
                let stream = match state.stream()? {
                    Ok(stream) => stream,
                    Err(errno) => return Some(Err(errno)),
                };
                if stream.has_data() || cursor.left() == 0 {
                    let (len, copy) = (cursor.left(), |mr: &Mr, at, len| cursor.copy(mr, at, len));
                    if peeks {
                        return Some(Ok(stream.peek(len, copy)));
                    }
                    let read = stream.read(len, copy);
                    stream.give();
                    return Some(Ok(read));
                }
                match failure(stream.end) {
                    Some(errno) => Some(Err(errno)),
                    None => (!stream.readable).then_some(Ok(0)),
                }
            });
            match more {
                Ok(more) => received += more,
                Err(_) if received > 0 => return Ok(received),
                Err(errno) => return Err(errno),
            }
            let is_over = more == Ok(0) || peeks;
            if is_over || !waits_for_all || cursor.left() == 0 {
                return Ok(received);
            }
        }
    }

    /// Returns the offset. Peers may write the memory if `for_peer`.
    pub(super) fn map(
        &self,
        region: Arc<Region>,
        place: [usize; 2],
        for_peer: bool,
        offset: Option<u64>,
    ) -> Result<u64, Errno> {
        let [_, len] = place;
        if u32::try_from(len).is_err() {
            return Err(Errno::INVALID);
        }
        let mut state = self.look();
        let State { phase, iomaps, .. } = &mut *state;
        let (Phase::Opening(stream) | Phase::Open(stream, _)) = phase else {
            return Err(Errno::INVALID);
        };
        if !stream.is_met() {
            return Err(Errno::INVALID);
        }
        iomaps.map(stream, region, place, for_peer, offset)
    }

    /// When this returns, the peer can no longer write there.
    pub(super) fn unmap(&self, place: [usize; 2]) -> Result<(), Errno> {
        self.state().iomaps.unmap(place)
    }
}
