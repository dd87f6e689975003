//! Programs of the host; they end with their case.

use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

/// A running program.
#[derive(Debug)]
pub(crate) struct Process(Child);

/// The end of a program.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; `None` if a signal ended it, including this module's after the time limit.
    pub(crate) code: Option<i32>,
    /// The last part of its output.
    pub(crate) output: String,
    /// Time from the start of the wait.
    pub(crate) after: Duration,
}

impl Process {
    /// Starts it. Its output must fit into a pipe.
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

    /// Waits for its end; kills it after `limit`.
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
