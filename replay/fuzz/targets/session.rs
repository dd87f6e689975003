//! Any bytes, as a script of sessions.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    urnic_replay_fuzz::everything(&urnic_replay_fuzz::session::capture(script));
});
