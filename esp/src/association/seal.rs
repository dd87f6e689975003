//! The sending end of an association: an IP packet becomes an ESP packet, in place.
//!
//! The payload does not move. The caller leaves room in front of the packet and behind it; the IP
//! header moves to the front, the ESP header is written between.

use std::ops::Range;

use super::{Association, AssociationError, Mode, Purpose, Status};
use crate::counters::DropReason;
use crate::crypto::{BLOCK_LEN_MAX, ICV_LEN_MAX, IV_LEN_MAX, Sequence, Transform};
use crate::lifetime::{Age, Usage};
use crate::limits::KEEPALIVE_NS;
use crate::overhead::Overhead;
use crate::selector::{Match, Selector};
use crate::wire::ip::{self, Flow, Header};
use crate::wire::{esp, udp};

/// Most bytes that an association adds in front of a packet.
pub const FRONT_MAX: usize = ip::IPV6_LEN + udp::HEADER_LEN + esp::HEADER_LEN + IV_LEN_MAX;
/// Most bytes that an association adds behind a packet.
pub const BACK_MAX: usize = BLOCK_LEN_MAX - 1 + esp::TRAILER_LEN + ICV_LEN_MAX;
/// Length of the longest IP packet, without the fixed header over IPv6.
const PACKET_LEN_MAX: usize = u16::MAX as usize;

/// The sending end of an association.
#[derive(Debug)]
pub(crate) struct Sealer {
    spi: u32,
    purpose: Purpose,
    udp: Option<udp::Ports>,
    selector: Option<Selector>,
    overhead: Overhead,
    transform: Box<dyn Transform>,
    is_extended: bool,
    /// Last number used; 0 before the first packet.
    number: u64,
    usage: Usage,
    last_sent_ns: u64,
}

impl Sealer {
    pub(crate) fn new(association: &Association, now_ns: u64) -> Result<Self, AssociationError> {
        association.check()?;
        Ok(Self {
            spi: association.spi,
            purpose: association.purpose(),
            udp: association.udp,
            selector: association.selector.clone(),
            overhead: association.overhead(),
            transform: association.keying.transform()?,
            is_extended: association.extended_numbers,
            number: 0,
            usage: Usage::new(association.lifetime, now_ns),
            last_sent_ns: now_ns,
        })
    }

    pub(crate) const fn spi(&self) -> u32 {
        self.spi
    }

