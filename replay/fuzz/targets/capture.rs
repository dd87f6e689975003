//! Any bytes, as a capture file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|octets: &[u8]| {
    urnic_replay_fuzz::everything(octets);
});
