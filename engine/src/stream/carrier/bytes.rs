//! A stream over any ordered byte stream, such as a kernel socket: layered MPA (RFC 5044 §5). The
//! byte stream hides its segment boundaries: FPDUs are aligned only by chance.

use std::sync::Arc;

use crate::counters::{MpaRxCounters, RdmaRxCounters, RdmaTxCounters};
use crate::limits::{FRAGMENTS_MAX, PIECE_BLOCKS_MAX};
use crate::mem::TableLease;
use crate::mpa::pieces::PieceStore;
use crate::mpa::startup::{Offer, Retry, StartupConfig};
use crate::stream::life::{LifeTimes, Probes};
use crate::stream::{
    Cut, Fragments, FrameBuilder, PhaseError, Room, RxPolicy, Scratch, Setup, Stream, StreamEvent,
};
use crate::time::Instant;
use crate::types::StreamOffset;
use crate::verbs::calls::HeldCalls;
use crate::verbs::{HeldRnic, Qp, Rnic};

/// A stream over bytes that the caller moves. After every call, drain
/// [`octets_to_send`](Self::octets_to_send) and then [`poll_event`](Self::poll_event).
#[derive(Debug)]
pub struct ByteStream {
    stream: Stream,
    store: PieceStore,
    staged: u64,
    received: StreamOffset,
    sent: StreamOffset,
    now: Instant,
}

impl ByteStream {
    /// A stream in streaming mode, over a byte stream that carries bytes already.
    #[must_use]
    pub fn new(rnic: &Rnic) -> Self {
        let mut stream = Self::opening(rnic, LifeTimes::default());
        stream.stream.connected();
        stream
    }

    /// The byte stream is not yet open: call [`connected`](Self::connected) when it is.
    #[must_use]
    pub fn opening(rnic: &Rnic, times: LifeTimes) -> Self {
        // The byte stream keeps order, and would not retransmit a dropped FPDU.
        let policy = RxPolicy { out_of_order: false, drop_bad_fpdus: false };
        Self {
            stream: Stream::new(HeldRnic::by_stream(rnic), policy, Arc::new(times)),
            store: PieceStore::new(PIECE_BLOCKS_MAX),
            staged: 0,
            received: StreamOffset::ZERO,
            sent: StreamOffset::ZERO,
            now: Instant::ZERO,
        }
    }

    #[cfg(test)]
    pub(crate) const fn stream_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Starts MPA as initiator (RFC 5044 §7.1). Errors: see [`PhaseError`].
    pub fn initiate(
        &mut self,
        now: Instant,
        qp: &Qp,
        config: &StartupConfig,
        offer: &Offer<'_>,
    ) -> Result<(), PhaseError> {
        self.now = now;
        self.stream.initiate(now, &qp.shared, config, offer)
    }

    /// Starts MPA as responder: waits for the peer's Request. Errors: see [`PhaseError`].
    pub fn respond(&mut self, now: Instant, config: &StartupConfig) -> Result<(), PhaseError> {
        self.now = now;
        self.stream.respond(now, config)
    }

    /// Accepts the peer's Request. Errors: see [`PhaseError`].
    pub fn accept(&mut self, qp: &Qp, offer: &Offer<'_>) -> Result<(), PhaseError> {
        self.stream.accept(&qp.shared, offer)?;
        self.stream.watch(self.now);
        Ok(())
    }

    /// Refuses the peer's Request. The byte stream stays open until [`close`](Self::close) (RFC
    /// 5044 §7.1.2 (6)). Errors: see [`PhaseError`].
    pub fn reject(&mut self, offer: &Offer<'_>) -> Result<(), PhaseError> {
        self.stream.reject(offer)
    }

