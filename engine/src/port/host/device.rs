//! Frame queues in the form of a smoltcp device.

use std::collections::VecDeque;
use std::fmt;

use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant as SmolInstant;
use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, UdpPacket};
use urnic_netdev::RxChecksum;

use crate::limits::{HOST_FRAMES_MAX, UNSOLICITED_PER_SECOND_MAX};
use crate::port::host::sequence;
use crate::port::interface::framing::{
    ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, LinkFraming, Opened,
};
use crate::siphash::Key;
use crate::time::Instant;

/// Frames to and from smoltcp, without VLAN tags.
pub(super) struct HostDevice {
    framing: LinkFraming,
    mtu: usize,
    received: VecDeque<Vec<u8>>,
    to_send: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    unsolicited: Allowance,
    sequence_key: Key,
}

impl fmt::Debug for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { received, to_send, .. } = self;
        f.debug_struct("HostDevice")
            .field("received", &received.len())
            .field("to_send", &to_send.len())
            .finish_non_exhaustive()
    }
}

/// The queues at [`HostDevice::set_aside`].
#[derive(Debug)]
pub(super) struct Aside {
    received: VecDeque<Vec<u8>>,
    to_send: usize,
}

#[derive(Debug, Default)]
struct Allowance {
    since: Instant,
    used: u32,
}

impl Allowance {
    fn allow(&mut self, now: Instant) -> bool {
        if now.nanos_since(self.since) >= ALLOWANCE_NS {
            *self = Self { since: now, used: 0 };
        }
        self.used = self.used.saturating_add(1);
        self.used <= UNSOLICITED_PER_SECOND_MAX
    }
}

const ALLOWANCE_NS: u64 = 1_000_000_000;
/// Longer buffers are not kept for reuse.
const SPARE_LEN_MAX: usize = 16 << 10;

impl HostDevice {
    pub(super) fn new(framing: LinkFraming, mtu: usize, sequence_key: Key) -> Self {
        Self {
            framing,
            mtu,
            received: VecDeque::new(),
            to_send: VecDeque::new(),
            spare: Vec::new(),
            unsolicited: Allowance::default(),
            sequence_key,
        }
    }

    pub(super) const fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu;
    }

    /// Queues a frame for smoltcp; returns false if it was dropped for lack of room.
    pub(super) fn push_received(&mut self, opened: &Opened<'_>, checksum: RxChecksum) -> bool {
        if self.received.len() >= HOST_FRAMES_MAX {
            return false;
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        opened.write(&mut frame);
        let at = frame.len() - opened.payload.len();
        sequence::shift_received(self.sequence_key, &mut frame[at..]);
        if checksum == RxChecksum::Valid {
            complete_udp_checksum(opened.ethertype, &mut frame[at..]);
        }
        self.received.push_back(frame);
        true
    }

    pub(super) fn set_aside(&mut self) -> Aside {
        Aside { received: std::mem::take(&mut self.received), to_send: self.to_send.len() }
    }

    /// Restores what was set aside, and drops the frames received or queued since.
    pub(super) fn restore(&mut self, aside: Aside) {
        let said = self.to_send.split_off(aside.to_send);
        let came = std::mem::replace(&mut self.received, aside.received);
        for frame in said.into_iter().chain(came) {
            self.recycle(frame);
        }
    }

    /// Drops resets and ICMP errors beyond the allowance (RFC 1812 §4.3.2.8, RFC 4443 §2.4 (f)).
    pub(super) fn next_to_send(&mut self, now: Instant) -> Option<Vec<u8>> {
        loop {
            let mut frame = self.to_send.pop_front()?;
            let at = if self.framing.has_link_layer() { ETHERNET_LEN } else { 0 };
            if is_unsolicited(frame.get(at..).unwrap_or_default()) && !self.unsolicited.allow(now) {
                self.recycle(frame);
                continue;
            }
            if let Some(datagram) = frame.get_mut(at..) {
                sequence::shift_sent(self.sequence_key, datagram);
            }
            self.framing.seal(&mut frame);
            return Some(frame);
        }
    }

    pub(super) fn has_frames(&self) -> bool {
        !self.to_send.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.to_send.len() >= HOST_FRAMES_MAX || !self.received.is_empty()
    }

    pub(super) fn recycle(&mut self, frame: Vec<u8>) {
        if self.spare.len() < HOST_FRAMES_MAX && frame.capacity() <= SPARE_LEN_MAX {
            self.spare.push(frame);
        }
    }
}

