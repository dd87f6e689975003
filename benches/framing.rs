//! MPA framing and reception, without and with markers.
//!
//! `rx` runs with CRC off for the cost of finding, checking and passing up an FPDU alone, and with
//! CRC on for the total.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use urnic_engine::mpa::marker::{CRC_LEN, MarkerGrid};
use urnic_engine::mpa::pieces::PieceStore;
use urnic_engine::mpa::rx::{FpduReceiver, FpduSink, HEAD_LEN, RxConfig, Ulpdu};
use urnic_engine::mpa::tx::{Fpdu, RunSink};
use urnic_engine::time::Instant;
use urnic_engine::types::StreamOffset;
use urnic_engine::wire::crc32c::Crc32c;

/// FPDUs per segment, as in a super-frame.
const BATCH: usize = 44;

/// Reads the header as DDP would, and remembers as much as RDMAP would.
struct Upper;

impl FpduSink for Upper {
    type Token = [u64; 6];
    type Error = ();

    #[inline]
    fn place(&mut self, ulpdu: &Ulpdu<'_>, at: StreamOffset) -> Result<[u64; 6], ()> {
        let mut scratch = [0; HEAD_LEN];
        let head = black_box(ulpdu.head(&mut scratch));
        for chunk in ulpdu.chunks(14) {
            black_box(chunk);
        }
        Ok([at.0, u64::from(head[0]), 0, 0, 0, 0])
    }

    #[inline]
    fn deliver(&mut self, token: [u64; 6]) -> Result<(), ()> {
        black_box(&token);
        Ok(())
    }
}

struct Wire(Vec<u8>, Crc32c);

impl RunSink for Wire {
    fn inline(&mut self, octets: &[u8]) {
        self.1.update(octets);
        self.0.extend_from_slice(octets);
    }
    fn payload(&mut self, _: usize, len: usize) {
        self.inline(&vec![7; len]);
    }
    fn crc(&mut self) {
        self.0.extend_from_slice(&self.1.finish().to_le_bytes());
    }
}

/// A segment of whole FPDUs from the start of a stream.
fn segment(grid: MarkerGrid, ulpdu_len: usize, count: usize) -> Vec<u8> {
    let mut octets = Vec::new();
    for _ in 0..count {
        let start = StreamOffset(octets.len() as u64);
        let mut wire = Wire(Vec::new(), Crc32c::new());
        Fpdu::new(grid, start, &[3; 14], ulpdu_len - 14).emit(&mut wire);
        octets.extend_from_slice(&wire.0);
    }
    octets
}

fn receive(c: &mut Criterion) {
    let mut group = c.benchmark_group("rx");
    for (name, markers, crc, ulpdu_len) in [
        ("plain/1442", false, false, 1442),
        ("plain/64", false, false, 64),
        ("markers/1430", true, false, 1430),
        ("crc/1442", false, true, 1442),
        ("crc+markers/1430", true, true, 1430),
    ] {
        let grid = MarkerGrid::new(StreamOffset(0), markers);
        let octets = segment(grid, ulpdu_len, BATCH);
        let config = RxConfig { markers, crc, ..RxConfig::default() };
        let mut store = PieceStore::default();
        group.throughput(Throughput::Bytes(octets.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                let mut receiver = FpduReceiver::new(config, StreamOffset(0));
                let taken = receiver.handle_bytes(
                    Instant::ZERO,
                    StreamOffset(0),
                    &octets,
                    &mut store,
                    &mut Upper,
                );
                assert!(black_box(taken).error.is_none());
            });
        });
    }
    group.finish();
}

/// Segments of 1448 bytes that each carry the end of one FPDU and most of the next.
fn receive_unaligned(c: &mut Criterion) {
    let mut group = c.benchmark_group("rx unaligned");
    for (name, markers) in [("plain", false), ("markers", true)] {
        let octets = segment(MarkerGrid::new(StreamOffset(0), markers), 1430, BATCH);
        let config = RxConfig { markers, crc: false, ..RxConfig::default() };
        let mut store = PieceStore::default();
        group.throughput(Throughput::Bytes(octets.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut receiver = FpduReceiver::new(config, StreamOffset(0));
                let mut at = StreamOffset(0);
                for bytes in octets.chunks(1000) {
                    let taken =
                        receiver.handle_bytes(Instant::ZERO, at, bytes, &mut store, &mut Upper);
                    at = taken.end;
                }
                assert_eq!(receiver.counters().fpdus, BATCH as u64);
            });
        });
    }
    group.finish();
}

/// Counts the bytes given to it.
struct Count(usize);

impl RunSink for Count {
    #[inline]
    fn inline(&mut self, octets: &[u8]) {
        self.0 += black_box(octets).len();
    }
    #[inline]
    fn payload(&mut self, offset: usize, len: usize) {
        self.0 += black_box((offset, len)).1;
    }
    #[inline]
    fn crc(&mut self) {
        self.0 += CRC_LEN;
    }
}

fn transmit(c: &mut Criterion) {
    let mut group = c.benchmark_group("tx");
    for (name, markers, payload_len) in
        [("plain/1428", false, 1428), ("markers/1416", true, 1416), ("markers/8868", true, 8868)]
    {
        let grid = MarkerGrid::new(StreamOffset(0), markers);
        group.throughput(Throughput::Bytes(payload_len as u64));
        group.bench_function(name, |b| {
            let mut at = StreamOffset(0);
            b.iter(|| {
                let fpdu = Fpdu::new(grid, at, black_box(&[3; 14]), payload_len);
                let mut count = Count(0);
                fpdu.emit(&mut count);
                at = at + fpdu.wire_len() as u64;
                assert_eq!(count.0, fpdu.wire_len());
            });
        });
    }
    group.finish();
}

criterion_group!(benches, receive, receive_unaligned, transmit);
criterion_main!(benches);