    /// Takes the next bytes that the byte stream delivered; after a rejection they are dropped.
    pub fn handle_bytes(&mut self, now: Instant, mut bytes: &[u8]) {
        self.now = now;
        // In full operation, bytes in order are never refused: the store grants the pages of the
        // next FPDU. During the startup a call may take only the bytes of the peer's frame.
        let rnic = self.stream.rnic();
        let _until_the_lease_is_closed = HeldCalls::new();
        let mut lease = TableLease::new(&rnic.table);
        while !bytes.is_empty() {
            let start = self.received;
            let taken = self.stream.handle_bytes(now, start, bytes, &mut self.store, &mut lease);
            let len = if taken > start { taken.index_from(start) } else { bytes.len() };
            self.received = start + len as u64;
            bytes = &bytes[len..];
        }
        self.stream.watch(now);
    }

    /// Returns true if the caller should read from the byte stream. False while too many messages
    /// wait for receives ([`QpRules::IwarpWait`](crate::verbs::QpRules::IwarpWait)). Bytes
    /// given nevertheless are accepted.
    #[must_use]
    pub fn wants_octets(&self) -> bool {
        !self.stream.is_full()
    }

    /// Delivers messages that wait for receives, as [`octets_to_send`](Self::octets_to_send) does.
    pub fn deliver_held(&mut self) {
        self.stream.deliver_held();
    }

    /// Notes that the byte stream is open.
    pub fn connected(&mut self, now: Instant) {
        self.now = now;
        self.stream.connected();
        self.stream.watch(now);
    }

    /// Notes that the byte stream has ended after the bytes it delivered.
    pub fn handle_end(&mut self) {
        self.stream.peer_closed();
        self.stream.watch(self.now);
    }

    /// Notes that the sending half was closed, as [`wants_close`](Self::wants_close) asked.
    pub fn handle_shutdown(&mut self, now: Instant) {
        self.now = now;
        self.stream.sending_closed();
        self.stream.watch(now);
    }

    /// Notes that both ends have closed the byte stream in order.
    pub fn handle_closed(&mut self) {
        self.stream.connection_closed();
    }

    /// Notes that the byte stream has failed.
    pub fn handle_loss(&mut self) {
        self.stream.connection_lost();
    }

