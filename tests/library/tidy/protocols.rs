//! Protocols between threads and between processes: each begins with its steps, its racy cases, and
//! its loom model or the reason why there is none.

use super::packages::read;

const PROTOCOLS: [&str; 11] = [
    "engine/src/verbs/alarm.rs",
    "engine/src/verbs/cq.rs",
    "engine/src/verbs/doorbell.rs",
    "netdev/src/published/announced.rs",
    "netdev/src/shm/mod.rs",
    "netdev/src/vhost_user/backend/session.rs",
    "netdev/src/vhost_user/frontend/session.rs",
    "src/worker/shared.rs",
    "verbs/src/exit.rs",
    "verbs/src/fork.rs",
    "verbs/src/turn.rs",
];

#[test]
fn a_protocol_begins_with_its_steps_its_races_and_its_model() {
    for file in PROTOCOLS {
        let text = read(file);
        let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
        let has = |part: &str| head.iter().any(|line| line.contains(part));
        for step in ["//! 1. ", "//! 2. ", "//! 3. "] {
            assert!(has(step), "{file} has no step {step:?}");
        }
        assert!(has("Racy cases:") || has("Race:"), "{file} has no racy cases");
        assert!(has("loom"), "{file} says nothing of a loom model");
    }
}
