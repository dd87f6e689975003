//! The whole stack in one thread: RDMA Writes between two ports on a memory link, next to smoltcp's
//! TCP sockets moving the same octets over an equal link.
//!
//! `cargo bench --bench pair` runs the criterion group. `cargo bench --bench pair -- --ratios [NAME]`
//! runs both sides in alternating rounds, so that a change of the machine's speed meets both, and
//! prints medians and their ratios.

mod case;
#[path = "../common/ingress.rs"]
mod ingress;
mod ratios;
mod rdma;
mod sockets;

use criterion::{Criterion, Throughput, criterion_group};

use case::{MESSAGE_LEN, RDMA, SOCKETS};

/// Messages per criterion iteration.
const MESSAGES: u64 = 16;

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

fn main() {
    let mut arguments = std::env::args();
    if arguments.any(|argument| argument == "--ratios") {
        let wanted = arguments.find(|argument| !argument.starts_with("--"));
        ratios::run(&wanted.unwrap_or_default());
        return;
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
