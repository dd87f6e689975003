//! Faults on demand. `URNIC_FAIL=create_cq:2,post_send:100:ENOMEM,connect:1:reject` makes the
//! second `ibv_create_cq` of the process and the hundredth `ibv_post_send` fail, and has the first
//! `rdma_connect` rejected, so that applications can test their error handling.
#![expect(clippy::print_stderr, reason = "the user who set a wrong variable reads standard error")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
use urnic::environment;

use crate::errno::Errno;

const VARIABLE: &str = "URNIC_FAIL";

/// The variable names it in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    OpenDevice,
    AllocPd,
    RegMr,
    CreateCompChannel,
    CreateCq,
    CreateQp,
    CreateSrq,
    ModifyQp,
    PostSend,
    PostRecv,
    CreateId,
    BindAddr,
    ResolveAddr,
    ResolveRoute,
    Listen,
    Connect,
    Accept,
}

const CALLS: [(&str, Call, Errno); 17] = [
    ("open_device", Call::OpenDevice, Errno(libc::EMFILE)),
    ("alloc_pd", Call::AllocPd, Errno::NO_MEMORY),
    ("reg_mr", Call::RegMr, Errno::NO_MEMORY),
    ("create_comp_channel", Call::CreateCompChannel, Errno(libc::EMFILE)),
    ("create_cq", Call::CreateCq, Errno::NO_MEMORY),
    ("create_qp", Call::CreateQp, Errno::NO_MEMORY),
    ("create_srq", Call::CreateSrq, Errno::NO_MEMORY),
    ("modify_qp", Call::ModifyQp, Errno::INVALID),
    ("post_send", Call::PostSend, Errno::NO_MEMORY),
    ("post_recv", Call::PostRecv, Errno::NO_MEMORY),
    ("create_id", Call::CreateId, Errno(libc::EMFILE)),
    ("bind_addr", Call::BindAddr, Errno(libc::EADDRINUSE)),
    ("resolve_addr", Call::ResolveAddr, Errno(libc::ENODEV)),
    ("resolve_route", Call::ResolveRoute, Errno(libc::ENETUNREACH)),
    ("listen", Call::Listen, Errno(libc::EADDRINUSE)),
    ("connect", Call::Connect, Errno::INVALID),
    ("accept", Call::Accept, Errno::INVALID),
];

const ERRORS: [(&str, c_int); 14] = [
    ("EACCES", libc::EACCES),
    ("EADDRINUSE", libc::EADDRINUSE),
    ("EAGAIN", libc::EAGAIN),
    ("EBUSY", libc::EBUSY),
    ("ECONNREFUSED", libc::ECONNREFUSED),
    ("EFAULT", libc::EFAULT),
    ("EINVAL", libc::EINVAL),
    ("EIO", libc::EIO),
    ("EMFILE", libc::EMFILE),
    ("ENODEV", libc::ENODEV),
    ("ENOMEM", libc::ENOMEM),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EPERM", libc::EPERM),
    ("ETIMEDOUT", libc::ETIMEDOUT),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Error(Errno),
    /// The peer seems to reject the connection; only for `rdma_connect`.
    Reject,
}

#[derive(Debug)]
struct Fault {
    call: Call,
    number: u64,
    outcome: Outcome,
    calls: AtomicU64,
}

