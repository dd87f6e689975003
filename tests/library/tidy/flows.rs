//! The two flows at the head of ARCHITECTURE.md name files and functions that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Limit of the files that a reader of one flow opens.
const FILES_MAX: usize = 15;

#[test]
fn each_flow_is_short_and_names_what_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let (_, flows) = document.split_once("\n## The two flows\n").unwrap();
    let (flows, _) = flows.split_once("\n## ").unwrap();
    let flows: Vec<&str> = flows.split("\n### ").skip(1).collect();
    assert_eq!(flows.len(), 2, "a received frame, a posted Write");
    for flow in flows {
        let mut files = BTreeSet::new();
        let steps = flow.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
        for step in steps.clone() {
            // A step names each file with its function in one pair of backticks.
            let names = step.split('`').skip(1).step_by(2).filter(|name| name.contains(".rs:"));
            for name in names {
                let (file, function) = name.split_once(": ").unwrap_or_else(|| panic!("{step}"));
                let text = fs::read_to_string(root.join(file));
                let text = text.unwrap_or_else(|error| panic!("{file}: {error}"));
                let has = [format!("fn {function}("), format!("fn {function}<")];
                assert!(has.iter().any(|has| text.contains(has)), "{file} has no {function}");
                files.insert(file.to_owned());
            }
        }
        assert!(steps.count() >= 8, "{flow}");
        assert!((8..=FILES_MAX).contains(&files.len()), "{} files: {flow}", files.len());
    }
}
