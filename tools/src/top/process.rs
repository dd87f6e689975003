//! Selection of processes.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use urnic::top::{self, Process};
use urnic_replay::printable::printable;

/// Processes with endpoints that are shown, or the listed ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) pids: Vec<u32>,
}

impl Wanted {
    pub(super) fn running(&self) -> anyhow::Result<Vec<Process>> {
        let folder = top::folder();
        let mut all = top::running().with_context(|| format!("{}", folder.display()))?;
        all.retain(|one| self.pids.is_empty() || self.pids.contains(&one.pid));
        Ok(all)
    }

    /// Fails, and says what to do, if a listed process shows no endpoint, or no process does.
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

/// The program, and the subcommand if it is urnic.
pub(super) fn command(pid: u32) -> String {
    let path: PathBuf = ["/proc", &pid.to_string(), "cmdline"].iter().collect();
    let mut bytes = Vec::new();
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
    fn missing_endpoints_are_reported_with_a_remedy() {
        let of = |pids: &[u32]| Wanted { pids: pids.to_vec() }.check(&[]).unwrap_err().to_string();
        assert!(of(&[]).contains("URNIC_TOP=1"), "{}", of(&[]));
        assert!(of(&[std::process::id()]).contains("shows no endpoint"));
        assert!(of(&[u32::MAX]).contains("no process has the number 4294967295"));
    }
}
