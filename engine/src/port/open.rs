//! Connections opened by this end, and connections that are reopened.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tracing::debug;

use crate::port::interface::path::PathMtu;
use crate::port::listeners::BacklogSlot;
use crate::port::tuple::Tuple;
use crate::port::{ConnectParams, ConnectionId, LowerLayer, Port, PortError, TRACE};
use crate::stream::Stream;
use crate::stream::carrier::OwnTcp;
use crate::tcp;
use crate::time::Instant;
use crate::verbs::Qp;

impl Port {
    /// Opens a connection to `remote` and starts MPA as initiator with `qp`. Errors: see
    /// [`PortError`].
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

    /// Opens a connection in streaming mode; MPA is started later. Errors: see [`PortError`].
    pub fn open(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        lower_layer: LowerLayer,
    ) -> Result<ConnectionId, PortError> {
        let (tuple, tcp) = self.syn_to(now, remote)?;
        self.insert(now, tuple, tcp, lower_layer, None)
    }

    /// Returns the address that connections to `remote` are opened from.
    #[must_use]
    pub fn local_address_for(&self, remote: IpAddr) -> Option<IpAddr> {
        self.config.address_for(remote)
    }

    fn syn_to(&mut self, now: Instant, remote: SocketAddr) -> Result<(Tuple, tcp::Tcb), PortError> {
        let local_ip = self.config.address_for(remote.ip()).ok_or_else(|| {
            let pending = self.config.dhcp && remote.is_ipv4();
            let reason = if pending { PortError::AddressPending } else { PortError::NoAddress };
            reason(remote.ip())
        })?;
        let (port, isn_min) = match self.free_port(local_ip, remote) {
            Ok(port) => (port, None),
            Err(_) => {
                let (port, isn_min) = self.recycle_port(local_ip, remote)?;
                (port, Some(isn_min))
            }
        };
        let local = SocketAddr::new(local_ip, port);
        let tcp_config = self.tcp_config(remote.ip());
        let iss = self.isn.isn(now, local, remote);
        let iss = isn_min.filter(|least| least.is_after(iss)).unwrap_or(iss);
        let ts_offset = self.isn.timestamp_offset(local, remote);
        let tcp = tcp::Tcb::connect(now, &tcp_config, local.port(), remote.port(), iss, ts_offset);
        Ok((Tuple::new(local.ip(), local.port(), remote.ip(), remote.port()), tcp))
    }

    /// Reopens connections whose MPA startup must be retried with fewer features
    /// ([`StartupConfig::fallback`](crate::mpa::startup::StartupConfig::fallback)), under the same
    /// identifiers.
    pub(super) fn reopen(&mut self, now: Instant) {
        while let Some(slot) = self.connections.next_retry() {
            let remote = self.connections[slot].tuple().remote();
            let renamed = self.syn_to(now, remote).ok().filter(|(tuple, _)| {
                // The addresses were chosen because they are free, also at the other queues.
                self.connections.rename(slot, *tuple).is_ok()
            });
            let Some((_, mut tcp)) = renamed else {
                self.connections[slot].carrier.stream.give_up_retry();
                self.connections.touch(slot);
                continue;
            };
            let tuple = self.connections[slot].tuple();
            debug!(target: TRACE, %tuple, "connection opened once more, with less asked of the peer");
            self.connections[slot].path = self.new_path(now, remote.ip(), &mut tcp);
            // Keeps the keep-alive setting of the old connection.
            tcp.set_keepalive(now, self.connections[slot].carrier.tcp.keepalive());
            let retried = self.connections[slot].reopen(now, tcp);
            self.connections.forget_deadline(slot);
            if retried.is_err() {
                self.connections[slot].carrier.tcp.abort();
            }
            self.connections.after_input(slot);
        }
    }

    pub(super) fn insert(
        &mut self,
        now: Instant,
        tuple: Tuple,
        mut tcp: tcp::Tcb,
        lower_layer: LowerLayer,
        backlog_slot: Option<BacklogSlot>,
    ) -> Result<ConnectionId, PortError> {
        self.make_room()?;
        let policy = self.config.rx_policy(lower_layer);
        let stream = Stream::new(self.rnic.clone(), policy, Arc::clone(&self.life));
        let aligned = lower_layer == LowerLayer::Optimized;
        let path = self.new_path(now, tuple.remote().ip(), &mut tcp);
        let carrier = OwnTcp::new(tcp, stream, aligned);
        let accepted = backlog_slot.is_some();
        let inserted = self.connections.insert(tuple, carrier, path, backlog_slot);
        if inserted.is_ok() {
            debug!(target: TRACE, %tuple, accepted, ?lower_layer, "connection opened");
        }
        inserted.map_err(|_taken| PortError::PortTaken(tuple.local_port()))
    }

    fn new_path(&self, now: Instant, remote: IpAddr, tcp: &mut tcp::Tcb) -> PathMtu {
        let (mtu, floor) = (self.interface.capabilities.mtu, self.config.path_mtu_min);
        let mut path = PathMtu::new(remote, mtu, floor);
        if let Some(known) = self.interface.paths.get(now, remote) {
            path.begin_with(now, tcp, known);
        }
        path
    }

    fn free_port(&mut self, local: IpAddr, remote: SocketAddr) -> Result<u16, PortError> {
        let Self { source_ports, connections, listeners, .. } = self;
        let is_free = |candidate| {
            let tuple = Tuple::new(local, candidate, remote.ip(), remote.port());
            !connections.contains(&tuple) && !listeners.has_tcp_port(candidate)
        };
        source_ports.choose(local, remote, is_free).ok_or(PortError::Exhausted)
    }
}
