//! Reasons why a server was not reached, with advice.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::anyhow;
use urnic::device::Kind;
use urnic::{
    ConnectionEvent, EndpointEvent, Error, PostError, StartupFailure, WcOpcode, WcStatus,
    monotonic_now,
};

use crate::client::Client;
use crate::device;
use crate::host::Host;
use crate::protocol::{Control, refusal_from};
use crate::terminated::words;

impl Client<'_> {
    pub(crate) fn silent(&self, time: Duration) -> anyhow::Error {
        anyhow!(
            "{} has not answered for {:?}: it has stopped, or the way to it is broken",
            self.remote,
            time
        )
    }

    pub(super) fn ended(&self, reason: &str) -> anyhow::Error {
        anyhow!("{} says: {reason}", self.remote)
    }

    pub(crate) fn unexpected(&self, message: &Control) -> anyhow::Error {
        anyhow!("{} sent {message:?}, which is not valid here", self.remote)
    }

    pub(crate) fn unasked(&self) -> anyhow::Error {
        anyhow!("{} sent payload that was not requested", self.remote)
    }

    /// Replaces the error of a post: the connection has ended, which has a reason of its own.
    pub(super) fn reason(&self, error: anyhow::Error) -> anyhow::Error {
        if error.is::<PostError>() { self.lost() } else { error }
    }

    pub(crate) fn lost(&self) -> anyhow::Error {
        let reason = self.said_last().unwrap_or_else(|| self.end_of_connection());
        match self.waiting.stopped_for(monotonic_now()) {
            Some(time) => reason.context(format!(
                "this process was stopped for {} s, longer than the server waits",
                time.as_secs()
            )),
            None => reason,
        }
    }

    /// Returns a message that was not read before a request failed.
    fn said_last(&self) -> Option<anyhow::Error> {
        while let Some(wc) = self.cq.poll() {
            if wc.status == WcStatus::Success
                && (wc.opcode, wc.solicited) == (WcOpcode::Recv, true)
                && let Ok(Control::Failed(reason)) = self.channel.take_control(&self.qp, &wc)
            {
                return Some(self.ended(&reason));
            }
        }
        None
    }

    fn end_of_connection(&self) -> anyhow::Error {
        let remote = self.remote;
        // The first failure is the reason; a Terminate may still arrive.
        while let Ok(Some(event)) = self.connection.next_event(REASON_WAIT) {
            match event {
                ConnectionEvent::Failed(error) => {
                    return anyhow!("the session with {remote} failed here: {error}");
                }
                ConnectionEvent::Terminated(terminate) => {
                    return anyhow!("{remote} ended the session: {}", words(&terminate));
                }
                ConnectionEvent::PeerClosed => {
                    return anyhow!("{remote} closed the connection before all was done");
                }
                ConnectionEvent::Closed(_) => break,
                _ => {}
            }
        }
        anyhow!("the connection to {remote} was lost")
    }
}

pub(super) fn explain(remote: SocketAddr, host: &Host, error: &Error) -> anyhow::Error {
    why(remote, host.options.timeout, error, || advice(remote, host, error))
}

/// `advice` is for a peer that sent nothing.
fn why(
    remote: SocketAddr,
    timeout: Duration,
    error: &Error,
    advice: impl FnOnce() -> String,
) -> anyhow::Error {
    match error {
        Error::Io(ErrorKind::ConnectionRefused) | Error::Startup(StartupFailure::Refused) => {
            let (address, port) = (remote.ip(), remote.port());
            anyhow!(
                "{address} refused the connection: nothing listens there at TCP port {port}; start \
                 'urnic serve --listen {remote}' on that machine, or check the port number"
            )
        }
        Error::Io(ErrorKind::ConnectionReset) => anyhow!(
            "{remote} took the connection and reset it instead of starting RDMA: what listens there \
             may not speak MPA, or has ended; check the port number, and its log"
        ),
        Error::Io(ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable)
        | Error::Startup(StartupFailure::Unreachable) => anyhow!(
            "the network reports that {remote} cannot be reached: check the address and the routes; a \
             firewall that refuses TCP port {} may say so too",
            remote.port()
        ),
        Error::Io(kind) => {
            anyhow!("cannot connect to {remote}: {}", std::io::Error::from(*kind))
        }
        Error::Timeout | Error::Startup(StartupFailure::Timeout) => {
            anyhow!("{remote} did not answer within {timeout:?}: {}", advice())
        }
        Error::Rejected(rejection) => match refusal_from(&rejection.private_data) {
            Some(reason) => anyhow!("{remote} rejected the session: {reason}"),
            None => anyhow!(
                "the application that listens at {remote} rejected the connection: it speaks RDMA \
                 and is no 'urnic serve', so check the port number, or what its log says"
            ),
        },
        Error::Startup(StartupFailure::Protocol(error)) => anyhow!(
            "{remote} does not speak MPA: {error}; the service there is no RDMA service, so check \
             the port number"
        ),
        Error::Startup(StartupFailure::ConnectionLost) | Error::Closed => anyhow!(
            "{remote} took the connection and closed it instead of starting RDMA: what listens \
             there does not speak MPA, or has no room; check the port number"
        ),
        other => anyhow!("cannot connect to {remote}: {other}"),
    }
}

