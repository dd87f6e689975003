//! Result of a run: one struct, printed as a table or as JSON.

use std::time::Duration;

use comfy_table::Table;
use serde::Serialize;
use urnic_engine::port::ConnectionCounters;
use urnic_netdev::impair::ImpairCounters;

use super::{Failure, Options, Session};
use crate::{figure, report};

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// Every byte of every operation arrived at the right place, and nothing else changed.
    pub(crate) verified: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Rate of both directions together, in 10⁹ bits per second of real time.
    gbps: Option<f64>,
    seconds: f64,
    virtual_seconds: f64,
    seed: u64,
    options: Options,
    directions: [Direction; 2],
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Direction {
    from: &'static str,
    bytes_verified: u64,
    operations_verified: u64,
    /// Data segments with FPDUs, each counted once; segments with whole FPDUs only; segments that
    /// arrived ahead of missing bytes; segments without new bytes.
    segments: u64,
    segments_aligned: u64,
    segments_out_of_order: u64,
    segments_retransmitted: u64,
    retransmissions: u64,
    /// Distinct FPDUs received, and messages (FPDUs with the Last flag).
    fpdus: u64,
    fpdus_by_opcode: ByOpcode,
    messages: ByOpcode,
    /// `None` without CRCs.
    crc_good: Option<u64>,
    crc_bad: Option<u64>,
    markers: u64,
    marker_errors: u64,
    fpdus_by_marker: u64,
    fpdus_out_of_order: u64,
    bytes_placed: u64,
    bytes_placed_out_of_order: u64,
    bytes_held_peak: u64,
    /// Time on the link's clock: mean over all bytes, and the longest.
    placement_ns_mean: Option<f64>,
    placement_ns_max: u64,
    copies_per_byte_tx: Option<f64>,
    copies_per_byte_rx: Option<f64>,
    #[serde(skip)]
    copied: Copied,
    frames: u64,
    frames_lost: u64,
    frames_reordered: u64,
    frames_duplicated: u64,
    frames_corrupted: u64,
    frames_resegmented: u64,
}

#[derive(Clone, Copy, Debug)]
struct Copied {
    /// Read Responses: a snapshot of memory.
    snapshot: u64,
    /// FPDUs that were partly sent or partly acknowledged.
    kept: u64,
    /// FPDUs that were staged, because one copy and one CRC are cheaper.
    staged: u64,
}

/// Counts by RDMAP opcode (RFC 5040 §4.1, RFC 7306 §4.1).
#[derive(Clone, Copy, Debug, Serialize)]
struct ByOpcode {
    rdma_write: u64,
    read_request: u64,
    read_response: u64,
    send: u64,
    send_invalidate: u64,
    send_se: u64,
    send_se_invalidate: u64,
    terminate: u64,
    immediate: u64,
    immediate_se: u64,
    atomic_request: u64,
    atomic_response: u64,
}

impl Outcome {
    pub(super) fn of(options: &Options, session: &Session<'_>, failure: Option<Failure>) -> Self {
        let directions = [0, 1].map(|from| Direction::of(session, from, options.has_crc()));
        let bits = 8 * directions.iter().map(|direction| direction.bytes_verified).sum::<u64>();
        let seconds = session.seconds.as_secs_f64();
        Self {
            verified: failure.is_none(),
            error: failure.map(|failure| failure.to_string()),
            gbps: rate(bits, seconds),
            seconds,
            virtual_seconds: session.virtual_time.as_secs_f64(),
            seed: options.seed,
            options: options.clone(),
            directions,
        }
    }

    pub(crate) fn text(&self) -> String {
        let bytes = self.directions.iter().map(|direction| direction.bytes_verified).sum();
        let verdict = if self.verified { "All verified" } else { "NOT VERIFIED" };
        format!(
            "{}\n{}\n{verdict}: {} in {}, {} of payload both ways together ({} on the link's clock), \
             seed {}",
            self.table(),
            self.copies(),
            figure::bytes(bytes),
            figure::seconds(self.seconds),
            bits(self.gbps),
            figure::seconds(self.virtual_seconds),
            self.seed,
        )
    }

    fn copies(&self) -> String {
        let sum = |value: fn(&Copied) -> u64| {
            figure::bytes(self.directions.iter().map(|one| value(&one.copied)).sum())
        };
        format!(
            "Senders copied {} of Read Responses, which are snapshots, {} of FPDUs that were cut, and {} \
             to compute\nCRCs in the copy; the device gathered all other payload from registered memory.\n",
            sum(|copied| copied.snapshot),
            sum(|copied| copied.kept),
            sum(|copied| copied.staged),
        )
    }

