//! vhost-user with the `vhost` crate of rust-vmm as the peer, in both roles.
//!
//! That crate implements the control protocol. This test reads and writes the rings, at the offsets
//! of Virtio 1.2 §2.7, in the memory file.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "tests wait for threads, with a bound")]

#[path = "rust_vmm/backend.rs"]
mod crate_backend;
#[path = "rust_vmm/frontend.rs"]
mod crate_frontend;
#[path = "rust_vmm/sharing.rs"]
mod sharing;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process;
use std::time::{Duration, Instant};

use urnic_netdev::{Device, TxChecksum, TxFrame};

/// Returns a socket path that no other test uses.
fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("urnic-rust-vmm-{name}-{}", process::id()))
}

/// Waits until `is_so` returns true, for at most half a minute.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Advances a clock far enough that a device polls its socket.
fn later(now_ns: &mut u64) -> u64 {
    *now_ns += 10_000_000;
    *now_ns
}

/// Returns a frame with recognisable contents.
fn frame(number: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| number ^ u8::try_from(at % 251).unwrap()).collect()
}

fn transmit(device: &mut impl Device, octets: &[u8]) {
    let checksum = TxChecksum::Complete;
    let sent = TxFrame { head: octets, payload: &[], checksum, segment_size: None, digests: None };
    device.transmit(0, &sent).unwrap();
    device.flush(0);
}

/// Offsets of a queue's parts in a file.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    descriptors: u64,
    available: u64,
    used: u64,
    size: u16,
}

fn u16_at(file: &File, at: u64) -> u16 {
    let mut octets = [0; 2];
    file.read_exact_at(&mut octets, at).unwrap();
    u16::from_le_bytes(octets)
}

fn put(file: &File, at: u64, octets: &[u8]) {
    file.write_all_at(octets, at).unwrap();
}

/// Bytes in front of each frame: `virtio_net_hdr_v1` (Virtio 1.2 §5.1.6).
const HEADER_LEN: usize = 12;
const VERSION_1: u64 = 1 << 32;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const MRG_RXBUF: u64 = 1 << 15;
const INDIRECT: u64 = 1 << 28;
