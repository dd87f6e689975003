//! Answer of an endpoint: a line of JSON, parsed.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::counters::OF_TCP;

/// Counters of connections. `urnic::Figures` defines each one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    pub(super) bytes_held_now: u64,
    pub(super) payload_bytes_snapshot: u64,
    pub(super) payload_bytes_kept: u64,
    pub(super) bytes_placed: u64,
    pub(super) bytes_placed_out_of_order: u64,
    pub(super) bytes_held: u64,
    pub(super) fpdus_sent: u64,
    pub(super) fpdus_received: u64,
    pub(super) crc_bad: u64,
    pub(super) markers_received: u64,
    pub(super) segments_sent: u64,
    pub(super) segments_aligned: u64,
    pub(super) segments_received: u64,
    pub(super) segments_out_of_order: u64,
    pub(super) retransmissions: u64,
    pub(super) rtos: u64,
    pub(super) frames_sent: u64,
    pub(super) super_frames_sent: u64,
    // A process of an earlier version does not count them.
    #[serde(default)]
    pub(super) accesses_refused: u64,
}

impl Figures {
    /// Returns true if the endpoint has a TCP of its own: only this TCP counts segments and frames.
    pub(super) const fn knows_segments(&self) -> bool {
        self.segments_received > 0 || self.frames_sent > 0
    }
}

/// Serializes all counters; counts of segments and frames are null over the kernel's TCP.
pub(super) fn known<S: Serializer>(figures: &Figures, serializer: S) -> Result<S::Ok, S::Error> {
    let mut value = serde_json::to_value(figures).map_err(serde::ser::Error::custom)?;
    if !figures.knows_segments() {
        OF_TCP.iter().for_each(|name| value[*name] = Value::Null);
    }
    value.serialize(serializer)
}

/// Counts of what the endpoint's device has refused from the process at its other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeviceFigures {
    pub(super) peers_refused: u64,
    pub(super) regions_refused: u64,
    pub(super) frames_refused: u64,
    pub(super) sessions_ended: u64,
}

/// An open connection.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct ConnectionReport {
    pub(super) number: u64,
    pub(super) remote: SocketAddr,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

/// An endpoint.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct EndpointReport {
    /// Time since the endpoint was opened with `--top`.
    pub(super) shown_ns: u64,
    pub(super) is_new: bool,
    pub(super) connections: u64,
    pub(super) connections_open: u64,
    #[serde(default)]
    pub(super) connections_rejected: u64,
    pub(super) connections_untold: u64,
    pub(super) total: Figures,
    #[serde(default)]
    pub(super) device: DeviceFigures,
    pub(super) open: Vec<ConnectionReport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_the_kernel_are_null() {
        let shown = |figures| known(&figures, serde_json::value::Serializer).unwrap();
        let kernel = Figures { bytes_sent: 5, ..Figures::default() };
        let value = shown(kernel);
        assert!(OF_TCP.iter().all(|name| value[*name].is_null()), "{value}");
        assert_eq!((&value["bytes_sent"], &value["bytes_held"]), (&5.into(), &0.into()));
        for own in
            [Figures { frames_sent: 1, ..kernel }, Figures { segments_received: 1, ..kernel }]
        {
            assert!(OF_TCP.iter().all(|name| shown(own)[*name].is_u64()));
        }
    }

    #[test]
    fn all_figures_of_the_library_are_read() {
        let names = urnic::Figures::default().named();
        let all: Vec<String> =
            (1..).zip(names).map(|(value, (name, _))| format!("\"{name}\":{value}")).collect();
        let read: Figures = serde_json::from_str(&format!("{{{}}}", all.join(","))).unwrap();
        let value = serde_json::to_value(read).unwrap();
        let written = value.as_object().unwrap();
        assert_eq!(written.len(), names.len());
        for (value, (name, _)) in (1_u64..).zip(names) {
            assert_eq!(written[name], value, "{name}");
        }
    }
}
