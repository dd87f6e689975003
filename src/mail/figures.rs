//! The main counters of an endpoint: for each open connection, and the sum for closed connections.

use std::net::SocketAddr;

use urnic_engine::port::ConnectionCounters;
use urnic_netdev::Refusals;

macro_rules! figures {
    ($($(#[$doc:meta])* $field:ident = $from:expr,)*) => {
        /// Counters of connections, of all layers. Over the kernel's TCP the counters of segments
        /// and frames stay 0.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Figures {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Figures {
            /// All counters with their names.
            #[must_use]
            pub const fn named(&self) -> [(&'static str, u64); FIGURES] {
                [$((stringify!($field), self.$field),)*]
            }

            /// Sum of both, counter by counter.
            #[must_use]
            pub const fn plus(&self, other: &Self) -> Self {
                Self { $($field: self.$field.saturating_add(other.$field),)* }
            }

            pub(crate) fn of(counters: &ConnectionCounters) -> Self {
                Self { $($field: ($from)(counters),)* }
            }
        }

        /// Number of counters.
        pub const FIGURES: usize = [$(stringify!($field)),*].len();
    };
}

/// Source of all counters.
type From = ConnectionCounters;

figures! {
    /// Bytes of the stream sent for the first time.
    bytes_sent = |from: &From| from.bytes_sent,
    /// Bytes of the stream that have arrived without a gap before them.
    bytes_received = |from: &From| from.bytes_received,
    /// Bytes held now because their FPDU is incomplete.
    bytes_held_now = |from: &From| from.bytes_held_now,
    /// Bytes of Read Responses, copied from memory when they were framed.
    payload_bytes_snapshot = |from: &From| from.rdma_tx.bytes_snapshot,
    /// Bytes of other FPDUs that were copied because a part of them was sent alone.
    payload_bytes_kept = |from: &From| from.rdma_tx.bytes_kept,
    /// Bytes placed in registered memory.
    bytes_placed = |from: &From| from.rdma.bytes_placed,
    /// Bytes of `bytes_placed` that were placed before all earlier bytes had arrived.
    bytes_placed_out_of_order = |from: &From| from.rdma.bytes_placed_out_of_order,
    /// Total of the bytes that had to be held because their FPDU was incomplete.
    bytes_held = |from: &From| from.mpa.bytes_held,
    /// FPDUs framed for sending.
    fpdus_sent = |from: &From| from.fpdus_framed,
    /// Valid FPDUs received and placed.
    fpdus_received = |from: &From| from.mpa.fpdus,
    /// FPDUs received with a wrong CRC; not in `fpdus_received`.
    crc_bad = |from: &From| from.mpa.crc_bad,
    /// Markers read.
    markers_received = |from: &From| from.mpa.markers,
    /// Segments with FPDUs that were sent.
    segments_sent = |from: &From| from.alignment.segments,
    /// Segments of `segments_sent` that begin and end with an FPDU.
    segments_aligned = |from: &From| from.alignment.segments_aligned,
    /// Segments received.
    segments_received = |from: &From| from.tcp.segments_received,
    /// Segments of `segments_received` ahead of missing bytes.
    segments_out_of_order = |from: &From| from.tcp.out_of_order,
    /// Segments retransmitted.
    retransmissions = |from: &From| from.tcp.retransmissions,
    /// Retransmission timeouts.
    rtos = |from: &From| from.tcp.rtos,
    /// Frames sent, acknowledgments included.
    frames_sent = |from: &From| from.frames_sent,
    /// Frames of `frames_sent` with more than one segment (super-frames).
    super_frames_sent = |from: &From| from.alignment.super_frames,
    /// Refused accesses of peers: a steering tag, an offset or a right that they do not have. Each
    /// ends its connection.
    accesses_refused = |from: &From| from.accesses_refused,
}

/// An open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionFigures {
    /// Number in its endpoint, never reused.
    pub number: u64,
    /// The peer's address.
    pub remote: SocketAddr,
    /// Its counters.
    pub figures: Figures,
}

/// Counters of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointFigures {
    /// Connections that are over.
    pub connections_closed: u64,
    /// Connections that the application has rejected.
    pub connections_rejected: u64,
    /// Sum of the counters of connections that are over.
    pub closed: Figures,
    /// Open connections, by their numbers.
    pub open: Vec<ConnectionFigures>,
    /// Refusals by the device, concerning the process at its other end.
    pub refusals: Refusals,
}

impl EndpointFigures {
    /// Sum of the counters of all connections, open and closed.
    #[must_use]
    pub fn total(&self) -> Figures {
        self.open.iter().fold(self.closed, |sum, one| sum.plus(&one.figures))
    }

    /// Adds the counters of other connections of the same endpoint.
    pub(crate) fn add(&mut self, other: Self) {
        let Self { connections_closed, connections_rejected, closed, open, refusals } = other;
        self.connections_closed += connections_closed;
        self.connections_rejected += connections_rejected;
        self.closed = self.closed.plus(&closed);
        self.open.extend(open);
        self.refusals = self.refusals.plus(&refusals);
    }

    /// Adds the counters of a connection that is over.
    pub(crate) fn close(&mut self, counters: &ConnectionCounters) {
        self.connections_closed += 1;
        self.closed = self.closed.plus(&Figures::of(counters));
        // A connection that is over holds no bytes.
        self.closed.bytes_held_now = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_still_counts_but_holds_nothing() {
        let mut all = EndpointFigures::default();
        let counters = ConnectionCounters {
            bytes_sent: 7,
            bytes_held_now: 9,
            ..ConnectionCounters::default()
        };
        all.close(&counters);
        all.close(&counters);
        let remote = "127.0.0.1:1".parse().unwrap();
        let open = ConnectionFigures { number: 3, remote, figures: Figures::of(&counters) };
        for connections_rejected in [3, 4] {
            all.add(EndpointFigures { connections_rejected, ..EndpointFigures::default() });
        }
        assert_eq!(all.connections_rejected, 7);
        all.add(EndpointFigures { open: vec![open], ..EndpointFigures::default() });
        let total = all.total();
        assert_eq!((all.connections_closed, total.bytes_sent, total.bytes_held_now), (2, 21, 9));
    }
}
