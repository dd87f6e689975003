//! `docs/figures.md` and `docs/json.md` against what commands print: each figure has a definition, and each
//! definition is of a figure that is printed. For tests of what no ordinary user can run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

/// Names in the first cell, and the second cell.
fn defined(document: &str, command: &str) -> Vec<(Vec<String>, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(document);
    let text = fs::read_to_string(path).unwrap();
    let title = format!("`urnic {command}`");
    let sections = text.split("\n## ").filter(|section| {
        section.lines().next().is_some_and(|line| line.split(" and ").any(|one| one == title))
    });
    let rows: Vec<_> = sections
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(names, meaning)| {
            (names.split("`, `").map(str::to_owned).collect(), meaning.to_owned())
        })
        .collect();
    assert!(!rows.is_empty(), "{document} has no section on {command}");
    rows
}

/// Compares labels with `docs/figures.md`, both ways.
pub(crate) fn compare(command: &str, printed: impl IntoIterator<Item = String>) {
    let printed: BTreeSet<_> = printed.into_iter().collect();
    let rows = defined("figures.md", command).into_iter();
    let defined: BTreeSet<_> = rows.flat_map(|(names, _)| names).collect();
    let unknown: Vec<_> = printed.difference(&defined).collect();
    assert!(unknown.is_empty(), "{command} prints figures without a definition: {unknown:?}");
    let missing: Vec<_> = defined.difference(&printed).collect();
    assert!(missing.is_empty(), "{command} does not print {missing:?}");
}

pub(crate) fn are_printed(command: &str, text: &str) {
    let labels = defined("figures.md", command).into_iter().flat_map(|(names, _)| names);
    let missing: Vec<_> = labels.filter(|label| !has_words(text, label)).collect();
    assert!(missing.is_empty(), "{command} does not print {missing:?}");
}

/// A part of longer words or numbers does not count.
pub(crate) fn has_words(text: &str, label: &str) -> bool {
    text.match_indices(label).any(|(at, found)| {
        let (before, behind) = (&text[..at], &text[at + found.len()..]);
        !before.ends_with(char::is_alphanumeric) && !behind.starts_with(char::is_alphanumeric)
    })
}

/// Compares fields with `docs/json.md`, both ways.
pub(crate) fn compare_json<T: Serialize>(command: &str, printed: &[T]) {
    let mut found = BTreeSet::new();
    for one in printed {
        paths(&serde_json::to_value(one).unwrap(), "", &mut found);
    }
    let mut missing = Vec::new();
    for (names, meaning) in defined("json.md", command) {
        for name in names {
            let before = found.len();
            match name.strip_suffix('*') {
                Some(parent) => found.retain(|path| !path.starts_with(parent)),
                None => found.retain(|path| *path != name),
            }
            // `link.*` means all names that no other row has, if there are any.
            if found.len() == before && !name.ends_with('*') && !meaning.starts_with("optional") {
                missing.push(name);
            }
        }
    }
    assert!(found.is_empty(), "{command} prints what docs/json.md does not tell: {found:?}");
    assert!(missing.is_empty(), "{command} does not print {missing:?}");
}

/// Finds paths of the form `a.b[].c`.
fn paths(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            let between = if path.is_empty() { "" } else { "." };
            paths(value, &format!("{path}{between}{name}"), found);
        }),
        Value::Array(values) => {
            values.iter().for_each(|value| paths(value, &format!("{path}[]"), found));
        }
        _ => drop(found.insert(path.to_owned())),
    }
}

pub(crate) fn rows(text: &str) -> Vec<String> {
    let cells = text.lines().filter_map(|line| line.strip_prefix('│')?.split('┆').next());
    cells.map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
}

/// The words behind each number, up to a mark or one of a few small words.
pub(crate) fn sentences(text: &str) -> Vec<String> {
    let mut labels = Vec::new();
    let is_number = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
    for part in text.split([',', ';', '(', ')', '\n']) {
        let mut words = part.split_whitespace().peekable();
        while let Some(word) = words.next() {
            if !is_number(word) {
                continue;
            }
            let mut label: Vec<&str> = Vec::new();
            while let Some(next) = words.next_if(|next| !is_number(next)) {
                label.push(next);
            }
            let end = label.iter().skip(1).position(|word| SMALL.contains(word));
            label.truncate(end.map_or(label.len(), |end| end + 1));
            if label != ["of"] && !label.is_empty() {
                labels.push(label.join(" "));
            }
        }
    }
    labels
}

const SMALL: [&str; 6] = ["in", "by", "between", "to", "at", "from"];

/// Fields are two blanks apart; labels are beside the numbers.
pub(crate) fn fields(text: &str) -> Vec<String> {
    let is_value =
        |word: &&str| word.starts_with(|first: char| first.is_ascii_digit() || first == '–');
    let parts = text
        .split("  ")
        .map(str::trim)
        .filter(|part| part.split_whitespace().any(|word| is_value(&word)));
    let label = |part: &str| {
        let words = part.split_whitespace();
        let before: Vec<_> = words.clone().take_while(|word| !is_value(word)).collect();
        if before.is_empty() {
            let behind = words.filter(|word| !is_value(word) && *word != "of");
            return behind.collect::<Vec<_>>().join(" ");
        }
        before.join(" ")
    };
    parts.map(label).collect()
}

#[test]
fn a_figure_is_not_found_in_a_longer_one() {
    assert!(has_words("  rejected 1, 12 in all", "rejected 1") && has_words("ab 1", "1"));
    assert!(!has_words("  rejected 12", "rejected 1") && !has_words("112", "12"));
}

#[test]
fn labels_are_found_beside_their_numbers() {
    let text =
        "12 packets in 3.0 s, 9 delivered, by 2 switches\nbad: 1 of another user, 3 of 7 bytes";
    let expected = ["packets", "s", "delivered", "switches", "of another user", "bytes"];
    assert_eq!(sentences(text), expected);
    let line =
        "    12 s  1 of 2 connections open  0.5 Gbit/s  aligned 97 %  held 64K  cut –  it is down";
    assert_eq!(fields(line), ["s", "connections open", "Gbit/s", "aligned", "held", "cut"]);
}
