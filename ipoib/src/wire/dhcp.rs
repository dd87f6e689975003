//! DHCP messages for IPv4 (RFC 2131) on an InfiniBand link (RFC 4390), in whole IP datagrams.

use std::net::Ipv4Addr;

use super::{TooShort, take};

/// RFC 4390 §2.1.
const HTYPE: u8 = 32;
/// No hardware address, since 20 bytes do not fit into the field (RFC 4390 §2.1).
const HLEN: u8 = 0;
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const BROADCAST: u16 = 0x8000;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;
const UDP: u8 = 17;
/// Bytes up to the cookie.
const FIXED_LEN: usize = 236;
const IP_LEN: usize = 20;
const UDP_LEN: usize = 8;
/// RFC 2131 §2: any host accepts a message of this length.
const DATAGRAM_LEN_MIN: usize = 300 + IP_LEN + UDP_LEN;

const SUBNET_MASK: u8 = 1;
const ROUTER: u8 = 3;
const REQUESTED_ADDRESS: u8 = 50;
const LEASE_TIME: u8 = 51;
const MESSAGE_TYPE: u8 = 53;
const SERVER_IDENTIFIER: u8 = 54;
const PARAMETERS: u8 = 55;
const MESSAGE_LEN_MAX: u8 = 57;
const RENEWAL_TIME: u8 = 58;
const REBINDING_TIME: u8 = 59;
const CLIENT_IDENTIFIER: u8 = 61;
const PAD: u8 = 0;
const END: u8 = 255;

/// Kinds of messages (RFC 2132 §9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Looks for servers.
    Discover = 1,
    /// Offers an address.
    Offer = 2,
    /// Requests the offered address, or an extension of the lease.
    Request = 3,
    /// Grants the request.
    Ack = 5,
    /// Refuses the request.
    Nak = 6,
    /// Releases the address.
    Release = 7,
}

impl Kind {
    const fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Discover,
            2 => Self::Offer,
            3 => Self::Request,
            5 => Self::Ack,
            6 => Self::Nak,
            7 => Self::Release,
            _ => return None,
        })
    }
}

/// Client identifier by RFC 4361 §6.1: type 255, an identity association, and a DUID of the port's
/// EUI-64 (RFC 8415 §11.4: type 3).
pub type ClientId = [u8; 1 + 4 + 4 + 8];

/// Returns the identifier of the port with this GUID.
// spec: IPOIB-DHCP-2
#[must_use]
pub const fn client_id(guid: u64, association: u32) -> ClientId {
    let [i0, i1, i2, i3] = association.to_be_bytes();
    let [a, b, c, d, e, f, g, h] = guid.to_be_bytes();
    [255, i0, i1, i2, i3, 0, 3, 0, HTYPE, a, b, c, d, e, f, g, h]
}

/// Message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Kind of the message.
    pub kind: Kind,
    /// Transaction, which answers repeat.
    pub transaction: u32,
    /// Seconds since the start of the transaction.
    pub seconds: u16,
    /// Identifier of the client.
    pub client: ClientId,
    /// Present address of the client, to which the answer is sent.
    pub own: Option<Ipv4Addr>,
    /// Requested address.
    pub requested: Option<Ipv4Addr>,
    /// Chosen server.
    pub server: Option<Ipv4Addr>,
    /// Destination of the datagram.
    pub to: Ipv4Addr,
}

/// Message of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Kind of the message.
    pub kind: Kind,
    /// Transaction of the client's message.
    pub transaction: u32,
    /// Identifier of the client, if present.
    pub client: Option<ClientId>,
    /// Granted address.
    pub address: Ipv4Addr,
    /// Address of the server.
    pub server: Option<Ipv4Addr>,
    /// Prefix length of the network, in bits.
    pub prefix_len: Option<u8>,
    /// The first router.
    pub router: Option<Ipv4Addr>,
    /// Lease time, in seconds.
    pub lease_s: Option<u32>,
    /// Seconds until the lease must be renewed at its server.
    pub renewal_s: Option<u32>,
    /// Seconds until the lease must be rebound at any server.
    pub rebinding_s: Option<u32>,
}

/// Error: the bytes are no message of a server to a client of this link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no message of a DHCP server on a link of InfiniBand")]
pub struct Invalid;

impl From<TooShort> for Invalid {
    fn from(_: TooShort) -> Self {
        Self
    }
}

/// Returns true if a datagram is addressed to a DHCP client.
#[must_use]
pub fn is_for_client(datagram: &[u8]) -> bool {
    udp(datagram).is_some_and(|(_, to, _)| to == CLIENT_PORT)
}

