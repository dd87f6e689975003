//! `--help` and `-h` of every command at several widths, and the manual pages.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// Returns the help of a command in a terminal of `columns` columns.
fn help(arguments: &[&str], columns: usize) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urnic"));
    let output = command.args(arguments).env("COLUMNS", columns.to_string()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the names of all commands.
fn commands() -> BTreeSet<String> {
    let options = help(&["dump-options"], 80);
    let names = options.lines().filter_map(|line| line.split('\t').next());
    let names: BTreeSet<_> = names.map(str::to_owned).collect();
    assert!(names.len() > 15, "{names:?}");
    names
}

fn indent(line: &str) -> usize {
    line.chars().take_while(|c| *c == ' ').count()
}

/// Returns true if a word is alone before another line of its paragraph: then text was wrapped
/// twice.
fn is_torn(line: &str, next: Option<&&str>) -> bool {
    let word = line.trim();
    let is_alone = !word.is_empty() && !word.contains(' ') && !word.ends_with(':');
    let goes_on = next.is_some_and(|next| !next.trim().is_empty() && indent(next) == indent(line));
    // Usage, options and commands are also single words; torn text is prose.
    is_alone && goes_on && word.chars().all(|c| c.is_ascii_lowercase() || ",.;:)".contains(c))
}

#[test]
fn every_help_fits_its_width_and_is_not_torn() {
    let mut problems = Vec::new();
    for columns in [80, 100] {
        for command in commands() {
            for option in ["-h", "--help"] {
                let text = help(&[&command, option], columns);
                let lines: Vec<_> = text.lines().collect();
                for (index, line) in lines.iter().enumerate() {
                    let at = format!("{command} {option} at {columns}, line {}: {line}", index + 1);
                    if line.chars().count() > columns {
                        problems.push(format!("too long: {at}"));
                    }
                    if is_torn(line, lines.get(index + 1)) {
                        problems.push(format!("torn: {at}"));
                    }
                }
            }
        }
        for line in help(&["--help"], columns).lines() {
            assert!(line.chars().count() <= columns, "{line}");
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_help_has_the_exit_status_and_examples() {
    for command in commands() {
        let text = help(&[&command, "--help"], 80);
        assert!(text.contains("Exit status: 0 ") || command == "run", "{command}: {text}");
        assert!(text.contains("\nExit status: "), "{command}");
        assert!(text.contains("\nExample"), "{command}");
        let short = help(&[&command, "-h"], 80);
        let has_device =
            short.contains("--dev <DEVICE>") && !["info", "ibgate"].contains(&&*command);
        assert!(!short.contains("see below"), "{command}: nothing is below");
        assert_eq!(text.contains("Devices (--dev):"), has_device, "{command}");
        assert!(!has_device || short.contains("--help has all"), "{command}: {short}");
    }
}

/// Commands of the examples are the same at 80 and at 100 columns: they can be pasted.
#[test]
fn examples_are_not_wrapped() {
    for command in commands() {
        let examples = |columns| {
            let text = help(&[&command, "--help"], columns);
            let (_, examples) = text.split_once("\nExample").unwrap();
            let lines = examples.lines().take_while(|line| !line.starts_with("Devices"));
            let lines = lines.map(str::to_owned);
            lines.filter(|line| (2..6).contains(&indent(line))).collect::<Vec<_>>()
        };
        let found = examples(80);
        assert!(!found.is_empty(), "{command}");
        assert_eq!(found, examples(100), "{command}");
        for (line, next) in found.iter().zip(&found[1..]) {
            let is_continued = line.ends_with('\\') || line.ends_with('|');
            assert_eq!(is_continued, indent(next) > 2, "{command}: {line}, {next}");
        }
    }
}

#[test]
fn manual_pages_have_the_sections_of_manual_pages() {
    let folder = tempfile::tempdir().unwrap();
    help(&["man", folder.path().to_str().unwrap()], 80);
    for command in commands() {
        let page = fs::read_to_string(folder.path().join(format!("urnic-{command}.1"))).unwrap();
        let sections: Vec<_> = page
            .lines()
            .filter_map(|line| line.strip_prefix(".SH "))
            .map(|name| name.trim_matches('"'))
            .collect();
        assert!(!sections.contains(&"EXTRA"), "{command}: {sections:?}");
        for name in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES", "SEE ALSO"] {
            assert_eq!(
                sections.iter().filter(|one| **one == name).count(),
                1,
                "{command}: {sections:?}"
            );
        }
        let examples = page.split(".SH \"EXAMPLES\"").nth(1).unwrap();
        assert!(
            examples.contains("\n.nf\n") && examples.contains(".fi\n"),
            "{command}: {examples}"
        );
        assert!(page.contains("\\fBurnic\\fR(1)"), "{command}");
    }
    let all = fs::read_to_string(folder.path().join("urnic.1")).unwrap();
    assert!(commands().iter().all(|command| all.contains(&format!("urnic\\-{command}"))), "{all}");
    assert!(all.contains(".SH \"ENVIRONMENT\"") && all.contains("URNIC_LOG"), "{all}");
}
