//! Received frames: to their connection, to a listener, or to the host stack.

use tracing::debug;
use urnic_netdev::{RxChecksum, RxFrame};

use crate::mem::TableLease;
use crate::port::accept::Claim;
use crate::port::connections::is_in_time_wait;
use crate::port::drops::FrameDrop;
use crate::port::excess::Connectionless;
use crate::port::interface::demux::{self, Inbound, Parsed};
use crate::port::interface::framing::{LinkFraming, Opened};
use crate::port::interface::icmp::{self, IcmpError, Report};
use crate::port::interface::reassembly::Part;
use crate::port::tuple::Tuple;
use crate::port::{Port, TRACE};
use crate::stream::carrier::Payload;
use crate::tcp::{self, Flags};
use crate::time::Instant;
use crate::verbs::calls::HeldCalls;

impl Port {
    /// Processes a frame. [`handle_burst`](Self::handle_burst) costs less for several.
    pub fn handle_frame(&mut self, now: Instant, frame: &RxFrame<'_>) {
        self.handle_burst(now, |sink| sink(frame));
    }

    /// Processes the received frames that `receive` passes to its argument; returns its result.
    /// Registered memory cannot be revoked during the call: `receive` must not wait for such a
    /// revocation.
    pub fn handle_burst<R>(
        &mut self,
        now: Instant,
        receive: impl FnOnce(&mut dyn FnMut(&RxFrame<'_>)) -> R,
    ) -> R {
        let rnic = self.rnic.clone();
        let _until_the_lease_is_closed = HeldCalls::new();
        let mut lease = TableLease::new(&rnic.table);
        receive(&mut |frame| self.take_frame(now, self.interface.framing, frame, &mut lease))
    }

    pub(super) fn take_frame(
        &mut self,
        now: Instant,
        framing: LinkFraming,
        frame: &RxFrame<'_>,
        lease: &mut TableLease<'_>,
    ) {
        // RFC 1122 §3.3.6 assumes that the link layer delivers only frames for this host: a bridge
        // that floods, or an interface in promiscuous mode, does not.
        if framing.has_link_layer() && !self.config.is_link_destination(frame.head) {
            return self.drop_frame(FrameDrop::Foreign);
        }
        if !frame.payload.is_empty() {
            return self.take_fragments(now, framing, frame, lease);
        }
        let verify = frame.checksum == RxChecksum::Unverified;
        let Some(inbound) = demux::parse_plain(framing, frame.head, verify) else {
            return self.take_contiguous(now, framing, frame, lease);
        };
        if !self.handle_open(now, frame, &inbound, |payload| payload, lease) {
            self.handle_tcp(now, framing, frame, lease);
        }
    }

    #[inline(never)]
    fn take_contiguous(
        &mut self,
        now: Instant,
        framing: LinkFraming,
        frame: &RxFrame<'_>,
        lease: &mut TableLease<'_>,
    ) {
        let verify = frame.checksum == RxChecksum::Unverified;
        match demux::parse(framing, frame.head, frame.head.len(), verify) {
            Ok(Parsed::Tcp(inbound)) => {
                if !self.handle_open(now, frame, &inbound, |payload| payload, lease) {
                    self.handle_tcp(now, framing, frame, lease);
                }
            }
            Ok(Parsed::Other(opened)) => self.handle_other(now, &opened, frame.checksum),
            Ok(Parsed::Fragment(opened, part)) => {
                self.take_part(now, framing, &opened, &part, lease);
            }
            Err(reason) => self.drop_frame(reason),
        }
    }

    #[inline(never)]
    fn take_part(
        &mut self,
        now: Instant,
        framing: LinkFraming,
        opened: &Opened<'_>,
        part: &Part<'_>,
        lease: &mut TableLease<'_>,
    ) {
        let Some(whole) = self.handle_fragment(now, opened, part) else { return };
        let frame = RxFrame::whole(&whole, RxChecksum::Unverified, None);
        match demux::parse(framing.without_tag(), &whole, whole.len(), true) {
            Ok(Parsed::Tcp(_)) => self.handle_tcp(now, framing.without_tag(), &frame, lease),
            Ok(Parsed::Other(opened)) => self.handle_other(now, &opened, frame.checksum),
            // A fragment inside a reassembled datagram is refused: else an atomic fragment (RFC
            // 6946) for each eight bytes would cause thousands of passes over one datagram.
            Ok(Parsed::Fragment(..)) => self.drop_frame(FrameDrop::Fragment),
            Err(reason) => self.drop_frame(reason),
        }
    }

    /// Processes a segment of an open connection, unless it is a SYN. `payload_of` makes the
    /// payload from the bytes behind the TCP header. Returns false, with nothing done, for other
    /// segments, which [`handle_tcp`](Self::handle_tcp) takes.
    #[inline(always)]
    pub(super) fn handle_open<'f, P: Payload>(
        &mut self,
        now: Instant,
        frame: &RxFrame<'_>,
        inbound: &Inbound<'f>,
        payload_of: impl FnOnce(&'f [u8]) -> P,
        lease: &mut TableLease<'_>,
    ) -> bool {
        let mut header = tcp::Header { ecn: inbound.ecn, ..tcp::Header::default() };
        if let Ok(payload_at) = header.read(inbound.segment)
            && !header.flags.contains(Flags::SYN)
            && let Some(slot) =
                self.connections.find(&inbound.tuple(header.src_port, header.dst_port))
            && !is_in_time_wait(slot)
        {
            let mut payload = payload_of(&inbound.segment[payload_at..]);
            return self.handle_segment(now, slot, frame, &header, &mut payload, lease);
        }
        false
    }

    /// Processes any TCP segment whose checksums were verified. Parses it again: a segment passed
    /// by reference would be in memory on the fast path, too.
    #[inline(never)]
    fn handle_tcp(
        &mut self,
        now: Instant,
        framing: LinkFraming,
        frame: &RxFrame<'_>,
        lease: &mut TableLease<'_>,
    ) {
        let parsed = demux::parse(framing, frame.head, frame.head.len(), false);
        let (Ok(Parsed::Tcp(inbound)), Ok(opened)) = (parsed, framing.open(frame.head)) else {
            return self.drop_frame(FrameDrop::Malformed);
        };
        let Ok((mut header, payload_at)) = tcp::Header::parse(inbound.segment) else {
            return self.drop_frame(FrameDrop::Malformed);
        };
        header.ecn = inbound.ecn;
        let tuple = inbound.tuple(header.src_port, header.dst_port);
        let mut payload = &inbound.segment[payload_at..];
        // The TCP checksum was verified.
        let (opened, valid) = (&opened, RxChecksum::Valid);
        let slot = match self.find_open(&tuple, &header) {
            Some(slot) => slot,
            _ if self.hand_over(&tuple, opened, valid, frame.segment_size) => return,
            _ if self.is_segment_excess(now, &tuple) => return self.drop_frame(FrameDrop::Excess),
            _ => match self.handle_unclaimed(now, tuple, &header, opened) {
                Claim::Redeemed(slot) => slot,
                Claim::Opened(slot) => return self.connections.after_input(slot),
                Claim::Done => return,
                Claim::Host => return self.host.handle_frame(opened, frame.checksum),
            },
        };
        if is_in_time_wait(slot) {
            return self.handle_in_time_wait(now, slot, &header, payload.len());
        }
        if !self.handle_segment(now, slot, frame, &header, &mut payload, lease) {
            // Its RST is not sent yet, or it is being reopened: TCP counts and drops the segment.
            let tcp = &mut self.connections[slot].carrier.tcp;
            let _dropped = tcp.handle_segment(now, &header, payload.len(), 1);
        }
    }

    /// Returns the connection of a segment, by its slot or its number in TIME-WAIT. One that an
    /// earlier segment of the burst has closed is removed first: the SYN of the next connection may
    /// follow (RFC 9293 §3.10.7.4).
    fn find_open(&mut self, tuple: &Tuple, header: &tcp::Header) -> Option<u32> {
        let number = self.connections.find(tuple)?;
        if !is_in_time_wait(number)
            && self.connections[number].carrier.tcp.state() == tcp::State::Closed
        {
            return self.remove_closed(tuple, header);
        }
        (!self.gives_way(number, header)).then_some(number)
    }

    /// Removes a closed connection. Returns its slot if it must stay: its RST was not sent yet, or
    /// it is reopened.
    #[cold]
    fn remove_closed(&mut self, tuple: &Tuple, header: &tcp::Header) -> Option<u32> {
        self.process_active();
        let slot = self.connections.find(tuple)?;
        let connection = &mut self.connections[slot];
        // A peer that sends a later SYN has forgotten the connection: it would drop our RST (RFC
        // 9293 §3.10.7.3). Any other SYN may be old or forged, and the peer waits for the RST.
        if !connection.carrier.stream.wants_retry()
            && connection.carrier.tcp.may_be_replaced_by(header)
            && self.listeners.at(tuple.local()).is_some()
        {
            connection.carrier.tcp.vanish();
            self.connections.touch(slot);
            self.process_active();
            return self.connections.find(tuple);
        }
        Some(slot)
    }

    /// Returns false, with no effect but waking it, if the connection is closed.
    #[inline(always)]
    fn handle_segment(
        &mut self,
        now: Instant,
        slot: u32,
        frame: &RxFrame<'_>,
        header: &tcp::Header,
        payload: &mut impl Payload,
        lease: &mut TableLease<'_>,
    ) -> bool {
        let payload_len = payload.len();
        let segments = frame
            .segment_size
            .map_or(1, |size| payload_len.div_ceil(usize::from(size.get())).max(1));
        let connection = &mut self.connections[slot];
        let pieces = &mut self.pieces;
        let taken =
            connection.carrier.handle_segment(now, header, payload, segments, pieces, lease);
        self.connections.after_input(slot);
        taken
    }

    /// Segments for ordinary sockets are not limited, and use no tokens of RDMA listeners.
    fn is_segment_excess(&mut self, now: Instant, tuple: &Tuple) -> bool {
        let is_limited = !self.host.has_sockets() || self.listeners.at(tuple.local()).is_some();
        is_limited && !self.allowances.take(now, Connectionless::Tcp)
    }

    fn is_excess(&mut self, now: Instant, kind: Connectionless) -> bool {
        !self.host.has_sockets() && !self.allowances.take(now, kind)
    }

    #[inline(never)]
    fn handle_other(&mut self, now: Instant, opened: &Opened<'_>, checksum: RxChecksum) {
        if self.is_excess(now, Connectionless::Other) {
            return self.drop_frame(FrameDrop::Excess);
        }
        if self.interface.neighbours.learn_from(now, &self.config, opened) {
            self.tell_other_queues(opened, checksum);
        }
        self.wake_for_neighbours();
        // RFC 1122 §3.3.6: an ICMP error in a link-layer multicast or broadcast frame is ignored.
        if !opened.is_multicast()
            && let Some(error) = icmp::parse(opened)
        {
            let ours = self.connections.contains(&error.tuple);
            if !ours && self.hand_over(&error.tuple, opened, checksum, None) {
                return;
            }
            self.handle_icmp(now, &error);
        }
        self.host.handle_frame(opened, checksum);
    }

    fn handle_fragment(
        &mut self,
        now: Instant,
        opened: &Opened<'_>,
        part: &Part<'_>,
    ) -> Option<Vec<u8>> {
        // Only datagrams for this port, or multicast for the host stack, are worth the memory.
        let to = part.key.destination;
        if !self.config.owns(to) && !to.is_multicast() {
            self.drop_frame(FrameDrop::Fragment);
            return None;
        }
        if self.is_excess(now, Connectionless::Fragment) {
            self.drop_frame(FrameDrop::Excess);
            return None;
        }
        if let Ok(whole) = self.interface.reassembly.insert(now, opened, part) {
            self.counters.reassembled += u64::from(whole.is_some());
            whole
        } else {
            self.drop_frame(FrameDrop::Fragment);
            None
        }
    }

    /// Handles an ICMP error. Drops it unless it quotes a segment in flight (RFC 5927 §4.1).
    // spec: TCP-9293-20
    fn handle_icmp(&mut self, now: Instant, error: &IcmpError) {
        let slot = self.connections.find(&error.tuple);
        let Some(slot) = slot.filter(|_| self.config.owns(error.destination)) else { return };
        if is_in_time_wait(slot) {
            // A connection in TIME-WAIT has nothing in flight.
            return self.drop_frame(FrameDrop::Icmp);
        }
        let connection = &mut self.connections[slot];
        let tcp = &mut connection.carrier.tcp;
        if !tcp.is_unanswered(error.seq) {
            self.drop_frame(FrameDrop::Icmp);
            return;
        }
        let heeded = match error.report {
            Report::TooBig { mtu, datagram_len } => {
                let heeded = connection.path.on_too_big(now, tcp, mtu, datagram_len);
                if heeded {
                    connection.keep_path(now, &mut self.interface.paths);
                }
                heeded
            }
            Report::Refused => connection.carrier.give_up_opening(tcp::TcpEvent::Refused),
            Report::Unreachable => connection.carrier.give_up_opening(tcp::TcpEvent::Unreachable),
        };
        self.counters.icmp_heeded += u64::from(heeded);
        if heeded {
            let (tuple, report) = (&error.tuple, error.report);
            debug!(target: TRACE, %tuple, ?report, "ICMP error heeded");
        }
        self.connections.after_input(slot);
    }
}
