//! The documents' command lines. [`blocks`] runs each block as a whole, where network namespaces
//! can be made. In addition, every line of a `console` block is run as far as possible without a
//! namespace, in a folder of its own and, if it names a server, against one on loopback; of
//! commands that need root or other machines the arguments are parsed. Cargo's targets and the
//! repository's files that the documents name exist.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

mod blocks;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::commands::scene::{Server, complaint, urnic};

/// Returns the documents: those of the root and of `docs/`, and those in folders of sources.
fn documents() -> Vec<(PathBuf, String)> {
    let root = root();
    const FOLDERS: [&str; 15] = [
        "",
        "docs",
        "engine",
        "esp",
        "ipoib",
        "netdev",
        "netdev/fuzz",
        "pcaps",
        "replay",
        "replay/fuzz",
        "sim",
        "spec",
        "tests",
        "tools/benches/compare",
        "verbs",
    ];
    let mut found: Vec<PathBuf> = FOLDERS
        .into_iter()
        .flat_map(|folder| fs::read_dir(root.join(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    found.sort();
    assert!(found.len() > 8, "{found:?}");
    let name = |path: &Path| path.strip_prefix(&root).unwrap().to_owned();
    found.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// A line of a `console` block without its comment, and if root runs it.
#[derive(Debug)]
struct Line {
    document: PathBuf,
    text: String,
    by_root: bool,
}

fn lines() -> Vec<Line> {
    let mut found = Vec::new();
    for (document, text) in documents() {
        let mut is_console = false;
        for line in text.lines() {
            if let Some(language) = line.strip_prefix("```") {
                is_console = language == "console";
                continue;
            }
            let (given, by_root) = match (line.strip_prefix("$ "), line.strip_prefix("# ")) {
                (Some(given), _) => (given, false),
                (_, Some(given)) => (given, true),
                _ => continue,
            };
            if is_console {
                let given = given.split("  #").next().unwrap().trim_end().trim_end_matches(" &");
                for text in given.split("; ").map(str::to_owned) {
                    found.push(Line { document: document.clone(), text, by_root });
                }
            }
        }
    }
    found
}

/// Returns the arguments of the command `urnic`, if the line runs it.
fn arguments(line: &str) -> Option<&str> {
    let line = line.strip_prefix("cargo run ").map_or(line, |rest| {
        rest.strip_prefix("--release ").unwrap_or(rest).strip_prefix("--bin ").unwrap_or(line)
    });
    let rest = line.strip_prefix("urnic")?;
    rest.strip_prefix(" -- ")
        .or_else(|| rest.strip_prefix(' '))
        .or_else(|| rest.is_empty().then_some(""))
}

/// Address of the server in the documents' examples.
const SERVER: &str = "192.0.2.1:7174";
/// Options for a length in time, and the value that is enough here.
const SHORTER: [(&str, &str); 5] = [
    ("--seconds", "0.1"),
    ("--duration", "0.5s"),
    ("--interval", "50ms"),
    ("--iterations", "1000"),
    ("--bytes", "8M"),
];
/// Seeds of a range that are run here.
const SEEDS: u64 = 40;

/// Returns the same command, but shorter, in a folder and against a server of this test.
fn shortened(arguments: &str, server: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in arguments.split_whitespace() {
        let before = words.last().map(String::as_str).unwrap_or_default();
        let shorter = SHORTER.iter().find(|(option, _)| *option == before);
        if let Some((_, value)) = shorter {
            words.push((*value).to_owned());
        } else if let (true, Some((first, end))) = (before == "--seeds", word.split_once("..")) {
            let (first, end): (u64, u64) = (first.parse().unwrap(), end.parse().unwrap());
            words.push(format!("{first}..{}", end.min(first + SEEDS)));
        } else if let Some(pattern) = word.strip_prefix("pcaps/") {
            words.extend(captures(pattern));
        } else {
            words.push(word.replace(SERVER, server));
        }
    }
    if words.contains(&"--all-sizes".to_owned()) {
        words.extend(["--seconds", "0.02"].map(str::to_owned));
    }
    if words[0] == "demo" && !words.contains(&"--bytes".to_owned()) {
        words.extend(["--bytes", "8M"].map(str::to_owned));
    }
    words
}

/// Returns the files of `pcaps/` that match this shell pattern.
fn captures(pattern: &str) -> Vec<String> {
    let parts: Vec<&str> = pattern.split('*').collect();
    let matches = |name: &str| match parts[..] {
        [whole] => name == whole,
        [start, middle, end] => {
            name.starts_with(start) && name.contains(middle) && name.ends_with(end)
        }
        _ => panic!("{pattern}: no such pattern so far"),
    };
    let names = fs::read_dir(root().join("pcaps")).unwrap().map(|entry| entry.unwrap().path());
    let files = names.filter(|path| matches(path.file_name().unwrap().to_str().unwrap()));
    let mut files: Vec<_> = files.map(|path| path.to_str().unwrap().to_owned()).collect();
    files.sort();
    assert!(!files.is_empty(), "{pattern}");
    files
}

/// Returns true if a command can run here: it needs no device and no privilege, and ends by itself.
fn is_run(line: &Line) -> bool {
    let arguments = arguments(&line.text).unwrap();
    let command = arguments.split(' ').next().unwrap();
    let has_a_server = arguments.contains(SERVER);
    !line.by_root
        && match command {
            "demo" | "replay" | "sim" | "info" => true,
            "ping" | "bw" | "lat" | "put" | "get" => has_a_server && !arguments.contains("--dev"),
            _ => false,
        }
}

/// Returns the outcome of parsing the line; nothing is executed.
fn is_parsed(arguments: &str) -> Output {
    // The rest is another program's.
    let own = arguments.split(" -- ").next().unwrap();
    urnic(&format!("{own} --help")).output().unwrap()
}

#[test]
fn a_wrong_command_line_would_be_noticed() {
    for wrong in ["impair a b --rate fast", "serve --listen", "serve --dev tap:x,ip=", "frobnicate"]
    {
        assert_ne!(is_parsed(wrong).status.code(), Some(0), "{wrong}");
    }
}

#[test]
fn every_command_line_of_the_documents_works() {
    let work = tempfile::tempdir().unwrap();
    fs::write(work.path().join("backup.tar"), [7; 100_000]).unwrap();
    let served = tempfile::tempdir().unwrap();
    let server = Server::start(&format!("--dir {}", served.path().display()));
    let (mut run, mut parsed) = (0, 0);
    for line in lines() {
        let Some(arguments) = arguments(&line.text) else { continue };
        let output = if is_run(&line) {
            run += 1;
            let words = shortened(arguments, server.address());
            urnic("").args(words).current_dir(work.path()).output().unwrap()
        } else {
            parsed += 1;
            is_parsed(arguments)
        };
        let (document, text) = (line.document.display(), &line.text);
        let succeeds = output.status.code() == Some(0)
            // A fault of a capture is a finding, and an exit status.
            || (text.contains("--strict") && output.status.code() == Some(1));
        assert!(succeeds, "{document}: {text}: {}\n{}", output.status, complaint(&output));
    }
    assert!(run > 6 && parsed > 3, "{run} run, {parsed} parsed");
    server.stop();
}

/// Each line is one of `urnic`, of cargo, or of a program that this test does not check.
#[test]
fn every_other_line_is_of_a_known_program() {
    for line in lines().iter().filter(|line| arguments(&line.text).is_none()) {
        let program = line.text.split(' ').next().unwrap();
        let known = ["bash", "cargo", "cat", "eval", "head", "ip", "man", "mkdir", "ping", "sudo"];
        assert!(known.contains(&program), "{}: {}", line.document.display(), line.text);
    }
}

/// Returns the names after `option` in the words of a command line.
fn named<'a>(words: &[&'a str], option: &str) -> Vec<&'a str> {
    words.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1]).collect()
}

