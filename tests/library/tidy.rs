//! Rules of the project that no compiler checks, applied to the source text.
#![allow(clippy::unwrap_used, reason = "a source that cannot be read fails its test")]

mod circles;
mod devices;
mod flows;
mod links;
mod packages;
mod protocols;
mod spec;
mod steps;
mod tables;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use urnic_testkit::summary::{LAST_PACKAGE, LAST_TEST};

/// Every folder with Rust files.
const FOLDERS: [&str; 17] = [
    "engine/src",
    "engine/examples",
    "esp",
    "ipoib/src",
    "ipoib/examples",
    "src",
    "netdev",
    "preload",
    "replay",
    "sim",
    "tools/src",
    "tools/tests",
    "tools/benches",
    "tests",
    "benches",
    "examples",
    "verbs",
];
/// Maximum lines of code of a file without a reason for more.
const LINES_MAX: usize = 500;
/// Begin of the reason in the head of a longer file.
const WHY_SO_LONG: &str = "One file because";

/// Returns every Rust file of the project below `folder`.
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

/// Returns the text without its inline test module and without comments.
fn code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

// spec: DDP-6.2-1
#[test]
fn protocol_layers_do_not_import_their_neighbours() {
    const LAYERS: [&str; 4] = ["tcp", "mpa", "ddp", "rdmap"];
    for layer in LAYERS {
        for (path, text) in sources(&format!("engine/src/{layer}")) {
            let code = code(&text);
            for other in LAYERS.into_iter().chain(["stream", "port", "poll", "verbs"]) {
                let imported = code.contains(&format!("crate::{other}::"))
                    || code.contains(&format!("crate::{other};"));
                assert!(other == layer || !imported, "{} imports {other}", path.display());
            }
        }
    }
}

/// Modules of the engine. Each may import only modules before it.
const ORDER: [&str; 16] = [
    "types", "time", "limits", "siphash", "secret", "mem", "wire", "counters", "tcp", "mpa", "ddp",
    "rdmap", "verbs", "stream", "port", "poll",
];

#[test]
fn the_engine_imports_downward() {
    for (path, text) in sources("engine/src") {
        let module = path.strip_prefix("engine/src").unwrap().with_extension("");
        let module = module.iter().next().unwrap().to_string_lossy().into_owned();
        if module == "lib" {
            continue;
        }
        let place = ORDER.iter().position(|name| *name == module);
        let place = place.unwrap_or_else(|| panic!("{module} has no place in the order"));
        let code = code(&text);
        for above in &ORDER[place + 1..] {
            let imports = code.contains(&format!("crate::{above}::"));
            assert!(is_test(&path) || !imports, "{} imports {above}", path.display());
        }
    }
}

#[test]
fn only_the_bare_loop_names_devices_and_only_the_port_the_host_stack() {
    for (path, text) in sources("engine/src") {
        let code = code(&text);
        let name = path.to_string_lossy();
        let names_device = code.contains("urnic_netdev::Device") || code.contains("memory::pair");
        assert!(name.starts_with("engine/src/poll") || !names_device, "{name} names a device");
        let names_host = code.contains("smoltcp::iface") || code.contains("smoltcp::socket");
        assert!(name.starts_with("engine/src/port") || !names_host, "{name} names the host stack");
    }
}

/// Items that the code of the engine and of ESP must not use. A file that the caller opened may be mapped.
const FORBIDDEN: [&str; 18] = [
    "std::thread",
    "thread::spawn",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "std::os::unix::net",
    "Instant::now",
    "SystemTime",
    "File::open",
    "File::create",
    "OpenOptions",
    "fs::read",
    "fs::write",
    "std::env",
    "std::process",
    "std::io::std",
    "getrandom",
];

