//! Connections that peers open: SYNs for listeners, and returned cookies.

use tracing::debug;

use crate::port::drops::FrameDrop;
use crate::port::interface::framing::Opened;
use crate::port::interface::route::{LinkHeader, Route};
use crate::port::listeners::BacklogSlot;
use crate::port::tuple::Tuple;
use crate::port::{Port, PortError, PortEvent, TRACE};
use crate::stream::carrier::OwnTcp;
use crate::tcp::{self, SynRefusal};
use crate::time::Instant;

pub(super) enum Claim {
    /// It opened a connection.
    Opened(u32),
    /// It returned a cookie: the new connection must process it.
    Redeemed(u32),
    /// It was answered, or needs no answer.
    Done,
    Host,
}

impl Port {
    /// Opens a connection for a SYN for a listener, or for a returned cookie.
    #[inline(never)]
    pub(super) fn handle_unclaimed(
        &mut self,
        now: Instant,
        tuple: Tuple,
        header: &tcp::Header,
        opened: &Opened<'_>,
    ) -> Claim {
        // RFC 9293 §3.9.2.3 (MUST-57): "MUST silently discard an incoming SYN segment that is
        // addressed to a broadcast or multicast address". RFC 1122 §3.2.1.3: nor is such a source
        // valid.
        let ends = [tuple.local().ip(), tuple.remote().ip()];
        if !ends.into_iter().all(|end| self.config.is_unicast(end)) {
            self.drop_frame(FrameDrop::Malformed);
            return Claim::Done;
        }
        if !self.config.owns(tuple.local().ip()) {
            return Claim::Host;
        }
        let admitted = self.admit(&tuple, header);
        let Some(listener) = self.listeners.at(tuple.local()) else { return Claim::Host };
        match admitted {
            Ok(slot) => self.accept_syn(now, tuple, header, opened, slot),
            Err(SynRefusal::BacklogFull) => {
                listener.cookie_sent_at = Some(now);
                self.answer_with_cookie(now, tuple, header, opened);
                Claim::Done
            }
            Err(SynRefusal::UnknownConnection) if listener.expects_cookies(now) => {
                self.redeem_cookie(now, tuple, header, opened)
            }
            Err(_) => Claim::Host,
        }
    }

    /// Connections that the same burst established or closed release their half-open slots.
    fn admit(&mut self, tuple: &Tuple, header: &tcp::Header) -> Result<BacklogSlot, SynRefusal> {
        tcp::check_syn(header)?;
        let (local, source) = (tuple.local(), tuple.remote().ip());
        let unknown = SynRefusal::UnknownConnection;
        let admitted = self.listeners.at(local).ok_or(unknown)?.take_half_open(source);
        if !matches!(admitted, Err(SynRefusal::BacklogFull)) || !self.connections.has_touched() {
            return admitted;
        }
        self.process_active();
        self.listeners.at(local).ok_or(unknown)?.take_half_open(source)
    }

    fn accept_syn(
        &mut self,
        now: Instant,
        tuple: Tuple,
        header: &tcp::Header,
        opened: &Opened<'_>,
        backlog_slot: BacklogSlot,
    ) -> Claim {
        let (local, remote) = (tuple.local(), tuple.remote());
        let tcp_config = self.tcp_config(remote.ip());
        let iss = self.isn.isn(now, local, remote);
        let ts_offset = self.isn.timestamp_offset(local, remote);
        let tcp = tcp::Tcb::accept(now, &tcp_config, header, iss, ts_offset);
        self.accept_connection(now, tuple, tcp, backlog_slot, opened)
            .map_or_else(|claim| claim, Claim::Opened)
    }

