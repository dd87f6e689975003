//! Counters of one end, as reported and as sent in control messages.

use std::convert::Infallible;

use serde::{Serialize, Serializer};
use urnic::{ConnectionCounters, FIGURES, Figures};

use crate::device::DeviceSpec;

/// The figures of the session, and the two counts of copies.
pub(crate) const FIELD_COUNT: usize = FIGURES - OF_TOP.len() + 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Bytes copied in user space for sending. For Writes and Sends the engine copies only FPDUs
    /// that were cut (`tests/copies.rs` checks this), unless `--send-path` stages payload. Read
    /// Responses are copied once. An AF_XDP socket sends only from its packet memory: there all
    /// bytes are copied once more, with their headers.
    pub(crate) payload_bytes_copied_tx: u64,
    /// Figures of [`OF_TOP`] are not sent.
    pub(crate) figures: Figures,
}

pub(crate) const OF_TOP: [&str; 4] =
    ["bytes_sent", "bytes_received", "bytes_held_now", "accesses_refused"];
const COPIED_TX: &str = "payload_bytes_copied_tx";
const COPIED_RX: &str = "payload_bytes_copied_rx";

impl Counters {
    pub(crate) const fn of(counters: &ConnectionCounters, device: &DeviceSpec) -> Self {
        let ConnectionCounters { tcp, rdma_tx, .. } = counters;
        let copied_by_device = if device.copies_to_send() { tcp.bytes_sent } else { 0 };
        Self {
            payload_bytes_copied_tx: copied_by_device
                + rdma_tx.bytes_snapshot
                + rdma_tx.bytes_kept
                + rdma_tx.bytes_staged,
            figures: Figures::of(counters),
        }
    }

    /// Copies from the receive buffer: once to registered memory, and once more if their FPDU was
    /// incomplete and had to be held.
    pub(crate) const fn payload_bytes_copied_rx(&self) -> u64 {
        self.figures.bytes_placed.saturating_add(self.figures.bytes_held)
    }

    /// Counters in the order of the control message; `None` over the kernel's TCP for counts of
    /// segments and frames.
    fn known(&self) -> impl Iterator<Item = (&'static str, Option<u64>)> {
        let (tx, rx) = (self.payload_bytes_copied_tx, self.payload_bytes_copied_rx());
        let figures = self.figures.known().into_iter();
        figures.filter(|(name, _)| !OF_TOP.contains(name)).flat_map(move |figure| {
            let copied = match figure.0 {
                "payload_bytes_snapshot" => Some((COPIED_TX, Some(tx))),
                "bytes_placed" => Some((COPIED_RX, Some(rx))),
                _ => None,
            };
            copied.into_iter().chain([figure])
        })
    }

    /// Counters in the order of the control message.
    pub(crate) fn fields(&self) -> [u64; FIELD_COUNT] {
        let mut counts = self.known().map(|(_, count)| count.unwrap_or(0));
        std::array::from_fn(|_| counts.next().unwrap_or(0))
    }

    pub(crate) fn from_fields(fields: [u64; FIELD_COUNT]) -> Self {
        let of = |name: &str| {
            let index = Self::default().known().position(|(known, _)| known == name);
            index.map_or(0, |index| fields[index])
        };
        let Ok(figures) = Figures::from_named(|name| Ok::<_, Infallible>(of(name)));
        Self { payload_bytes_copied_tx: of(COPIED_TX), figures }
    }

    /// `None` over the kernel's TCP.
    pub(crate) fn of_tcp(&self, count: u64) -> Option<u64> {
        self.figures.knows_segments().then_some(count)
    }

    pub(crate) const fn plus(&self, other: &Self) -> Self {
        let copied_tx = self.payload_bytes_copied_tx;
        Self {
            payload_bytes_copied_tx: copied_tx.saturating_add(other.payload_bytes_copied_tx),
            figures: self.figures.plus(&other.figures),
        }
    }
}

