//! Packages that can be used alone say what they are, in their README and in Cargo's metadata.

use std::fs;
use std::path::{Path, PathBuf};

use super::sources;

/// Packages that other projects can use.
const PACKAGES: [&str; 7] = ["engine", "esp", "ipoib", "netdev", "replay", "sim", "verbs"];

pub(super) fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The blocks of Rust of a document.
fn rust_blocks(document: &str) -> Vec<&str> {
    let blocks = document.split("```rust\n").skip(1);
    blocks.map(|rest| rest.split("\n```").next().unwrap()).collect()
}

#[test]
fn each_package_has_a_readme_whose_example_is_a_program() {
    for package in PACKAGES {
        let readme = read(&format!("{package}/README.md"));
        assert!(readme.starts_with(&format!("# urnic-{package}\n")), "{package}: its name");
        for heading in ["\n## Example\n", "\n## What it does not do\n"] {
            assert!(readme.contains(heading), "{package}: {}", heading.trim());
        }
        let blocks = rust_blocks(&readme);
        assert!(!blocks.is_empty() || readme.contains("```console\n"), "{package}: no example");
        // Programs of `examples/` are compiled with the tests.
        for block in blocks {
            let examples: Vec<(PathBuf, String)> = sources(&format!("{package}/examples"));
            let is_program = examples.iter().any(|(_, text)| text.contains(block));
            assert!(is_program, "{package}: no example has this text:\n{block}");
        }
    }
}

#[test]
fn the_code_of_the_readme_is_of_an_example() {
    let readme = read("README.md");
    let examples = sources("examples");
    let blocks = rust_blocks(&readme);
    assert!(!blocks.is_empty(), "the README has no code");
    for block in blocks {
        let is_there = examples.iter().any(|(_, text)| text.contains(block));
        assert!(is_there, "no example has this text:\n{block}");
    }
}

#[test]
fn each_package_has_all_that_a_registry_asks_for() {
    for package in PACKAGES {
        let manifest = read(&format!("{package}/Cargo.toml"));
        for key in
            ["description = ", "keywords = ", "categories = ", "readme = ", "license.workspace"]
        {
            assert!(manifest.contains(&format!("\n{key}")), "{package}: {key}");
        }
        assert!(!manifest.contains("publish = false"), "{package} cannot be published");
    }
    for line in read("Cargo.toml").lines().filter(|line| line.contains("{ path = ")) {
        // What only tests depend on has no version: cargo leaves it out of a published package.
        assert!(
            line.starts_with("urnic-testkit") || line.contains("version = "),
            "a dependency without version: {line}"
        );
    }
}
