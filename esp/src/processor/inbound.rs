//! Received packets: association, opening, policy (RFC 4301 §5.2).

use super::{Esp, Event};
use crate::association::{Purpose, Received};
use crate::counters::DropReason;
use crate::policy::{Action, Direction};
use crate::wire::ip::{Flow, Header};
use crate::wire::udp::Contents;
use crate::wire::{esp, icmp, udp};

/// Result for a received packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inbound {
    /// Not ESP, and a policy admits it in clear.
    Clear,
    /// The packet inside is in the room, from its begin to this length. Its transport checksum was
    /// not verified.
    Opened(usize),
    /// A NAT-keepalive: nothing to do.
    KeepAlive,
    /// A message of IKE, behind the non-ESP marker.
    Ike,
    /// A router reports that a sealed packet was too long.
    TooBig {
        /// Policy and ends of the association.
        purpose: Purpose,
        /// Longest ESP packet that the next hop takes; 0 if an old router does not say it.
        mtu: u32,
    },
    /// The packet is dropped.
    Dropped(DropReason),
}

impl Esp {
    /// Handles a received IP packet, without its link header. The packet inside is written to
    /// `room`, which grows to the packet's length once and is then reused.
    pub fn inbound(&mut self, now_ns: u64, packet: &[u8], room: &mut Vec<u8>) -> Inbound {
        let result = self.take(now_ns, packet, room);
        result.unwrap_or_else(|reason| {
            self.counters.drop(reason);
            Inbound::Dropped(reason)
        })
    }

    fn take(
        &mut self,
        now_ns: u64,
        packet: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<Inbound, DropReason> {
        let header = &Header::parse(packet).ok_or(DropReason::Malformed)?;
        let payload = &packet[header.payload_at..header.len];
        let mut is_in_udp = false;
        let esp = match header.next_header {
            esp::PROTOCOL if header.is_fragment => return Err(DropReason::Fragment),
            esp::PROTOCOL => payload,
            udp::PROTOCOL if self.is_of_port(header) => match udp::read(payload) {
                None => return Err(DropReason::Malformed),
                Some((_, Contents::KeepAlive)) => {
                    self.counters.keepalives += 1;
                    return Ok(Inbound::KeepAlive);
                }
                Some((_, Contents::Ike(_))) => return Ok(Inbound::Ike),
                Some((_, Contents::Esp(payload))) => {
                    is_in_udp = true;
                    payload
                }
            },
            _ => return self.admit(packet, header),
        };
        let received = Received { packet, header, esp, is_in_udp };
        let len = self.open(now_ns, received, room)?;
        self.counters.opened.add(len);
        Ok(Inbound::Opened(len))
    }

    /// Returns true if a UDP datagram is to the port of ESP in UDP.
    fn is_of_port(&self, header: &Header) -> bool {
        let port = header.flow.ports.map(|(_, destination)| destination);
        port.is_some() && port == self.config.udp_port && !header.is_fragment
    }

    fn open(
        &mut self,
        now_ns: u64,
        received: Received<'_>,
        room: &mut Vec<u8>,
    ) -> Result<usize, DropReason> {
        let (spi, _) = esp::read_header(received.esp).ok_or(DropReason::Malformed)?;
        let opener = self.inbound.get_mut(&spi).ok_or(DropReason::NoAssociation)?;
        let purpose = opener.purpose();
        let direction = Direction::In;
        let opened = opener.open(now_ns, received, room);
        if opened.is_ok() && opener.take_soft(now_ns) {
            self.raise(Event::Expire { direction, spi, purpose, hard: false });
        } else if opened == Err(DropReason::LifetimeEnded) {
            self.inbound.remove(&spi);
            self.raise(Event::Expire { direction, spi, purpose, hard: true });
        }
        let inner = opened?;
        // RFC 4301 §5.2, step 4: the policy must want this protection.
        match self.spd.decide(direction, &inner.flow).0 {
            Action::Protect(template)
                if (template.request, template.mode) == (purpose.request, purpose.mode) =>
            {
                Ok(inner.len)
            }
            _ => Err(DropReason::WrongSelector),
        }
    }

    /// Decides on a packet in clear. What a policy protects is dropped, and so are ICMP errors about
    /// packets that were sent protected: a host on the path can forge them.
    fn admit(&mut self, packet: &[u8], header: &Header) -> Result<Inbound, DropReason> {
        if let Some(error) = icmp::parse(packet, header) {
            if let (Some((spi, low)), Some(mtu)) = (error.esp, error.mtu)
                && let Some(purpose) = self.sent(&error.quoted, spi, low)
            {
                return Ok(Inbound::TooBig { purpose, mtu });
            }
            let (action, _) = self.spd.decide(Direction::Out, &error.quoted);
            if error.esp.is_none() && matches!(action, Action::Protect(_)) {
                return Err(DropReason::Cleartext);
            }
        }
        match self.spd.decide(Direction::In, &header.flow).0 {
            Action::Discard => Err(DropReason::Policy),
            Action::Protect(_) => Err(DropReason::Cleartext),
            Action::Bypass => {
                self.counters.bypassed_in += 1;
                Ok(Inbound::Clear)
            }
        }
    }

    /// Returns the association by which a quoted ESP packet may have been sent: with its SPI and
    /// its addresses, and with a number that was used not long ago.
    fn sent(&self, quoted: &Flow, spi: u32, low: u32) -> Option<Purpose> {
        /// Packets that may be in flight, about.
        const RECENT: u32 = 1 << 20;
        let is_it = |purpose: &Purpose| {
            (purpose.source, purpose.destination) == (quoted.source, quoted.destination)
        };
        let of_ends = self.outbound.iter().filter(|(purpose, _)| is_it(purpose));
        let mut sealers =
            of_ends.flat_map(|(purpose, all)| all.iter().map(move |one| (purpose, one)));
        let (purpose, sealer) = sealers.find(|(_, sealer)| sealer.spi() == spi)?;
        let [_, _, _, _, last @ ..] = sealer.number().to_be_bytes();
        let age = u32::from_be_bytes(last).wrapping_sub(low);
        (age < RECENT && u64::from(age) < sealer.number()).then_some(*purpose)
    }
}
