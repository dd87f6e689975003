//! The application's calls of its device.

use std::fs;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use urnic_netdev::{Device, SharedSlice, TxChecksum, TxFrame};

/// Polls the device once, at a later time.
pub fn turn(device: &mut impl Device, now_ns: &mut u64) {
    turn_with(device, now_ns, &[]);
}

/// Like [`turn`], with frames that have this payload.
pub fn turn_with(device: &mut impl Device, now_ns: &mut u64, payload: &[SharedSlice<'_>]) {
    *now_ns += CONTROL_INTERVAL_NS;
    let begun = Instant::now();
    let mut room = Vec::new();
    device.receive(*now_ns, 64, &mut |frame| {
        let frame = frame.gathered(&mut room);
        assert!(frame.len() <= FRAME_LEN_MAX, "{} bytes", frame.len());
    });
    let octets = [0x55; 1400];
    for len in [60, 1400] {
        let head = &octets[..len];
        let checksum = TxChecksum::Complete;
        let frame = TxFrame { head, payload, checksum, segment_size: None, digests: None };
        let _full_or_down = device.transmit(*now_ns, &frame);
    }
    device.flush(*now_ns);
    let _descriptor = device.readiness();
    let _room = device.transmit_room();
    assert!(begun.elapsed() < TURN_TIME_MAX, "a call waits: {:?}", begun.elapsed());
    assert!(address_space() < ADDRESS_SPACE_MAX, "{} bytes of addresses", address_space());
}

/// Returns the bytes of address space that this process uses.
fn address_space() -> u64 {
    let sizes = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = sizes.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * PAGE_LEN
}

/// Returns a socket path that no other script uses.
pub fn path() -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("urnic-fuzz-{}-{number}", process::id()))
}

/// Returns the number of descriptors of this process.
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Waits until this process has `count` descriptors: a thread closes all descriptors that are
/// neither memory nor events.
///
/// # Panics
/// If that does not happen in time.
pub fn await_descriptors(count: usize) {
    for _ in 0..CLOSED_TURNS_MAX {
        if descriptors() == count {
            return;
        }
        let turn = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let _slept = poll(&mut [], Some(&turn));
    }
    assert_eq!(descriptors(), count, "descriptors of a peer that is gone");
}

/// Number of waits for the thread, of a millisecond each.
const CLOSED_TURNS_MAX: usize = 30_000;
/// Longest duration of a turn on a busy machine. A call that waits for a peer would never return.
const TURN_TIME_MAX: Duration = Duration::from_secs(20);
/// Limit of address space, in bytes: twice the limit of a peer's memory, since a new memory table
/// is mapped before the old one is unmapped, and as much for the process. Sanitizers reserve 20
/// TiB.
const ADDRESS_SPACE_MAX: u64 = if cfg!(fuzzing) { 1 << 46 } else { 192 << 30 };
const PAGE_LEN: u64 = 4096;
/// Interval at which a device polls its socket.
const CONTROL_INTERVAL_NS: u64 = 10_000_000;
/// 64 KiB and the tagged link header.
const FRAME_LEN_MAX: usize = 65_536 + 22;
