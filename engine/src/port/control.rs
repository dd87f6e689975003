//! Calls of an application: to listen, and to start, accept, close and inspect connections.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;

use tracing::debug;

use crate::mpa::startup::{Offer, StartupConfig};
use crate::port::connections::connection::PortConnection;
use crate::port::listeners::canonical;
use crate::port::{
    ConnectionCounters, ConnectionId, EPHEMERAL_FIRST, ListenParams, Port, PortError, TRACE,
};
use crate::tcp::{KeepAliveTimes, State};
use crate::time::Instant;
use crate::verbs::Qp;

impl Port {
    /// Listens on a TCP port at all addresses; fails with [`PortError::PortTaken`].
    pub fn listen(&mut self, tcp_port: u16, params: ListenParams) -> Result<(), PortError> {
        let local = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), tcp_port);
        self.add_listener(local, params)
    }

    /// Listens at an address of the port; returns the address with its TCP port. The unspecified
    /// address of a family means all addresses of that family that the port has or will have (from
    /// DHCP, for example), and `::` those of both families. With TCP port 0 the port chooses one.
    /// Errors: [`PortError::NoSuchAddress`], [`PortError::PortTaken`], [`PortError::Exhausted`].
    pub fn listen_at(
        &mut self,
        local: SocketAddr,
        params: ListenParams,
    ) -> Result<SocketAddr, PortError> {
        let mut local = canonical(local);
        if !local.ip().is_unspecified() && !self.config.owns(local.ip()) {
            return Err(PortError::NoSuchAddress(local.ip()));
        }
        if local.port() == 0 {
            let free = (EPHEMERAL_FIRST..=u16::MAX).rev().find(|port| !self.is_taken(*port));
            local.set_port(free.ok_or(PortError::Exhausted)?);
        }
        self.add_listener(local, params)?;
        Ok(local)
    }

    fn is_taken(&self, tcp_port: u16) -> bool {
        self.listeners.has_tcp_port(tcp_port) || self.host.has_tcp_port(tcp_port)
    }

    fn add_listener(&mut self, local: SocketAddr, params: ListenParams) -> Result<(), PortError> {
        let tcp_port = local.port();
        let of_host = self.host.has_tcp_port(tcp_port);
        if of_host || self.listeners.insert(local, params).is_err() {
            return Err(PortError::PortTaken(tcp_port));
        }
        debug!(target: TRACE, %local, "listening");
        Ok(())
    }

    /// Stops listening on a TCP port, at all addresses. Existing connections stay.
    pub fn unlisten(&mut self, tcp_port: u16) {
        self.listeners.remove_tcp_port(tcp_port);
    }

    /// Stops listening at an address from [`listen_at`](Self::listen_at). Connections stay.
    pub fn unlisten_at(&mut self, local: SocketAddr) {
        self.listeners.remove(canonical(local));
    }

    /// Starts MPA as initiator on a connection in streaming mode. Errors: see [`PortError`].
    pub fn start_initiator(
        &mut self,
        now: Instant,
        id: ConnectionId,
        qp: &Qp,
        startup: &StartupConfig,
        offer: &Offer<'_>,
    ) -> Result<(), PortError> {
        let connection = self.connection_mut(id)?;
        connection.carrier.stream.initiate(now, &qp.shared, startup, offer)?;
        self.attach(id, qp);
        Ok(())
    }

    fn attach(&mut self, id: ConnectionId, qp: &Qp) {
        qp.attach(&self.doorbell, id.slot);
        self.connections.wake(id.slot);
    }

    /// Starts MPA as responder on a connection in streaming mode, after sending `last_message` (RFC
    /// 5044 §7.1.5). Errors: see [`PortError`].
    pub fn start_responder(
        &mut self,
        now: Instant,
        id: ConnectionId,
        startup: &StartupConfig,
        last_message: &[u8],
    ) -> Result<(), PortError> {
        let connection = self.connection_mut(id)?;
        connection.carrier.stream.send_streaming(last_message)?;
        connection.carrier.stream.respond(now, startup)?;
        self.connections.wake(id.slot);
        Ok(())
    }

    /// Sends bytes in streaming mode, before MPA is started. Errors: see [`PortError`].
    pub fn send_streaming(&mut self, id: ConnectionId, octets: &[u8]) -> Result<(), PortError> {
        self.connection_mut(id)?.carrier.stream.send_streaming(octets)?;
        self.connections.wake(id.slot);
        Ok(())
    }

    /// Reads bytes received in streaming mode. Fails with [`PortError::NoConnection`].
    pub fn receive_streaming(
        &mut self,
        id: ConnectionId,
        octets: &mut [u8],
    ) -> Result<usize, PortError> {
        let len = self.connection_mut(id)?.carrier.stream.receive_streaming(octets);
        // There is room for more: a window update must report it to the peer.
        self.connections.wake(id.slot);
        Ok(len)
    }

    /// Asks for one call of `waker` when work is posted to a queue pair of the port. Returns false,
    /// without a call, if work was posted already.
    #[must_use]
    pub fn arm_doorbell(&self, waker: &Waker) -> bool {
        self.doorbell.arm(waker);
        let quiet = !self.doorbell.has_rung();
        if !quiet {
            self.doorbell.disarm(waker);
        }
        quiet
    }

    /// Cancels the call of `waker` for posted work.
    pub fn disarm_doorbell(&self, waker: &Waker) {
        self.doorbell.disarm(waker);
    }

    /// Returns true if something may be left to send for which the device had no room.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.interface.refused.waits()
            || self.connections.has_ready()
            || self.host.has_frames()
            || self.listeners.has_answers()
    }

    /// Accepts a peer's Request ([`StreamEvent::Request`](crate::stream::StreamEvent::Request))
    /// with `qp`. Errors: see [`PortError`].
    pub fn accept(
        &mut self,
        id: ConnectionId,
        qp: &Qp,
        offer: &Offer<'_>,
    ) -> Result<(), PortError> {
        self.connection_mut(id)?.carrier.stream.accept(&qp.shared, offer)?;
        self.attach(id, qp);
        self.connections.after_input(id.slot);
        Ok(())
    }

    /// Refuses a peer's Request. The TCP connection stays open in streaming mode (RFC 5044 §7.1.2
    /// (6)): [`disconnect`](Self::disconnect) ends it. Errors: see [`PortError`].
    pub fn reject(&mut self, id: ConnectionId, offer: &Offer<'_>) -> Result<(), PortError> {
        self.connection_mut(id)?.carrier.stream.reject(offer)?;
        self.connections.after_input(id.slot);
        Ok(())
    }

    /// Closes a connection after the work posted so far. Fails with [`PortError::NoConnection`].
    pub fn disconnect(&mut self, id: ConnectionId) -> Result<(), PortError> {
        self.connection_mut(id)?.carrier.stream.close();
        self.connections.after_input(id.slot);
        Ok(())
    }

    /// Returns true if the peer has acknowledged all that this end sent, and its close: nothing is
    /// lost if the port is dropped now.
    #[must_use]
    pub fn is_end_acknowledged(&self, id: ConnectionId) -> bool {
        self.connection(id).is_ok_and(|connection| {
            matches!(
                connection.carrier.tcp.state(),
                State::FinWait2 | State::TimeWait | State::Closed
            )
        })
    }

    /// Detaches `qp` from its connection at this port. After the return no memory that `qp` refers
    /// to is read or written. Work that had not completed fails; bytes that were sent are
    /// delivered, and the connection closes in order.
    pub fn release_qp(&mut self, qp: &Qp) {
        let is_its = |connection: &PortConnection| {
            connection.carrier.stream.qp().is_some_and(|own| Arc::ptr_eq(own, &qp.shared))
        };
        let slots: Vec<u32> = self
            .connections
            .iter()
            .filter_map(|(slot, connection)| is_its(connection).then_some(slot))
            .collect();
        for slot in slots {
            self.connections[slot].carrier.stream.release_qp();
            self.connections.after_input(slot);
        }
    }

    /// Turns keep-alive probes of a connection on or off (RFC 9293 MUST-24). Without a call,
    /// [`ListenParams`] or else the port's TCP configuration decides. Fails with
    /// [`PortError::NoConnection`].
    pub fn set_keepalive(
        &mut self,
        now: Instant,
        id: ConnectionId,
        times: Option<KeepAliveTimes>,
    ) -> Result<(), PortError> {
        self.connection_mut(id)?.carrier.tcp.set_keepalive(now, times);
        self.connections.wake(id.slot);
        Ok(())
    }

    /// Ends a connection with a RST, unless both ends have closed (RFC 9293 §3.6.1, MUST-13).
    pub fn abort(&mut self, id: ConnectionId) {
        if let Ok(connection) = self.connection_mut(id)
            && !connection.is_in_time_wait()
        {
            connection.carrier.stream.give_up_retry();
            connection.carrier.tcp.abort();
            connection.carrier.stream.connection_lost();
            self.connections.wake(id.slot);
            self.connections.after_input(id.slot);
        }
    }

    /// The largest IP datagram that a connection's segments are cut for now, in bytes. Fails with
    /// [`PortError::NoConnection`].
    pub fn path_mtu(&self, id: ConnectionId) -> Result<usize, PortError> {
        Ok(self.connection(id)?.path.current())
    }

    /// The counters of a connection. Fails with [`PortError::NoConnection`].
    pub fn counters(&self, id: ConnectionId) -> Result<ConnectionCounters, PortError> {
        Ok(self.connection(id)?.counters())
    }
}
