//! What an endpoint tells: a line of JSON, read.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// What connections have counted. `urnic::Figures` says what each one is.
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
}

/// A connection that is open.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct ToldConnection {
    pub(super) number: u64,
    pub(super) remote: SocketAddr,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

/// An endpoint.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Told {
    /// Since it is shown.
    pub(super) shown_ns: u64,
    pub(super) is_new: bool,
    pub(super) connections: u64,
    pub(super) connections_open: u64,
    pub(super) connections_untold: u64,
    pub(super) total: Figures,
    pub(super) open: Vec<ToldConnection>,
}

#[cfg(test)]
mod tests {
    use super::*;

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
