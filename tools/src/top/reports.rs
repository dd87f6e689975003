//! Answer of an endpoint: a line of JSON, parsed.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Map;
use urnic::Figures;

/// Sorts by name; counts of segments and frames are null over the kernel's TCP.
pub(super) fn known<S: Serializer>(figures: &Figures, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(BTreeMap::from(figures.known()))
}

/// Counters that an earlier version does not have are 0.
fn named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Figures, D::Error> {
    let fields = Map::deserialize(deserializer)?;
    Figures::from_named(|name| match fields.get(name) {
        None => Ok(0),
        Some(count) => count.as_u64().ok_or_else(|| Error::custom(format!("{name}: no count"))),
    })
}

/// Refused from the process at the other end of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeviceFigures {
    pub(super) peers_refused: u64,
    pub(super) regions_refused: u64,
    pub(super) frames_refused: u64,
    pub(super) sessions_ended: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct ConnectionReport {
    pub(super) number: u64,
    pub(super) remote: SocketAddr,
    #[serde(flatten, deserialize_with = "named")]
    pub(super) figures: Figures,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct EndpointReport {
    /// Since the endpoint was opened with `--top`.
    pub(super) shown_ns: u64,
    pub(super) is_new: bool,
    pub(super) connections: u64,
    pub(super) connections_open: u64,
    #[serde(default)]
    pub(super) connections_rejected: u64,
    pub(super) connections_untold: u64,
    #[serde(deserialize_with = "named")]
    pub(super) total: Figures,
    #[serde(default)]
    pub(super) device: DeviceFigures,
    pub(super) open: Vec<ConnectionReport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer as the library writes it, with counters that count up.
    fn answer(leave_out: &str) -> String {
        let names = Figures::default().named().map(|(name, _)| name);
        let counts = (1..).zip(names).filter(|(_, name)| *name != leave_out);
        let counts: Vec<_> = counts.map(|(count, name)| format!("\"{name}\":{count}")).collect();
        let counts = counts.join(",");
        format!(
            "{{\"schema\":1,\"pid\":7,\"shown_ns\":5,\"is_new\":true,\"connections\":1,\
             \"connections_open\":1,\"connections_rejected\":0,\"connections_untold\":0,\
             \"total\":{{{counts}}},\"device\":{{\"peers_refused\":1,\"regions_refused\":2,\
             \"frames_refused\":3,\"sessions_ended\":4}},\"open\":[{{\"number\":3,\
             \"remote\":\"127.0.0.1:1\",{counts}}}]}}"
        )
    }

    #[test]
    fn all_figures_of_the_library_are_read() {
        let read: EndpointReport = serde_json::from_str(&answer("")).unwrap();
        for figures in [read.total, read.open[0].figures] {
            for ((name, count), expected) in figures.named().into_iter().zip(1..) {
                assert_eq!(count, expected, "{name}");
            }
        }
        let older: EndpointReport = serde_json::from_str(&answer("accesses_refused")).unwrap();
        let newer = Figures { accesses_refused: 0, ..read.total };
        assert_eq!((older.total, older.open[0].figures), (newer, newer));
        let wrong = answer("").replace("\"rtos\":18", "\"rtos\":-1");
        let told = serde_json::from_str::<EndpointReport>(&wrong).unwrap_err().to_string();
        assert!(told.starts_with("rtos: no count"), "{told}");
    }

    /// Other programs read this.
    #[test]
    fn totals_are_written_in_the_order_of_their_names() {
        let read: EndpointReport = serde_json::from_str(&answer("")).unwrap();
        let mut own = Vec::new();
        known(&read.total, &mut serde_json::Serializer::new(&mut own)).unwrap();
        assert_eq!(
            String::from_utf8(own).unwrap(),
            "{\"accesses_refused\":21,\"bytes_held\":8,\"bytes_held_now\":3,\"bytes_placed\":6,\
             \"bytes_placed_out_of_order\":7,\"bytes_received\":2,\"bytes_sent\":1,\"crc_bad\":11,\
             \"fpdus_received\":10,\"fpdus_sent\":9,\"frames_sent\":19,\"markers_received\":12,\
             \"payload_bytes_kept\":5,\"payload_bytes_snapshot\":4,\"retransmissions\":17,\
             \"rtos\":18,\"segments_aligned\":14,\"segments_out_of_order\":16,\
             \"segments_received\":15,\"segments_sent\":13,\"super_frames_sent\":20}"
        );
        let kernel = Figures { segments_received: 0, frames_sent: 0, ..read.total };
        let kernel = known(&kernel, serde_json::value::Serializer).unwrap();
        let unknown = kernel.as_object().unwrap().values().filter(|count| count.is_null());
        assert_eq!((unknown.count(), &kernel["bytes_sent"]), (8, &1.into()));
    }
}
