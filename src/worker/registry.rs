//! Connections of an engine, and the handles that get their events.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;

use tracing::{debug, info};

use crate::error::Error;
use crate::mail::channel::{WorkerEnd, unlimited};
use crate::mail::command::outbox::Outbox;
use crate::mail::command::{ConnectionKey, Incoming};
use crate::mail::figures::{ConnectionFigures, EndpointFigures, Figures};
use crate::mail::notice::Notice;
use urnic_engine::mpa::startup::PeerRequest;
use urnic_engine::port::ConnectionCounters;
use urnic_engine::stream::StreamEvent;

#[derive(Debug)]
struct Entry {
    key: ConnectionKey,
    /// `None` until the connection's listener knows of the connection.
    notices: Option<WorkerEnd<Notice>>,
    local: SocketAddr,
    listener: Option<u64>,
    remote: SocketAddr,
}

#[derive(Debug)]
struct Listening {
    /// Never reused: a later listener at the same address has another number.
    number: u64,
    requests: WorkerEnd<Incoming>,
}

/// The engine's and the handle's name of each connection, and the handle that gets its events.
#[derive(Debug)]
pub(crate) struct Registry<Id> {
    entries: HashMap<Id, Entry>,
    ids: HashMap<ConnectionKey, Id>,
    listeners: HashMap<SocketAddr, Listening>,
    newest_listener: u64,
    over: EndpointFigures,
    outbox: Outbox,
}

impl<Id: Copy + Eq + Hash> Registry<Id> {
    pub(crate) fn new(outbox: Outbox) -> Self {
        let (entries, ids, listeners) = (HashMap::new(), HashMap::new(), HashMap::new());
        let over = EndpointFigures::default();
        Self { entries, ids, listeners, newest_listener: 0, over, outbox }
    }

    /// `None` if the connection is over.
    pub(crate) fn id(&self, key: ConnectionKey) -> Option<Id> {
        self.ids.get(&key).copied()
    }

    pub(crate) fn opened(
        &mut self,
        id: Id,
        key: ConnectionKey,
        remote: SocketAddr,
        notices: WorkerEnd<Notice>,
    ) {
        debug!(target: "urnic", %remote, "connecting");
        self.ids.insert(key, id);
        let local = SocketAddr::new(remote.ip(), 0);
        let entry = Entry { key, notices: Some(notices), local, listener: None, remote };
        self.entries.insert(id, entry);
    }

    /// `local` is the listener's address.
    pub(crate) fn incoming(&mut self, id: Id, local: SocketAddr, remote: SocketAddr) {
        let key = self.outbox.next_key();
        self.ids.insert(key, id);
        let listener = self.listeners.get(&local).map(|listening| listening.number);
        self.entries.insert(id, Entry { key, notices: None, local, listener, remote });
    }

    pub(crate) fn listen(&mut self, local: SocketAddr, requests: WorkerEnd<Incoming>) {
        debug!(target: "urnic", %local, "listening");
        self.newest_listener += 1;
        self.listeners.insert(local, Listening { number: self.newest_listener, requests });
    }

    pub(crate) fn unlisten(&mut self, local: SocketAddr) {
        self.listeners.remove(&local);
    }

    /// Returns false for a Request that no listener accepts: its connection must be ended. A
    /// dropped handle has closed its connection.
    pub(crate) fn event(&mut self, id: Id, event: StreamEvent) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return true };
        trace_event(entry, &event);
        match event {
            StreamEvent::Request(request) => self.request(id, request),
            event => {
                // A startup that fails before its Request has arrived has no handle.
                if let Some(notices) = &entry.notices {
                    notices.tell(Notice::Event(Box::new(event)));
                }
                true
            }
        }
    }

    pub(crate) fn peer_ending(&self, id: Id) {
        if let Some(notices) = self.entries.get(&id).and_then(|entry| entry.notices.as_ref()) {
            notices.tell(Notice::PeerEnding);
        }
    }

    /// Gives a Request to the listener, if it has room. RFC 9293 §3.9.1.1, §3.9.1.4: a connection
    /// ends with the passive OPEN that it matched. A later listener at the address may be of
    /// another application.
    fn request(&mut self, id: Id, request: PeerRequest) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        let (sender, notices) = unlimited();
        entry.notices = Some(sender);
        let (claim, remote, local) = (self.outbox.claim(entry.key), entry.remote, entry.local);
        let incoming = Incoming { claim, remote, request, notices };
        let own = entry.listener;
        let listening =
            self.listeners.get(&local).filter(|listening| Some(listening.number) == own);
        let Some(listener) = listening else {
            debug!(target: "urnic", %local, %remote, "request at a listener that has closed: reset");
            return false;
        };
        match listener.requests.try_tell(incoming) {
            Ok(()) => true,
            Err(refused) => {
                let full = refused.is_full();
                debug!(target: "urnic", %local, %remote, full, "the listener takes no request: reset");
                false
            }
        }
    }

    pub(crate) fn refused(&self, id: Id, error: Error) {
        let Some(entry) = self.entries.get(&id) else { return };
        debug!(target: "urnic", remote = %entry.remote, %error, "connection refused its request");
        if let Some(notices) = &entry.notices {
            notices.tell(Notice::Refused(Box::new(error)));
        }
    }

    pub(crate) fn all(&self) -> Vec<Id> {
        self.entries.keys().copied().collect()
    }

    pub(crate) fn figures(
        &self,
        mut counters: impl FnMut(Id) -> ConnectionCounters,
    ) -> EndpointFigures {
        let open = self
            .entries
            .iter()
            .map(|(id, Entry { key: ConnectionKey(number), remote, .. })| ConnectionFigures {
                number: *number,
                remote: *remote,
                figures: Figures::of(&counters(*id)),
            })
            .collect();
        EndpointFigures { open, ..self.over.clone() }
    }

    pub(crate) const fn rejected(&mut self) {
        self.over.connections_rejected += 1;
    }

    pub(crate) fn closed(&mut self, id: Id, counters: Box<ConnectionCounters>) {
        if let Some(entry) = self.entries.remove(&id) {
            self.over.close(&counters);
            self.ids.remove(&entry.key);
            debug!(target: "urnic", remote = %entry.remote, "connection closed");
            if let Some(notices) = entry.notices {
                notices.tell(Notice::Closed(counters));
            }
        }
    }
}

fn trace_event(entry: &Entry, event: &StreamEvent) {
    let remote = entry.remote;
    match event {
        StreamEvent::Request(_) => {
            debug!(target: "urnic", local = %entry.local, %remote, "a peer asks to connect");
        }
        StreamEvent::Established(terms) => {
            let (ird, ord) = (terms.ird, terms.ord);
            info!(target: "urnic", %remote, framing = ?terms.framing, ird, ord, "connected");
        }
        StreamEvent::Rejected(_) => {
            info!(target: "urnic", %remote, "the peer's application rejected the connection");
        }
        StreamEvent::StartupFailed(reason) => {
            info!(target: "urnic", %remote, %reason, "MPA startup failed");
        }
        StreamEvent::Failed(reason) => {
            info!(target: "urnic", %remote, %reason, "connection failed");
        }
        StreamEvent::Terminated(terminate) => {
            info!(target: "urnic", %remote, ?terminate, "the peer terminated the stream");
        }
        StreamEvent::PeerClosed => debug!(target: "urnic", %remote, "the peer has closed"),
        _ => {}
    }
}
