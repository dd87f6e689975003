//! Frames whose payload is in fragments of the device's memory. The payload of a connection's
//! segment is passed up in place, if the device has verified the checksum. Any other frame is first
//! copied to contiguous memory. `tests/engine/forms.rs` compares both.

use urnic_netdev::{RxChecksum, RxFrame};

use crate::mem::{Scattered, SharedSlice, TableLease};
use crate::port::Port;
use crate::port::interface::demux::{self, Parsed};
use crate::port::interface::framing::LinkFraming;
use crate::stream::carrier::InPlace;
use crate::time::Instant;

impl Port {
    #[inline(never)]
    pub(super) fn take_fragments(
        &mut self,
        now: Instant,
        framing: LinkFraming,
        frame: &RxFrame<'_>,
        lease: &mut TableLease<'_>,
    ) {
        let mut gathered = std::mem::take(&mut self.gathered);
        if !self.take_in_place(now, framing, frame, &mut gathered, lease) {
            let whole = frame.gathered(&mut gathered);
            self.counters.rx_bytes_gathered += whole.len() as u64;
            self.take_frame(now, framing, &whole, lease);
        }
        self.gathered = gathered;
    }

    /// False, with nothing done: no connection's frame, link padding, or checksum to verify.
    fn take_in_place(
        &mut self,
        now: Instant,
        framing: LinkFraming,
        frame: &RxFrame<'_>,
        gathered: &mut Vec<u8>,
        lease: &mut TableLease<'_>,
    ) -> bool {
        // A checksum must be verified over bytes that cannot change afterwards.
        if frame.checksum == RxChecksum::Unverified {
            return false;
        }
        let Ok(Parsed::Tcp(inbound)) = demux::parse(framing, frame.head, frame.len(), false) else {
            return false;
        };
        if inbound.padding_len > 0 {
            return false;
        }
        let mut bytes_gathered = 0;
        let taken = self.handle_open(
            now,
            frame,
            &inbound,
            |first| InPlace {
                octets: Scattered::new(SharedSlice::from_bytes(first), frame.payload),
                gathered,
                bytes_gathered: &mut bytes_gathered,
            },
            lease,
        );
        self.counters.rx_bytes_gathered += bytes_gathered;
        taken
    }
}
