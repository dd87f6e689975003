//! Runs an input as a hostile frontend of urnic's backend.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    urnic_netdev_fuzz::frontend::against_backend(script);
});
