//! The whole stack in one thread: RDMA Writes between two ports on a memory link, next to smoltcp's
//! TCP sockets moving the same octets over an equal link.
//!
//! `cargo bench --bench pair` runs the criterion group. `cargo bench --bench pair -- --ratios [NAME]`
//! runs both sides in alternating rounds, so that a change of the machine's speed meets both, and
//! prints medians and their ratios.
//!
//! `-- --count NAME` moves a fixed number of messages of urnic's case NAME and nothing else: with
//! `valgrind --tool=callgrind --toggle-collect='*counted*'` before it, the instructions of a steady
//! transfer, by function, which no load of the machine changes.

mod case;
mod ratios;
mod rdma;
mod sockets;

use criterion::{Criterion, Throughput, criterion_group};

use case::{MESSAGE_LEN, RDMA, SOCKETS};

/// Messages per criterion iteration.
const MESSAGES: u64 = 16;
/// Messages that `--count` moves first, and those it counts.
const WARM: u64 = 256;
const COUNTED: u64 = 1024;

fn pair(c: &mut Criterion) {
    let mut group = c.benchmark_group("pair");
    group.throughput(Throughput::Bytes(MESSAGES * MESSAGE_LEN as u64));
    for case in RDMA {
        let mut pair = None;
        group.bench_function(format!("urnic/{}", case.name), |b| {
            let pair = pair.get_or_insert_with(|| rdma::Pair::connect(case));
            b.iter(|| pair.advance(MESSAGES));
        });
    }
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

/// What `--count` counts: messages after the connection and its slow start.
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

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.find(|argument| ["--ratios", "--count"].contains(&argument.as_str()));
    let wanted = arguments.find(|argument| !argument.starts_with("--")).unwrap_or_default();
    match mode.as_deref() {
        Some("--ratios") => return ratios::run(&wanted),
        Some(_) => return count(&wanted),
        None => {}
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
