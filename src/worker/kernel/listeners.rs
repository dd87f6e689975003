//! Listening sockets: connections opened by peers, and their places in the backlog.

use std::io;
use std::net::{Shutdown, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tracing::{debug, warn};

use crate::error::Error;
use crate::mail::channel::WorkerEnd;
use crate::mail::command::Incoming;
use crate::worker::kernel::KernelEngine;
use crate::worker::kernel::accept::NoConnection;
use crate::worker::kernel::events::Token;
use crate::worker::kernel::socket::{BacklogSlot, KernelConnection, set_traffic_class};
use urnic_engine::port::{ListenParams, PortError};
use urnic_engine::tcp;
use urnic_engine::time::Instant;

#[derive(Debug)]
pub(super) struct KernelListener {
    pub(super) socket: Socket,
    pub(super) local: SocketAddr,
    pub(super) params: ListenParams,
    /// Connections not yet handed over. The kernel limits half-open ones.
    pub(super) waiting: tcp::Backlog,
    /// Not polled until [`KernelEngine::accept_retry`].
    pub(super) paused: bool,
}

impl Drop for KernelListener {
    /// A child of this process may have the socket too, and accepts no connections.
    fn drop(&mut self) {
        let _closes_anyway = self.socket.shutdown(Shutdown::Both);
    }
}

impl KernelEngine {
    pub(super) fn listen(
        &mut self,
        local: SocketAddr,
        params: ListenParams,
        requests: WorkerEnd<Incoming>,
    ) -> io::Result<SocketAddr> {
        let socket = Socket::new(Domain::for_address(local), Type::STREAM, Some(Protocol::TCP))?;
        if local.is_ipv6() {
            // `::` is all addresses of both families, whatever the default of the machine.
            socket.set_only_v6(params.only_ipv6)?;
        }
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        if let Some(octet) = params.traffic_class {
            set_traffic_class(&socket, local, octet)?;
        }
        socket.bind(&local.into())?;
        socket.listen(i32::try_from(params.backlog).unwrap_or(i32::MAX))?;
        let bound = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
        let slot = self.listeners.vacant_key();
        self.events.add(&socket, Token::Listener(slot))?;
        let waiting = tcp::Backlog::waiting(params.backlog);
        let listener = KernelListener { socket, local: bound, params, waiting, paused: false };
        self.listeners.insert(listener);
        self.registry.listen(bound, requests);
        Ok(bound)
    }

    pub(super) fn unlisten(&mut self, local: SocketAddr) {
        // Closing a socket removes it from the event set.
        self.listeners.retain(|_, listener| listener.local != local);
        for (_, connection) in &mut self.connections {
            if connection.backlog_slot.is_some_and(|held| !self.listeners.contains(held.listener)) {
                connection.backlog_slot = None;
            }
        }
        self.registry.unlisten(local);
    }

    pub(super) fn accept_incoming(&mut self, now: Instant, slot: usize) -> usize {
        let mut accepted = 0;
        while accepted < ACCEPT_BURST {
            let Some(listener) = self.listeners.get_mut(slot) else { break };
            accepted += 1;
            let (socket, remote) = match listener.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) => match NoConnection::of(&error) {
                    NoConnection::Lost => continue,
                    NoConnection::Empty => return accepted - 1,
                    NoConnection::Exhausted => {
                        let local = listener.local;
                        warn!(target: "urnic", %local, %error, "no descriptor for a connection: it waits");
                        self.pause_accepting(now, slot);
                        return accepted - 1;
                    }
                },
            };
            let Some(remote) = remote.as_socket() else { continue };
            let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
            let full = self.connections.len() >= self.connections_max;
            if full || !listener.waiting.has_place_for(remote.ip()) {
                let local = listener.local;
                debug!(target: "urnic", %local, %remote, full, "no room for a connection: closed");
                continue;
            }
            let Ok(mut connection) =
                KernelConnection::accepted(now, &self.rnic, socket, self.terms)
            else {
                continue;
            };
            let id = self.connections.vacant_key();
            if connection.set_keepalive(listener.params.keepalive).is_err()
                || connection.layered.respond(now, &listener.params.startup).is_err()
                || self.events.add(&connection.socket, Token::Connection(id)).is_err()
            {
                continue;
            }
            let number = u32::try_from(id).expect("bounded by CONNECTIONS_MAX");
            let Ok(taken) = listener.waiting.take(remote.ip(), number) else { continue };
            connection.backlog_slot =
                Some(BacklogSlot { listener: slot, place: taken.place, asked: false });
            let local = listener.local;
            self.connections.insert(connection);
            self.registry.incoming(id, local, remote);
            self.ready.push(id);
            if let Some(evicted) = taken.evicted {
                self.evict(evicted as usize);
            }
        }
        accepted
    }

    pub(super) fn evict(&mut self, slot: usize) {
        let connection = &mut self.connections[slot];
        connection.backlog_slot = None;
        connection.abort();
        self.ready.push(slot);
    }

    pub(super) fn update_place(&mut self, slot: usize) {
        let connection = &mut self.connections[slot];
        let standing = connection.standing();
        let Some(held) = connection.backlog_slot else { return };
        let Some(listener) = self.listeners.get_mut(held.listener) else { return };
        match standing {
            Some(standing) => listener.waiting.set_standing(held.place, standing),
            None => {
                connection.backlog_slot = None;
                listener.waiting.release(held.place);
            }
        }
    }
}

pub(super) fn listen_error(error: &io::Error, local: SocketAddr) -> Error {
    match error.kind() {
        io::ErrorKind::AddrInUse => PortError::PortTaken(local.port()).into(),
        io::ErrorKind::AddrNotAvailable => PortError::NoSuchAddress(local.ip()).into(),
        other => Error::Io(other),
    }
}

/// Connections accepted from one listener in one turn.
pub(super) const ACCEPT_BURST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_listened_at_is_named_as_by_a_device() {
        let local: SocketAddr = ([10, 0, 0, 9], 7174).into();
        for (kind, expected) in [
            (io::ErrorKind::AddrInUse, PortError::PortTaken(7174).into()),
            (io::ErrorKind::AddrNotAvailable, PortError::NoSuchAddress(local.ip()).into()),
            (io::ErrorKind::PermissionDenied, Error::Io(io::ErrorKind::PermissionDenied)),
        ] {
            assert_eq!(listen_error(&kind.into(), local), expected);
        }
    }
}
