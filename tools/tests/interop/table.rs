//! The cases that ran, and their outcomes.

use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};

use crate::lab::Lab;

/// The end of a case without a failure.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The case passed: a short description of the result.
    Passed(String),
    /// The reason why the case did not run.
    Skipped(String),
    /// A program is not installed: a failure if every case is required to run, as in the gate.
    Missing(String),
}

/// Prints a row as soon as its case ends; the sum at the end.
#[derive(Debug)]
pub(crate) struct Table {
    words: Vec<String>,
    passed: u32,
    skipped: Vec<(String, String)>,
    failed: Vec<String>,
    /// Reboots of the guest.
    reboots: u32,
    began: Instant,
}

/// Number of dead networks that are excused.
const REBOOTS: u32 = 2;

impl Table {
    /// Selects the cases whose name contains one of `words`, or all if there are no words.
    pub(crate) fn new(words: Vec<String>) -> Self {
        let began = Instant::now();
        Self { words, passed: 0, skipped: Vec::new(), failed: Vec::new(), reboots: 0, began }
    }

    /// Runs a step that all cases need.
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

    /// Runs one case; once more on a new guest when it failed and the emulated network is dead, which
    /// a few times may happen.
    ///
    /// # Errors
    /// The guest does not boot again.
    pub(crate) fn case(
        &mut self,
        lab: &mut Lab,
        name: &str,
        act: impl Fn(&mut Lab) -> anyhow::Result<Outcome>,
    ) -> anyhow::Result<()> {
        if !self.words.is_empty() && !self.words.iter().any(|word| name.contains(word.as_str())) {
            return Ok(());
        }
        let began = Instant::now();
        let mut outcome = act(lab);
        if let Err(error) = &outcome
            && !lab.guest_answers()
        {
            row("NO LINK", name, began.elapsed(), &format!("{error:#}"));
            ensure!(self.reboots < REBOOTS, "the guest's network died {REBOOTS} times before");
            self.reboots += 1;
            lab.reboot()?;
            outcome = act(lab);
        }
        let outcome = match outcome {
            Ok(Outcome::Missing(what)) if urnic_testkit::is_required() => Err(anyhow!(what)),
            outcome => outcome,
        };
        match outcome {
            Ok(Outcome::Passed(what)) => {
                self.passed += 1;
                row("passed", name, began.elapsed(), &what);
            }
            Ok(Outcome::Skipped(why) | Outcome::Missing(why)) => {
                row("SKIPPED", name, began.elapsed(), &why);
                self.skipped.push((name.to_owned(), why));
            }
            Err(error) => {
                row("FAILED", name, began.elapsed(), &format!("{error:#}"));
                self.failed.push(name.to_owned());
            }
        }
        Ok(())
    }

    /// Prints the sum; returns true if no case failed.
    pub(crate) fn finish(self) -> bool {
        println!(
            "\ninterop: {} passed, {} failed, {} skipped, {} guests, in {} s",
            self.passed,
            self.failed.len(),
            self.skipped.len(),
            self.reboots + 1,
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
