//! The processes with shown endpoints, and their answers.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use urnic_netdev::local_peer::check_peer;

use super::folder::{check, folder};
use super::limits::{ANSWER_LEN_MAX, ANSWER_TIME_MAX, PROCESSES_MAX};
use crate::clock::monotonic_now;

/// A shown endpoint: a process, and the number of its endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// PID of the process.
    pub pid: u32,
    /// Number of the endpoint in the process, in the order in which they were shown.
    pub endpoint: u32,
    path: PathBuf,
}

/// Result of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A line of JSON.
    Line(String),
    /// The process has ended; its socket is removed.
    Gone,
    /// The process did not answer like an endpoint of this user: a sentence with the reason.
    Strange(String),
}

/// The shown endpoints of this user, by process: at most [`PROCESSES_MAX`]. Some may have ended.
///
/// # Errors
/// If the folder cannot be read, or other users can access it.
pub fn running() -> io::Result<Vec<Process>> {
    let folder = folder();
    match check(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        checked => checked?,
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        found.extend(named(&path));
        if found.len() == PROCESSES_MAX {
            break;
        }
    }
    found.sort();
    Ok(found)
}

/// Parses `PID`, or `PID.ENDPOINT`.
fn named(path: &Path) -> Option<Process> {
    let name = path.file_name()?.to_str()?;
    let (pid, endpoint) = name.split_once('.').unwrap_or((name, "0"));
    Some(Process {
        pid: pid.parse().ok()?,
        endpoint: endpoint.parse().ok()?,
        path: path.to_owned(),
    })
}

impl Process {
    /// Asks for the counters, and waits for at most [`ANSWER_TIME_MAX`].
    #[must_use]
    pub fn ask(&self) -> Answer {
        match self.answer() {
            Ok(answer) => answer,
            // A socket listens before it gets its name, so the process has ended.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // Another process may have removed the file.
                let _gone = fs::remove_file(&self.path);
                Answer::Gone
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Answer::Gone,
            Err(error) if is_late(&error) => Answer::Strange(LATE.to_owned()),
            Err(error) => Answer::Strange(error.to_string()),
        }
    }

    fn answer(&self) -> io::Result<Answer> {
        let until = monotonic_now() + ANSWER_TIME_MAX;
        let mut stream = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // The timeout holds for connecting, too, while other processes wait.
        stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
        stream.connect(&SockAddr::unix(&self.path)?)?;
        if !check_peer(&stream, None).is_ok_and(|peer| peer.pid == self.pid) {
            return Ok(Answer::Strange("its socket is another process's".to_owned()));
        }
        let mut octets = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let left: Duration = until - monotonic_now();
            if left.is_zero() {
                return Ok(Answer::Strange(LATE.to_owned()));
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => octets.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if octets.len() > ANSWER_LEN_MAX {
                return Ok(Answer::Strange("its answer is too long".to_owned()));
            }
        }
        Ok(match String::from_utf8(octets) {
            Ok(text) if text.ends_with('\n') => Answer::Line(text),
            // Cut off: the process is ending, or has dropped this reader as too slow.
            Ok(text) if text.is_empty() => Answer::Strange("it does not answer".to_owned()),
            _ => Answer::Strange("its answer is no line of text".to_owned()),
        })
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

const LATE: &str = "it does not answer in time";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sockets_are_numbers() {
        let of = |name: &str| named(Path::new(name)).map(|one| (one.pid, one.endpoint));
        assert_eq!(of("/x/12"), Some((12, 0)));
        assert_eq!(of("/x/12.3"), Some((12, 3)));
        for name in ["/x/new-12", "/x/12.", "/x/.1", "/x/a", "/x/-1", "/x/99999999999"] {
            assert_eq!(of(name), None, "{name}");
        }
    }
}
