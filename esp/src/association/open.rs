//! The receiving end of an association: an ESP packet becomes the packet inside.
//!
//! The received packet is only read, so it may be in the device's memory. Decryption writes the
//! result to the caller's room: one pass, no copy besides.

use super::{Association, AssociationError, Mode, Purpose, Status};
use crate::counters::DropReason;
use crate::crypto::{Lengths, Sequence, Transform, TransformError};
use crate::lifetime::{Age, Usage};
use crate::selector::{Match, Selector};
use crate::window::Window;
use crate::wire::esp;
use crate::wire::ip::{self, Header};

/// The receiving end of an association.
#[derive(Debug)]
pub(crate) struct Opener {
    spi: u32,
    purpose: Purpose,
    is_in_udp: bool,
    selector: Option<Selector>,
    lengths: Lengths,
    transform: Box<dyn Transform>,
    is_extended: bool,
    window: Window,
    usage: Usage,
    replays: u64,
    bad_icv: u64,
}

/// An ESP packet as it was received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'a> {
    /// The IP packet.
    pub(crate) packet: &'a [u8],
    /// Its headers.
    pub(crate) header: &'a Header,
    /// From the SPI to the end of the ICV.
    pub(crate) esp: &'a [u8],
    /// ESP is in UDP.
    pub(crate) is_in_udp: bool,
}

impl Opener {
    pub(crate) fn new(association: &Association, now_ns: u64) -> Result<Self, AssociationError> {
        association.check()?;
        Ok(Self {
            spi: association.spi,
            purpose: association.purpose(),
            is_in_udp: association.udp.is_some(),
            selector: association.selector.clone(),
            lengths: association.keying.lengths(),
            transform: association.keying.transform()?,
            is_extended: association.extended_numbers,
            window: Window::new(association.window),
            usage: Usage::new(association.lifetime, now_ns),
            replays: 0,
            bad_icv: 0,
        })
    }

    pub(crate) const fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Continues as if the packet with this number had been received.
    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, number: u64) {
        self.window.mark(number);
    }

    pub(crate) const fn status(&self) -> Status {
        let (packets, bytes) = (self.usage.packets(), self.usage.bytes());
        let Self { spi, purpose, replays, bad_icv, .. } = *self;
        Status { spi, purpose, number: self.window.top(), packets, bytes, replays, bad_icv }
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        self.usage.deadline()
    }

    /// Returns true if a hard limit is reached.
    pub(crate) fn is_old(&self, now_ns: u64) -> bool {
        self.usage.age(now_ns) == Age::Hard
    }

    /// Returns true the first time that a new association is due.
    pub(crate) fn take_soft(&mut self, now_ns: u64) -> bool {
        self.usage.take_soft_if(false, now_ns)
    }

    /// Opens a packet into `room`; returns the headers of the packet there.
    // spec: SEC-I-3, SEC-I-4
    pub(crate) fn open(
        &mut self,
        now_ns: u64,
        received: Received<'_>,
        room: &mut Vec<u8>,
    ) -> Result<Header, DropReason> {
        let Received { packet, header, esp, is_in_udp } = received;
        let Purpose { source, destination, mode, .. } = self.purpose;
        // Behind a NAT the source may change.
        let is_from = is_in_udp || header.flow.source == source;
        if is_in_udp != self.is_in_udp || header.flow.destination != destination || !is_from {
            return Err(DropReason::WrongForm);
        }
        let (_, low) = esp::read_header(esp).ok_or(DropReason::Malformed)?;
        let Lengths { iv, block, icv } = self.lengths;
        let plain_len = esp.len().checked_sub(esp::HEADER_LEN + iv + icv);
        let plain_len = plain_len
            .filter(|len| *len >= esp::TRAILER_LEN && len.is_multiple_of(block))
            .ok_or(DropReason::Malformed)?;
        if self.is_old(now_ns) {
            return Err(DropReason::LifetimeEnded);
        }
        let number = if self.is_extended { self.window.infer(low) } else { Some(low.into()) };
        let Some(number) = number.filter(|number| self.window.is_new(*number)) else {
            self.replays += 1;
            return Err(DropReason::Replay);
        };
        let plain_at = if mode == Mode::Transport { header.payload_at } else { 0 };
        if room.len() < plain_at + plain_len {
            room.resize(plain_at + plain_len, 0);
        }
        let plain = &mut room[plain_at..plain_at + plain_len];
        let sequence = Sequence { number, is_extended: self.is_extended };
        if let Err(error) = self.transform.open(sequence, esp, plain) {
            self.bad_icv += u64::from(error == TransformError::BadIcv);
            return Err(match error {
                TransformError::BadIcv => DropReason::BadIcv,
                TransformError::Refused => DropReason::Crypto,
            });
        }
        // Only a packet that the peer has sent moves the window (RFC 4303 §3.4.3), or ends the
        // lifetime.
        if self.usage.age_with(now_ns, plain_len) == Age::Hard {
            return Err(DropReason::LifetimeEnded);
        }
        self.window.mark(number);
        self.usage.charge(plain_len);
        let (payload_len, next_header) = esp::read_trailer(plain).ok_or(DropReason::BadTrailer)?;
        if next_header == esp::NO_NEXT_HEADER {
            return Err(DropReason::Dummy);
        }
        let inner = match mode {
            Mode::Transport => {
                room[..plain_at].copy_from_slice(&packet[..plain_at]);
                let len = plain_at + payload_len;
                ip::rewrite(&mut room[..len], header, next_header, len);
                Header::parse(&room[..len]).ok_or(DropReason::BadTrailer)?
            }
            Mode::Tunnel => {
                // Bytes behind the inner packet are padding of traffic-flow confidentiality
                // (RFC 4303 §2.7).
                let inner = Header::parse(&room[..payload_len]).ok_or(DropReason::BadTrailer)?;
                let is_ipv4 = inner.flow.source.is_ipv4();
                if next_header != if is_ipv4 { ip::PROTOCOL_IPV4 } else { ip::PROTOCOL_IPV6 } {
                    return Err(DropReason::BadTrailer);
                }
                let class = ip::traffic_class(packet);
                if !ip::transfer_congestion(class, &mut room[..inner.len], &inner) {
                    return Err(DropReason::Congestion);
                }
                inner
            }
        };
        // RFC 4301 §5.2, step 4.
        let is_for = |selector: &Selector| selector.compare(&inner.flow) == Match::Yes;
        if self.selector.as_ref().is_some_and(|selector| !is_for(selector)) {
            return Err(DropReason::WrongSelector);
        }
        Ok(inner)
    }
}
