//! Prints the findings about each capture file named on the command line.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::fs::File;

use urnic_replay::replay;

fn main() {
    for path in std::env::args().skip(1) {
        let report = replay(&path, || File::open(&path));
        println!("{path}: {} frames, {} connections", report.frames, report.connections.len());
        for connection in &report.connections {
            for finding in &connection.findings {
                println!("  {}", finding.text);
            }
        }
    }
}
