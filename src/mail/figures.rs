//! What an endpoint has counted, in short: of each connection there is, and of those that are over.

use std::net::SocketAddr;

use urnic_engine::port::ConnectionCounters;
use urnic_netdev::Refusals;

macro_rules! figures {
    ($($(#[$doc:meta])* $field:ident = $from:expr,)*) => {
        /// What connections have counted, of all layers. Over the kernel's TCP what is of segments and
        /// frames stays 0.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Figures {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Figures {
            /// All figures with their names.
            #[must_use]
            pub const fn named(&self) -> [(&'static str, u64); FIGURES] {
                [$((stringify!($field), self.$field),)*]
            }

            /// The sum of two, figure by figure.
            #[must_use]
            pub const fn plus(&self, other: &Self) -> Self {
                Self { $($field: self.$field.saturating_add(other.$field),)* }
            }

            pub(crate) fn of(counters: &ConnectionCounters) -> Self {
                Self { $($field: ($from)(counters),)* }
            }
        }

        /// How many figures there are.
        pub const FIGURES: usize = [$(stringify!($field)),*].len();
    };
}

/// What all figures are taken from.
type From = ConnectionCounters;

figures! {
    /// Bytes of the stream sent for the first time.
    bytes_sent = |from: &From| from.bytes_sent,
    /// Bytes of the stream that arrived with all before them.
    bytes_received = |from: &From| from.bytes_received,
    /// Bytes held now because their FPDU is not whole.
    bytes_held_now = |from: &From| from.bytes_held_now,
    /// Bytes of Read Responses: what was in memory when they were framed.
    payload_bytes_snapshot = |from: &From| from.rdma_tx.bytes_snapshot,
    /// Bytes of other FPDUs that were kept because a part of them went out alone.
    payload_bytes_kept = |from: &From| from.rdma_tx.bytes_kept,
    /// Bytes placed in registered memory.
    bytes_placed = |from: &From| from.rdma.bytes_placed,
    /// Of those, placed before all earlier bytes had arrived.
    bytes_placed_out_of_order = |from: &From| from.rdma.bytes_placed_out_of_order,
    /// Bytes that had to be held, in all, because their FPDU was not whole.
    bytes_held = |from: &From| from.mpa.bytes_held,
    /// FPDUs framed for sending.
    fpdus_sent = |from: &From| from.fpdus_framed,
    /// FPDUs found in what arrived.
    fpdus_received = |from: &From| from.mpa.fpdus,
    /// Of those, with a wrong CRC.
    crc_bad = |from: &From| from.mpa.crc_bad,
    /// Markers read.
    markers_received = |from: &From| from.mpa.markers,
    /// Segments with FPDUs that were sent.
    segments_sent = |from: &From| from.alignment.segments,
    /// Of those, that begin and end with an FPDU.
    segments_aligned = |from: &From| from.alignment.segments_aligned,
    /// Segments received.
    segments_received = |from: &From| from.tcp.segments_received,
    /// Of those, ahead of bytes still missing.
    segments_out_of_order = |from: &From| from.tcp.out_of_order,
    /// Segments retransmitted.
    retransmissions = |from: &From| from.tcp.retransmissions,
    /// Retransmission timeouts.
    rtos = |from: &From| from.tcp.rtos,
    /// Frames sent, acknowledgments too.
    frames_sent = |from: &From| from.frames_sent,
    /// Of those, super-frames: of more than one segment.
    super_frames_sent = |from: &From| from.alignment.super_frames,
    /// Accesses of peers that were refused: to a steering tag, an offset or with a right that they do not
    /// have. Each ends its connection.
    accesses_refused = |from: &From| from.accesses_refused,
}

/// A connection that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionFigures {
    /// Which one of its endpoint's: no other has its number, then or later.
    pub number: u64,
    /// The peer's address.
    pub remote: SocketAddr,
    /// What it has counted.
    pub figures: Figures,
}

/// What an endpoint has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointFigures {
    /// Connections that are over.
    pub connections_closed: u64,
    /// Connections that the application has rejected.
    pub connections_rejected: u64,
    /// What those had counted, all together.
    pub closed: Figures,
    /// The connections that there are, by their numbers.
    pub open: Vec<ConnectionFigures>,
    /// Refusals of the device, of the process at its other end.
    pub refusals: Refusals,
}

impl EndpointFigures {
    /// What all connections have counted, those that are over too.
    #[must_use]
    pub fn total(&self) -> Figures {
        self.open.iter().fold(self.closed, |sum, one| sum.plus(&one.figures))
    }

    /// Adds those of other connections of the same endpoint.
    pub(crate) fn add(&mut self, other: Self) {
        let Self { connections_closed, connections_rejected, closed, open, refusals } = other;
        self.connections_closed += connections_closed;
        self.connections_rejected += connections_rejected;
        self.closed = self.closed.plus(&closed);
        self.open.extend(open);
        self.refusals = self.refusals.plus(&refusals);
    }

    /// A connection is over.
    pub(crate) fn close(&mut self, counters: &ConnectionCounters) {
        self.connections_closed += 1;
        self.closed = self.closed.plus(&Figures::of(counters));
        // It holds nothing any more.
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
