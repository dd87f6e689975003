//! What an application asks of a port: to open, accept, start, close and inspect connections.

use std::net::SocketAddr;
use std::task::Waker;

use crate::mpa::startup::{Offer, StartupConfig};
use crate::port::connection::Tuple;
use crate::port::path::PathMtu;
use crate::port::{
    ConnectParams, ConnectionCounters, ConnectionId, EPHEMERAL_FIRST, ListenParams, Listener,
    LowerLayer, Port, PortError,
};
use crate::tcp;
use crate::time::Instant;
use crate::verbs::Qp;

impl Port {
    /// Opens a TCP connection to `remote` and starts MPA on it as initiator with `qp`.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        qp: &Qp,
        params: &ConnectParams<'_>,
    ) -> Result<ConnectionId, PortError> {
        let id = self.open(now, remote, params.lower_layer)?;
        if let Err(error) = self.start_initiator(now, id, qp, &params.startup, &params.offer) {
            self.abort(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Opens a TCP connection to `remote` in streaming mode; MPA is started on it later.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn open(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        lower_layer: LowerLayer,
    ) -> Result<ConnectionId, PortError> {
        let (tuple, tcp) = self.syn_to(now, remote)?;
        self.insert(tuple, tcp, lower_layer, None)
    }

    /// A new TCP connection to `remote`, and its addresses.
    fn syn_to(
        &mut self,
        now: Instant,
        remote: SocketAddr,
    ) -> Result<(Tuple, tcp::Connection), PortError> {
        let local_ip = self.config.address_for(remote.ip()).ok_or_else(|| {
            let pending = self.config.dhcp && remote.is_ipv4();
            let reason = if pending { PortError::AddressPending } else { PortError::NoAddress };
            reason(remote.ip())
        })?;
        let local = SocketAddr::new(local_ip, self.free_port(local_ip, remote)?);
        let tcp_config = self.config.tcp_for(remote.ip(), self.capabilities.mtu);
        let iss = self.isn.isn(now, local, remote);
        let ts_offset = self.isn.timestamp_offset(local, remote);
        let tcp =
            tcp::Connection::connect(now, &tcp_config, local.port(), remote.port(), iss, ts_offset);
        Ok((Tuple::new(local.ip(), local.port(), remote.ip(), remote.port()), tcp))
    }

    /// Opens connections once more whose MPA startup is to be tried with less
    /// ([`StartupConfig::fallback`]). They keep their names, so nobody notices but the peer.
    pub(super) fn reopen(&mut self, now: Instant) {
        while let Some(slot) = self.retries.pop() {
            let Some(connection) = self.connections.get_mut(slot as usize) else { continue };
            if !connection.optimized.stream.wants_retry() {
                continue;
            }
            let old = connection.tuple;
            let Ok((tuple, tcp)) = self.syn_to(now, old.remote()) else {
                self.connections[slot as usize].optimized.stream.give_up_retry();
                self.touch(slot);
                continue;
            };
            let connection = &mut self.connections[slot as usize];
            let (mtu, floor) = (self.capabilities.mtu, self.config.path_mtu_min);
            connection.path = PathMtu::new(tuple.remote().ip(), mtu, floor);
            let retried = connection.reopen(now, tuple, tcp);
            self.by_tuple.remove(&old);
            self.by_tuple.insert(tuple, slot);
            self.last_hit = None;
            self.timers.forget(slot);
            if retried.is_err() {
                self.connections[slot as usize].optimized.tcp.abort();
            }
            self.after_input(slot);
        }
    }

    /// Starts MPA as initiator on a connection in streaming mode.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn start_initiator(
        &mut self,
        now: Instant,
        id: ConnectionId,
        qp: &Qp,
        startup: &StartupConfig,
        offer: &Offer<'_>,
    ) -> Result<(), PortError> {
        let connection = self.connection(id)?;
        connection.optimized.stream.initiate(now, &qp.shared, startup, offer)?;
        self.attach(id, qp);
        Ok(())
    }

    /// Starts MPA as responder on a connection in streaming mode. `last_message` is sent before
    /// the peer's Request is awaited (RFC 5044 §7.1.5).
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn start_responder(
        &mut self,
        now: Instant,
        id: ConnectionId,
        startup: &StartupConfig,
        last_message: &[u8],
    ) -> Result<(), PortError> {
        let connection = self.connection(id)?;
        connection.optimized.stream.send_streaming(last_message)?;
        connection.optimized.stream.respond(now, startup)?;
        self.wake(id.slot);
        Ok(())
    }

    /// Sends octets in streaming mode, before MPA is started.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn send_streaming(&mut self, id: ConnectionId, octets: &[u8]) -> Result<(), PortError> {
        self.connection(id)?.optimized.stream.send_streaming(octets)?;
        self.wake(id.slot);
        Ok(())
    }

    /// Reads octets received in streaming mode; returns how many.
    ///
    /// # Errors
    /// [`PortError::NoConnection`].
    pub fn receive_streaming(
        &mut self,
        id: ConnectionId,
        octets: &mut [u8],
    ) -> Result<usize, PortError> {
        Ok(self.connection(id)?.optimized.stream.receive_streaming(octets))
    }

    /// Waits for connections to a TCP port.
    ///
    /// # Errors
    /// [`PortError::PortTaken`].
    pub fn listen(&mut self, tcp_port: u16, params: ListenParams) -> Result<(), PortError> {
        if self.listeners.contains_key(&tcp_port) || self.host.has_tcp_port(tcp_port) {
            return Err(PortError::PortTaken(tcp_port));
        }
        self.listeners.insert(tcp_port, Listener::new(params));
        Ok(())
    }

    /// Waits for connections to a TCP port, 0 for one of the port's choice; returns which.
    ///
    /// # Errors
    /// [`PortError::PortTaken`], [`PortError::Exhausted`].
    pub fn listen_at(&mut self, tcp_port: u16, params: ListenParams) -> Result<u16, PortError> {
        let tcp_port = match tcp_port {
            0 => (EPHEMERAL_FIRST..=u16::MAX)
                .rev()
                .find(|candidate| !self.listeners.contains_key(candidate))
                .ok_or(PortError::Exhausted)?,
            chosen => chosen,
        };
        self.listen(tcp_port, params)?;
        Ok(tcp_port)
    }

    /// Waits for connections to a TCP port no more. Connections that exist stay.
    pub fn unlisten(&mut self, tcp_port: u16) {
        self.listeners.remove(&tcp_port);
    }

    /// Asks for one call of `waker` when work is posted to a queue pair of the port; `false`, and
    /// no call, when some has been already.
    #[must_use]
    pub fn arm_doorbell(&self, waker: &Waker) -> bool {
        self.doorbell.arm(waker);
        let quiet = !self.doorbell.has_rung();
        if !quiet {
            self.doorbell.disarm();
        }
        quiet
    }

    /// No call at posted work is wanted any more.
    pub fn disarm_doorbell(&self) {
        self.doorbell.disarm();
    }

    /// Whether a connection or the host stack may have something to send that the device had no
    /// room for.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty() || self.host.has_frames() || !self.cookie_answers.is_empty()
    }

    /// Accepts a peer's Request ([`StreamEvent::Request`](crate::stream::StreamEvent::Request)) with `qp`.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn accept(
        &mut self,
        id: ConnectionId,
        qp: &Qp,
        offer: &Offer<'_>,
    ) -> Result<(), PortError> {
        self.connection(id)?.optimized.stream.accept(&qp.shared, offer)?;
        self.attach(id, qp);
        self.after_input(id.slot);
        Ok(())
    }

    /// Refuses a peer's Request. The TCP connection stays open in streaming mode.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn reject(&mut self, id: ConnectionId, offer: &Offer<'_>) -> Result<(), PortError> {
        self.connection(id)?.optimized.stream.reject(offer)?;
        self.wake(id.slot);
        Ok(())
    }

    /// Closes a connection in order: work posted so far is finished first.
    ///
    /// # Errors
    /// [`PortError::NoConnection`].
    pub fn disconnect(&mut self, id: ConnectionId) -> Result<(), PortError> {
        self.connection(id)?.optimized.stream.close();
        self.wake(id.slot);
        Ok(())
    }

    /// Ends a connection at once with a RST.
    pub fn abort(&mut self, id: ConnectionId) {
        if let Ok(connection) = self.connection(id) {
            connection.optimized.stream.give_up_retry();
            connection.optimized.tcp.abort();
            connection.optimized.stream.connection_lost();
            self.wake(id.slot);
            self.after_input(id.slot);
        }
    }

    /// The largest IP datagram that a connection's segments are cut for now, in octets.
    ///
    /// # Errors
    /// [`PortError::NoConnection`].
    pub fn path_mtu(&self, id: ConnectionId) -> Result<usize, PortError> {
        let found = self.connections.get(id.slot as usize);
        let connection = found.filter(|connection| connection.generation == id.generation);
        Ok(connection.ok_or(PortError::NoConnection)?.path.current())
    }

    /// What a connection has counted so far.
    ///
    /// # Errors
    /// [`PortError::NoConnection`].
    pub fn counters(&self, id: ConnectionId) -> Result<ConnectionCounters, PortError> {
        let found = self.connections.get(id.slot as usize);
        let connection = found.filter(|connection| connection.generation == id.generation);
        Ok(connection.ok_or(PortError::NoConnection)?.counters())
    }
}
