//! Instructions per segment of each urnic case, or per message where messages are smaller than a
//! segment, counted by callgrind, against a table beside this file. Unlike times, a count does not
//! depend on the load of the machine.
//!
//! Both ends and the link are counted, acknowledgments included. Under valgrind a processor has
//! AVX2 and PCLMULQDQ, but neither VPCLMULQDQ nor AVX-512, whatever the real processor has: so the
//! digest's 128-bit kernel is counted.
#![expect(clippy::print_stdout, reason = "the report is the purpose")]

use std::process::{Command, ExitCode};
use std::{env, fs};

use urnic_testkit::{programs, skip};

use crate::case::{self, RDMA};

/// Allowed difference between a count and the table, in percent.
const TOLERANCE_PERCENT: u64 = 3;
/// The table: a case and its instructions per segment on each line, and lines with `#` as comments.
const TABLE: &str = include_str!("instructions.txt");
const TABLE_PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/pair/instructions.txt");
/// Bytes of a segment without payload: IPv4 and TCP headers with timestamps, and the overhead of an
/// FPDU.
const HEADERS_LEN: usize = 20 + 32 + 20;

/// Counts the cases whose names contain `wanted` and prints them beside the table. Rewrites the
/// table or compares with it.
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

/// Instructions per segment of this case: those of a message, divided by its full segments, or by 1
/// if it fills none.
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
    let segments = case.message_len.div_ceil(case.link.mtu - HEADERS_LEN) as u64;
    collected / (crate::COUNTED * segments)
}

/// A line of the table.
fn row(case: &case::Rdma, count: u64) -> String {
    format!("{:<28} {count}\n", case.name)
}

/// The table's count for a case.
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
