//! Resources of a session, computed before any of them is allocated.

use std::fs::File;

use anyhow::{Context, ensure};

use crate::protocol::{CONTROL_LEN_MAX, Hello, Session};
use crate::server::Limits;
use crate::size;
use crate::transfer::{place_len, places_within};

/// Needs of a session, without those for control messages.
#[derive(Debug)]
pub(crate) struct SessionResources {
    pub(crate) send: usize,
    pub(crate) receive: usize,
    pub(crate) receive_len: usize,
    pub(crate) places: u32,
    pub(crate) memory: u64,
    /// Bytes beside that memory: fixed overhead, requests, and control messages.
    pub(crate) beside: u64,
    /// The file that the peer gets, and its length.
    pub(crate) file: Option<(File, u64)>,
}

impl SessionResources {
    /// Fails if the session that `hello` asks for exceeds the limits, or the file does not exist.
    pub(crate) fn of(hello: &Hello, limits: &Limits) -> anyhow::Result<Self> {
        let Hello { session, len, depth } = hello;
        let most = limits.memory_max;
        let mut resources = Self {
            send: 1,
            receive: 0,
            receive_len: 0,
            places: 0,
            memory: 0,
            beside: 0,
            file: None,
        };
        match session {
            Session::Memory => resources.memory = at_most(most, *len, 1, "a region")?,
            Session::PingPong(_) => {
                ensure!(*len > 0, "ping-pong needs a message of 1 byte at least");
                resources.send = PING_PONG_DEPTH;
                resources.memory = at_most(most, *len, PING_PONG_SLOTS, "regions")?;
            }
            Session::Both { .. } => {
                check_depth(*depth)?;
                resources.send = usize::try_from(*depth)?;
                resources.memory = at_most(most, *len, BOTH_SLOTS, "regions")?;
            }
            Session::Echo | Session::Sink => {
                check_depth(*depth)?;
                resources.receive = usize::try_from(*depth)?;
                resources.receive_len = usize::try_from(*len)?;
                if matches!(session, Session::Echo) {
                    resources.send = resources.receive;
                }
                let buffers = u64::from(*depth) + session.requests_max() as u64;
                resources.memory = at_most(most, *len, buffers, "receive buffers")?;
            }
            Session::Put { .. } => {
                check_right(limits.no_put)?;
                resources.take_places(*len, most)?;
            }
            Session::Get { name } => {
                check_right(limits.no_get)?;
                let file = folder(limits)?.open_file(name)?;
                let len = file.metadata()?.len();
                resources.take_places(len, most)?;
                resources.file = Some((file, len));
            }
        }
        resources.beside = resources.bytes_beside(session);
        Ok(resources)
    }

    fn bytes_beside(&self, session: &Session) -> u64 {
        let control = 2 * session.answers_max();
        let buffers = self.receive + session.requests_max();
        // A buffer for payload also receives a control message.
        let surplus = CONTROL_LEN_MAX.saturating_sub(self.receive_len);
        let control_bytes = buffers * surplus + control * CONTROL_LEN_MAX;
        let requests = (self.send + control + buffers) * REQUEST_BYTES;
        SESSION_BYTES + (control_bytes + requests) as u64
    }

    fn take_places(&mut self, len: u64, memory_max: u64) -> anyhow::Result<()> {
        self.places = places_within(len, memory_max).with_context(|| {
            format!(
                "a chunk of a file has {} bytes, and a peer gets {}: start 'urnic serve' with a \
                 larger --size",
                size::format(place_len(len)),
                size::format(memory_max)
            )
        })?;
        self.memory = place_len(len) * u64::from(self.places);
        Ok(())
    }
}

/// Checks that there is no reason against a transfer.
///
/// # Errors
/// The reason.
fn check_right(refusal: Option<&'static str>) -> anyhow::Result<()> {
    refusal.map_or(Ok(()), |why| Err(anyhow::anyhow!(why)))
}

fn check_depth(depth: u32) -> anyhow::Result<()> {
    ensure!(depth > 0, "messages need a depth of 1 at least");
    ensure!(depth <= DEPTH_MAX, "a depth of {depth} is more than {DEPTH_MAX}");
    Ok(())
}

/// Fails if `count` items of `len` bytes exceed the limit for a peer.
fn at_most(memory_max: u64, len: u64, count: u64, what: &str) -> anyhow::Result<u64> {
    let total = len.checked_mul(count);
    let shown = size::format(len);
    let sum = match (count, total) {
        (1, _) => format!("{what} of {shown}"),
        (_, Some(total)) => {
            format!("{count} {what} of {shown}, which are {} together,", size::format(total))
        }
        (_, None) => format!("{count} {what} of {shown}"),
    };
    total.filter(|total| *total <= memory_max).with_context(|| {
        format!(
            "the session resources {sum} and a peer gets {}: ask for smaller messages or fewer at a \
             time, or start 'urnic serve' with a larger --size",
            size::format(memory_max)
        )
    })
}

