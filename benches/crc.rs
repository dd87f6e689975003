//! CRC32c of runs as long as payloads are: the digest over registered memory against two crates
//! over slices.

use std::hint::black_box;

use crc_fast::CrcAlgorithm;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use urnic_engine::mem::SharedSlice;

const LENGTHS: [usize; 7] = [16, 64, 128, 508, 1440, 8940, 65_536];

fn crc(c: &mut Criterion) {
    for len in LENGTHS {
        let bytes = vec![0xA5; len];
        let shared = SharedSlice::from_bytes(&bytes);
        let mut group = c.benchmark_group(format!("crc/{len}"));
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function("crc32c crate", |b| b.iter(|| crc32c::crc32c(black_box(&bytes))));
        group.bench_function("crc-fast crate", |b| {
            b.iter(|| crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, black_box(&bytes)));
        });
        group.bench_function("shared", |b| b.iter(|| black_box(shared).digest(u32::MAX)));
        group.finish();
    }
}

criterion_group!(benches, crc);
criterion_main!(benches);
