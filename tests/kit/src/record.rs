//! Records of the skips in one run of `cargo test`: a line for each, in a file of that run.
//!
//! Every test binary is a child of the cargo process that runs it. The id of that process and its
//! start time name the run, so records of an earlier run are never taken for this one's. The files
//! are in `skipped` beside the folder of the binaries, and are removed once they are reported.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Environment variable with the path to write to instead, for tests whose parent is not cargo.
pub(crate) const FILE: &str = "URNIC_SKIPS";

/// Records that `name` was skipped. If the file cannot be written, the skip was at least printed.
pub(crate) fn add(name: &str, reason: &str) {
    let Some(file) = file() else { return };
    let line = format!("{}\t{}\t{}\n", binary(), flat(name), flat(reason));
    let _told_anyway = append(&file, &line);
}

fn append(file: &Path, line: &str) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    // One write, so that lines of concurrent tests do not mix.
    OpenOptions::new().create(true).append(true).open(file)?.write_all(line.as_bytes())
}

/// One skipped test, with its reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skip {
    binary: String,
    name: String,
    pub(crate) reason: String,
}

/// Takes the records of this run; a test that was skipped twice counts once. Removes the records of
/// runs that are over, too.
pub(crate) fn take() -> BTreeSet<Skip> {
    let Some(file) = file() else { return BTreeSet::new() };
    let text = fs::read_to_string(&file).unwrap_or_default();
    let _none_written = fs::remove_file(&file);
    if let Some(folder) = file.parent().filter(|_| std::env::var_os(FILE).is_none()) {
        remove_stale(folder);
    }
    parse(&text)
}

fn parse(text: &str) -> BTreeSet<Skip> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split('\t').map(str::to_owned);
            Some(Skip { binary: words.next()?, name: words.next()?, reason: words.next()? })
        })
        .collect()
}

fn remove_stale(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let run = entry.file_name().to_string_lossy().into_owned();
        let process = run.split('-').next().and_then(|id| id.parse().ok());
        if process.and_then(run_of).is_none_or(|alive| alive != run) {
            let _gone = fs::remove_file(entry.path());
        }
    }
}

/// Returns the file of this run. Tests in namespaces get it from the test that made their process.
pub(crate) fn file() -> Option<PathBuf> {
    if let Some(file) = std::env::var_os(FILE) {
        return Some(file.into());
    }
    let run = run_of(std::os::unix::process::parent_id())?;
    // target/debug/deps/netns-0123456789abcdef
    let binaries = std::env::current_exe().ok()?;
    Some(binaries.parent()?.parent()?.join("skipped").join(run))
}

/// Returns the name of the run of a cargo process; `None` if there is no such process.
fn run_of(process: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // proc_pid_stat(5): the name, in parentheses, may contain anything; (22) is the start time.
    let started = stat.rsplit_once(')')?.1.split_whitespace().nth(22 - 3)?;
    Some(format!("{process}-{started}"))
}

/// Returns the name of the test binary, without the hash that cargo appends.
fn binary() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or(&*name, |(name, _hash)| name).to_owned()
}

fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_known_by_its_process_and_when_that_was_started() {
        let own = run_of(std::process::id()).expect("this process runs");
        assert!(own.starts_with(&format!("{}-", std::process::id())));
        assert_eq!(run_of(std::process::id()), Some(own));
        assert_ne!(run_of(1), run_of(std::process::id()));
        // Larger than any process id of Linux.
        assert_eq!(run_of(u32::MAX), None);
    }

    #[test]
    fn a_test_counts_once_and_lines_cut_short_do_not() {
        let text = "netns\tone\tno ip\nnetns\tone\tno ip\ntshark\tone\tno tshark\nnetns\ttwo";
        let reasons: Vec<_> = parse(text).into_iter().map(|skip| skip.reason).collect();
        assert_eq!(reasons, ["no ip", "no tshark"]);
        assert_eq!(flat("said\n more\tthan one"), "said more than one");
    }

    #[test]
    fn stale_records_of_ended_runs_are_removed() {
        let folder = std::env::temp_dir().join(format!("urnic-stale-{}", std::process::id()));
        let own = run_of(std::process::id()).unwrap();
        let reused = format!("{}-1", std::process::id());
        for run in [own.as_str(), &reused, "4294967295-17", "no-number"] {
            append(&folder.join(run), "x\ty\tz\n").unwrap();
        }
        remove_stale(&folder);
        let left: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [own.as_str()]);
        fs::remove_dir_all(folder).unwrap();
    }
}
