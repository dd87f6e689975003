//! The figures of all runs, as a table and as JSON.

use anyhow::Result;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use urnic_testkit::one_way::{MESSAGE_LEN, Outcome, Way};

/// One link with one impairment, in one direction: the runs of all seeds together.
#[derive(Debug, Serialize)]
pub(crate) struct Cell {
    link: &'static str,
    condition: &'static str,
    way: &'static str,
    /// Mean time from arrival to placement, over all bytes placed.
    wait_mean_us: f64,
    /// Longest time from arrival to placement.
    wait_max_us: f64,
    /// Most bytes held at a time for FPDUs that were incomplete, or not found yet.
    held_peak_bytes: u64,
    /// Share of the bytes that were held, and therefore copied twice.
    held_share: f64,
    /// Share of the bytes placed before all earlier bytes had arrived.
    placed_out_of_order_share: f64,
    /// Time from the post of a Send to its completion at the receiver.
    latency_p50_ms: f64,
    latency_p99_ms: f64,
    goodput_mbps: f64,
    /// Segments, or parts, that arrived and were dropped because there was no room to hold them.
    refused: u64,
    segments_received: u64,
    fpdus_by_marker: u64,
}

/// All results.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    rounds: u64,
    messages: usize,
    cells: Vec<Cell>,
}

impl Cell {
    pub(crate) fn of(
        link: &'static str,
        condition: &'static str,
        way: Way,
        runs: impl Iterator<Item = Outcome>,
    ) -> Self {
        let runs: Vec<Outcome> = runs.collect();
        let sum = |of: fn(&Outcome) -> u64| runs.iter().map(of).sum::<u64>();
        let most = |of: fn(&Outcome) -> u64| runs.iter().map(of).max().unwrap_or_default();
        let placed = sum(|run| run.counters.rdma.bytes_placed) as f64;
        let octet_ns = runs.iter().map(|run| run.counters.mpa.held_byte_ns).sum::<u128>() as f64;
        let mut latencies: Vec<u64> =
            runs.iter().flat_map(|run| &run.latencies_ns).copied().collect();
        latencies.sort_unstable();
        let latency_ms = |percent: usize| latencies[latencies.len() * percent / 100] as f64 / 1e6;
        let octets = (latencies.len() * MESSAGE_LEN) as f64;
        Self {
            link,
            condition,
            way: match way {
                Way::Markers => "markers",
                Way::NoMarkers => "none",
                Way::Layered => "layered",
            },
            wait_mean_us: octet_ns / placed / 1e3,
            wait_max_us: most(|run| run.counters.mpa.held_ns_max) as f64 / 1e3,
            held_peak_bytes: most(|run| run.counters.mpa.bytes_held_peak),
            held_share: sum(|run| run.counters.mpa.bytes_held) as f64 / placed,
            placed_out_of_order_share: sum(|run| run.counters.rdma.bytes_placed_out_of_order)
                as f64
                / placed,
            latency_p50_ms: latency_ms(50),
            latency_p99_ms: latency_ms(99),
            goodput_mbps: octets * 8e3 / sum(|run| run.transfer_ns) as f64,
            refused: sum(|run| run.counters.mpa.refused_for_room),
            segments_received: sum(|run| run.counters.tcp.segments_received),
            fpdus_by_marker: sum(|run| run.counters.mpa.fpdus_by_marker),
        }
    }
}

impl Figures {
    /// Returns true if nothing was simulated.
    pub(crate) const fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    pub(crate) const fn new(rounds: u64, messages: usize) -> Self {
        Self { rounds, messages, cells: Vec::new() }
    }

    pub(crate) fn add(&mut self, cell: Cell) {
        self.cells.push(cell);
    }

    /// Returns the table for people.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header([
            "link",
            "frames",
            "markers",
            "to placement, mean µs",
            "longest ms",
            "copied twice %",
            "held, peak KiB",
            "latency p99 ms",
            "Mbit/s",
        ]);
        for cell in &self.cells {
            table.add_row([
                cell.link.to_owned(),
                cell.condition.to_owned(),
                cell.way.to_owned(),
                format!("{:.2}", cell.wait_mean_us),
                format!("{:.3}", cell.wait_max_us / 1e3),
                format!("{:.2}", 100.0 * cell.held_share),
                format!("{:.1}", cell.held_peak_bytes as f64 / 1024.0),
                format!("{:.2}", cell.latency_p99_ms),
                format!("{:.1}", cell.goodput_mbps),
            ]);
        }
        for column in 3..9 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }

    pub(crate) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}