impl Fault {
    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let found = CALLS.iter().find(|(known, ..)| *known == name);
        let &(_, call, usual) = found.ok_or_else(|| {
            let known: Vec<_> = CALLS.iter().map(|(known, ..)| *known).collect();
            format!("no call is named {name:?}; these can fail: {}", known.join(", "))
        })?;
        let number = parts.next().and_then(|number| number.parse().ok()).filter(|n| *n > 0);
        let number = number
            .ok_or_else(|| format!("{text:?} lacks the number of the call, as in {name}:1"))?;
        let outcome = match parts.next() {
            None => Outcome::Error(usual),
            Some("reject") if call == Call::Connect => Outcome::Reject,
            Some(error) => {
                let known = ERRORS.iter().find(|(known, _)| *known == error);
                let (_, errno) = known.ok_or_else(|| format!("unknown error {error:?}"))?;
                Outcome::Error(Errno(*errno))
            }
        };
        match parts.next() {
            Some(more) => Err(format!("unexpected {more:?} in {text:?}")),
            None => Ok(Self { call, number, outcome, calls: AtomicU64::new(0) }),
        }
    }

    fn parse_all(text: &str) -> Result<Vec<Self>, String> {
        text.split(',').filter(|part| !part.is_empty()).map(Self::parse).collect()
    }

    /// Returns the effect if this is the call that must fail.
    fn meets(&self, call: Call) -> Option<Outcome> {
        let is_it =
            self.call == call && self.calls.fetch_add(1, Ordering::Relaxed) + 1 == self.number;
        is_it.then_some(self.outcome)
    }
}

fn faults() -> &'static [Fault] {
    static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();
    FAULTS.get_or_init(|| {
        let text = environment(VARIABLE).unwrap_or_default();
        let text = text.to_string_lossy();
        Fault::parse_all(&text).unwrap_or_else(|problem| {
            eprintln!("urnic: {VARIABLE}: {problem}; no call will fail");
            Vec::new()
        })
    })
}

fn outcome(call: Call) -> Option<Outcome> {
    faults().iter().filter_map(|fault| fault.meets(call)).last()
}

pub(crate) fn check(call: Call) -> Result<(), Errno> {
    match outcome(call) {
        Some(Outcome::Error(errno)) => Err(errno),
        Some(Outcome::Reject) | None => Ok(()),
    }
}

/// Returns true if the peer must seem to reject the connection.
pub(crate) fn check_connect() -> Result<bool, Errno> {
    match outcome(Call::Connect) {
        Some(Outcome::Error(errno)) => Err(errno),
        Some(Outcome::Reject) => Ok(true),
        None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_that_is_named_fails_once() {
        let faults = Fault::parse_all("create_cq:2,post_send:3:EAGAIN,connect:1:reject").unwrap();
        let meet = |call| faults.iter().filter_map(|fault| fault.meets(call)).last();
        let error = |errno| Some(Outcome::Error(Errno(errno)));
        let seen: Vec<_> = (0..4).map(|_| meet(Call::CreateCq)).collect();
        assert_eq!(seen, [None, error(libc::ENOMEM), None, None]);
        let seen: Vec<_> = (0..4).map(|_| meet(Call::PostSend)).collect();
        assert_eq!(seen, [None, None, error(libc::EAGAIN), None]);
        assert_eq!([(); 2].map(|()| meet(Call::Connect)), [Some(Outcome::Reject), None]);
        assert_eq!(meet(Call::Accept), None);
    }

    #[test]
    fn invalid_faults_are_reported_with_the_valid_ones() {
        for (text, told) in [
            ("create_qq:1", "create_qp"),
            ("create_qp", "create_qp:1"),
            ("create_qp:0", "create_qp:1"),
            ("create_qp:-1", "create_qp:1"),
            ("create_qp:1:EWHAT", "EWHAT"),
            ("create_qp:1:reject", "reject"),
            ("create_qp:1:EIO:2", "unexpected"),
            ("create_cq:1,,x:1", "\"x\""),
        ] {
            let problem = Fault::parse_all(text).unwrap_err();
            assert!(problem.contains(told), "{problem}");
        }
        assert!(Fault::parse_all("").unwrap().is_empty());
    }

    #[test]
    fn every_call_has_one_name() {
        for (index, (name, call, _)) in CALLS.iter().enumerate() {
            let alike = CALLS[..index].iter().any(|other| other.0 == *name || other.1 == *call);
            assert!(!alike, "{name}");
        }
    }
}
