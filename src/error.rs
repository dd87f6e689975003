//! The errors of the library.
//!
//! Work and its queues have error types of the engine: [`QueueError`](crate::QueueError),
//! [`PostError`](crate::PostError), [`WcStatus`](crate::WcStatus), and
//! [`StreamError`](crate::StreamError) in the event of a connection's failure.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use urnic_engine::mpa::startup::Rejection;
use urnic_engine::port::PortError;
use urnic_engine::stream::{PhaseError, StartupFailure};

/// Error of an endpoint, a listener, a connection or a completion channel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(clippy::error_impl_error, reason = "the one family of the crate, written urnic::Error")]
pub enum Error {
    /// The awaited event has not happened in the time given. It may still happen.
    #[error(
        "it did not happen in the time given: wait longer, or check that the peer is reachable"
    )]
    Timeout,
    /// The kernel's TCP could not connect or listen, or the connection was lost.
    #[error("TCP: {}{}", io::Error::from(*.0), tcp_advice(*.0))]
    Io(io::ErrorKind),
    /// The operating system refused something that concerns no single connection: a descriptor, a
    /// thread, a core, randomness.
    #[error("{action}: {}{}", io::Error::from_raw_os_error(*.os_error), advice(*.os_error))]
    System {
        /// The attempted action.
        action: &'static str,
        /// `errno` of the call.
        os_error: i32,
    },
    /// The configuration cannot be used; the text says which part.
    #[error("the configuration cannot be carried out: {0}")]
    Config(&'static str),
    /// The peer's application refused to start RDMA. Its private data may say why.
    #[error("the peer's application rejected the connection")]
    Rejected(Rejection),
    /// MPA could not be started: the service at that address may not speak it.
    #[error("MPA startup failed: {0}; check that an RDMA service listens at that address and port")]
    Startup(StartupFailure),
    /// The endpoint cannot be shown to [`top`](crate::top): the folder of its socket is unusable.
    #[error("showing the endpoint in {}: {reason}", folder.display())]
    Top {
        /// Folder for its socket.
        folder: PathBuf,
        /// Reason why the folder is unusable.
        reason: String,
    },
    /// The interface has no such address, no free TCP port, or no room for a connection.
    #[error(transparent)]
    Port(PortError),
    /// The call does not fit the state of the connection or the queue pair.
    #[error(transparent)]
    Phase(#[from] PhaseError),
    /// The connection is over. Its last event has the reason.
    #[error("the connection is over")]
    Closed,
    /// The endpoint has been dropped, or its worker has failed: open another.
    #[error("the endpoint has ended: open another")]
    Down,
}

impl Error {
    pub(crate) fn system(action: &'static str, error: &io::Error) -> Self {
        let os_error = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
        Self::System { action, os_error }
    }
}

/// Equal errors for an engine and for the kernel's TCP.
impl From<PortError> for Error {
    fn from(error: PortError) -> Self {
        match error {
            PortError::Phase(phase) => Self::Phase(phase),
            other => Self::Port(other),
        }
    }
}

/// For applications whose own errors are I/O errors.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(kind) => kind.into(),
            Error::System { os_error, .. } => Self::from_raw_os_error(os_error),
            Error::Timeout => Self::new(io::ErrorKind::TimedOut, error),
            Error::Config(_) => Self::new(io::ErrorKind::InvalidInput, error),
            other => Self::other(other),
        }
    }
}

const fn tcp_advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::ConnectionRefused => "; nothing listens at that address and port",
        io::ErrorKind::TimedOut => "; the peer does not answer",
        io::ErrorKind::PermissionDenied => "; TCP ports below 1024 need a privilege",
        _ => "",
    }
}

const fn advice(os_error: i32) -> &'static str {
    match Errno::from_raw_os_error(os_error) {
        Errno::MFILE => "; raise the process's limit of open files (`ulimit -n`)",
        Errno::NFILE => "; the system's limit of open files is reached (`sysctl fs.file-max`)",
        Errno::AGAIN => "; the limit of threads may be reached (`ulimit -u`)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_name_the_operation_and_the_remedy() {
        let full = Error::system("opening an eventfd", &Errno::MFILE.into());
        let text = full.to_string();
        assert!(text.starts_with("opening an eventfd: "), "{text}");
        assert!(text.contains("ulimit -n"), "{text}");
    }

    #[test]
    fn engines_report_misuse_with_equal_errors() {
        let phase = PhaseError::QpInUse;
        assert_eq!(Error::from(PortError::Phase(phase)), Error::Phase(phase));
    }

    #[test]
    fn errors_keep_their_kind_as_errors_of_the_system() {
        let kind = |error: Error| io::Error::from(error).kind();
        assert_eq!(kind(Error::Timeout), io::ErrorKind::TimedOut);
        assert_eq!(kind(Error::Config("x")), io::ErrorKind::InvalidInput);
        assert_eq!(kind(Error::Io(io::ErrorKind::NotFound)), io::ErrorKind::NotFound);
        assert_eq!(kind(Error::Down), io::ErrorKind::Other);
        let full = io::Error::from(Error::system("opening", &Errno::MFILE.into()));
        assert_eq!(full.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
    }
}
