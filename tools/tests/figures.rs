//! `docs/figures.md` against what the commands print for people: each label has a definition, and each
//! definition is of a label that is printed. Commands that no ordinary user can run have tests beside their code.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::commands::scene::{Server, complaint, urnic};

/// Returns the labels of a command in the document.
fn defined(command: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/figures.md");
    let text = fs::read_to_string(path).unwrap();
    let sections = text
        .split("\n## ")
        .filter(|section| section.lines().next().unwrap().contains(&format!("`urnic {command}`")));
    let rows = sections.flat_map(str::lines).filter(|line| line.starts_with("| `"));
    let labels: BTreeSet<_> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap().split("`, `"))
        .map(|label| label.trim().trim_matches('`').to_owned())
        .collect();
    assert!(labels.len() > 5, "{command}: {labels:?}");
    labels
}

/// Returns the first cells of the rows of a table.
fn rows(text: &str) -> Vec<String> {
    let cells = text.lines().filter_map(|line| line.strip_prefix('│')?.split('┆').next());
    cells.map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
}

/// Holds labels that a command has printed against the document.
fn compare(command: &str, printed: &[String], also: &[&str]) {
    let defined = defined(command);
    let unknown: Vec<_> = printed.iter().filter(|label| !defined.contains(*label)).collect();
    assert!(unknown.is_empty(), "{command} prints figures without a definition: {unknown:?}");
    for label in also {
        assert!(defined.contains(*label), "{command}: {label} has no definition");
    }
}

/// Holds the document against all that one of these commands has printed.
fn are_printed(commands: &[&str], text: &str) {
    let defined = commands.iter().flat_map(|command| defined(command));
    let missing: Vec<_> = defined.filter(|label| !text.contains(label)).collect();
    assert!(missing.is_empty(), "{commands:?} print no {missing:?}");
}

fn said(server: &Server, command: &str) -> String {
    let output = server.client(command);
    assert!(output.status.success(), "{command}: {}", complaint(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn figures_of_clients_have_definitions() {
    let server = Server::start("");
    let mut lat = String::new();
    for command in ["ping ADDRESS -c 1", "lat ADDRESS -n 20", "lat ADDRESS --op read -n 20"] {
        let text = said(&server, command);
        lat.push_str(&text);
        let line = text.lines().find(|line| line.contains("min ")).unwrap();
        let (_, figures) = line.split_once("min ").unwrap();
        let mut labels = vec!["min".to_owned()];
        labels.extend(
            figures.split(", ").skip(1).filter_map(|one| Some(one.split_once(' ')?.0.to_owned())),
        );
        assert_eq!(labels.len(), 8, "{line}");
        compare(command[..4].trim(), &labels, &["round trip", "half of the round trip"]);
    }
    let spread = said(&server, "lat ADDRESS -n 20 --histogram");
    lat.push_str(&spread);
    lat.push_str(&said(&server, "lat ADDRESS -n 2000 --interval 0.001"));
    are_printed(&["ping"], &lat);
    let head = spread.lines().find(|line| line.contains("below")).unwrap();
    let labels: Vec<_> = head.split_whitespace().take(3).map(str::to_owned).collect();
    compare("lat", &labels, &[]);
    for options in ["", "--bidir", "--op read --depth 64", "--op send"] {
        let text = said(&server, &format!("bw ADDRESS -t 0.05 {options}"));
        compare("bw", &rows(&text), &["messages/s", "processor time", "s for a gigabyte"]);
        for label in ["messages/s", "in flight", "processor time", "s for a gigabyte"] {
            assert!(text.contains(label), "{label}: {text}");
        }
        assert!(!text.contains("segments"), "the kernel has them: {text}");
    }
    let table = said(&server, "bw ADDRESS -a -n 1 --bidir");
    let head = table.lines().next().unwrap().trim();
    let labels = head.split("  ").map(|label| label.trim().to_owned());
    let labels: Vec<_> = labels
        .filter(|label| !["", "size"].contains(&&**label))
        .flat_map(|label| {
            // Two labels are separated by one space only.
            let parts = label.replace("here s/GB there s/GB", "here s/GB|there s/GB");
            parts.split('|').map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    compare("bw", &labels, &["by us", "by server"]);
    server.stop();
}

#[test]
fn figures_of_demo_have_definitions() {
    let output = urnic("demo --bytes 20K --markers on --loss 1").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let labels = rows(&text);
    assert!(labels.len() > 12, "{text}");
    compare("demo", &labels, &[]);
    are_printed(&["demo"], &text);
    let without = urnic("demo --bytes 20K --crc off").output().unwrap();
    let text = String::from_utf8(without.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("CRC wrong")).unwrap();
    assert_eq!(line.matches('–').count(), 2, "without CRCs it is not known: {line}");
}

#[test]
fn figures_of_replay_have_definitions() {
    let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../pcaps/siw-write-crc.pcap");
    let output = urnic(&format!("replay {capture}")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // The counters of the first connection; below the messages there is a line for each operation.
    let lines = text.lines().map(str::trim_start).skip_while(|line| !line.starts_with('┌'));
    let table: Vec<_> = lines.take_while(|line| !line.starts_with('└')).collect();
    let labels = rows(&table.join("\n"));
    let end = labels.iter().position(|label| label == "messages").unwrap();
    assert_eq!(end, 19, "{text}");
    compare("replay", &labels[..=end], &[]);
    are_printed(&["replay"], &text);
}
