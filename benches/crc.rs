//! CRC32c of runs with the lengths of payloads: every kernel of this processor against two crates
//! over slices, alone and with a copy.
//!
//! `cargo bench --bench crc` runs the criterion groups. `cargo bench --bench crc -- --ratios` runs
//! all in alternating rounds, so that a change of the machine's speed affects all. It prints
//! medians and the fastest rounds, relative to the `crc32c` crate; for copies, relative to the
//! digest alone.
#![expect(clippy::print_stdout, reason = "the report is the purpose")]

use std::hint::black_box;
use std::time::Duration;

use crc_fast::CrcAlgorithm;
use criterion::measurement::{Measurement, WallTime};
use criterion::{Criterion, Throughput, criterion_group};
use urnic_engine::mem::SharedSlice;
use urnic_engine::mem::digest::Kernel;

const LENGTHS: [usize; 7] = [16, 64, 128, 508, 1440, 8940, 65_536];
/// Offset of the payload in a frame: after 14 + 20 + 32 + 2 + 14 bytes of headers, so unaligned.
const HEADERS_LEN: usize = 82;

/// A function that reads all bytes of a run.
type Work<'a> = Box<dyn FnMut() -> u32 + 'a>;

/// The crate that all others are compared with comes first.
fn digests(bytes: &[u8]) -> Vec<(String, Work<'_>)> {
    let crate_crc32c = || crc32c::crc32c(black_box(bytes));
    #[expect(clippy::cast_possible_truncation, reason = "a CRC of 32 bits")]
    let crate_crc_fast = || crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, black_box(bytes)) as u32;
    let mut all: Vec<(String, Work<'_>)> = vec![
        ("crc32c crate".into(), Box::new(crate_crc32c)),
        ("crc-fast crate".into(), Box::new(crate_crc_fast)),
    ];
    let shared = SharedSlice::from_bytes(bytes);
    for kernel in Kernel::available() {
        let append = move || kernel.append(u32::MAX, black_box(shared));
        all.push((format!("kernel: {}", kernel.name()), Box::new(append)));
    }
    all
}

/// The chosen kernel's digest, the digest with a copy, and the copy followed by the digest.
fn copies<'a>(bytes: &'a [u8], [once, twice]: [&'a mut [u8]; 2]) -> Vec<(String, Work<'a>)> {
    let (shared, kernel) = (SharedSlice::from_bytes(bytes), Kernel::chosen());
    let digest = move || kernel.append(u32::MAX, black_box(shared));
    let one_pass = move || kernel.copy(u32::MAX, black_box(shared), black_box(&mut *once));
    let two_passes = move || {
        shared.copy_out(0, black_box(&mut *twice));
        kernel.append(u32::MAX, black_box(shared))
    };
    vec![
        ("digest".into(), Box::new(digest)),
        ("copy and digest".into(), Box::new(one_pass)),
        ("copy, then digest".into(), Box::new(two_passes)),
    ]
}

fn crc(c: &mut Criterion) {
    for len in LENGTHS {
        let frame = vec![0xA5; HEADERS_LEN + len];
        let (mut once, mut twice) = (vec![0; len], vec![0; len]);
        let bytes = &frame[HEADERS_LEN..];
        let groups = [("crc", digests(bytes)), ("copy", copies(bytes, [&mut once, &mut twice]))];
        for (name, cases) in groups {
            let mut group = c.benchmark_group(format!("{name}/{len}"));
            group.throughput(Throughput::Bytes(len as u64));
            for (name, mut work) in cases {
                group.bench_function(name, |b| b.iter(&mut work));
            }
            group.finish();
        }
    }
}

/// Rounds of each case (`ROUNDS`), and the duration of a case in a round (`ROUND`).
const ROUNDS: usize = 101;
const ROUND: Duration = Duration::from_micros(300);

fn ratios() {
    for len in LENGTHS {
        let frame: Vec<u8> = (0..=255).cycle().take(HEADERS_LEN + len).collect();
        let (mut once, mut twice) = (vec![0; len], vec![0; len]);
        let bytes = &frame[HEADERS_LEN..];
        println!("{len} bytes{:37} {:>17} {:>19}", "", "median", "fastest round");
        print(len, &times(digests(bytes), len), "crc32c crate's time");
        print(len, &times(copies(bytes, [&mut once, &mut twice]), len), "the digest's time");
    }
}

/// One line for each; ratios are relative to the first.
fn print(len: usize, times: &[Time], yardstick: &str) {
    for Time { name, median, fastest } in times {
        println!(
            "  {name:<32} {median:9.1} ns {:6.1} GiB/s {fastest:9.1} ns {:6.1} GiB/s  {:.2}, {:.2} of {yardstick}",
            rate(len, *median),
            rate(len, *fastest),
            median / times[0].median,
            fastest / times[0].fastest,
        );
    }
}

/// Time of a case in nanoseconds: the median of its rounds, and the fastest round, which other
/// programs on the machine disturb least.
struct Time {
    name: String,
    median: f64,
    fastest: f64,
}

/// Times of alternating rounds.
fn times(mut cases: Vec<(String, Work<'_>)>, len: usize) -> Vec<Time> {
    let clock = WallTime;
    let mut times = vec![Vec::new(); cases.len()];
    let batch = (1 << 16) / len.max(64);
    for _ in 0..ROUNDS {
        for ((_, work), times) in cases.iter_mut().zip(&mut times) {
            let (start, mut calls) = (clock.start(), 0_u32);
            let elapsed = loop {
                for _ in 0..batch {
                    black_box(work());
                    calls += 1;
                }
                let elapsed = clock.end(start);
                if elapsed >= ROUND {
                    break elapsed;
                }
            };
            times.push(elapsed.as_secs_f64() * 1e9 / f64::from(calls));
        }
    }
    let time = |((name, _), mut times): ((String, _), Vec<f64>)| {
        times.sort_by(f64::total_cmp);
        Time { name, median: times[times.len() / 2], fastest: times[0] }
    };
    cases.into_iter().zip(times).map(time).collect()
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn rate(len: usize, ns: f64) -> f64 {
    len as f64 / ns / 1.073_741_824
}

criterion_group!(benches, crc);

fn main() {
    if std::env::args().any(|argument| argument == "--ratios") {
        return ratios();
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
