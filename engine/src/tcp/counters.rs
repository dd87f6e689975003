//! Counters of a connection, and its reasons to drop segments.

/// Reason why an arriving segment was dropped, as a whole or except for its ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The connection is closed.
    Closed,
    /// Older than what was received: a timestamp went backwards (RFC 7323 §5.3).
    Paws,
    /// Timestamps were agreed and the segment has none (RFC 7323 §3.2).
    TimestampMissing,
    /// Everything in it lies before RCV.NXT: a duplicate, or a probe.
    Old,
    /// The segment starts beyond the window.
    BeyondWindow,
    /// The window is closed to its data; its ACK was processed.
    WindowClosed,
    /// A RST that is in the window but not exactly at RCV.NXT (RFC 5961 §3).
    BlindReset,
    /// A SYN on an open connection (RFC 5961 §4).
    UnexpectedSyn,
    /// No ACK bit where one is required.
    AckMissing,
    /// It acknowledges bytes that were never sent, or is far too old (RFC 5961 §5).
    AckOutOfRange,
    /// Data after the peer's FIN.
    AfterFin,
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: usize = Self::AfterFin as usize + 1;
}

/// Counters of one connection. A super-frame counts as the wire segments it combines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Data segments sent for the first time.
    pub segments_sent: u64,
    /// Stream bytes sent for the first time.
    pub bytes_sent: u64,
    /// Pure acknowledgments sent.
    pub acks_sent: u64,
    /// Segments received, of any kind.
    pub segments_received: u64,
    /// Data or FIN segments retransmitted because they seemed lost.
    pub retransmissions: u64,
    /// Data segments that started beyond bytes still missing.
    pub out_of_order: u64,
    /// Data segments that held nothing new.
    pub duplicates: u64,
    /// Data segments the layer above refused in whole or part.
    pub refused: u64,
    /// Retransmission timeouts.
    pub rtos: u64,
    /// Loss recoveries begun without a timeout.
    pub fast_retransmits: u64,
    /// Recoveries, of either kind, that proved to be spurious and were undone.
    pub recoveries_undone: u64,
    /// Tail loss probes sent (RFC 8985 §7) because an acknowledgment was late; not in
    /// `retransmissions`.
    pub loss_probes: u64,
    /// Zero-window and keep-alive probes sent.
    pub probes_sent: u64,
    /// Times the peer discarded data it had selectively acknowledged.
    pub reneges: u64,
    /// Drops by reason, indexed by [`DropReason`].
    pub dropped: [u64; DropReason::COUNT],
}
