//! Runs an input as a hostile backend of urnic's frontend.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    urnic_netdev_fuzz::backend::against_frontend(script);
});