/// Returns the folders of the workspace's packages.
fn members() -> Vec<String> {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = workspace.lines().find_map(|line| line.strip_prefix("members = ")).unwrap();
    members.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the packages of the workspace and the text of their manifests.
fn manifests() -> Vec<(String, String)> {
    let manifest = |folder| fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
    members()
        .into_iter()
        .map(manifest)
        .map(|text| {
            let (_, package) = text.split_once("[package]\nname = \"").unwrap();
            (package.split('"').next().unwrap().to_owned(), text)
        })
        .collect()
}

/// Packages, tests, benches and examples in the documents' cargo commands exist, in running text
/// too.
#[test]
fn names_in_documented_cargo_commands_exist() {
    let manifests = manifests();
    let mut found = 0;
    for (document, text) in documents() {
        let quoted = text.split('`').filter(|part| part.starts_with("cargo "));
        let console = text.lines().filter_map(|line| line.strip_prefix("$ cargo "));
        for line in quoted.chain(console) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let name = |option| named(&words, option);
            let at = format!("{}: {line}", document.display());
            for package in name("-p") {
                assert!(manifests.iter().any(|(name, _)| name == package), "{at}: no {package}");
            }
            for (option, section) in [("--test", "test"), ("--bench", "bench"), ("--bin", "bin")] {
                for target in name(option) {
                    found += 1;
                    let entry = format!("[[{section}]]\nname = \"{target}\"");
                    // Cargo finds the others by their file.
                    let file = format!("{section}s/{target}.rs");
                    let has_file =
                        || members().iter().any(|folder| root().join(folder).join(&file).exists());
                    assert!(
                        manifests.iter().any(|(_, text)| text.contains(&entry)) || has_file(),
                        "{at}"
                    );
                }
            }
            for example in name("--example") {
                let file = format!("examples/{example}.rs");
                let is_there =
                    members().iter().any(|folder| root().join(folder).join(&file).exists());
                assert!(is_there, "{at}: no such example");
            }
        }
    }
    assert!(found > 4, "{found}");
}

/// Links within the repository, and paths of tests, tools and benches, exist.
#[test]
fn links_and_paths_in_the_documents_exist() {
    let mut missing = Vec::new();
    for (document, text) in documents() {
        let folder = root().join(&document).parent().unwrap().to_owned();
        let links = text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
        for link in links.filter(|link| !link.contains("://") && !link.starts_with('#')) {
            let path = folder.join(link.split('#').next().unwrap());
            if !path.exists() {
                missing.push(format!("{}: {link}", document.display()));
            }
        }
        const OF_TESTS: [&str; 7] =
            ["tests/", "tools/tests/", "sim/", "benches/", "tools/benches/", "docs/", "examples/"];
        for part in text.split('`').skip(1).step_by(2) {
            let is_path = OF_TESTS.iter().any(|start| part.starts_with(start))
                && !part.contains(['{', '*', ' ', '…']);
            let there = || folder.join(part).exists() || root().join(part).exists();
            let module = || root().join(format!("{part}.rs")).exists();
            if is_path && !there() && !module() {
                missing.push(format!("{}: {part}", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
