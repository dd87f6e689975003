//! Rules of the project that no compiler checks, held against the source text.
#![allow(clippy::unwrap_used, reason = "a source that cannot be read fails its test")]

use std::fs;
use std::path::{Path, PathBuf};

/// Every Rust file of the project below `folder`.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(root).unwrap().to_owned(), text));
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has sources");
    found
}

fn is_test(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.contains("/tests/") || text.ends_with("tests.rs")
}

/// The text without its inline test module and without comments.
fn code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn protocol_layers_do_not_import_their_neighbours() {
    const LAYERS: [&str; 4] = ["tcp", "mpa", "ddp", "rdmap"];
    for layer in LAYERS {
        for (path, text) in sources(&format!("src/{layer}")) {
            let code = code(&text);
            for other in LAYERS.into_iter().chain(["stream", "port", "driver", "verbs"]) {
                let imported = code.contains(&format!("crate::{other}::"))
                    || code.contains(&format!("crate::{other};"));
                assert!(other == layer || !imported, "{} imports {other}", path.display());
            }
        }
    }
}

#[test]
fn only_the_driver_names_devices_and_only_the_port_the_host_stack() {
    for (path, text) in sources("src") {
        let code = code(&text);
        let name = path.to_string_lossy();
        let names_device = code.contains("urnic_netdev::Device") || code.contains("memory::pair");
        assert!(name.starts_with("src/driver") || !names_device, "{name} names a device");
        let names_host = code.contains("smoltcp::iface") || code.contains("smoltcp::socket");
        assert!(name.starts_with("src/port") || !names_host, "{name} names the host stack");
    }
}

#[test]
fn unsafe_code_is_only_where_it_is_allowed() {
    const ALLOWED: [&str; 4] =
        ["src/mem/digest", "src/mem/region", "src/mem/shared", "netdev/src/sys/"];
    for (path, text) in ["src", "netdev/src", "tools/src"].into_iter().flat_map(sources) {
        let name = path.to_string_lossy();
        let allowed = ALLOWED.iter().any(|prefix| name.starts_with(prefix));
        let unsafe_code = code(&text).contains("unsafe {") || code(&text).contains("unsafe fn");
        assert!(allowed || !unsafe_code, "{name} has unsafe code");
    }
}

#[test]
fn every_file_says_what_it_is_and_stays_a_small_room() {
    for (path, text) in ["src", "netdev/src", "tools/src"].into_iter().flat_map(sources) {
        let name = path.display();
        let lines = code(&text).lines().count();
        assert!(is_test(&path) || lines <= 700, "{name} has {lines} lines of code");
        assert!(is_test(&path) || text.starts_with("//!"), "{name} has no module documentation");
    }
}

#[test]
fn nothing_is_left_undone_silently() {
    // Put together here, so that this file does not find itself.
    let marks = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["XX", "X"].concat()];
    for (path, text) in
        ["src", "netdev/src", "tools/src", "tests", "benches"].into_iter().flat_map(sources)
    {
        for mark in &marks {
            let found = text.contains(mark.as_str());
            assert!(!found, "{} has a {mark}", path.display());
        }
    }
}

#[test]
fn every_limit_is_used() {
    let limits = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/limits.rs"));
    let limits = limits.unwrap();
    let all: String = sources("src")
        .into_iter()
        .filter(|(path, _)| !path.ends_with("limits.rs"))
        .map(|(_, text)| text)
        .collect();
    for line in limits.lines().filter(|line| line.starts_with("pub const ")) {
        let name = line.trim_start_matches("pub const ").split(':').next().unwrap();
        assert!(all.contains(name), "nothing uses {name}");
    }
}
