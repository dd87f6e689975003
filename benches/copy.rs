//! Cost of a copy into and out of registered memory, compared with `memcpy`, and the additional
//! cost of finding the memory by its steering tag.
//!
//! 508 bytes is a run between two markers; 1440 and 8940 are the payloads of full segments.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use urnic_engine::mem::{Access, Region, RegionTable, Registration, Scope, SharedSlice};
use urnic_engine::types::{PdNum, QpNum, Stag, TaggedOffset};

const PD: PdNum = PdNum(1);
const QP: QpNum = QpNum(1);
const LENGTHS: [usize; 6] = [16, 64, 508, 1440, 8940, 65_536];
/// Offset of the payload in a frame: after 14 + 20 + 32 + 2 + 14 bytes of headers, so unaligned.
const HEADERS_LEN: usize = 82;

fn copy(c: &mut Criterion) {
    for len in LENGTHS {
        let frame = vec![0xA5; HEADERS_LEN + len];
        let payload = &frame[HEADERS_LEN..];
        let mut private = vec![0; len];
        let (table, stag) = registered(len, 1);
        let guard = table.read();
        let grant = guard.check(stag, TaggedOffset(0), len, Access::REMOTE_WRITE, PD, QP);
        let grant = grant.expect("the range was just registered");

        let mut group = c.benchmark_group(format!("copy/{len}"));
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function("memcpy", |b| {
            b.iter(|| black_box(&mut private[..]).copy_from_slice(black_box(payload)));
        });
        let payload = SharedSlice::from_bytes(payload);
        group.bench_function("place", |b| b.iter(|| black_box(grant).place(0, black_box(payload))));
        group.bench_function("copy_out", |b| {
            b.iter(|| grant.slice().copy_out(0, black_box(&mut private[..])));
        });
        group.finish();
    }
}

fn check(c: &mut Criterion) {
    let mut group = c.benchmark_group("check");
    for count in [1, 1000, 100_000] {
        let (table, stag) = registered(4096, count);
        let guard = table.read();
        group.bench_function(format!("{count} registrations"), |b| {
            b.iter(|| {
                let (stag, to) = (black_box(stag), black_box(TaggedOffset(64)));
                guard.check(stag, to, 1024, Access::REMOTE_WRITE, PD, QP).map(|grant| grant.len())
            });
        });
    }
    let (table, stag) = registered(4096, 1000);
    group.bench_function("1000 registrations, with the guard", |b| {
        b.iter(|| {
            let (stag, to) = (black_box(stag), black_box(TaggedOffset(64)));
            let guard = table.read();
            guard.check(stag, to, 1024, Access::REMOTE_WRITE, PD, QP).map(|grant| grant.len())
        });
    });
    group.finish();
}

/// A table with `count` registrations of one region, and the steering tag of the last one.
fn registered(len: usize, count: usize) -> (RegionTable, Stag) {
    let table = RegionTable::new([1; 32]);
    let registration = Registration {
        region: Region::anonymous(len).expect("memory for the bench"),
        offset: 0,
        len,
        base: TaggedOffset(0),
        access: Access::REMOTE_WRITE,
        pd: PD,
        scope: Scope::Pd,
    };
    let stag = (0..count)
        .map(|_| table.register(registration.clone()).expect("a legal registration"))
        .last()
        .expect("at least one registration");
    (table, stag)
}

criterion_group!(benches, copy, check);
criterion_main!(benches);