/// The engine and ESP depend on nothing that waits, spawns, reads a clock or draws randomness.
#[test]
fn the_engine_and_esp_do_no_io() {
    const ALLOWED: [&str; 14] = [
        "arrayvec",
        "aws-lc-rs",
        "bitflags",
        "bytemuck",
        "crc32c",
        "crossbeam",
        "memmap2",
        "rand",
        "rand_chacha",
        "smoltcp",
        "thiserror",
        "tracing",
        "urnic-netdev",
        "zeroize",
    ];
    for package in ["engine", "esp"] {
        let manifest = packages::read(&format!("{package}/Cargo.toml"));
        let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap();
        for line in dependencies.lines().filter(|line| !line.is_empty()) {
            let name = line.split(['.', ' ']).next().unwrap();
            assert!(ALLOWED.contains(&name), "{package} depends on {name}");
        }
        let sources = sources(&format!("{package}/src")).into_iter();
        for (path, text) in sources.filter(|(path, _)| !is_test(path)) {
            let code = code(&text);
            for word in FORBIDDEN {
                assert!(!code.contains(word), "{} uses {word}", path.display());
            }
        }
    }
}

/// A set-user-id program must ignore the environment of the user who starts it.
#[test]
fn one_function_reads_the_environment() {
    for (path, text) in ["src", "verbs/src", "preload/src"].into_iter().flat_map(sources) {
        let reads = code(&text).contains("env::var");
        assert!(!reads || path.ends_with("src/environment.rs"), "{} reads it", path.display());
    }
}

#[test]
fn unsafe_code_is_only_where_it_is_allowed() {
    const ALLOWED: [&str; 6] = [
        "engine/src/mem/digest",
        "engine/src/mem/region",
        "engine/src/mem/shared",
        "netdev/src/sys/",
        // C's interface consists of pointers.
        "verbs/src/",
        "preload/src/",
    ];
    const ALL: [&str; 9] = [
        "engine/src",
        "esp/src",
        "ipoib/src",
        "src",
        "netdev/src",
        "preload/src",
        "replay/src",
        "tools/src",
        "verbs/src",
    ];
    for (path, text) in ALL.into_iter().flat_map(sources) {
        let name = path.to_string_lossy();
        let allowed = ALLOWED.iter().any(|prefix| name.starts_with(prefix));
        let unsafe_code = code(&text).contains("unsafe {") || code(&text).contains("unsafe fn");
        assert!(allowed || !unsafe_code, "{name} has unsafe code");
    }
}

#[test]
fn every_file_has_a_head_comment_and_a_limited_length() {
    for (path, text) in FOLDERS.into_iter().flat_map(sources) {
        let name = path.display();
        let lines = code(&text).lines().count();
        let head = text.lines().take_while(|line| line.starts_with("//!"));
        let says_why = head.clone().any(|line| line.contains(WHY_SO_LONG));
        assert!(says_why || lines <= LINES_MAX, "{name} has {lines} lines of code");
        let is_unit_test = is_test(&path) && path.iter().any(|folder| folder == "src");
        assert!(is_unit_test || head.count() > 0, "{name} does not say what it is");
    }
}

/// Words that comments must not use. They are assembled here, so that this file does not find
/// itself.
#[test]
fn comments_are_about_things_of_the_protocol_and_of_the_code() {
    let somebody = ["every", "any", "some", "no"].map(|start| [start, "body"].concat());
    let others = ["stranger", "those who ", "whoever"].map(str::to_owned);
    for (path, text) in FOLDERS.into_iter().flat_map(sources) {
        let comments = text.lines().filter(|line| line.trim_start().starts_with("//"));
        for line in comments.filter(|_| !path.ends_with("tidy.rs")) {
            let line = line.to_lowercase();
            for word in somebody.iter().chain(&others) {
                assert!(!line.contains(word.as_str()), "{}: {}", path.display(), line.trim());
            }
        }
    }
}

#[test]
fn sources_have_no_todo_marks() {
    // Assembled here, so that this file does not find itself.
    let marks = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["XX", "X"].concat()];
    for (path, text) in FOLDERS.into_iter().flat_map(sources) {
        for mark in &marks {
            let found = text.contains(mark.as_str());
            assert!(!found, "{} has a {mark}", path.display());
        }
    }
}

/// All texts, not only sources, which would not compile with merge marks.
#[test]
fn no_text_has_the_marks_of_a_merge() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let marks = ["<", ">"].map(|mark| mark.repeat(7).into_bytes());
    let (mut folders, mut files) = (vec![root.to_owned()], 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            // The fuzz targets have a folder "target" of their own.
            let is_ours = !(path.ends_with("target") || path.ends_with(".git"));
            if is_ours && path.is_dir() {
                folders.push(path);
            } else if is_ours && let Ok(text) = fs::read(&path) {
                let mut lines = text.split(|octet| *octet == b'\n');
                let is_mark = |line: &[u8]| marks.iter().any(|mark| line.starts_with(mark));
                assert!(!lines.any(is_mark), "{} was merged in part", path.display());
                files += 1;
            }
        }
    }
    assert!(files > 500, "{files}");
}

