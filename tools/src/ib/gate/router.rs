//! One datagram through the gate.

use std::net::IpAddr;

use urnic_netdev::{Device, SharedSlice, TransmitError, TxChecksum, TxFrame};

use super::counters::{Dhcp, Direction, Icmp};
use super::fragment;
use super::icmp::{self, Report};
use super::limits::{ANSWERS_MAX, ICMP_BURST, ICMP_PER_SECOND};
use super::membership::Membership;
use super::packet::{self, Datagram, IPV4_HEADER_LEN_MAX, UDP};
use super::relay::{self, Relayed};
use super::rule::{Rules, Side, Verdict};

#[derive(Debug)]
pub(crate) struct Router {
    pub(super) rules: Rules,
    pub(super) to_link: Direction,
    pub(super) to_kernel: Direction,
    pub(super) icmp: Icmp,
    pub(super) dhcp: Dhcp,
    pub(super) membership: Membership,
    /// Messages for the side whose burst is being received.
    answers: Vec<Vec<u8>>,
    allowance: Allowance,
}

impl Router {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            to_link: Direction::default(),
            to_kernel: Direction::default(),
            icmp: Icmp::default(),
            dhcp: Dhcp::default(),
            membership: Membership::default(),
            answers: Vec::new(),
            allowance: Allowance::default(),
        }
    }

    const fn direction(&mut self, side: Side) -> &mut Direction {
        match side {
            Side::Kernel => &mut self.to_link,
            Side::Link => &mut self.to_kernel,
        }
    }

    /// `out` is the other side.
    pub(super) fn pass(&mut self, now_ns: u64, side: Side, octets: &[u8], out: &mut dyn Device) {
        let counters = self.direction(side);
        counters.received += 1;
        counters.received_bytes += octets.len() as u64;
        let Some(datagram) = Datagram::parse(octets) else {
            counters.malformed += 1;
            return;
        };
        if side == Side::Kernel {
            self.membership.note(datagram.octets, &self.rules.groups);
        }
        if self.relay(now_ns, side, &datagram, out) {
            return;
        }
        let is_received = |group| self.membership.receives(group);
        let refused = match self.rules.judge(side, &datagram, is_received) {
            Verdict::Forward => match self.forward(now_ns, side, &datagram, out) {
                Ok(()) => return,
                Err(refused) => refused,
            },
            Verdict::Own => {
                self.direction(side).own += 1;
                return self.answer(now_ns, &datagram);
            }
            Verdict::StaysHere => {
                self.direction(side).stayed += 1;
                return;
            }
            Verdict::Martian => {
                self.direction(side).martians += 1;
                return;
            }
            Verdict::Refuse(refused) => refused,
        };
        self.refuse(now_ns, side, refused, &datagram);
    }

    pub(super) fn refuse(&mut self, now_ns: u64, side: Side, why: Report, about: &Datagram<'_>) {
        let counters = self.direction(side);
        match why {
            Report::HopsExceeded => counters.hops_exceeded += 1,
            Report::TooBig { .. } => counters.too_big += 1,
            _ => counters.unreachable += 1,
        }
        self.report(now_ns, why, about);
    }

    /// Returns true if the datagram was for the relay agent.
    fn relay(
        &mut self,
        now_ns: u64,
        side: Side,
        datagram: &Datagram<'_>,
        out: &mut dyn Device,
    ) -> bool {
        let (Some(server), Some((own, _))) = (self.rules.dhcp_server, self.rules.ipv4) else {
            return false;
        };
        let relayed = match side {
            Side::Link => relay::to_server(own, server, datagram),
            Side::Kernel => relay::to_client(own, datagram),
        };
        let sent = match relayed {
            Relayed::No => return false,
            Relayed::Dropped => false,
            Relayed::On(octets) => out.transmit(now_ns, &frame(&octets, &[])).is_ok(),
        };
        let counter = if sent { &mut self.dhcp.relayed } else { &mut self.dhcp.dropped };
        *counter += 1;
        self.direction(side).own += 1;
        true
    }

    fn report(&mut self, now_ns: u64, why: Report, about: &Datagram<'_>) {
        let own = self.rules.own(about.source);
        match own.and_then(|own| icmp::report(own, why, about)) {
            Some(message) => {
                self.icmp.reports += u64::from(self.push(now_ns, message));
            }
            None => self.icmp.reports_withheld += 1,
        }
    }

    fn answer(&mut self, now_ns: u64, datagram: &Datagram<'_>) {
        if let Some(echo) = icmp::echo(datagram.destination, datagram) {
            self.icmp.echoes += u64::from(self.push(now_ns, echo));
            return;
        }
        // RFC 1122 §3.2.2.1.
        let Some(upper) = datagram.upper().filter(|upper| upper.is_first) else { return };
        match upper.protocol {
            packet::ICMP | packet::ICMPV6 => {}
            UDP => self.report(now_ns, Report::PortUnreachable, datagram),
            _ => {
                let why = Report::ProtocolUnreachable { named_at: upper.named_at };
                self.report(now_ns, why, datagram);
            }
        }
    }

    /// Returns true if there is room and the rate allows it.
    fn push(&mut self, now_ns: u64, message: Vec<u8>) -> bool {
        if self.answers.len() >= ANSWERS_MAX || !self.allowance.take(now_ns) {
            self.icmp.rate_limited += 1;
            return false;
        }
        self.answers.push(message);
        true
    }

    pub(super) fn send_answers(&mut self, now_ns: u64, to: &mut dyn Device) {
        for message in self.answers.drain(..) {
            // RFC 1122 §3.2.2: ICMP messages may be lost.
            let _lost = to.transmit(now_ns, &frame(&message, &[]));
        }
    }

    fn forward(
        &mut self,
        now_ns: u64,
        side: Side,
        datagram: &Datagram<'_>,
        out: &mut dyn Device,
    ) -> Result<(), Report> {
        let mtu = out.capabilities().mtu;
        if !out.link_up() {
            return Err(Report::NoRoute);
        }
        let mut header = [0; IPV4_HEADER_LEN_MAX];
        let (head, payload) = datagram.octets.split_at(datagram.header_len);
        let header = &mut header[..datagram.header_len];
        header.copy_from_slice(head);
        packet::decrement(header);
        let mut sent = Ok(());
        let is_cut = datagram.octets.len() > mtu;
        if is_cut {
            if datagram.may_be_cut && !fragment::is_possible(header, payload) {
                self.direction(side).malformed += 1;
                return Ok(());
            }
            // RFC 1812 §5.2.6, RFC 8200 §5: only hosts fragment IPv6 datagrams.
            let fits = datagram.may_be_cut
                && fragment::cut(header, payload, mtu, |header, piece| {
                    if sent.is_ok() {
                        let piece = [SharedSlice::from_bytes(piece)];
                        sent = out.transmit(now_ns, &frame(header, &piece));
                    }
                });
            if !fits {
                return Err(Report::TooBig { mtu });
            }
        } else {
            sent = out.transmit(now_ns, &frame(header, &[SharedSlice::from_bytes(payload)]));
        }
        let counters = self.direction(side);
        match sent {
            Ok(()) => {
                counters.forwarded += 1;
                counters.forwarded_bytes += datagram.octets.len() as u64;
                counters.cut += u64::from(is_cut);
                Ok(())
            }
            Err(TransmitError::LinkDown | TransmitError::Refused) => Err(Report::NoRoute),
            Err(TransmitError::TooLong) => Err(Report::TooBig { mtu }),
            Err(_) => {
                counters.lost += 1;
                Ok(())
            }
        }
    }

    /// The datagram was sent to the link and not delivered (RFC 1812 §5.2.7.1, RFC 4861 §7.2.2).
    /// Those of the gate itself are not reported.
    pub(super) fn undeliverable(&mut self, now_ns: u64, octets: &[u8]) {
        let Some(datagram) = Datagram::parse(octets) else { return };
        let own: Option<IpAddr> = self.rules.own(datagram.source);
        if own != Some(datagram.source) {
            self.to_link.undelivered += 1;
            self.report(now_ns, Report::HostUnreachable, &datagram);
        }
    }
}

const fn frame<'a>(head: &'a [u8], payload: &'a [SharedSlice<'a>]) -> TxFrame<'a> {
    TxFrame { head, payload, checksum: TxChecksum::Complete, segment_size: None, digests: None }
}

#[derive(Debug)]
struct Allowance {
    left: u64,
    since_ns: u64,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { left: ICMP_BURST, since_ns: 0 }
    }
}

impl Allowance {
    fn take(&mut self, now_ns: u64) -> bool {
        let earned = now_ns.saturating_sub(self.since_ns) / INTERVAL_NS;
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(ICMP_BURST);
            self.since_ns += earned * INTERVAL_NS;
        }
        let may = self.left > 0;
        self.left -= u64::from(may);
        may
    }
}

const INTERVAL_NS: u64 = 1_000_000_000 / ICMP_PER_SECOND;
