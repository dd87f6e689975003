//! Programs of the host that never outlive their case.

use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

/// A running program.
#[derive(Debug)]
pub(crate) struct Process(Child);

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; `None` when a signal ended it, ours after the time was over included.
    pub(crate) code: Option<i32>,
    /// The end of what it printed.
    pub(crate) output: String,
    /// From the moment it was waited for.
    pub(crate) after: Duration,
}

impl Process {
    /// Starts it. What it prints has to fit a pipe.
    pub(crate) fn start(
        program: &str,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> anyhow::Result<Self> {
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| program.to_owned())?;
        Ok(Self(child))
    }

    /// Waits; kills it when `limit` is over.
    pub(crate) fn finish(mut self, limit: Duration) -> anyhow::Result<Ended> {
        let began = Instant::now();
        while self.0.try_wait()?.is_none() && began.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        let after = began.elapsed();
        if self.0.try_wait()?.is_none() {
            self.0.kill()?;
        }
        let status = self.0.wait()?;
        let mut output = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            std::io::Read::read_to_string(&mut stderr, &mut output)?;
        }
        Ok(Ended { code: status.code(), output: last_line(&output), after })
    }

    /// Ends it by SIGKILL.
    pub(crate) fn end(&mut self) -> anyhow::Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors mean that the process has ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Returns the last line of a program's output, which says why it failed.
pub(crate) fn last_line(output: &str) -> String {
    output.trim_end().lines().next_back().unwrap_or_default().trim().to_owned()
}
