//! Instructions that each case of urnic takes for a segment, counted by callgrind, against a table that
//! is kept beside this file: a count does not move with the load of the machine, as times do.
//!
//! Both ends and the link are counted, acknowledgments included. Under valgrind a processor has AVX2 and
//! PCLMULQDQ, but neither VPCLMULQDQ nor AVX-512, whatever it has in truth: the digest is counted as its
//! 128-bit kernel.
#![expect(clippy::print_stdout, reason = "the report is the purpose")]

use std::process::{Command, ExitCode};
use std::{env, fs};

use urnic_testkit::{programs, skip};

use crate::case::{self, MESSAGE_LEN, RDMA};

/// What a count may differ from the table's, in percent.
const TOLERANCE_PERCENT: u64 = 3;
/// The table: a case and its instructions for a segment on each line, lines with `#` in between.
const TABLE: &str = include_str!("instructions.txt");
const TABLE_PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/pair/instructions.txt");
/// Bytes of a segment that are no payload: IPv4 and TCP headers with timestamps, and what an FPDU adds.
const HEADERS_LEN: usize = 20 + 32 + 20;

/// Counts the cases whose names have a part `wanted`, prints them beside the table, and writes the table
/// anew or holds them against it.
pub(crate) fn run(wanted: &str, write: bool, check: bool) -> ExitCode {
    if let Some(reason) = programs::missing(["valgrind"]) {
        skip("instructions for a segment", &reason);
        return ExitCode::SUCCESS;
    }
    println!("{:<28} {:>12} {:>7}", "instructions for a segment", "now", "table");
    let mut table = head();
    let mut astray = Vec::new();
    for case in RDMA {
        let kept = kept(case.name);
        if !case.name.contains(wanted) {
            table.extend(kept.map(|kept| row(case, kept)));
            continue;
        }
        let now = count(case);
        let shown = kept.map_or_else(|| "none".to_owned(), |kept| kept.to_string());
        let far = kept.is_none_or(|kept| now.abs_diff(kept) * 100 > kept * TOLERANCE_PERCENT);
        println!("{:<28} {now:>12} {shown:>7}{}", case.name, if far { "  <" } else { "" });
        table += &row(case, now);
        if far {
            astray.push(case.name);
        }
    }
    if write {
        fs::write(TABLE_PATH, table).expect("the table is written beside this file");
    } else if check && !astray.is_empty() {
        println!(
            "more than {TOLERANCE_PERCENT} % off the table: {}. If that is meant, write the table anew: \
             cargo bench -p urnic-engine --bench pair -- --instructions --write",
            astray.join("; ")
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Instructions that a segment of this case takes: what a message takes, by its full segments.
fn count(case: &case::Rdma) -> u64 {
    let program = env::current_exe().expect("this program has a path");
    let report = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*counted*")
        .arg(program)
        .args(["--count", case.name])
        .output()
        .expect("valgrind starts");
    let text = String::from_utf8_lossy(&report.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    let collected = collected.and_then(|(_, count)| count.trim().parse::<u64>().ok());
    let Some(collected) = collected.filter(|_| report.status.success()) else {
        panic!("callgrind counted nothing of {}:\n{text}", case.name);
    };
    let segments = MESSAGE_LEN.div_ceil(case.link.mtu - HEADERS_LEN) as u64;
    collected / (crate::COUNTED * segments)
}

/// A line of the table.
fn row(case: &case::Rdma, count: u64) -> String {
    format!("{:<28} {count}\n", case.name)
}

/// What the table says of a case.
fn kept(name: &str) -> Option<u64> {
    TABLE.lines().find_map(|line| {
        let (case, count) = line.rsplit_once(' ')?;
        if case.trim_end() == name { count.parse().ok() } else { None }
    })
}

/// The lines of the table ahead of the first case.
fn head() -> String {
    TABLE
        .lines()
        .take_while(|line| line.starts_with('#'))
        .fold(String::new(), |head, line| head + line + "\n")
}
