//! Frames whose payload is in fragments of the device's memory.
//!
//! Fast path: the payload of a plain segment of a connection is passed up in place, if the device
//! has verified the checksum. Any other frame is copied together and takes the path of a frame in
//! one piece. `tests/engine/in_place.rs` compares the results of both.

use urnic_netdev::{RxChecksum, RxFrame};

use crate::mem::{Scattered, SharedSlice, TableLease};
use crate::port::Port;
use crate::port::connections::is_in_time_wait;
use crate::port::interface::demux;
use crate::port::interface::framing::LinkFraming;
use crate::port::tuple::Tuple;
use crate::stream::carrier::InPlace;
use crate::tcp;
use crate::time::Instant;

impl Port {
    /// Processes a frame in fragments.
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

    /// Processes a segment of a connection in place. Returns false, with nothing done, for any
    /// other frame, and for a frame whose checksum must be verified.
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
        let Some(inbound) = demux::parse_plain_head(framing, frame.head, frame.len()) else {
            return false;
        };
        let mut header = tcp::Header { ecn: inbound.ecn, ..tcp::Header::default() };
        let Ok(payload_at) = header.read(inbound.segment) else { return false };
        if header.flags.contains(tcp::Flags::SYN) {
            return false;
        }
        let (source, destination) = (inbound.source, inbound.destination);
        let tuple = Tuple::new(destination, header.dst_port, source, header.src_port);
        let found = self.connections.find(&tuple);
        let Some(slot) = found.filter(|slot| !is_in_time_wait(*slot)) else { return false };
        let first = SharedSlice::from_bytes(&inbound.segment[payload_at..]);
        let octets = Scattered::new(first, frame.payload);
        let mut payload = InPlace { octets, gathered, bytes_gathered: 0 };
        let taken = self.handle_segment(now, slot, frame, &header, &mut payload, lease);
        self.counters.rx_bytes_gathered += payload.bytes_gathered;
        taken
    }
}
