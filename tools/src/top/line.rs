//! Output of one interval: as JSON, and as text.

use std::net::SocketAddr;

use serde::Serialize;
use urnic::Figures;
use urnic::top::Process;

use super::flow::{COLUMNS, Flow};
use super::reports::{DeviceFigures, EndpointReport, known};
use crate::{figure, report};

#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) seconds: f64,
    pub(super) endpoints: Vec<EndpointLine>,
    pub(super) unanswered: Vec<Unanswered>,
}

#[derive(Debug, Serialize)]
pub(super) struct EndpointLine {
    pid: u32,
    endpoint: u32,
    command: String,
    shown_seconds: f64,
    is_new: bool,
    connections: u64,
    connections_open: u64,
    connections_rejected: u64,
    connections_untold: u64,
    #[serde(flatten)]
    flow: Flow,
    #[serde(serialize_with = "known")]
    total: Figures,
    device: DeviceFigures,
    open: Vec<ConnectionLine>,
}

#[derive(Debug, Serialize)]
struct ConnectionLine {
    number: u64,
    remote: SocketAddr,
    #[serde(flatten)]
    flow: Flow,
    #[serde(serialize_with = "known")]
    total: Figures,
}

#[derive(Debug, Serialize)]
pub(super) struct Unanswered {
    pub(super) pid: u32,
    pub(super) endpoint: u32,
    pub(super) reason: String,
}

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn seconds_of(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

impl EndpointLine {
    /// Differences between an endpoint's answers `now` and `before`; without the latter, since it
    /// was opened with `--top`.
    pub(super) fn of(
        process: &Process,
        command: String,
        before: Option<&EndpointReport>,
        now: &EndpointReport,
    ) -> Self {
        Self::new(process.pid, process.endpoint, command, before, now)
    }

    fn new(
        pid: u32,
        endpoint: u32,
        command: String,
        before: Option<&EndpointReport>,
        now: &EndpointReport,
    ) -> Self {
        let since_ns = before.map_or(0, |before| before.shown_ns);
        let time_ns = now.shown_ns.saturating_sub(since_ns);
        let begin = Figures::default();
        let total_before = before.map_or(&begin, |before| &before.total);
        // Both lists are sorted by number.
        let of_before = |number: u64| {
            let open = &before?.open;
            open.binary_search_by_key(&number, |one| one.number).ok().map(|at| &open[at].figures)
        };
        let mut open: Vec<_> = now
            .open
            .iter()
            .map(|one| ConnectionLine {
                number: one.number,
                remote: one.remote,
                flow: Flow::between(of_before(one.number).unwrap_or(&begin), &one.figures, time_ns),
                total: one.figures,
            })
            .collect();
        // The busiest first.
        open.sort_by(|a, b| b.flow.bits_per_second().total_cmp(&a.flow.bits_per_second()));
        Self {
            pid,
            endpoint,
            command,
            shown_seconds: seconds_of(now.shown_ns),
            is_new: now.is_new,
            connections: now.connections,
            connections_open: now.connections_open,
            connections_rejected: now.connections_rejected,
            connections_untold: now.connections_untold,
            flow: Flow::between(total_before, &now.total, time_ns),
            total: now.total,
            device: now.device,
            open,
        }
    }

    fn text(&self, seconds: f64, rows: usize) -> String {
        let number = match self.endpoint {
            0 => format!("{}", self.pid),
            more => format!("{}.{more}", self.pid),
        };
        let mut text = format!(
            "{seconds:6.0} s  {number} {}  {} of {} connections open",
            self.command, self.connections_open, self.connections
        );
        for (name, cell) in COLUMNS.into_iter().zip(self.flow.cells()) {
            text.push_str(&format!("  {name} {cell}"));
        }
        for (name, count) in [
            ("rejected", self.connections_rejected),
            ("accesses refused", self.total.accesses_refused),
            ("peers refused", self.device.peers_refused),
            ("regions refused", self.device.regions_refused),
            ("frames refused", self.device.frames_refused),
            ("sessions ended", self.device.sessions_ended),
        ] {
            if count > 0 {
                text.push_str(&format!("  {name} {count}"));
            }
        }
        if !self.is_new {
            text.push_str("  (busy with something else: previous values)");
        }
        let shown = rows.min(self.open.len());
        if shown == 0 {
            return text;
        }
        let [a, b, c, d, e, f] = COLUMNS;
        let mut table = report::table(&["peer", a, b, c, d, e, f]);
        for one in &self.open[..shown] {
            let [a, b, c, d, e, f] = one.flow.cells();
            report::row(&mut table, [one.remote.to_string(), a, b, c, d, e, f]);
        }
        text.push_str(&format!("\n{table}"));
        let more = self.connections_open.saturating_sub(shown as u64);
        if more > 0 {
            text.push_str(&format!("\n{}", figure::counted(more, "more connection")));
        }
        text
    }
}

impl Line {
    /// Shows up to `rows` connections of each endpoint.
    pub(super) fn text(&self, rows: usize) -> String {
        let seconds = self.seconds;
        let mut lines: Vec<_> = self.endpoints.iter().map(|one| one.text(seconds, rows)).collect();
        lines.extend(self.unanswered.iter().map(|one| {
            let Unanswered { pid, endpoint, reason } = one;
            format!("{seconds:6.0} s  {pid}.{endpoint}  {reason}")
        }));
        if lines.is_empty() {
            lines.push(format!("{seconds:6.0} s  no endpoint is shown now"));
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::super::reports::ConnectionReport;
    use super::*;
    use crate::figures_page;

    #[test]
    fn each_figure_of_an_endpoint_has_a_definition() {
        let device = DeviceFigures {
            peers_refused: 1,
            regions_refused: 2,
            frames_refused: 3,
            sessions_ended: 4,
        };
        let total = Figures { accesses_refused: 5, ..Figures::default() };
        let reports = EndpointReport {
            shown_ns: 1,
            is_new: true,
            connections: 0,
            connections_open: 3,
            connections_rejected: 6,
            connections_untold: 0,
            total,
            device,
            open: vec![ConnectionReport {
                number: 1,
                remote: SocketAddr::from(([10, 0, 0, 1], 7174)),
                figures: Figures::default(),
            }],
        };
        let line = EndpointLine::new(7, 0, String::new(), None, &reports).text(2.0, 1);
        let (first, table) = line.split_once('\n').unwrap();
        // The number of the process and its name are no figures.
        let first = first.replace("  7 ", "");
        let more = table.lines().last().unwrap();
        let labels = figures_page::fields(&first).into_iter().chain(figures_page::sentences(more));
        figures_page::compare("top", labels);
        for (name, count) in [
            ("peers refused", 1),
            ("regions refused", 2),
            ("frames refused", 3),
            ("sessions ended", 4),
            ("accesses refused", 5),
            ("rejected", 6),
        ] {
            let figure = format!("{name} {count}");
            assert!(figures_page::has_words(&line, &figure), "{name}: {line}");
        }
    }

    #[test]
    fn the_busiest_connection_is_first_with_what_came_since() {
        let reports = |shown_ns, bytes: [u64; 3]| {
            let open = (0..).zip(bytes).map(|(number, bytes_sent)| ConnectionReport {
                number,
                remote: SocketAddr::from(([10, 0, 0, 1], 7174)),
                figures: Figures { bytes_sent, ..Figures::default() },
            });
            let total = Figures { bytes_sent: bytes.iter().sum(), ..Figures::default() };
            let (is_new, connections, connections_open, connections_untold) = (true, 5, 3, 0);
            let open = open.collect();
            EndpointReport {
                shown_ns,
                is_new,
                connections,
                connections_open,
                connections_rejected: 0,
                connections_untold,
                total,
                device: DeviceFigures::default(),
                open,
            }
        };
        let (before, now) =
            (reports(1_000_000_000, [9_000, 0, 50]), reports(3_000_000_000, [9_250, 750, 550]));
        let line = EndpointLine::new(7, 0, "urnic serve".into(), Some(&before), &now);
        let numbers: Vec<_> = line.open.iter().map(|one| one.number).collect();
        assert_eq!(numbers, [1, 2, 0], "by 750, 500 and 250 bytes");
        let rates: Vec<_> = line.open.iter().map(|one| one.flow.bits_per_second_out).collect();
        assert_eq!(rates, [Some(3000.0), Some(2000.0), Some(1000.0)], "in two seconds");
        assert_eq!((line.flow.bits_per_second_out, line.shown_seconds), (Some(6000.0), 3.0));
        let text = line.text(12.0, 2);
        assert!(
            text.contains("7 urnic serve  3 of 5 connections open  in 0 bit/s  out 6.00 kbit/s"),
            "{text}"
        );
        assert!(text.ends_with("1 more connection"), "{text}");
        assert!(!text.contains("refused") && !text.contains("ended"), "only what there is: {text}");
        let device = DeviceFigures { regions_refused: 2, ..DeviceFigures::default() };
        let refusing = EndpointReport { device, ..now.clone() };
        let text = EndpointLine::new(7, 0, String::new(), None, &refusing).text(0.0, 0);
        assert!(text.ends_with("  regions refused 2"), "{text}");
        let first = EndpointLine::new(7, 0, String::new(), None, &now);
        assert_eq!(first.flow.bits_per_second_out, Some(10_550.0 * 8.0 / 3.0), "since it is shown");
    }
}
