//! The main counters of an endpoint: for each open connection, and the sum for closed connections.
//!
//! One table has their names, sources in the engine, meanings, and who counts them. Answers to
//! `urnic top`, control messages and JSON follow it.

use std::net::SocketAddr;

use urnic_engine::port::ConnectionCounters;
use urnic_netdev::Refusals;

macro_rules! figures {
    ($($(#[$doc:meta])* $of:ident $field:ident = $($from:ident).+,)*) => {
        /// Counters of connections. Over the kernel's TCP those of segments and frames stay 0.
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

            /// All counters with their names; `None` for unknown counts of segments and frames.
            #[must_use]
            pub fn known(&self) -> [(&'static str, Option<u64>); FIGURES] {
                [$((stringify!($field), Of::$of.known(self, self.$field)),)*]
            }

            /// Builds the counters from a function that returns each by its name.
            ///
            /// # Errors
            /// The first error of the function.
            pub fn from_named<E>(
                mut named: impl FnMut(&'static str) -> Result<u64, E>,
            ) -> Result<Self, E> {
                Ok(Self { $($field: named(stringify!($field))?,)* })
            }

            /// Sum of both, counter by counter.
            #[must_use]
            pub const fn plus(&self, other: &Self) -> Self {
                Self { $($field: self.$field.saturating_add(other.$field),)* }
            }

            /// Selects the main counters of a connection.
            #[must_use]
            pub const fn of(counters: &ConnectionCounters) -> Self {
                Self { $($field: counters.$($from).+,)* }
            }

            /// Returns true if the endpoint has a TCP of its own, which alone counts segments and
            /// frames. An endpoint with an open connection has received at least one segment.
            #[must_use]
            pub const fn knows_segments(&self) -> bool {
                self.segments_received > 0 || self.frames_sent > 0
            }
        }

        /// Number of counters.
        pub const FIGURES: usize = [$(stringify!($field)),*].len();
    };
}

enum Of {
    Any,
    Tcp,
}

impl Of {
    fn known(self, figures: &Figures, count: u64) -> Option<u64> {
        (matches!(self, Self::Any) || figures.knows_segments()).then_some(count)
    }
}

// Who counts it, its name, and its source in `ConnectionCounters`.
figures! {
    /// Bytes of the stream sent for the first time.
    Any bytes_sent = bytes_sent,
    /// Bytes of the stream that have arrived without a gap before them.
    Any bytes_received = bytes_received,
    /// Bytes held now because their FPDU is incomplete.
    Any bytes_held_now = bytes_held_now,
    /// Bytes of Read Responses, copied from memory when they were framed.
    Any payload_bytes_snapshot = rdma_tx.bytes_snapshot,
    /// Bytes of other FPDUs that were copied because a part of them was sent alone.
    Any payload_bytes_kept = rdma_tx.bytes_kept,
    /// Bytes placed in registered memory.
    Any bytes_placed = rdma.bytes_placed,
    /// Bytes of `bytes_placed` that were placed before all earlier bytes had arrived.
    Any bytes_placed_out_of_order = rdma.bytes_placed_out_of_order,
    /// Total of the bytes that had to be held because their FPDU was incomplete.
    Any bytes_held = mpa.bytes_held,
    /// FPDUs framed for sending.
    Any fpdus_sent = fpdus_framed,
    /// Valid FPDUs received and placed.
    Any fpdus_received = mpa.fpdus,
    /// FPDUs received with a wrong CRC; not in `fpdus_received`.
    Any crc_bad = mpa.crc_bad,
    /// Markers read.
    Any markers_received = mpa.markers,
    /// Segments with FPDUs that were sent.
    Tcp segments_sent = alignment.segments,
    /// Segments of `segments_sent` that begin and end with an FPDU.
    Tcp segments_aligned = alignment.segments_aligned,
    /// Segments received.
    Tcp segments_received = tcp.segments_received,
    /// Segments of `segments_received` ahead of missing bytes.
    Tcp segments_out_of_order = tcp.out_of_order,
    /// Segments retransmitted.
    Tcp retransmissions = tcp.retransmissions,
    /// Retransmission timeouts.
    Tcp rtos = tcp.rtos,
    /// Frames sent, acknowledgments included.
    Tcp frames_sent = frames_sent,
    /// Frames of `frames_sent` with more than one segment (super-frames).
    Tcp super_frames_sent = alignment.super_frames,
    /// Refused accesses of peers: a steering tag, an offset or a right that they do not have.
    Any accesses_refused = accesses_refused,
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

    pub(crate) fn add(&mut self, other: Self) {
        let Self { connections_closed, connections_rejected, closed, open, refusals } = other;
        self.connections_closed += connections_closed;
        self.connections_rejected += connections_rejected;
        self.closed = self.closed.plus(&closed);
        self.open.extend(open);
        self.refusals = self.refusals.plus(&refusals);
    }

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
    fn closed_connections_keep_their_totals_but_hold_nothing() {
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
