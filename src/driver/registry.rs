//! Which handle hears of which connection.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;

use crossbeam::channel::{Sender, unbounded};

use crate::driver::command::ConnectionKey;
use crate::driver::connection::{ConnectRequest, Connecting, Notice};
use crate::driver::endpoint::EndpointError;
use crate::driver::link::Link;
use crate::mpa::startup::PeerRequest;
use crate::port::ConnectionCounters;
use crate::stream::StreamEvent;

#[derive(Debug)]
struct Entry {
    key: ConnectionKey,
    /// `None` until the connection's listener knows of it.
    notices: Option<Sender<Notice>>,
    local: SocketAddr,
    remote: SocketAddr,
}

/// The two names of each connection, an engine's own and its handle's, and what is to be told to
/// whom.
#[derive(Debug)]
pub(crate) struct Registry<Id> {
    entries: HashMap<Id, Entry>,
    ids: HashMap<ConnectionKey, Id>,
    /// By the address listened at.
    listeners: HashMap<SocketAddr, Sender<ConnectRequest>>,
    link: Link,
}

impl<Id: Copy + Eq + Hash> Registry<Id> {
    pub(crate) fn new(link: Link) -> Self {
        Self { entries: HashMap::new(), ids: HashMap::new(), listeners: HashMap::new(), link }
    }

    /// The engine's name of a handle's connection; `None` when it is over.
    pub(crate) fn id(&self, key: ConnectionKey) -> Option<Id> {
        self.ids.get(&key).copied()
    }

    /// A connection opened here.
    pub(crate) fn opened(
        &mut self,
        id: Id,
        key: ConnectionKey,
        remote: SocketAddr,
        notices: Sender<Notice>,
    ) {
        self.ids.insert(key, id);
        let local = SocketAddr::new(remote.ip(), 0);
        self.entries.insert(id, Entry { key, notices: Some(notices), local, remote });
    }

    /// A connection opened by a peer, at the address `listener`.
    pub(crate) fn incoming(&mut self, id: Id, listener: SocketAddr, remote: SocketAddr) {
        let key = self.link.next_key();
        self.ids.insert(key, id);
        self.entries.insert(id, Entry { key, notices: None, local: listener, remote });
    }

    pub(crate) fn listen(&mut self, local: SocketAddr, requests: Sender<ConnectRequest>) {
        self.listeners.insert(local, requests);
    }

    pub(crate) fn unlisten(&mut self, local: SocketAddr) {
        self.listeners.remove(&local);
    }

    /// Passes an event on; `false` when nobody wants it and the connection is to be ended.
    pub(crate) fn event(&mut self, id: Id, event: StreamEvent) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return true };
        match event {
            StreamEvent::Request(request) => self.request(id, request),
            event => match &entry.notices {
                Some(notices) => notices.send(Notice::Event(event)).is_ok(),
                // A startup that failed before its request was known concerns nobody.
                None => true,
            },
        }
    }

    fn request(&mut self, id: Id, request: PeerRequest) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        let (sender, notices) = unbounded();
        entry.notices = Some(sender);
        let connecting = Connecting::new(self.link.clone(), entry.key, entry.remote, notices);
        let listener = self.listeners.get(&entry.local);
        listener.is_some_and(|requests| {
            requests.try_send(ConnectRequest::new(connecting, request)).is_ok()
        })
    }

    /// The last request for a connection could not be carried out.
    pub(crate) fn refused(&self, id: Id, error: EndpointError) {
        if let Some(notices) = self.entries.get(&id).and_then(|entry| entry.notices.as_ref()) {
            // Nobody may be left who wants to know.
            let _heard = notices.send(Notice::Refused(error));
        }
    }

    /// All connections.
    pub(crate) fn all(&self) -> Vec<Id> {
        self.entries.keys().copied().collect()
    }

    /// A connection is over.
    pub(crate) fn closed(&mut self, id: Id, counters: Box<ConnectionCounters>) {
        if let Some(entry) = self.entries.remove(&id) {
            self.ids.remove(&entry.key);
            if let Some(notices) = entry.notices {
                // Nobody may be left who wants to know.
                let _heard = notices.send(Notice::Closed(counters));
            }
        }
    }
}
