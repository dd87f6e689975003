//! What was tried, and how it went.

use std::time::{Duration, Instant};

/// How one case ended without a failure.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// What was shown, in a few words.
    Passed(String),
    /// Why it could not be tried.
    Skipped(String),
}

/// Prints a row as soon as its case ends; the sum at the end.
#[derive(Debug)]
pub(crate) struct Table {
    words: Vec<String>,
    passed: u32,
    skipped: Vec<(String, String)>,
    failed: Vec<String>,
    began: Instant,
}

impl Table {
    /// Only cases whose name contains one of `words` are run, all if there is none.
    pub(crate) fn new(words: Vec<String>) -> Self {
        let began = Instant::now();
        Self { words, passed: 0, skipped: Vec::new(), failed: Vec::new(), began }
    }

    /// Something without which nothing else can be tried.
    pub(crate) fn once<T>(
        &mut self,
        name: &str,
        act: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let began = Instant::now();
        let value = act()?;
        self.passed += 1;
        row("passed", name, began.elapsed(), "");
        Ok(value)
    }

    /// Runs one case.
    pub(crate) fn case(&mut self, name: &str, act: impl FnOnce() -> anyhow::Result<Outcome>) {
        if !self.words.is_empty() && !self.words.iter().any(|word| name.contains(word.as_str())) {
            return;
        }
        let began = Instant::now();
        match act() {
            Ok(Outcome::Passed(what)) => {
                self.passed += 1;
                row("passed", name, began.elapsed(), &what);
            }
            Ok(Outcome::Skipped(why)) => {
                row("SKIPPED", name, began.elapsed(), &why);
                self.skipped.push((name.to_owned(), why));
            }
            Err(error) => {
                row("FAILED", name, began.elapsed(), &format!("{error:#}"));
                self.failed.push(name.to_owned());
            }
        }
    }

    /// Prints the sum; whether nothing failed.
    pub(crate) fn finish(self) -> bool {
        println!(
            "\ninterop: {} passed, {} failed, {} skipped, in {} s",
            self.passed,
            self.failed.len(),
            self.skipped.len(),
            self.began.elapsed().as_secs()
        );
        for name in &self.failed {
            println!("  failed: {name}");
        }
        for (name, why) in &self.skipped {
            println!("  skipped: {name}: {why}");
        }
        self.failed.is_empty()
    }
}

fn row(outcome: &str, name: &str, took: Duration, what: &str) {
    println!("{outcome:8}{name:56}{:7.1} s  {what}", took.as_secs_f64());
}