    pub(crate) const fn overhead(&self) -> Overhead {
        self.overhead
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Continues after this number, as if packets up to it had been sent.
    #[cfg(test)]
    pub(crate) const fn skip_to(&mut self, number: u64) {
        self.number = number;
    }

    pub(crate) const fn status(&self) -> Status {
        let (packets, bytes) = (self.usage.packets(), self.usage.bytes());
        let Self { spi, purpose, number, .. } = *self;
        Status { spi, purpose, number, packets, bytes, replays: 0, bad_icv: 0 }
    }

    /// Returns true if the association is for packets of this flow.
    pub(crate) fn is_for(&self, flow: &Flow) -> bool {
        self.selector.as_ref().is_none_or(|selector| selector.compare(flow) == Match::Yes)
    }

    /// Returns the largest number that may be used.
    const fn last_number(&self) -> u64 {
        if self.is_extended { u64::MAX } else { u32::MAX as u64 }
    }

    /// Returns true if no packet of `len` bytes can be sent: a limit of the lifetime is reached, or
    /// the next number would repeat (RFC 4303 §3.3.3).
    // spec: SEC-I-3
    pub(crate) fn has_ended(&self, now_ns: u64, len: usize) -> bool {
        self.number >= self.last_number() || self.usage.age_with(now_ns, len) == Age::Hard
    }

    /// Returns true if the limit of time is reached.
    pub(crate) fn is_old(&self, now_ns: u64) -> bool {
        self.usage.age(now_ns) == Age::Hard
    }

    /// Returns true the first time that a new association is due. Numbers that are nearly used up
    /// are such a time, too.
    pub(crate) fn take_soft(&mut self, now_ns: u64) -> bool {
        let last = self.last_number();
        self.usage.take_soft_if(self.number >= last - last / 8, now_ns)
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        let keepalive = self.udp.map(|_| self.last_sent_ns.saturating_add(KEEPALIVE_NS));
        self.usage.deadline().into_iter().chain(keepalive).min()
    }

    /// Returns true if a NAT-keepalive is due.
    pub(crate) const fn wants_keepalive(&self, now_ns: u64) -> bool {
        self.udp.is_some() && now_ns.saturating_sub(self.last_sent_ns) >= KEEPALIVE_NS
    }

    /// Writes a NAT-keepalive to the front of `buffer`; returns its length (RFC 3948 §2.3).
    pub(crate) fn write_keepalive(&mut self, now_ns: u64, buffer: &mut [u8]) -> Option<usize> {
        let (ports, ends) = (self.udp?, (self.purpose.source, self.purpose.destination));
        let at = ip::outer_len(ends.0);
        let packet = buffer.get_mut(..at + udp::HEADER_LEN + 1)?;
        packet[at + udp::HEADER_LEN] = udp::KEEPALIVE;
        ip::write_outer(packet, ends, udp::PROTOCOL, 0);
        write_udp(packet, at, ports);
        self.last_sent_ns = now_ns;
        Some(packet.len())
    }

    /// Seals the packet at `at` in `buffer`, whose headers are `header`. Returns where the result
    /// is.
    // spec: SEC-I-3, SEC-I-4
    pub(crate) fn seal(
        &mut self,
        now_ns: u64,
        buffer: &mut [u8],
        at: usize,
        header: &Header,
    ) -> Result<Range<usize>, DropReason> {
        let is_tunnel = self.purpose.mode == Mode::Tunnel;
        if !is_tunnel && header.is_fragment {
            // RFC 4303 §3.3.4: transport mode takes whole datagrams.
            return Err(DropReason::Fragment);
        }
        let (kept, next_header) = match (is_tunnel, header.flow.source.is_ipv4()) {
            (true, true) => (0, ip::PROTOCOL_IPV4),
            (true, false) => (0, ip::PROTOCOL_IPV6),
            (false, _) => (header.payload_at, header.next_header),
        };
        let (front, back) = (self.overhead.front(), self.overhead.back(header.len - kept));
        let fixed = if self.purpose.source.is_ipv4() { 0 } else { ip::IPV6_LEN };
        if front + header.len + back > PACKET_LEN_MAX + fixed {
            return Err(DropReason::TooLong);
        }
        let (payload_at, end) = (at + kept, at + header.len);
        if at < front || buffer.len() < end + back {
            return Err(DropReason::NoRoom);
        }
        if self.has_ended(now_ns, header.len) {
            return Err(DropReason::LifetimeEnded);
        }
        let class = ip::traffic_class(&buffer[at..]);
        // Counted first: a number that was given out is never used again, whatever follows.
        self.number += 1;
        self.usage.charge(header.len);
        self.last_sent_ns = now_ns;
        let start = at - front;
        buffer.copy_within(at..payload_at, start);
        let packet = &mut buffer[start..end + back];
        let icv_at = packet.len() - self.overhead.lengths.icv;
        esp::write_trailer(&mut packet[end - start..icv_at], next_header);
        let esp_at = payload_at - start - esp::HEADER_LEN - self.overhead.lengths.iv;
        let sequence = Sequence { number: self.number, is_extended: self.is_extended };
        esp::write_header(&mut packet[esp_at..], self.spi, self.number);
        let sealed = self.transform.seal(sequence, &mut packet[esp_at..]);
        sealed.map_err(|_| DropReason::Crypto)?;
        self.write_front(packet, header, class);
        Ok(start..end + back)
    }

    /// Writes the headers in front of ESP.
    fn write_front(&self, packet: &mut [u8], header: &Header, class: u8) {
        let protocol = if self.udp.is_some() { udp::PROTOCOL } else { esp::PROTOCOL };
        let front_len = match self.purpose.mode {
            Mode::Transport => {
                ip::rewrite(packet, header, protocol, packet.len());
                header.payload_at
            }
            Mode::Tunnel => {
                let ends = (self.purpose.source, self.purpose.destination);
                ip::write_outer(packet, ends, protocol, class);
                self.overhead.outer
            }
        };
        if let Some(ports) = self.udp {
            write_udp(packet, front_len, ports);
        }
    }
}

/// Writes the UDP header at `at` of a packet that is complete otherwise.
fn write_udp(packet: &mut [u8], at: usize, ports: udp::Ports) {
    let (ip_header, datagram) = packet.split_at_mut(at);
    let addresses = if ip_header[0] >> 4 == 4 { &[][..] } else { &ip_header[8..40] };
    udp::write_header(datagram, ports, addresses);
}
