//! Frames in: to the connection they belong to, to a listener, or to the host stack.

use std::sync::Arc;

use urnic_netdev::{RxChecksum, RxFrame};

use crate::mem::TableLease;
use crate::port::connection::Tuple;
use crate::port::demux::{self, Inbound, Parsed};
use crate::port::framing::{Framing, Opened};
use crate::port::icmp::{self, IcmpError, Report};
use crate::port::reassembly::Part;
use crate::port::route::Route;
use crate::port::{ConnectionId, Port, PortError, PortEvent};
use crate::tcp::{self, SynRefusal};
use crate::time::Instant;

/// What becomes of a segment for no connection.
enum Claim {
    /// It opened a connection.
    Opened(u32),
    /// It brought back a cookie: the connection that has been made wants to see it.
    Redeemed(u32),
    /// It was answered, or needs no answer.
    Done,
    /// It is for the host stack.
    Host,
}

impl Port {
    /// Takes a received frame. Several at a time cost less by [`handle_burst`](Self::handle_burst).
    pub fn handle_frame(&mut self, now: Instant, frame: &RxFrame<'_>) {
        self.handle_burst(now, |sink| sink(frame));
    }

    /// Takes the received frames that `receive` hands to its argument; returns what `receive`
    /// returns.
    ///
    /// Registered memory cannot be revoked meanwhile, so `receive` must not wait for anything that
    /// revokes it.
    pub fn handle_burst<R>(
        &mut self,
        now: Instant,
        receive: impl FnOnce(&mut dyn FnMut(&RxFrame<'_>)) -> R,
    ) -> R {
        let rnic = Arc::clone(&self.rnic.shared);
        let mut lease = TableLease::new(&rnic.table);
        receive(&mut |frame| self.take_frame(now, self.framing, frame, &mut lease))
    }

    pub(super) fn take_frame(
        &mut self,
        now: Instant,
        framing: Framing,
        frame: &RxFrame<'_>,
        lease: &mut TableLease<'_>,
    ) {
        let verify = frame.checksum == RxChecksum::Unverified;
        match demux::parse(framing, frame.bytes, verify) {
            Ok(Parsed::Tcp(inbound)) => self.handle_tcp(now, framing, frame, &inbound, lease),
            Ok(Parsed::Other(opened)) => self.handle_other(now, &opened, frame.checksum),
            Ok(Parsed::Fragment(opened, part)) => self.handle_fragment(now, &opened, &part, lease),
            Err(reason) => reason.count(&mut self.counters.drops),
        }
    }

    fn handle_tcp(
        &mut self,
        now: Instant,
        framing: Framing,
        frame: &RxFrame<'_>,
        inbound: &Inbound<'_>,
        lease: &mut TableLease<'_>,
    ) {
        let Ok((mut header, payload_at)) = tcp::Header::parse(inbound.segment) else {
            self.counters.drops.malformed += 1;
            return;
        };
        header.ecn = inbound.ecn;
        let (source, destination) = (inbound.source, inbound.destination);
        let tuple = Tuple::new(destination, header.dst_port, source, header.src_port);
        let payload = &inbound.segment[payload_at..];
        let slot = match self.find(&tuple) {
            Some(slot) if !self.gives_way(slot, &header) => slot,
            _ if self.belongs_to_sibling(&tuple, framing, frame) => return,
            _ => match self.handle_unclaimed(now, tuple, &header, inbound) {
                Claim::Redeemed(slot) => slot,
                Claim::Opened(slot) => return self.after_input(slot),
                Claim::Done => return,
                Claim::Host => return self.pass_to_host(framing, frame),
            },
        };
        let segments = frame
            .segment_size
            .map_or(1, |size| payload.len().div_ceil(usize::from(size.get())).max(1));
        let connection = &mut self.connections[slot as usize];
        let pieces = &mut self.pieces;
        connection.optimized.handle_segment(now, &header, payload, segments, pieces, lease);
        self.after_input(slot);
    }

    /// Whether another port of the group has the connection, and got the frame.
    fn belongs_to_sibling(&mut self, tuple: &Tuple, framing: Framing, frame: &RxFrame<'_>) -> bool {
        if self.group.is_none() {
            return false;
        }
        let Ok(opened) = framing.open(frame.bytes) else { return false };
        // The TCP checksum was verified here.
        self.hand_over(tuple, &opened, RxChecksum::Valid, frame.segment_size)
    }

    fn find(&mut self, tuple: &Tuple) -> Option<u32> {
        if let Some((last, slot)) = &self.last_hit
            && last == tuple
        {
            return Some(*slot);
        }
        let slot = *self.by_tuple.get(tuple)?;
        self.last_hit = Some((*tuple, slot));
        Some(slot)
    }

    /// Whether a connection in TIME-WAIT made room for the one that a SYN opens (RFC 9293 §3.6.1,
    /// RFC 6191).
    #[inline]
    fn gives_way(&mut self, slot: u32, header: &tcp::Header) -> bool {
        let connection = &self.connections[slot as usize];
        let gives_way = header.flags.contains(tcp::Flags::SYN)
            && connection.optimized.tcp.may_be_replaced_by(header);
        if gives_way {
            let id = ConnectionId { slot, generation: connection.generation };
            self.settle();
            self.remove(id);
        }
        gives_way
    }

    // ---- listeners ----

    /// A segment for no connection: opens one if it is a SYN for a listener, or brings back a
    /// listener's cookie.
    #[inline(never)]
    fn handle_unclaimed(
        &mut self,
        now: Instant,
        tuple: Tuple,
        header: &tcp::Header,
        inbound: &Inbound<'_>,
    ) -> Claim {
        // RFC 9293 §3.9.2.3 (MUST-57): "MUST silently discard an incoming SYN segment that is
        // addressed to a broadcast or multicast address". RFC 1122 §3.2.1.3: nor does anything
        // come from one.
        let ends = [tuple.local().ip(), tuple.remote().ip()];
        if !ends.into_iter().all(|end| self.config.is_of_one_host(end)) {
            self.counters.drops.malformed += 1;
            return Claim::Done;
        }
        if !self.config.owns(tuple.local().ip()) {
            return Claim::Host;
        }
        let Some(listener) = self.listeners.get_mut(&tuple.local_port()) else {
            return Claim::Host;
        };
        match listener.backlog.admit(header) {
            Ok(()) => self.accept_syn(now, tuple, header, inbound),
            Err(SynRefusal::BacklogFull) => {
                listener.cookie_sent_at = Some(now);
                self.answer_with_cookie(now, tuple, header, inbound);
                Claim::Done
            }
            Err(SynRefusal::UnknownConnection) if listener.expects_cookies(now) => {
                self.redeem_cookie(now, tuple, header, inbound)
            }
            Err(_) => Claim::Host,
        }
    }

    fn accept_syn(
        &mut self,
        now: Instant,
        tuple: Tuple,
        header: &tcp::Header,
        inbound: &Inbound<'_>,
    ) -> Claim {
        let (local, remote) = (tuple.local(), tuple.remote());
        let tcp_config = self.config.tcp_for(remote.ip(), self.capabilities.mtu);
        let iss = self.isn.isn(now, local, remote);
        let ts_offset = self.isn.timestamp_offset(local, remote);
        let tcp = tcp::Connection::accept(now, &tcp_config, header, iss, ts_offset);
        let place = Place { listener: local.port(), by_cookie: false };
        self.accept_connection(now, tuple, tcp, place, inbound)
            .map_or_else(|claim| claim, Claim::Opened)
    }

    /// Makes a connection of a listener's; its place in the backlog is taken.
    fn accept_connection(
        &mut self,
        now: Instant,
        tuple: Tuple,
        tcp: tcp::Connection,
        place: Place,
        inbound: &Inbound<'_>,
    ) -> Result<u32, Claim> {
        let (local, remote) = (tuple.local(), tuple.remote());
        let listener = self.listeners.get(&place.listener).ok_or(Claim::Host)?;
        let params = listener.params.clone();
        let id = match self.insert(tuple, tcp, params.lower_layer, Some(place)) {
            Ok(id) => id,
            Err(reason) => {
                self.release_backlog(place);
                // Another port of the group was faster with a copy of the segment.
                let elsewhere = matches!(reason, PortError::PortTaken(_));
                return Err(if elsewhere { Claim::Done } else { Claim::Host });
            }
        };
        if let Some(mac) = inbound.source_mac {
            self.neighbours.suppose(self.config.next_hop(remote.ip()), mac);
        }
        let stream = &mut self.connections[id.slot as usize].optimized.stream;
        if !params.delayed {
            stream.respond(now, &params.startup).map_err(|_| Claim::Host)?;
        }
        self.events.push_back(PortEvent::Incoming { connection: id, local, remote });
        Ok(id.slot)
    }

    /// RFC 4987 §3.6: the backlog is full, and the SYN is answered without keeping anything.
    fn answer_with_cookie(
        &mut self,
        now: Instant,
        tuple: Tuple,
        syn: &tcp::Header,
        inbound: &Inbound<'_>,
    ) {
        if self.cookie_answers.len() >= crate::limits::COOKIE_ANSWERS_MAX {
            return;
        }
        let ends = self.cookie_ends(&tuple);
        let config = self.config.tcp_for(ends.remote.ip(), self.capabilities.mtu);
        let answer = self.cookies.answer(now, &config, syn, &ends);
        // It goes back where the SYN came from: a stranger is not worth a question.
        let link = inbound.source_mac.map(|mac| self.config.link_header(self.framing, mac));
        let route = Route::new(link, ends.local.ip(), ends.remote.ip());
        self.cookie_answers.push_back((route, answer));
        self.counters.cookies_sent += 1;
    }

    fn redeem_cookie(
        &mut self,
        now: Instant,
        tuple: Tuple,
        header: &tcp::Header,
        inbound: &Inbound<'_>,
    ) -> Claim {
        let ends = self.cookie_ends(&tuple);
        let config = self.config.tcp_for(ends.remote.ip(), self.capabilities.mtu);
        // No reset to what brings back none: it may be the second segment of somebody whose first
        // was lost, and which comes again.
        let Some(tcp) = self.cookies.redeem(now, &config, header, &ends) else {
            return Claim::Done;
        };
        let place = Place { listener: tuple.local_port(), by_cookie: true };
        let Some(listener) = self.listeners.get_mut(&place.listener) else { return Claim::Host };
        if listener.redeemed.reserve().is_err() {
            return Claim::Done;
        }
        self.counters.cookies_redeemed += 1;
        self.accept_connection(now, tuple, tcp, place, inbound)
            .map_or_else(|claim| claim, Claim::Redeemed)
    }

    fn cookie_ends(&self, tuple: &Tuple) -> tcp::CookieEnds {
        let (local, remote) = (tuple.local(), tuple.remote());
        let ts_offset = self.isn.timestamp_offset(local, remote);
        tcp::CookieEnds { local, remote, ts_offset }
    }

    // ---- everything else ----

    fn pass_to_host(&mut self, framing: Framing, frame: &RxFrame<'_>) {
        if let Ok(opened) = framing.open(frame.bytes) {
            self.host.handle_frame(&opened, frame.checksum);
        }
    }

    fn handle_other(&mut self, now: Instant, opened: &Opened<'_>, checksum: RxChecksum) {
        if self.neighbours.learn_from(&self.config, opened) {
            self.tell_siblings(opened, checksum);
        }
        self.wake_those_who_waited();
        if let Some(error) = icmp::parse(opened) {
            let ours = self.by_tuple.contains_key(&error.tuple);
            if !ours && self.hand_over(&error.tuple, opened, checksum, None) {
                return;
            }
            self.handle_icmp(now, &error);
        }
        self.host.handle_frame(opened, checksum);
    }

    /// A part of a datagram; the last that comes makes it whole.
    fn handle_fragment(
        &mut self,
        now: Instant,
        opened: &Opened<'_>,
        part: &Part<'_>,
        lease: &mut TableLease<'_>,
    ) {
        // Only what is for us, or for a group that the host stack may be in, is worth the memory.
        let to = part.key.destination;
        if !self.config.owns(to) && !to.is_multicast() {
            self.counters.drops.fragments += 1;
            return;
        }
        match self.reassembly.insert(now, opened, part) {
            Ok(None) => {}
            Ok(Some(frame)) => {
                self.counters.reassembled += 1;
                let framing = self.framing.without_tag();
                let checksum = RxChecksum::Unverified;
                let whole = RxFrame { bytes: &frame, checksum, segment_size: None };
                self.take_frame(now, framing, &whole, lease);
            }
            Err(_) => self.counters.drops.fragments += 1,
        }
    }

    /// RFC 5927 §4.1: an ICMP error counts only if it quotes a segment that is in flight.
    fn handle_icmp(&mut self, now: Instant, error: &IcmpError) {
        let slot = self.by_tuple.get(&error.tuple).copied();
        let Some(slot) = slot.filter(|_| self.config.owns(error.destination)) else { return };
        let connection = &mut self.connections[slot as usize];
        let tcp = &mut connection.optimized.tcp;
        if !tcp.is_unanswered(error.seq) {
            self.counters.drops.icmp += 1;
            return;
        }
        let heeded = match error.report {
            Report::TooBig { mtu, datagram_len } => {
                connection.path.on_too_big(now, tcp, mtu, datagram_len)
            }
            Report::Unreachable => connection.optimized.refuse(),
        };
        self.counters.icmp_heeded += u64::from(heeded);
        self.after_input(slot);
    }
}

/// A place in a listener's backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) listener: u16,
    /// One of those kept for peers that brought back a cookie.
    pub(crate) by_cookie: bool,
}