/// Counts of segments and frames are null over the kernel's TCP.
impl Serialize for Counters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.known())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_TCP: [&str; 8] = [
        "segments_sent",
        "segments_aligned",
        "segments_received",
        "segments_out_of_order",
        "retransmissions",
        "rtos",
        "frames_sent",
        "super_frames_sent",
    ];

    /// Counters of a connection, different in each layer.
    fn different() -> ConnectionCounters {
        let mut of = ConnectionCounters { frames_sent: 1, fpdus_framed: 2, ..Default::default() };
        (of.tcp.segments_received, of.tcp.out_of_order, of.tcp.retransmissions, of.tcp.rtos) =
            (3, 4, 5, 6);
        (of.alignment.segments, of.alignment.segments_aligned, of.alignment.super_frames) =
            (7, 8, 9);
        (of.mpa.fpdus, of.mpa.crc_bad, of.mpa.markers, of.mpa.bytes_held) = (10, 11, 12, 13);
        (of.rdma.bytes_placed, of.rdma.bytes_placed_out_of_order) = (1000, 15);
        (of.rdma_tx.bytes_snapshot, of.rdma_tx.bytes_kept, of.rdma_tx.bytes_staged) = (100, 20, 3);
        of
    }

    #[test]
    fn segments_of_the_kernel_are_null_and_own_ones_are_numbers() {
        let of = |figures| Counters { figures, ..Counters::default() };
        let kernel = Figures { fpdus_sent: 7, bytes_placed: 9, ..Figures::default() };
        let shown = serde_json::to_value(of(kernel)).unwrap();
        assert_eq!((&shown["fpdus_sent"], &shown["bytes_placed"]), (&7.into(), &9.into()));
        assert_eq!(shown.as_object().unwrap().len(), FIELD_COUNT);
        assert!(OF_TCP.iter().all(|name| shown[*name].is_null()), "{shown}");
        for own in
            [Figures { segments_received: 1, ..kernel }, Figures { frames_sent: 1, ..kernel }]
        {
            let shown = serde_json::to_value(of(own)).unwrap();
            assert!(OF_TCP.iter().all(|name| shown[*name].is_u64()), "{shown}");
            assert_eq!((&shown["rtos"], of(own).of_tcp(0)), (&0.into(), Some(0)));
        }
    }

    /// The counter of every layer has its own field; copies are summed. Other programs read the
    /// JSON, and servers of the same version the fields in this order.
    #[test]
    fn counters_are_those_of_the_layers_in_a_fixed_order() {
        let counters = Counters::of(&different(), &"kernel".parse().unwrap());
        assert_eq!(
            counters.fields(),
            [123, 100, 20, 1013, 1000, 15, 13, 2, 10, 11, 12, 7, 8, 3, 4, 5, 6, 1, 9]
        );
        assert_eq!(
            serde_json::to_string(&counters).unwrap(),
            "{\"payload_bytes_copied_tx\":123,\"payload_bytes_snapshot\":100,\
             \"payload_bytes_kept\":20,\"payload_bytes_copied_rx\":1013,\"bytes_placed\":1000,\
             \"bytes_placed_out_of_order\":15,\"bytes_held\":13,\"fpdus_sent\":2,\
             \"fpdus_received\":10,\"crc_bad\":11,\"markers_received\":12,\"segments_sent\":7,\
             \"segments_aligned\":8,\"segments_received\":3,\"segments_out_of_order\":4,\
             \"retransmissions\":5,\"rtos\":6,\"frames_sent\":1,\"super_frames_sent\":9}"
        );
    }

    #[test]
    fn fields_cross_the_wire_and_add_up_by_name() {
        let one = Counters::of(&different(), &"kernel".parse().unwrap());
        let mut sent = one;
        for name in OF_TOP {
            assert!(one.known().all(|(known, _)| known != name), "{name} is not sent");
        }
        (sent.figures.bytes_sent, sent.figures.bytes_held_now) = (0, 0);
        assert_eq!(Counters::from_fields(one.fields()), sent);
        let most = Figures { rtos: u64::MAX, ..Figures::default() };
        let two = one.plus(&Counters { payload_bytes_copied_tx: 1, figures: most });
        let Counters { payload_bytes_copied_tx, figures } = two;
        assert_eq!(
            (payload_bytes_copied_tx, figures.rtos, figures.frames_sent),
            (124, u64::MAX, 1)
        );
    }

    /// Fields of `docs/json.md` in its table of a command, by the rows that begin with `prefix`.
    fn documented(command: &str, prefix: &str) -> Vec<String> {
        let document = include_str!("../../docs/json.md");
        let (_, section) = document.split_once(&format!("\n## `urnic {command}`\n")).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let fields = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let fields = fields.filter_map(|line| line.split('`').next()?.strip_prefix(prefix));
        fields.map(str::to_owned).collect()
    }

    #[test]
    fn the_document_lists_the_fields_in_their_order() {
        let names: Vec<_> = Counters::default().known().map(|(name, _)| name).collect();
        assert_eq!(documented("bw", "local,peer."), names);
        let document = include_str!("../../docs/json.md");
        let (_, of_top) = document.split_once("`total` has the names of `local`").unwrap();
        let of_top = of_top.split("\n\n").next().unwrap();
        for name in OF_TOP {
            assert!(of_top.contains(&format!("`{name}`")), "{name}");
        }
    }
}
