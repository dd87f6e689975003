//! The whole stack in one thread: RDMA Writes between two ports on a memory link, next to smoltcp's
//! TCP sockets moving the same bytes over an equal link.
//!
//! `cargo bench --bench pair` runs the criterion group. `cargo bench --bench pair -- --ratios [NAME]`
//! runs both sides in alternating rounds, so that a change of the machine's speed meets both, and
//! prints medians and their ratios.
//!
//! `-- --count NAME` moves a fixed number of messages of urnic's case NAME and nothing else. With
//! `valgrind --tool=callgrind --toggle-collect='*counted*'` before it, it counts the instructions
//! of a steady transfer by function, independent of the machine's load. `-- --instructions [NAME]`
//! does that for all cases and prints the instructions per segment beside those in
//! `instructions.txt`. With `--check` it fails if they differ, with `--write` it rewrites the file.

mod case;
mod instructions;
mod ratios;
mod rdma;
mod sockets;

use std::process::ExitCode;

use criterion::{Criterion, Throughput, criterion_group};

use case::{MESSAGE_LEN, RDMA, SOCKETS};

/// Messages per criterion iteration.
const MESSAGES: u64 = 16;
/// Messages that `--count` moves first, and messages that it counts.
const WARM: u64 = 128;
const COUNTED: u64 = 256;

fn pair(c: &mut Criterion) {
    let mut group = c.benchmark_group("pair");
    for case in RDMA {
        group.throughput(Throughput::Bytes(MESSAGES * case.message_len as u64));
        let mut pair = None;
        group.bench_function(format!("urnic/{}", case.name), |b| {
            let pair = pair.get_or_insert_with(|| rdma::Pair::connect(case));
            b.iter(|| pair.advance(MESSAGES));
        });
    }
    group.throughput(Throughput::Bytes(MESSAGES * MESSAGE_LEN as u64));
    for case in SOCKETS {
        let mut pair = None;
        group.bench_function(format!("smoltcp/{}", case.name), |b| {
            let pair = pair.get_or_insert_with(|| sockets::Pair::connect(case));
            b.iter(|| pair.advance(MESSAGES));
        });
    }
    group.finish();
}

criterion_group!(benches, pair);

/// The messages that `--count` counts, after the connection's setup and slow start.
#[inline(never)]
fn counted(pair: &mut rdma::Pair) {
    pair.advance(COUNTED);
}

fn count(name: &str) {
    let case = RDMA.iter().find(|case| case.name == name).expect("the name of a case");
    let mut pair = rdma::Pair::connect(case);
    pair.advance(WARM);
    counted(&mut pair);
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |option: &str| arguments.iter().any(|argument| argument == option);
    let wanted = arguments.iter().find(|argument| !argument.starts_with("--"));
    let wanted = wanted.map(String::as_str).unwrap_or_default();
    if has("--instructions") {
        return instructions::run(wanted, has("--write"), has("--check"));
    } else if has("--ratios") {
        ratios::run(wanted);
    } else if has("--count") {
        count(wanted);
    } else {
        benches();
        Criterion::default().configure_from_args().final_summary();
    }
    ExitCode::SUCCESS
}