    /// The connection's slot in the backlog is already taken.
    fn accept_connection(
        &mut self,
        now: Instant,
        tuple: Tuple,
        tcp: tcp::Tcb,
        backlog_slot: BacklogSlot,
        opened: &Opened<'_>,
    ) -> Result<u32, Claim> {
        let (local, remote) = (tuple.local(), tuple.remote());
        let found = self.listeners.of(backlog_slot).ok_or(Claim::Host)?;
        let (params, listener) = (found.params.clone(), found.local());
        let id = match self.insert(now, tuple, tcp, params.lower_layer, Some(backlog_slot)) {
            Ok(id) => id,
            Err(reason) => {
                self.listeners.release(backlog_slot);
                // Another queue of the interface was faster with a copy of the segment.
                let elsewhere = matches!(reason, PortError::PortTaken(_));
                return Err(if elsewhere { Claim::Done } else { Claim::Host });
            }
        };
        // The source MAC of a frame from beyond a router does not identify the next hop.
        let next_hop = self.config.next_hop(remote.ip());
        if let Some(mac) = opened.source_mac()
            && next_hop == remote.ip()
            && self.interface.neighbours.learn_provisionally(now, next_hop, mac)
        {
            self.connections[id.slot].confirm_neighbour = true;
        }
        let OwnTcp { tcp, stream, .. } = &mut self.connections[id.slot].carrier;
        if params.keepalive.is_some() {
            tcp.set_keepalive(now, params.keepalive);
        }
        if !params.delayed {
            stream.respond(now, &params.startup).map_err(|_| Claim::Host)?;
        }
        self.events.push_back(PortEvent::Incoming { connection: id, listener, local, remote });
        Ok(id.slot)
    }

    /// Answers a SYN without keeping state, because the backlog is full (RFC 4987 §3.6).
    fn answer_with_cookie(
        &mut self,
        now: Instant,
        tuple: Tuple,
        syn: &tcp::Header,
        opened: &Opened<'_>,
    ) {
        if !self.listeners.has_room_for_answer() {
            return;
        }
        let ends = self.cookie_ends(&tuple);
        let config = self.tcp_config(ends.remote.ip());
        let answer = self.listeners.cookies.answer(now, &config, syn, &ends);
        // The answer goes to the source MAC of the SYN: a SYN alone causes no neighbour query.
        let (framing, own) = (self.interface.framing, self.config.mac);
        let link = opened.source_mac().map(|mac| LinkHeader::new(framing, own, mac));
        let route = Route::new(link, ends.local.ip(), ends.remote.ip());
        self.listeners.push_answer(route, answer);
        self.counters.cookies_sent += 1;
        let sent = self.counters.cookies_sent;
        if sent.is_power_of_two() {
            debug!(target: TRACE, %tuple, sent, "backlog full: SYN answered with a cookie");
        }
    }

    fn redeem_cookie(
        &mut self,
        now: Instant,
        tuple: Tuple,
        header: &tcp::Header,
        opened: &Opened<'_>,
    ) -> Claim {
        let ends = self.cookie_ends(&tuple);
        let config = self.tcp_config(ends.remote.ip());
        // No reset without a valid cookie: a peer's first segment may have been lost.
        let Some(tcp) = self.listeners.cookies.redeem(now, &config, header, &ends) else {
            return Claim::Done;
        };
        let Some(listener) = self.listeners.at(tuple.local()) else { return Claim::Host };
        let Some(backlog_slot) = listener.take_arriving(tuple.remote().ip()) else {
            return Claim::Done;
        };
        self.counters.cookies_redeemed += 1;
        let redeemed = self.counters.cookies_redeemed;
        if redeemed.is_power_of_two() {
            debug!(target: TRACE, %tuple, redeemed, "cookie redeemed");
        }
        self.accept_connection(now, tuple, tcp, backlog_slot, opened)
            .map_or_else(|claim| claim, Claim::Redeemed)
    }

    fn cookie_ends(&self, tuple: &Tuple) -> tcp::CookieEnds {
        let (local, remote) = (tuple.local(), tuple.remote());
        let ts_offset = self.isn.timestamp_offset(local, remote);
        tcp::CookieEnds { local, remote, ts_offset }
    }
}
