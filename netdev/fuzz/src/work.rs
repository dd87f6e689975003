//! What a program does with its device meanwhile.

use std::fs;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use urnic_netdev::{Device, Fragment, TxChecksum, TxFrame};

/// Lets the device work once, later than before.
pub fn turn(device: &mut impl Device, now_ns: &mut u64) {
    turn_with(device, now_ns, &[]);
}

/// The same, with frames that have this payload.
pub fn turn_with(device: &mut impl Device, now_ns: &mut u64, payload: &[Fragment<'_>]) {
    *now_ns += CONTROL_INTERVAL_NS;
    let mut room = Vec::new();
    device.receive(*now_ns, 64, &mut |frame| {
        let frame = frame.gathered(&mut room);
        assert!(frame.len() <= FRAME_LEN_MAX, "{} octets", frame.len());
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
}

/// A path for a socket that no other script has.
pub fn path() -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("urnic-fuzz-{}-{number}", process::id()))
}

/// Descriptors of this process.
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// What makes a device look at its socket.
const CONTROL_INTERVAL_NS: u64 = 10_000_000;
/// 64 KiB, a link header and a tag.
const FRAME_LEN_MAX: usize = 65_536 + 22;
