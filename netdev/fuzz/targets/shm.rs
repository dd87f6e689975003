//! Runs an input as a hostile peer of an `shm` link.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    urnic_netdev_fuzz::shm::against_shm(script);
});
