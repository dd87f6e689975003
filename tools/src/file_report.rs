//! Common parts of `put` and `get`: the address of a file at a server, options, and the report.

use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use crate::address::HostPort;
use crate::client::{Client, Transferred, Unverified};
use crate::figure::hex;
use crate::host::ClientOptions;
use crate::interrupt::Interrupted;
use crate::protocol::NAME_LEN_MAX;
use crate::{report, size, units};

/// Options of a transfer.
#[derive(clap::Args, Debug)]
pub(crate) struct TransferOptions {
    /// Replace a file that has the name already
    #[arg(long)]
    pub(crate) force: bool,

    /// Bits per second at most, such as 500M
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub(crate) rate: Option<u64>,

    /// Print the result as JSON, and no progress
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) client: ClientOptions,
}

pub(crate) fn is_standard_stream(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// A server, and a file there: `HOST[:PORT][/NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: HostPort,
    pub(crate) name: Option<String>,
}

impl FromStr for Remote {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, name) = match text.split_once('/') {
            Some((address, name)) => (address, Some(name.to_owned())),
            None => (text, None),
        };
        let address = address.parse()?;
        if name.as_ref().is_some_and(|name| name.is_empty() || name.len() > NAME_LEN_MAX) {
            return Err(format!("a name has 1 to {NAME_LEN_MAX} bytes"));
        }
        Ok(Self { address, name })
    }
}

/// Ends the session, and says what is kept for the next attempt.
pub(crate) fn broken_off(
    client: Client<'_>,
    error: anyhow::Error,
    moved: u64,
    where_kept: &str,
) -> anyhow::Error {
    if error.is::<Interrupted>() {
        let _as_far_as_it_goes = client.close();
    }
    if error.is::<Unverified>() || moved == 0 {
        return error;
    }
    let moved = size::format(moved);
    let kept = format!("{moved} are kept {where_kept}: the same command goes on from there");
    BrokenOff { error, kept }.into()
}

#[derive(Debug, thiserror::Error)]
#[error("{error:#}; {kept}")]
pub(crate) struct BrokenOff {
    error: anyhow::Error,
    kept: String,
}

/// A part of its work may be kept.
pub(crate) fn is_interrupted(error: &anyhow::Error) -> bool {
    let inner = error.downcast_ref::<BrokenOff>().map_or(error, |broken_off| &broken_off.error);
    inner.is::<Interrupted>()
}

#[derive(Debug, Serialize)]
pub(crate) struct FileReport {
    op: &'static str,
    file: String,
    peer: SocketAddr,
    bytes: u64,
    resumed_bytes: u64,
    seconds: f64,
    gbps: f64,
    sha256: String,
}

impl FileReport {
    #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
    pub(crate) fn new(
        op: &'static str,
        file: &Path,
        peer: SocketAddr,
        bytes: u64,
        transferred: &Transferred,
        time: Duration,
    ) -> Self {
        let seconds = time.as_secs_f64();
        let moved = bytes - transferred.resumed.min(bytes);
        Self {
            op,
            file: file.display().to_string(),
            peer,
            bytes,
            resumed_bytes: transferred.resumed,
            seconds,
            gbps: moved as f64 * 8.0 / seconds / 1e9,
            sha256: hex(&transferred.sha256),
        }
    }

    pub(crate) fn print(&self, json: bool) -> std::io::Result<()> {
        if json {
            return report::print_json(self);
        }
        let resumed = match self.resumed_bytes {
            0 => String::new(),
            octets => format!(", {} of them from an earlier attempt", size::format(octets)),
        };
        report::print(&format!(
            "{}: {} bytes in {:.2} s{resumed}\nsha256 {}",
            self.file,
            report::count(self.bytes),
            self.seconds,
            self.sha256
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_is_an_address_and_perhaps_a_name() {
        let remote: Remote = "192.0.2.1:7174".parse().unwrap();
        assert_eq!((remote.address.port, remote.name), (7174, None));
        let remote: Remote = "host/a".parse().unwrap();
        assert_eq!((remote.address.port, remote.name.as_deref()), (7174, Some("a")));
        let remote: Remote = "[::1]:7/a/b".parse().unwrap();
        assert_eq!(remote.name.as_deref(), Some("a/b"));
        for text in ["", "host:x", "192.0.2.256", "192.0.2.1:7174/", "/x"] {
            assert!(text.parse::<Remote>().is_err(), "{text}");
        }
    }

    #[test]
    fn file_rate_excludes_resumed_bytes() {
        let report = |resumed, bytes| {
            let transferred = Transferred { sha256: [7; 32], resumed };
            let peer = SocketAddr::from(([10, 0, 0, 1], 7174));
            FileReport::new(
                "put",
                Path::new("x"),
                peer,
                bytes,
                &transferred,
                Duration::from_secs(2),
            )
        };
        let near = |found: f64, expected: f64| (found - expected).abs() < 1e-9;
        assert!(near(report(0, 1_000_000_000).gbps, 4.0));
        assert!(near(report(750_000_000, 1_000_000_000).gbps, 1.0), "the rest was there");
        assert!(near(report(5, 4).gbps, 0.0));
    }
}