/// A known fault, or else possible faults.
fn advice(remote: SocketAddr, host: &Host, error: &Error) -> String {
    if matches!(error, Error::Startup(StartupFailure::Timeout)) {
        return "it accepts TCP connections and sends nothing: the service there is no RDMA \
                service, or has been stopped; check the port number"
            .into();
    }
    if let Some(advice) = host.checksum_advice() {
        return advice;
    }
    let dev = &host.options.dev;
    if let Some(problem) = device::problem(dev) {
        return problem.to_string();
    }
    if let Some(advice) = down_advice(host) {
        return advice;
    }
    let address = remote.ip();
    if let Some(why) = dev.no_way_to(address) {
        return why;
    }
    let port = remote.port();
    match dev.addresses() {
        None => format!(
            "nothing comes back from there: does 'ping -c 3 {address}' get answers? Does a firewall drop \
             TCP port {port}? --timeout waits longer"
        ),
        Some(_) => format!(
            "is {address} up, and in the same network and VLAN as --dev {dev}? Does no other host \
             have the address of this device? Does a firewall drop TCP port {port}? --timeout waits \
             longer"
        ),
    }
}

fn down_advice(host: &Host) -> Option<String> {
    let mut is_down = false;
    while let Ok(Some(event)) = host.endpoint.next_event(Duration::ZERO) {
        match event {
            EndpointEvent::LinkDown => is_down = true,
            EndpointEvent::LinkUp => is_down = false,
            _ => {}
        }
    }
    let dev = &host.options.dev;
    is_down.then(|| match dev.kind() {
        Kind::Ib(port) => format!(
            "the link of --dev {dev} itself is down. Has a subnet manager set up the port of node \
             {}, and does its configuration have the broadcast group of this partition? 'urnic info \
             --dev {dev}' says why it is down",
            port.node
        ),
        _ => format!("the link of --dev {dev} itself is down"),
    })
}

const REASON_WAIT: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use urnic::Rejection;
    use urnic_engine::mpa::startup::{MpaStartupError, PeerDepths};

    use super::*;
    use crate::protocol::emit_refusal;

    /// Each names the address, the end that refused, and what to do; no two are alike.
    #[test]
    fn each_refusing_end_has_its_own_message() {
        const STRANGER: &str = "the application that listens at 192.0.2.7:7174 rejected";
        const PORT: &str = "check the port number";
        let rejected = |private_data: &[u8]| {
            let peer_depths = PeerDepths::default();
            Error::Rejected(Rejection { peer_depths, private_data: private_data.into() })
        };
        let startup = Error::Startup;
        let cases = [
            // Nothing listens.
            (
                Error::Io(ErrorKind::ConnectionRefused),
                "nothing listens there at TCP port 7174",
                "start 'urnic serve",
            ),
            // A listener that rejected: a server of urnic, and one of another program.
            (
                rejected(&emit_refusal("it has no folder")),
                "rejected the session: it has no folder",
                "",
            ),
            (rejected(b"go away"), STRANGER, PORT),
            (rejected(b""), STRANGER, PORT),
            // A peer that speaks no MPA.
            (
                startup(StartupFailure::Protocol(MpaStartupError::EarlyData)),
                "does not speak MPA: ",
                "check the port number",
            ),
            (
                startup(StartupFailure::ConnectionLost),
                "took the connection and closed it",
                "check the port number",
            ),
            (Error::Closed, "took the connection and closed it", "check the port number"),
            (
                Error::Io(ErrorKind::ConnectionReset),
                "took the connection and reset it",
                "check the port number",
            ),
            // Silence, with or without TCP.
            (Error::Timeout, "did not answer within 5s: ADVICE", ""),
            (startup(StartupFailure::Timeout), "did not answer within 5s: ADVICE", ""),
            (
                Error::Io(ErrorKind::HostUnreachable),
                "the network reports that 192.0.2.7:7174 cannot be reached",
                "check the address",
            ),
            (
                startup(StartupFailure::Unreachable),
                "the network reports that 192.0.2.7:7174 cannot be reached",
                "check the address",
            ),
            (Error::Io(ErrorKind::Other), "cannot connect to 192.0.2.7:7174: other error", ""),
            (
                Error::Down,
                "cannot connect to 192.0.2.7:7174: the endpoint has ended",
                "open another",
            ),
        ];
        let said = cases.each_ref().map(|(error, names, next)| {
            let text = message(error);
            assert!(text.contains("192.0.2.7"), "{error:?}: {text}");
            assert!(text.contains(names) && text.contains(next), "{error:?}: {text}");
            text
        });
        for (error, names, _) in &cases {
            let texts = said.iter().filter(|text| text.contains(names)).count();
            let same = cases.iter().filter(|(_, other, _)| other == names).count();
            assert_eq!(texts, same, "{names:?} of {error:?}");
        }
        let own = startup(StartupFailure::Refused);
        assert_eq!(message(&own), said[0], "the engine's TCP and the kernel's");
    }

    fn message(error: &Error) -> String {
        let remote = SocketAddr::from(([192, 0, 2, 7], 7174));
        why(remote, Duration::from_secs(5), error, || "ADVICE".into()).to_string()
    }
}
