//! Which processes are looked at.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use urnic::top::{self, Process};

use crate::printable::printable;

/// All processes of this user that show endpoints, or these.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) pids: Vec<u32>,
}

impl Wanted {
    /// Those that there are now.
    ///
    /// # Errors
    /// When the folder of the sockets cannot be read.
    pub(super) fn running(&self) -> anyhow::Result<Vec<Process>> {
        let folder = top::folder();
        let mut all = top::running().with_context(|| format!("{}", folder.display()))?;
        all.retain(|one| self.pids.is_empty() || self.pids.contains(&one.pid));
        Ok(all)
    }

    /// Fails unless there is something to look at; says what to do.
    ///
    /// # Errors
    /// When one of the processes shows nothing, or none does.
    pub(super) fn check(&self, found: &[Process]) -> anyhow::Result<()> {
        let place = top::folder();
        let place = place.display();
        for pid in &self.pids {
            if found.iter().any(|one| one.pid == *pid) {
                continue;
            }
            if Path::new("/proc").join(pid.to_string()).exists() {
                bail!("process {pid} shows no endpoint: {START_ONE} (sockets are in {place})");
            }
            bail!("no process has the number {pid}; 'urnic top' shows all that can be looked at");
        }
        if found.is_empty() {
            bail!("no urnic endpoint of yours is shown: {START_ONE} (sockets are in {place})");
        }
        Ok(())
    }
}

const START_ONE: &str =
    "start the command with --top, or the program with URNIC_TOP=1 in its environment";

/// What a process runs: its program, and the command of it if that is ours.
pub(super) fn command(pid: u32) -> String {
    let path: PathBuf = ["/proc", &pid.to_string(), "cmdline"].iter().collect();
    let mut bytes = Vec::new();
    // It may have ended meanwhile.
    let _unknown = File::open(path).and_then(|file| file.take(NAME_MAX).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let mut words = text.split('\0').filter(|word| !word.is_empty());
    let program = words.next().unwrap_or("?");
    let name = Path::new(program)
        .file_name()
        .map_or_else(|| program.into(), |name| name.to_string_lossy());
    match words.next() {
        Some(command) if name == "urnic" => printable(&format!("urnic {command}")),
        _ => printable(&name),
    }
}

/// Bytes of a command line that are read.
const NAME_MAX: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_called_after_its_program() {
        let own = command(std::process::id());
        assert!(!own.contains('/') && own.len() > 1, "{own}");
        assert_eq!(command(u32::MAX), "?");
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_do() {
        let of = |pids: &[u32]| Wanted { pids: pids.to_vec() }.check(&[]).unwrap_err().to_string();
        assert!(of(&[]).contains("URNIC_TOP=1"), "{}", of(&[]));
        assert!(of(&[std::process::id()]).contains("shows no endpoint"));
        assert!(of(&[u32::MAX]).contains("no process has the number 4294967295"));
    }
}