    /// Handles the timers that have expired at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        self.stream.handle_timeout(now);
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.stream.poll_timeout()
    }

    /// Appends the bytes to write next to `fragments`, at least `len_min` if that many are ready,
    /// in place or copied, depending on `scratch`. FPDUs are cut for segments of `emss` bytes.
    /// Report the number of bytes written to [`handle_sent`](Self::handle_sent).
    pub fn octets_to_send<'a>(
        &'a mut self,
        scratch: &'a mut Scratch,
        emss: usize,
        len_min: usize,
        fragments: &mut Fragments<'a>,
    ) {
        self.stream.deliver_held();
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
        // Bytes framed earlier and not yet written may need more fragments than one call takes.
        let end = self.stream.framed_end().min(self.sent + SEND_LEN_MAX);
        if end > self.sent && !self.is_stuck() {
            self.stream.keep_cut(&(self.sent..end));
            let mut frame = FrameBuilder::new(scratch, fragments);
            self.stream.gather(self.sent..end, &mut frame);
            self.staged += frame.finish().staged as u64;
        }
    }

    /// Only answers to RDMA Reads of no bytes are left, which may wait for a message.
    #[must_use]
    pub fn owes_empty_answers_only(&self) -> bool {
        self.stream.owes_empty_answers_only() && self.stream.framed_end() == self.sent
    }

    /// The bytes to write next are the application's again: reset the byte stream.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        let end = self.stream.framed_end().min(self.sent + SEND_LEN_MAX);
        end > self.sent && self.stream.is_gone(&(self.sent..end))
    }

    /// Notes that `len` of the bytes were written: the byte stream has promised to deliver them.
    pub fn handle_sent(&mut self, len: usize) {
        self.stream.connected();
        self.sent = self.sent + len as u64;
        self.stream.acknowledged(self.sent);
    }

    /// Takes the next startup attempt ([`StartupConfig::fallback`]), for a new byte stream to the
    /// same peer and a new `ByteStream`. This one is over, and no event has reported that.
    pub fn take_retry(&mut self) -> Option<(Box<Retry>, Qp)> {
        let (retry, shared) = self.stream.take_retry()?;
        Some((retry, Qp { shared }))
    }

    /// Returns true if [`take_retry`](Self::take_retry) would return an attempt.
    #[must_use]
    pub const fn wants_retry(&self) -> bool {
        self.stream.wants_retry()
    }

    /// Gives up the next attempt: the startup has failed.
    pub fn give_up_retry(&mut self) {
        self.stream.give_up_retry();
    }

    /// Returns true if the caller must close the sending half: everything has been sent.
    #[must_use]
    pub fn wants_close(&self) -> bool {
        self.stream.wants_close() && self.stream.framed_end() == self.sent
    }

    /// Progress of the startup.
    #[must_use]
    pub fn setup(&self) -> Setup {
        self.stream.setup()
    }

    /// Closes in order: posted work is finished first.
    pub fn close(&mut self, now: Instant) {
        self.now = now;
        self.stream.close();
        self.stream.watch(now);
    }

    /// Takes the queue pair from the stream, which then uses no memory that the queue pair names.
    /// Framed bytes are still sent unchanged; work that had not completed fails.
    pub fn release_qp(&mut self, now: Instant) {
        self.now = now;
        self.stream.release_qp();
        self.stream.watch(now);
    }

    /// Returns true if the caller must end the byte stream at once, with a RST if possible: the
    /// peer keeps this end from closing, or asks for an answer that can no longer be sent.
    #[must_use]
    pub const fn wants_reset(&self) -> bool {
        self.stream.wants_reset()
    }

    /// Returns true if the stream is over and only the byte stream is left.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.stream.is_over()
    }

    /// Returns true if the stream is closing or has failed.
    #[must_use]
    pub const fn is_closing(&self) -> bool {
        self.stream.is_closing()
    }

    /// Notes that the last `bytes` of the bytes written have not reached the peer.
    pub fn note_undelivered(&mut self, bytes: u64) {
        self.stream.note_delivered(StreamOffset(self.sent.0.saturating_sub(bytes)));
    }

    /// Returns the keep-alive probes that the byte stream should send to an idle peer. When a probe
    /// is due, turn probes for a Response off if [none is awaited](Self::awaits_response).
    #[must_use]
    pub fn probes(&self, current: Probes) -> Probes {
        self.stream.probes(current)
    }

    /// Returns true if the peer owes an answer to a Read or an Atomic.
    #[must_use]
    pub fn awaits_response(&self) -> bool {
        self.stream.awaits_response()
    }

    /// Updates the timer of the current stage. Call whenever something may have changed.
    pub fn watch(&mut self, now: Instant) {
        self.now = now;
        self.stream.watch(now);
    }

    /// Next event since the last call.
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

    /// Bytes written to the byte stream.
    #[must_use]
    pub const fn bytes_sent(&self) -> u64 {
        self.sent.0
    }

    /// Bytes taken from the byte stream.
    #[must_use]
    pub const fn bytes_received(&self) -> u64 {
        self.received.0
    }

    /// Bytes held because their FPDU is incomplete.
    #[must_use]
    pub fn bytes_held(&self) -> u64 {
        self.stream.bytes_held()
    }

    /// Counts of placement and delivery.
    #[must_use]
    pub fn rdma_counters(&self) -> RdmaRxCounters {
        self.stream.rdma_counters()
    }

    /// Refused accesses of the peer: at most one, since the stream ends with it.
    #[must_use]
    pub fn accesses_refused(&self) -> u64 {
        self.stream.accesses_refused()
    }

    /// Counts of copies for sending.
    #[must_use]
    pub fn rdma_tx_counters(&self) -> RdmaTxCounters {
        RdmaTxCounters { bytes_staged: self.staged, ..self.stream.tx_counters() }
    }
}

/// Limit of the bytes offered for writing at once.
const SEND_LEN_MAX: u64 = 1 << 20;