#[test]
fn every_limit_is_used() {
    let limits =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("engine/src/limits.rs"));
    let limits = limits.unwrap();
    let all: String = ["engine/src", "src"]
        .into_iter()
        .flat_map(sources)
        .filter(|(path, _)| !path.ends_with("limits.rs"))
        .map(|(_, text)| text)
        .collect();
    for line in limits.lines().filter(|line| line.starts_with("pub const ")) {
        let name = line.trim_start_matches("pub const ").split(':').next().unwrap();
        assert!(all.contains(name), "nothing uses {name}");
    }
}

/// Cargo runs documentation tests last, but the count of skipped tests must be the last output. So
/// examples in the documentation are programs in `examples/`.
#[test]
fn examples_in_the_documentation_are_programs() {
    const FOLDERS: [&str; 7] =
        ["engine/src", "esp/src", "ipoib/src", "src", "netdev/src", "replay/src", "sim/src"];
    for (path, text) in FOLDERS.into_iter().flat_map(sources) {
        let mut lines = text.lines().map(str::trim_start).peekable();
        let mut is_open = false;
        while let Some(line) = lines.next() {
            let Some(fence) = line
                .strip_prefix("//! ```")
                .or_else(|| line.strip_prefix("/// ```"))
                .filter(|language| !language.contains('`'))
            else {
                continue;
            };
            let is_code = !is_open && matches!(fence, "" | "rust" | "no_run" | "should_panic");
            let includes = lines.peek().is_some_and(|next| next.contains("doc = include_str!("));
            assert!(!is_code || includes, "{}: an example that is no program", path.display());
            is_open = !is_open;
        }
    }
    for manifest in [
        "Cargo.toml",
        "engine/Cargo.toml",
        "esp/Cargo.toml",
        "ipoib/Cargo.toml",
        "netdev/Cargo.toml",
        "replay/Cargo.toml",
        "sim/Cargo.toml",
    ] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(manifest));
        assert!(
            text.unwrap().contains("\ndoctest = false\n"),
            "{manifest} has documentation tests"
        );
    }
}

/// A machine may lack any program, so the kit starts programs and handles missing ones.
#[test]
fn tests_start_programs_by_the_kit() {
    for (path, text) in
        ["tests", "tools/tests", "netdev/src", "engine/src", "src"].into_iter().flat_map(sources)
    {
        let of_the_kit = path.starts_with("tests/kit") || path.starts_with("tools/tests/interop");
        let starts = text.contains(concat!("Command::new", "(\""));
        assert!(of_the_kit || !starts, "{} starts a program that may be missing", path.display());
    }
}

/// Cargo orders packages by name, and then their tests by name.
#[test]
fn the_count_of_what_was_skipped_comes_last() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for manifest in [
        "Cargo.toml",
        "esp/Cargo.toml",
        "ipoib/Cargo.toml",
        "netdev/Cargo.toml",
        "tools/Cargo.toml",
        "verbs/Cargo.toml",
    ] {
        let text = fs::read_to_string(root.join(manifest)).unwrap();
        let entry = format!("[[test]]\nname = \"{LAST_TEST}\"");
        assert!(text.contains(&entry), "{manifest} has the test");
        let names = text.split("\n[[test]]\nname = \"").skip(1);
        for name in names.map(|rest| rest.split('"').next().unwrap()) {
            assert!(name <= LAST_TEST, "{manifest}: {name} runs after the count");
        }
    }
    let workspace = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = workspace.lines().find_map(|line| line.strip_prefix("members = ")).unwrap();
    let folders = members.split('"').skip(1).step_by(2);
    let package = |folder: &str| {
        let manifest = fs::read_to_string(root.join(folder).join("Cargo.toml")).unwrap();
        let (_, package) = manifest.split_once("[package]\nname = \"").unwrap();
        package.split('"').next().unwrap().to_owned()
    };
    assert_eq!(folders.map(package).max().unwrap(), LAST_PACKAGE);
}