/// Heap bytes that every session takes (`server/tests/memory.rs`).
pub(super) const SESSION_BYTES: u64 = 8 << 10;
/// Posted, and completed.
const REQUEST_BYTES: usize = 256;
/// Payload messages in flight at a time: twice those of 'urnic bw', to cover credits in flight.
const DEPTH_MAX: u32 = 8192;
/// Multiple of the message length: one buffer is written to, and one is written from.
const PING_PONG_SLOTS: u64 = 2;
/// Multiple of the message length, for both directions.
const BOTH_SLOTS: u64 = 2;
/// Writes in flight: one, and Writes whose completion was not polled yet.
pub(super) const PING_PONG_DEPTH: usize = 64;

pub(crate) fn folder(limits: &Limits) -> anyhow::Result<&crate::transfer::Folder> {
    limits.folder.as_ref().context("no files are served here: 'urnic serve' was not given --dir")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::tests::limits;

    fn resources(session: Session, len: u64, depth: u32) -> Result<SessionResources, String> {
        let hello = Hello { session, len, depth };
        SessionResources::of(&hello, &limits()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn memory_is_counted_to_the_octet() {
        let most = limits().memory_max;
        assert_eq!(resources(Session::Memory, most, 0).unwrap().memory, most);
        let said = resources(Session::Memory, most + 1, 0).unwrap_err();
        assert!(said.contains("a region of 1M") && said.contains("--size"), "{said}");
        let buffers = 16 + Session::Sink.requests_max() as u64;
        let len = most / buffers;
        assert_eq!(resources(Session::Sink, len, 16).unwrap().memory, len * buffers);
        let said = resources(Session::Sink, len + 1, 16).unwrap_err();
        assert!(said.contains("18 receive buffers of") && said.contains("together"), "{said}");
        assert!(resources(Session::Echo, u64::MAX, 2).is_err(), "a product beyond 64 bits");
    }

    #[test]
    fn overhead_of_a_session_is_accounted() {
        let beside = |session, depth| resources(session, 0, depth).unwrap().beside;
        let idle = beside(Session::Memory, 0);
        assert!((SESSION_BYTES..4 * SESSION_BYTES).contains(&idle), "{idle}");
        // Each buffer is as long as a control message, even if the payload is shorter.
        let deep = beside(Session::Echo, DEPTH_MAX);
        assert!(deep > u64::from(DEPTH_MAX) * CONTROL_LEN_MAX as u64, "{deep}");
        let long = resources(Session::Sink, 600, 16).unwrap().beside;
        assert!(long < beside(Session::Sink, 16), "{long}");
    }

    #[test]
    fn a_depth_is_from_1_to_its_limit() {
        for session in [Session::Echo, Session::Sink] {
            assert!(resources(session.clone(), 0, 0).is_err());
            assert_eq!(
                resources(session.clone(), 0, DEPTH_MAX).unwrap().receive,
                DEPTH_MAX as usize
            );
            assert!(resources(session, 0, DEPTH_MAX + 1).is_err());
        }
    }

    /// Requests, receive buffers and memory of the sessions whose payload has no receive buffer.
    #[test]
    fn each_session_has_its_own_needs() {
        let remote = urnic::RemoteBuffer { stag: urnic::Stag(1), to: urnic::TaggedOffset(2) };
        let most = limits().memory_max;
        let needs = |session, len, depth| {
            resources(session, len, depth)
                .map(|of| (of.send, of.receive, of.receive_len, of.places, of.memory))
        };
        assert_eq!(needs(Session::Memory, 100, 0), Ok((1, 0, 0, 0, 100)));
        let ping_pong = || Session::PingPong(remote);
        assert_eq!(needs(ping_pong(), 100, 0), Ok((PING_PONG_DEPTH, 0, 0, 0, 200)));
        assert_eq!(needs(ping_pong(), most / 2, 0).unwrap().4, most);
        assert!(needs(ping_pong(), most / 2 + 1, 0).is_err());
        assert!(needs(ping_pong(), 0, 0).unwrap_err().contains("1 byte at least"));
        let both = || Session::Both { remote, is_read: false };
        assert_eq!(needs(both(), 100, 9), Ok((9, 0, 0, 0, 200)));
        assert!(needs(both(), most / 2 + 1, 9).unwrap_err().contains("2 regions of"));
        assert!(needs(both(), 0, 0).is_err() && needs(both(), 0, DEPTH_MAX + 1).is_err());
        // An echo has a request in flight for each buffer; a sink only answers.
        assert_eq!(needs(Session::Echo, 100, 9), Ok((9, 9, 100, 0, 1100)));
        assert_eq!(needs(Session::Sink, 100, 9), Ok((1, 9, 100, 0, 1100)));
    }

    #[test]
    fn without_a_folder_no_file_is_read() {
        let get = Session::Get { name: "a".into() };
        assert!(limits().folder.is_none());
        assert!(resources(get, 0, 0).unwrap_err().contains("--dir"));
        // A put reserves chunk buffers; a chunk that exceeds the limit is refused.
        let put = || Session::Put { name: "a".into(), force: false };
        let short = resources(put(), 100, 0).unwrap();
        assert_eq!(short.memory, place_len(100) * u64::from(short.places));
        assert!(short.places > 0 && short.memory <= limits().memory_max);
        assert!(resources(put(), 1 << 40, 0).unwrap_err().contains("larger --size"));
    }
}
