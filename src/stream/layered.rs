//! The layered lower layer: MPA over any ordered byte stream (RFC 5044 §5).
//!
//! The byte stream may be a kernel socket, another stack's socket or a pipe. It keeps order and
//! loses nothing, and it hides how it cuts segments: FPDUs are framed to the size the caller names
//! and are aligned only by luck.

use std::sync::Arc;

use crate::counters::{MpaRxCounters, RdmaRxCounters};
use crate::limits::{FRAGMENTS_MAX, PIECE_BLOCKS_MAX};
use crate::mem::TableLease;
use crate::mpa::pieces::PieceStore;
use crate::mpa::startup::{Offer, Retry, StartupConfig};
use crate::stream::startup::PhaseError;
use crate::stream::{Cut, Fragments, FrameBuilder, Room, RxPolicy, Scratch, Stream, StreamEvent};
use crate::time::Instant;
use crate::types::StreamOffset;
use crate::verbs::{Qp, Rnic};

/// An RDMAP stream over an ordered byte stream that the caller moves.
///
/// After every call, drain [`octets_to_send`](Self::octets_to_send) and then
/// [`poll_event`](Self::poll_event).
#[derive(Debug)]
pub struct Layered {
    stream: Stream,
    store: PieceStore,
    scratch: Scratch,
    received: StreamOffset,
    sent: StreamOffset,
}

impl Layered {
    /// A stream in streaming mode.
    #[must_use]
    pub fn new(rnic: &Rnic) -> Self {
        // The byte stream keeps order: nothing can be placed ahead, and a bad FPDU cannot be
        // asked for again.
        let policy = RxPolicy { out_of_order: false, drop_bad_fpdus: false };
        Self {
            stream: Stream::new(Arc::clone(&rnic.shared), policy),
            store: PieceStore::new(PIECE_BLOCKS_MAX),
            scratch: Scratch::default(),
            received: StreamOffset::ZERO,
            sent: StreamOffset::ZERO,
        }
    }

    /// Starts MPA as initiator (RFC 5044 §7.1).
    ///
    /// # Errors
    /// See [`PhaseError`].
    pub fn initiate(
        &mut self,
        now: Instant,
        qp: &Qp,
        config: &StartupConfig,
        offer: &Offer<'_>,
    ) -> Result<(), PhaseError> {
        self.stream.initiate(now, &qp.shared, config, offer)
    }

    /// Starts MPA as responder: waits for the peer's Request.
    ///
    /// # Errors
    /// See [`PhaseError`].
    pub fn respond(&mut self, now: Instant, config: &StartupConfig) -> Result<(), PhaseError> {
        self.stream.respond(now, config)
    }

    /// Accepts the peer's Request.
    ///
    /// # Errors
    /// See [`PhaseError`].
    pub fn accept(&mut self, qp: &Qp, offer: &Offer<'_>) -> Result<(), PhaseError> {
        self.stream.accept(&qp.shared, offer)
    }

    /// Refuses the peer's Request.
    ///
    /// # Errors
    /// See [`PhaseError`].
    pub fn reject(&mut self, offer: &Offer<'_>) -> Result<(), PhaseError> {
        self.stream.reject(offer)
    }

    /// Takes the next octets that the byte stream delivered.
    ///
    /// After a rejection the byte stream is the caller's again: octets given then are dropped.
    pub fn handle_bytes(&mut self, now: Instant, mut bytes: &[u8]) {
        self.store.set_time(now);
        // In full operation octets in order are never refused: an FPDU's pieces always fit the
        // store. During the startup a call may take only what belongs to the peer's frame.
        let rnic = self.stream.rnic();
        let mut lease = TableLease::new(&rnic.table);
        while !bytes.is_empty() {
            let start = self.received;
            let taken = self.stream.handle_bytes(start, bytes, &mut self.store, &mut lease);
            let len = if taken > start { taken.index_from(start) } else { bytes.len() };
            self.received = start + len as u64;
            bytes = &bytes[len..];
        }
    }

    /// The byte stream has ended after what it delivered.
    pub fn handle_end(&mut self) {
        self.stream.peer_closed();
    }

    /// The byte stream was closed in order, by both ends.
    pub fn handle_closed(&mut self) {
        self.stream.connection_closed();
    }

    /// The byte stream has failed.
    pub fn handle_loss(&mut self) {
        self.stream.connection_lost();
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.stream.handle_timeout(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.stream.poll_timeout()
    }

    /// Appends the octets to write next to `fragments`, at least `len_min` if so many are ready,
    /// gathered from where they are; FPDUs are cut for segments of `emss` octets. Nothing is
    /// appended when there is nothing to send. Tell [`handle_sent`](Self::handle_sent) how many
    /// were written.
    pub fn octets_to_send<'a>(
        &'a mut self,
        emss: usize,
        len_min: usize,
        fragments: &mut Fragments<'a>,
    ) {
        let mut room = Room { segment_len: emss, fragments: FRAGMENTS_MAX, cut: Cut::Always };
        loop {
            let framed = self.stream.framed_end();
            if framed.index_from(self.sent) >= len_min || room.fragments == 0 {
                break;
            }
            room.segment_len = emss;
            self.stream.frame_segment(&mut room);
            if self.stream.framed_end() == framed {
                break;
            }
        }
        // Octets framed earlier and still unwritten may need more fragments than one call takes.
        let end = self.stream.framed_end().min(self.sent + SEND_LEN_MAX);
        if end > self.sent {
            let mut frame = FrameBuilder::new(&mut self.scratch, fragments);
            self.stream.gather(self.sent..end, &mut frame);
            frame.finish();
        }
    }

    /// `len` of the octets were written: the byte stream has promised to deliver them.
    pub fn handle_sent(&mut self, len: usize) {
        self.stream.connected();
        self.sent = self.sent + len as u64;
        self.stream.acknowledged(self.sent);
    }

    /// The startup to try on a new byte stream to the same peer, with a stream of its own, in place
    /// of this one, which is over and of which no event has told ([`StartupConfig::fallback`]).
    pub fn take_retry(&mut self) -> Option<(Box<Retry>, Qp)> {
        let (retry, shared) = self.stream.take_retry()?;
        Some((retry, Qp { shared }))
    }

    /// Whether [`take_retry`](Self::take_retry) has something.
    #[must_use]
    pub const fn wants_retry(&self) -> bool {
        self.stream.wants_retry()
    }

    /// There will be no other startup after all: this one has failed.
    pub fn give_up_retry(&mut self) {
        self.stream.give_up_retry();
    }

    /// Whether the sending half is to be closed: everything has been sent.
    #[must_use]
    pub fn wants_close(&self) -> bool {
        self.stream.wants_close() && self.stream.framed_end() == self.sent
    }

    /// Closes in order: what was posted is finished first.
    pub fn close(&mut self, now: Instant) {
        self.stream.close();
        self.stream.limit_close(now);
    }

    /// What has happened since the last call.
    pub fn poll_event(&mut self) -> Option<StreamEvent> {
        self.stream.poll_event()
    }

    /// FPDUs framed for sending.
    #[must_use]
    pub fn fpdus_framed(&self) -> u64 {
        self.stream.fpdus_framed()
    }

    /// Counts of MPA reception.
    #[must_use]
    pub fn mpa_counters(&self) -> MpaRxCounters {
        self.stream.mpa_counters()
    }

    /// Counts of placement and delivery.
    #[must_use]
    pub fn rdma_counters(&self) -> RdmaRxCounters {
        self.stream.rdma_counters()
    }
}

/// Octets offered for writing at once.
const SEND_LEN_MAX: u64 = 1 << 20;