    fn table(&self) -> Table {
        let mut table = report::table(&["", "initiator → responder", "responder → initiator"]);
        let mut row = |name: &str, value: &dyn Fn(&Direction) -> String| {
            let [there, back] = &self.directions;
            report::row(&mut table, [name.to_owned(), value(there), value(back)]);
        };
        let throughput = |d: &Direction| bits(rate(8 * d.bytes_verified, self.seconds));
        row("throughput", &throughput);
        row("operations verified", &|d| report::count(d.operations_verified));
        row("segments sent", &|d| report::count(d.segments));
        row("  aligned with FPDUs", &|d| report::share(d.segments_aligned, d.segments));
        row("  arrived out of order", &|d| report::count(d.segments_out_of_order));
        row("retransmissions", &|d| report::count(d.retransmissions));
        row("frames lost by the link", &|d| report::count(d.frames_lost));
        row("FPDUs", &|d| report::count(d.fpdus));
        row("  found by marker", &|d| report::count(d.fpdus_by_marker));
        row("  CRC wrong", &|d| figure::known(d.crc_bad, report::count));
        row("bytes placed", &|d| report::count(d.bytes_placed));
        row("  out of order", &|d| report::count(d.bytes_placed_out_of_order));
        row("held for unfinished FPDUs, peak", &|d| report::count(d.bytes_held_peak));
        let mean = |d: &Direction| d.placement_ns_mean.map(|ns| ns / 1e9);
        row("arrival to placement, mean", &|d| figure::known(mean(d), figure::seconds));
        row("  longest", &|d| {
            figure::seconds(Duration::from_nanos(d.placement_ns_max).as_secs_f64())
        });
        let copies = |copies| figure::known(copies, |copies| format!("{copies:.3}"));
        row("copies per payload byte, sender", &|d| copies(d.copies_per_byte_tx));
        row("copies per payload byte, receiver", &|d| copies(d.copies_per_byte_rx));
        table
    }
}

impl Direction {
    fn of(session: &Session<'_>, from: usize, has_crc: bool) -> Self {
        let ConnectionCounters { tcp: tcp_tx, alignment, rdma_tx, .. } = session.counters(from);
        let ConnectionCounters { tcp: tcp_rx, mpa, rdma, .. } = session.counters(1 - from);
        let ImpairCounters {
            frames, dropped, duplicated, reordered, corrupted, resegmented, ..
        } = *session.wire.device(from).counters();
        let flow = &session.flows[from];
        Self {
            from: session.ends[from].name,
            bytes_verified: flow.verified_bytes(),
            operations_verified: flow.verified_operations(),
            segments: alignment.segments,
            segments_aligned: alignment.segments_aligned,
            segments_out_of_order: tcp_rx.out_of_order,
            segments_retransmitted: tcp_rx.duplicates,
            retransmissions: tcp_tx.retransmissions,
            fpdus: mpa.fpdus,
            fpdus_by_opcode: ByOpcode::of(&rdma.fpdus_by_opcode),
            messages: ByOpcode::of(&rdma.messages_by_opcode),
            crc_good: has_crc.then_some(mpa.crc_good),
            crc_bad: has_crc.then_some(mpa.crc_bad),
            markers: mpa.markers,
            marker_errors: mpa.marker_errors,
            fpdus_by_marker: mpa.fpdus_by_marker,
            fpdus_out_of_order: mpa.fpdus_out_of_order,
            bytes_placed: rdma.bytes_placed,
            bytes_placed_out_of_order: rdma.bytes_placed_out_of_order,
            bytes_held_peak: mpa.bytes_held_peak,
            placement_ns_mean: mean(mpa.held_byte_ns, rdma.bytes_placed),
            placement_ns_max: mpa.held_ns_max,
            // The engine gives the device references to registered memory, except for Read
            // Responses, which are copied once, and FPDUs that were cut.
            copies_per_byte_tx: ratio(
                rdma_tx.bytes_snapshot + rdma_tx.bytes_kept + rdma_tx.bytes_staged,
                rdma.bytes_placed,
            ),
            copies_per_byte_rx: ratio(rdma.bytes_placed + mpa.bytes_held, rdma.bytes_placed),
            copied: Copied {
                snapshot: rdma_tx.bytes_snapshot,
                kept: rdma_tx.bytes_kept,
                staged: rdma_tx.bytes_staged,
            },
            frames,
            frames_lost: dropped,
            frames_reordered: reordered,
            frames_duplicated: duplicated,
            frames_corrupted: corrupted,
            frames_resegmented: resegmented,
        }
    }
}

impl ByOpcode {
    const fn of(counts: &[u64; 16]) -> Self {
        let &[
            rdma_write,
            read_request,
            read_response,
            send,
            send_invalidate,
            send_se,
            send_se_invalidate,
            terminate,
            immediate,
            immediate_se,
            atomic_request,
            atomic_response,
            ..,
        ] = counts;
        Self {
            rdma_write,
            read_request,
            read_response,
            send,
            send_invalidate,
            send_se,
            send_se_invalidate,
            terminate,
            immediate,
            immediate_se,
            atomic_request,
            atomic_response,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a time, shown with three digits")]
fn mean(byte_ns: u128, bytes: u64) -> Option<f64> {
    (bytes > 0).then(|| byte_ns as f64 / bytes as f64)
}

#[expect(clippy::cast_precision_loss, reason = "a ratio, shown with three decimals")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Returns 10⁹ bits per second; `None` without time.
#[expect(clippy::cast_precision_loss, reason = "a rate, shown with three digits")]
fn rate(bits: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| bits as f64 / seconds / 1e9)
}

fn bits(gbps: Option<f64>) -> String {
    figure::known(gbps, |gbps| figure::bits_per_second(gbps * 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_without_a_whole_are_not_zero() {
        assert_eq!((mean(30, 0), ratio(3, 0), rate(8, 0.0)), (None, None, None));
        assert_eq!((mean(30, 4), ratio(3, 4)), (Some(7.5), Some(0.75)));
        assert_eq!(rate(3_000_000_000, 1.5), Some(2.0));
        assert_eq!((bits(None), bits(Some(0.0467))), ("–".into(), "46.7 Mbit/s".into()));
    }
}
