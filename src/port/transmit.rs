//! Frames out: connections take turns, after the host stack and the answers to strangers.

use std::num::NonZeroUsize;

use urnic_netdev::{TransmitError, TxFrame};

use crate::limits::FRAGMENTS_MAX;
use crate::port::emit::{Emitter, Turn};
use crate::port::{Port, TURN_FRAMES};
use crate::stream::optimized::{SegmentSink, TxLimits};
use crate::time::Instant;

/// Octets after which [`Port::poll_transmit`] returns, so that what was sent is still in the cache
/// when the device, or the other end, looks at it.
pub const BURST_OCTETS: usize = 256 << 10;

impl Port {
    /// Hands frames that are due to `transmit`: at most `room`, and not many more octets than
    /// [`BURST_OCTETS`]. Returns how many were taken; 0 means that nothing is due.
    ///
    /// A refused frame is lost as on a wire; TCP brings its octets again. Do not call while the
    /// device is full.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        room: usize,
        transmit: &mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> usize {
        self.reopen(now);
        // Half the room is for connections, however talkative the host stack is.
        let mut sent = self.host.poll_transmit(now, room.div_ceil(2), transmit);
        self.take_lease_news();
        sent += self.answer_strangers(room - sent, transmit);
        while let Some(slot) = self.doorbell.next() {
            if let Some(connection) = self.connections.get(slot as usize) {
                connection.release_bell();
            }
            self.wake(slot);
        }
        let mut octets = 0;
        while sent < room && octets < BURST_OCTETS {
            let Some(slot) = self.ready.pop_front() else { break };
            let turn = self.transmit_turn(now, slot, (room - sent).min(TURN_FRAMES), transmit);
            sent += turn.frames;
            octets += turn.octets;
        }
        sent
    }

    /// Sends SYN-ACKs with cookies, which belong to no connection.
    fn answer_strangers(
        &mut self,
        room: usize,
        transmit: &mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> usize {
        let mut sent = 0;
        while sent < room
            && let Some((route, header)) = self.cookie_answers.pop_front()
        {
            let mut emitter = Emitter::new(&route, &self.capabilities, transmit);
            emitter.emit(&header, &[], None);
            sent += emitter.turn().frames;
        }
        sent
    }

    fn transmit_turn(
        &mut self,
        now: Instant,
        slot: u32,
        room: usize,
        transmit: &mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> Turn {
        let Some(connection) = self.connections.get_mut(slot as usize) else {
            return Turn::default();
        };
        connection.ready = false;
        let Some(route) = connection.resolve(&self.config, &self.neighbours, self.framing) else {
            let next_hop = connection.next_hop(&self.config);
            let waiting = Some(slot);
            let neighbours = &mut self.neighbours;
            let frames =
                neighbours.solicit(now, &self.config, self.framing, next_hop, waiting, transmit);
            connection.optimized.while_unreachable(now);
            self.touch(slot);
            return Turn { frames, octets: 0 };
        };
        let mut turn = Turn::default();
        if std::mem::take(&mut connection.doubts_route) && self.framing.has_link_layer() {
            // The peer has not answered for long: perhaps somebody else has its link address now.
            let next_hop = connection.next_hop(&self.config);
            let neighbours = &mut self.neighbours;
            turn.frames +=
                neighbours.solicit(now, &self.config, self.framing, next_hop, None, transmit);
        }
        let limits = TxLimits {
            super_frame_len_max: self
                .capabilities
                .segmentation_len_max
                .map_or(0, NonZeroUsize::get),
            fragments_max: self.capabilities.fragments_max.min(FRAGMENTS_MAX),
        };
        let mut emitter = Emitter::new(&route, &self.capabilities, transmit);
        let mut more = true;
        while more && emitter.may_continue(room) {
            more =
                connection.optimized.poll_transmit(now, &limits, &mut self.scratch, &mut emitter);
        }
        let sent = emitter.turn();
        if more {
            self.wake(slot);
        }
        self.touch(slot);
        Turn { frames: turn.frames + sent.frames, octets: sent.octets }
    }
}