/// A frame from the local kernel has an incomplete checksum field, which smoltcp would reject.
fn complete_udp_checksum(ethertype: u16, datagram: &mut [u8]) {
    match ethertype {
        ETHERTYPE_IPV4 => {
            if let Ok(mut packet) = Ipv4Packet::new_checked(datagram)
                && packet.next_header() == IpProtocol::Udp
            {
                let (source, destination) = (packet.src_addr(), packet.dst_addr());
                fill_udp(source.into(), destination.into(), packet.payload_mut());
            }
        }
        ETHERTYPE_IPV6 => {
            if let Ok(mut packet) = Ipv6Packet::new_checked(datagram)
                && packet.next_header() == IpProtocol::Udp
            {
                let (source, destination) = (packet.src_addr(), packet.dst_addr());
                fill_udp(source.into(), destination.into(), packet.payload_mut());
            }
        }
        _ => {}
    }
}

fn fill_udp(source: IpAddress, destination: IpAddress, datagram: &mut [u8]) {
    if let Ok(mut packet) = UdpPacket::new_checked(datagram) {
        packet.fill_checksum(&source, &destination);
    }
}

/// Resets and ICMP errors belong to no connection.
fn is_unsolicited(datagram: &[u8]) -> bool {
    const TCP: u8 = 6;
    const ICMP: u8 = 1;
    const ICMPV6: u8 = 58;
    const RST: u8 = 4;
    let (protocol, payload) = match datagram.first().map(|octet| octet >> 4) {
        Some(4) if datagram.len() >= 20 => {
            (datagram[9], datagram.get(usize::from(datagram[0] & 15) * 4..))
        }
        Some(6) if datagram.len() >= 40 => (datagram[6], datagram.get(40..)),
        _ => return false,
    };
    match (protocol, payload.unwrap_or_default()) {
        (TCP, &[_, _, _, _, _, _, _, _, _, _, _, _, _, flags, ..]) => flags & RST != 0,
        // Unreachable, time exceeded, parameter problem.
        (ICMP, &[kind, ..]) => matches!(kind, 3 | 11 | 12),
        // RFC 4443 §2.1: errors are those below 128.
        (ICMPV6, &[kind, ..]) => kind < 128,
        _ => false,
    }
}

impl Device for HostDevice {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = ToSend<'a>;

    fn receive(&mut self, _at: SmolInstant) -> Option<(Received<'_>, ToSend<'_>)> {
        // An answer needs room.
        if self.to_send.len() >= HOST_FRAMES_MAX {
            return None;
        }
        let frame = self.received.pop_front()?;
        let buffer = self.spare.pop().unwrap_or_default();
        Some((
            Received { frame, spare: &mut self.spare },
            ToSend { buffer, queue: &mut self.to_send },
        ))
    }

    fn transmit(&mut self, _at: SmolInstant) -> Option<ToSend<'_>> {
        if self.to_send.len() >= HOST_FRAMES_MAX {
            return None;
        }
        let buffer = self.spare.pop().unwrap_or_default();
        Some(ToSend { buffer, queue: &mut self.to_send })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        let link_layer = self.framing.has_link_layer();
        capabilities.medium = if link_layer { Medium::Ethernet } else { Medium::Ip };
        // smoltcp counts the Ethernet header as part of the MTU.
        capabilities.max_transmission_unit = self.mtu + if link_layer { ETHERNET_LEN } else { 0 };
        // The port has verified the checksum, or knows that it is incomplete.
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}

pub(super) struct Received<'a> {
    frame: Vec<u8>,
    spare: &'a mut Vec<Vec<u8>>,
}

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.frame);
        if self.spare.len() < HOST_FRAMES_MAX && self.frame.capacity() <= SPARE_LEN_MAX {
            self.spare.push(self.frame);
        }
        result
    }
}

pub(super) struct ToSend<'a> {
    buffer: Vec<u8>,
    queue: &'a mut VecDeque<Vec<u8>>,
}

impl TxToken for ToSend<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(mut self, len: usize, f: F) -> R {
        self.buffer.clear();
        self.buffer.resize(len, 0);
        let result = f(&mut self.buffer);
        self.queue.push_back(self.buffer);
        result
    }
}
