//! Generated captures: each rule has one that breaks it.

mod build;
mod extensions;
mod findings;
mod live;
mod places;
mod reports;
mod robust;
mod segments;
mod streams;

use super::report::{ConnectionReport, FileReport, Severity};
use build::{INITIATOR, RESPONDER, Talk, read_request, read_response, send, terminate, write};

/// Replays a complete capture.
fn replay(capture: &[u8]) -> FileReport {
    let report = super::replay("test", || Ok(capture));
    assert_eq!(report.error, None);
    report
}

/// Returns the only connection of a capture.
fn connection(capture: &[u8]) -> ConnectionReport {
    let mut report = replay(capture);
    assert_eq!(report.connections.len(), 1, "{:?}", report.connections);
    report.connections.remove(0)
}

/// Returns severity and rule of each finding.
fn rules(connection: &ConnectionReport) -> Vec<(Severity, &'static str)> {
    connection.findings.iter().map(|finding| (finding.severity, finding.rule)).collect()
}