fn udp(datagram: &[u8]) -> Option<(u16, u16, &[u8])> {
    let [first, _, _, _, _, _, fragment, low, _, protocol, ..] =
        *datagram.first_chunk::<IP_LEN>()?;
    let is_whole = fragment & 0x3f == 0 && low == 0;
    if first >> 4 != 4 || protocol != UDP || !is_whole {
        return None;
    }
    let segment = datagram.get(usize::from(first & 15).saturating_mul(4)..)?;
    let ([s0, s1, d0, d1, l0, l1, _, _], _) = segment.split_first_chunk::<UDP_LEN>()?;
    let len = usize::from(u16::from_be_bytes([*l0, *l1]));
    let payload = segment.get(UDP_LEN..len)?;
    Some((u16::from_be_bytes([*s0, *s1]), u16::from_be_bytes([*d0, *d1]), payload))
}

/// Adds the bytes' sum (RFC 1071) to `sum`.
fn sum(octets: &[u8], sum: u32) -> u32 {
    octets.chunks(2).fold(sum, |sum, pair| {
        let word = match *pair {
            [a, b] => u16::from_be_bytes([a, b]),
            [a] => u16::from_be_bytes([a, 0]),
            _ => 0,
        };
        sum.wrapping_add(u32::from(word))
    })
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff).wrapping_add(sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

/// Checksum of UDP over IPv4 (RFC 768), with the header `ip`; 0 if the segment has a correct one.
#[must_use]
pub fn udp_checksum(ip: &[u8], segment: &[u8]) -> u16 {
    let addresses = ip.get(12..IP_LEN).unwrap_or_default();
    let len = u32::try_from(segment.len()).unwrap_or(u32::MAX);
    folded(sum(segment, sum(addresses, u32::from(UDP).wrapping_add(len))))
}

impl Question {
    /// Returns the IP datagram.
    #[must_use]
    pub fn to_datagram(&self) -> Vec<u8> {
        // RFC 4390 §2.1, §2.2: only a client without an address asks for a broadcast answer.
        // spec: IPOIB-DHCP-3, IPOIB-DHCP-4
        let flags = if self.own.is_none() { BROADCAST } else { 0 };
        let own = self.own.unwrap_or(Ipv4Addr::UNSPECIFIED);
        // spec: IPOIB-DHCP-1
        let mut message = vec![REQUEST, HTYPE, HLEN, 0];
        message.extend(self.transaction.to_be_bytes());
        message.extend(self.seconds.to_be_bytes());
        message.extend(flags.to_be_bytes());
        message.extend(own.octets());
        message.resize(FIXED_LEN, 0);
        message.extend(COOKIE);
        let mut option = |code: u8, octets: &[u8]| {
            message.extend([code, u8::try_from(octets.len()).unwrap_or(u8::MAX)]);
            message.extend(octets);
        };
        option(MESSAGE_TYPE, &[self.kind as u8]);
        // RFC 4390 §2.1: always present.
        option(CLIENT_IDENTIFIER, &self.client);
        if let Some(address) = self.requested {
            option(REQUESTED_ADDRESS, &address.octets());
        }
        if let Some(server) = self.server {
            option(SERVER_IDENTIFIER, &server.octets());
        }
        if self.kind != Kind::Release {
            option(MESSAGE_LEN_MAX, &1500_u16.to_be_bytes());
            let asked =
                [SUBNET_MASK, ROUTER, LEASE_TIME, RENEWAL_TIME, REBINDING_TIME, SERVER_IDENTIFIER];
            option(PARAMETERS, &asked);
        }
        message.push(END);
        self.wrap(own, &message)
    }

    fn wrap(&self, own: Ipv4Addr, message: &[u8]) -> Vec<u8> {
        let len = message.len().saturating_add(IP_LEN + UDP_LEN).max(DATAGRAM_LEN_MIN);
        let u16_of = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
        let mut ip = vec![0x45, 0];
        ip.extend(u16_of(len));
        ip.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
        ip.extend(own.octets());
        ip.extend(self.to.octets());
        let checksum = folded(sum(&ip, 0)).to_be_bytes();
        if let Some(place) = ip.get_mut(10..12) {
            place.copy_from_slice(&checksum);
        }
        let mut segment = Vec::new();
        segment.extend(CLIENT_PORT.to_be_bytes());
        segment.extend(SERVER_PORT.to_be_bytes());
        segment.extend(u16_of(len.saturating_sub(IP_LEN)));
        segment.extend([0, 0]);
        segment.extend(message);
        segment.resize(len.saturating_sub(IP_LEN), PAD);
        let checksum = udp_checksum(&ip, &segment).to_be_bytes();
        if let Some(place) = segment.get_mut(6..8) {
            place.copy_from_slice(&checksum);
        }
        ip.extend(segment);
        ip
    }
}

impl Answer {
    /// Parses the IP datagram.
    ///
    /// # Errors
    /// If it is no message of a server to a client of an InfiniBand link.
    pub fn parse(datagram: &[u8]) -> Result<Self, Invalid> {
        let (from, to, message) = udp(datagram).ok_or(Invalid)?;
        let header_len = datagram.first().map_or(0, |first| usize::from(first & 15) * 4);
        let segment = datagram.get(header_len..).unwrap_or_default();
        let segment_len = message.len().saturating_add(UDP_LEN);
        let segment = segment.get(..segment_len).unwrap_or_default();
        let is_checked = segment.get(6..8) != Some(&[0, 0]);
        if from != SERVER_PORT
            || to != CLIENT_PORT
            || (is_checked && udp_checksum(datagram, segment) != 0)
        {
            return Err(Invalid);
        }
        let mut rest = message;
        let [op, htype, hlen, _] = take::<4>(&mut rest)?;
        let transaction = u32::from_be_bytes(take(&mut rest)?);
        let [..] = take::<8>(&mut rest)?;
        let address = Ipv4Addr::from(take::<4>(&mut rest)?);
        let mut options = message.get(FIXED_LEN..).ok_or(Invalid)?;
        let is_ours = op == REPLY && htype == HTYPE && hlen == HLEN;
        if !is_ours || take::<4>(&mut options)? != COOKIE {
            return Err(Invalid);
        }
        let mut kind = None;
        let mut answer = Self {
            kind: Kind::Nak,
            transaction,
            client: None,
            address,
            server: None,
            prefix_len: None,
            router: None,
            lease_s: None,
            renewal_s: None,
            rebinding_s: None,
        };
        while let Some((code, value)) = next_option(&mut options)? {
            let ipv4 = || value.first_chunk::<4>().copied().map(Ipv4Addr::from).ok_or(Invalid);
            let seconds = || value.try_into().map(u32::from_be_bytes).map_err(|_| Invalid);
            match code {
                MESSAGE_TYPE => {
                    kind = value.first().copied().filter(|_| value.len() == 1).and_then(Kind::of);
                }
                // RFC 6842 §3: another identifier is for another client.
                CLIENT_IDENTIFIER => {
                    answer.client = Some(value.try_into().map_err(|_| Invalid)?);
                }
                SUBNET_MASK => {
                    let mask = u32::from_be_bytes(value.try_into().map_err(|_| Invalid)?);
                    if mask.leading_ones() != mask.count_ones() {
                        return Err(Invalid);
                    }
                    answer.prefix_len = u8::try_from(mask.count_ones()).ok();
                }
                ROUTER => answer.router = Some(ipv4()?),
                SERVER_IDENTIFIER => answer.server = Some(ipv4()?),
                LEASE_TIME => answer.lease_s = Some(seconds()?),
                RENEWAL_TIME => answer.renewal_s = Some(seconds()?),
                REBINDING_TIME => answer.rebinding_s = Some(seconds()?),
                _ => {}
            }
        }
        Ok(Self { kind: kind.ok_or(Invalid)?, ..answer })
    }
}

/// `None` at the end.
fn next_option<'o>(options: &mut &'o [u8]) -> Result<Option<(u8, &'o [u8])>, Invalid> {
    loop {
        match *options {
            [] | [END, ..] => return Ok(None),
            [PAD, rest @ ..] => *options = rest,
            [code, len, rest @ ..] => {
                let (value, rest) = rest.split_at_checked(usize::from(*len)).ok_or(Invalid)?;
                *options = rest;
                return Ok(Some((*code, value)));
            }
            [_] => return Err(Invalid),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the datagram of a server's answer with these options.
    pub(crate) fn answer(
        transaction: u32,
        address: Ipv4Addr,
        from: Ipv4Addr,
        options: &[(u8, &[u8])],
    ) -> Vec<u8> {
        let mut message = vec![REPLY, HTYPE, HLEN, 0];
        message.extend(transaction.to_be_bytes());
        message.resize(16, 0);
        message.extend(address.octets());
        message.resize(FIXED_LEN, 0);
        message.extend(COOKIE);
        for (code, value) in options {
            message.extend([*code, u8::try_from(value.len()).unwrap()]);
            message.extend(*value);
        }
        message.push(END);
        let question = question();
        let to = Question { to: Ipv4Addr::BROADCAST, ..question };
        let mut datagram = to.wrap(from, &message);
        datagram[20..24].copy_from_slice(&[0, 67, 0, 68]);
        datagram
    }

    fn question() -> Question {
        Question {
            kind: Kind::Discover,
            transaction: 0x0102_0304,
            seconds: 5,
            client: client_id(0x0002_c903_0010_0004, 7),
            own: None,
            requested: None,
            server: None,
            to: Ipv4Addr::BROADCAST,
        }
    }

    /// RFC 4390 §2.1: hardware type 32, no address, the broadcast flag, and an identifier of RFC
    /// 4361.
    // spec: IPOIB-DHCP-1, IPOIB-DHCP-2, IPOIB-DHCP-3
    #[test]
    fn a_client_without_an_address_asks_to_be_answered_by_broadcast() {
        let datagram = question().to_datagram();
        let message = &datagram[28..];
        assert_eq!(message[..12], [1, 32, 0, 0, 1, 2, 3, 4, 0, 5, 0x80, 0]);
        assert!(
            message[12..236].iter().all(|octet| *octet == 0),
            "no address, no hardware address"
        );
        let mut options = &message[240..];
        assert_eq!(next_option(&mut options), Ok(Some((53, &[1][..]))));
        let id = [255, 0, 0, 0, 7, 0, 3, 0, 32, 0, 2, 0xc9, 3, 0, 0x10, 0, 4];
        assert_eq!(next_option(&mut options), Ok(Some((61, &id[..]))));
        assert_eq!(folded(sum(&datagram[..20], 0)), 0);
        assert_eq!(udp_checksum(&datagram, &datagram[20..]), 0);
    }

    /// RFC 4390 §2.2: not with an address.
    // spec: IPOIB-DHCP-4
    #[test]
    fn a_client_with_an_address_does_not() {
        let own = Ipv4Addr::new(10, 0, 0, 7);
        let datagram = Question { kind: Kind::Request, own: Some(own), ..question() }.to_datagram();
        assert_eq!(datagram[38..44], [0, 0, 10, 0, 0, 7]);
        assert_eq!(datagram[12..16], own.octets());
    }

    #[test]
    fn answers_are_read_and_those_of_another_link_are_not() {
        let (address, server) = (Ipv4Addr::new(10, 0, 0, 7), Ipv4Addr::new(10, 0, 0, 1));
        let options: [(u8, &[u8]); 6] = [
            (53, &[5]),
            (1, &[255, 255, 255, 0]),
            (3, &[10, 0, 0, 1, 10, 0, 0, 2]),
            (51, &[0, 0, 0, 60]),
            (54, &[10, 0, 0, 1]),
            (200, &[1, 2, 3]),
        ];
        let datagram = answer(9, address, server, &options);
        // The ports are other ones than in the checksum's input, with an equal sum.
        assert!(is_for_client(&datagram));
        let read = Answer::parse(&datagram).unwrap();
        assert_eq!((read.kind, read.transaction, read.address), (Kind::Ack, 9, address));
        assert_eq!(
            (read.prefix_len, read.router, read.server),
            (Some(24), Some(server), Some(server))
        );
        assert_eq!((read.lease_s, read.renewal_s), (Some(60), None));
        for (at, octet) in [(28, 1), (29, 1), (30, 6), (21, 68), (264, 0), (100, 1)] {
            let mut other = datagram.clone();
            other[at] = octet;
            assert_eq!(Answer::parse(&other), Err(Invalid), "{at}");
        }
        for options in [
            &[(51_u8, &[0_u8, 0, 60][..])][..],
            &[(53, &[5]), (1, &[255, 0, 255, 0])],
            &[(53, &[9])],
            &[(53, &[5]), (61, &[1])],
        ] {
            assert_eq!(Answer::parse(&answer(9, address, server, options)), Err(Invalid));
        }
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_octets_never_panics(
            octets in prop::collection::vec(any::<u8>(), 0..400),
            options in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..8)), 0..8),
        ) {
            let _any = Answer::parse(&octets);
            let options: Vec<_> = options.iter().map(|(code, value)| (*code, &value[..])).collect();
            let datagram = answer(1, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, &options);
            let _any = Answer::parse(&datagram);
            for len in 0..datagram.len() {
                let _any = Answer::parse(&datagram[..len]);
            }
        }
    }
}
