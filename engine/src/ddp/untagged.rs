//! The order of messages on one untagged queue (RFC 5041 §4.3, §5.3, §7.1).

use crate::ddp::DdpError;
use crate::types::{MsgOffset, Msn};

/// Receive side of one untagged queue: the next message, and its delivered part. Placement may be
/// ahead of delivery by as many messages as buffers are posted; delivery is strictly in order.
#[derive(Clone, Copy, Debug)]
pub struct UntaggedQueue {
    msn: Msn,
    delivered_len: u64,
}

/// A whole message at its delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Length of the message (RFC 5041 §5.4: the last segment's offset plus its payload).
    pub len: u32,
}

impl UntaggedQueue {
    /// A queue that awaits its first message.
    #[must_use]
    pub const fn new() -> Self {
        Self { msn: Msn::FIRST, delivered_len: 0 }
    }

    /// A queue whose next message is `msn`.
    #[must_use]
    pub const fn starting_at(msn: Msn) -> Self {
        Self { msn, delivered_len: 0 }
    }

    /// The message being delivered, or the next one.
    #[must_use]
    pub const fn msn(&self) -> Msn {
        self.msn
    }

    /// Index of the buffer for a segment of message `msn`, among `posted` buffers (0: the oldest).
    // spec: DDP-7.1-1
    pub(crate) fn buffer_index(&self, msn: Msn, posted: usize) -> Result<usize, DdpError> {
        let ahead = msn.distance_from(self.msn) as usize;
        if ahead < posted {
            Ok(ahead)
        } else if ahead == 0 {
            // RFC 5041 §7.1 lets a missing buffer end the stream.
            // spec: DDP-7.1-3
            Err(DdpError::UntaggedNoBuffer)
        } else {
            Err(DdpError::UntaggedMsnRange)
        }
    }

    // spec: DDP-7.1-1, RDMAP-5.3-2
    pub(crate) fn check_extent(mo: MsgOffset, len: usize, buffer_len: u64) -> Result<(), DdpError> {
        let start = u64::from(mo.0);
        // RFC 5041 §7.1: first the offset, then the length. An empty segment at the end is inside.
        if start > buffer_len || (start == buffer_len && len > 0 && start > 0) {
            return Err(DdpError::UntaggedMsgOffset);
        }
        if buffer_len - start < len as u64 {
            return Err(DdpError::UntaggedTooLong);
        }
        Ok(())
    }

    /// Delivers one segment, in stream order. Returns the message with its last segment. Errors:
    /// [`DdpError::UntaggedMsnRange`] for a segment of another message,
    /// [`DdpError::UntaggedMsgOffset`] for one that does not continue it.
    // spec: DDP-5.4-2
    pub fn deliver(
        &mut self,
        msn: Msn,
        mo: MsgOffset,
        len: usize,
        last: bool,
    ) -> Result<Option<Delivered>, DdpError> {
        // spec: RDMAP-5.3-3
        if msn != self.msn {
            return Err(DdpError::UntaggedMsnRange);
        }
        // An error of the sender, since TCP delivers every byte once and in order. Without this
        // check, a message with holes would be delivered with old contents of the buffer.
        // spec: DDP-4.3-3
        if u64::from(mo.0) != self.delivered_len {
            return Err(DdpError::UntaggedMsgOffset);
        }
        let total = self.delivered_len + len as u64;
        let message_len = u32::try_from(total).map_err(|_| DdpError::UntaggedTooLong)?;
        if !last {
            self.delivered_len = total;
            return Ok(None);
        }
        self.msn = self.msn.next();
        self.delivered_len = 0;
        // spec: DDP-5.4-3
        Ok(Some(Delivered { len: message_len }))
    }
}

impl Default for UntaggedQueue {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_found_by_message_number_across_the_wrap() {
        let queue = UntaggedQueue::starting_at(Msn(u32::MAX));
        assert_eq!(queue.buffer_index(Msn(u32::MAX), 2), Ok(0));
        assert_eq!(queue.buffer_index(Msn(0), 2), Ok(1));
        assert_eq!(queue.buffer_index(Msn(1), 2), Err(DdpError::UntaggedMsnRange));
    }

    #[test]
    fn missing_buffer_and_msn_out_of_range_are_different_errors() {
        let queue = UntaggedQueue::new();
        assert_eq!(queue.buffer_index(Msn(1), 0), Err(DdpError::UntaggedNoBuffer));
        assert_eq!(queue.buffer_index(Msn(2), 0), Err(DdpError::UntaggedMsnRange));
        assert_eq!(queue.buffer_index(Msn(0), 5), Err(DdpError::UntaggedMsnRange));
    }

    #[test]
    fn extents_are_checked_offset_first_then_length() {
        let check = |mo, len, buffer| UntaggedQueue::check_extent(MsgOffset(mo), len, buffer);
        assert_eq!(check(0, 10, 10), Ok(()));
        assert_eq!(check(0, 0, 0), Ok(()));
        assert_eq!(check(0, 11, 10), Err(DdpError::UntaggedTooLong));
        assert_eq!(check(0, 1, 0), Err(DdpError::UntaggedTooLong));
        assert_eq!(check(10, 1, 10), Err(DdpError::UntaggedMsgOffset));
        assert_eq!(check(11, 0, 10), Err(DdpError::UntaggedMsgOffset));
        assert_eq!(check(u32::MAX, 9, 10), Err(DdpError::UntaggedMsgOffset));
    }

    // spec: DDP-5.4-2, DDP-5.4-3
    #[test]
    fn messages_are_delivered_in_order_with_their_length() {
        let mut queue = UntaggedQueue::new();
        assert_eq!(queue.deliver(Msn(1), MsgOffset(0), 100, false), Ok(None));
        let message = queue.deliver(Msn(1), MsgOffset(100), 20, true);
        assert_eq!(message, Ok(Some(Delivered { len: 120 })));
        assert_eq!(queue.deliver(Msn(2), MsgOffset(0), 0, true), Ok(Some(Delivered { len: 0 })));
        assert_eq!(queue.msn(), Msn(3));
    }

    // spec: DDP-4.3-3
    #[test]
    fn a_message_with_a_hole_is_refused() {
        let mut queue = UntaggedQueue::new();
        assert_eq!(queue.deliver(Msn(1), MsgOffset(0), 100, false), Ok(None));
        let after_hole = queue.deliver(Msn(1), MsgOffset(101), 20, true);
        assert_eq!(after_hole, Err(DdpError::UntaggedMsgOffset));
        assert_eq!(
            queue.deliver(Msn(2), MsgOffset(0), 20, true),
            Err(DdpError::UntaggedMsnRange),
            "a message cannot start before the one before it ended"
        );
    }
}
