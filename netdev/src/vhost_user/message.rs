//! Messages of the vhost-user protocol: parsing and encoding, without state or socket. The protocol
//! is QEMU's `docs/interop/vhost-user.rst`; section names below refer to it. A message is a header
//! of three 32-bit words and a body, in the machine's byte order.

use crate::peer::header::{DESCRIPTORS_MAX, Fields, Header, MessageError};

pub(crate) const PROTOCOL_MQ: u64 = 1 << 0;
pub(crate) const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
pub(crate) const PROTOCOL_CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

/// "Vring descriptor indices": "Bit 8 is the invalid FD flag."
const NO_DESCRIPTOR: u64 = 1 << 8;
const VRING_INDEX_MASK: u64 = 0xff;

/// Memory region: guest address, length, user address, offset in its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryRegion {
    pub(crate) guest: u64,
    pub(crate) len: u64,
    pub(crate) user: u64,
    pub(crate) offset: u64,
}

impl MemoryRegion {
    const LEN: usize = 32;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemoryTable(Vec<MemoryRegion>),
    SetVringSize {
        index: u8,
        size: u16,
    },
    /// Addresses of descriptor table, available ring and used ring.
    SetVringAddresses {
        index: u8,
        parts: [u64; 3],
    },
    SetVringBase {
        index: u8,
        base: u16,
    },
    GetVringBase {
        index: u8,
    },
    /// Without a descriptor, the backend must poll.
    SetVringKick {
        index: u8,
        has_descriptor: bool,
    },
    SetVringCall {
        index: u8,
        has_descriptor: bool,
    },
    SetVringError {
        index: u8,
        has_descriptor: bool,
    },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueCount,
    SetVringEnable {
        index: u8,
        enabled: bool,
    },
    GetMemorySlotsMax,
    AddMemoryRegion(MemoryRegion),
    RemoveMemoryRegion(MemoryRegion),
}

impl Request {
    pub(crate) fn parse(
        header: Header,
        body: &[u8],
        descriptors: usize,
    ) -> Result<Self, MessageError> {
        let id = header.request;
        if header.is_reply() {
            return Err(MessageError::Flags);
        }
        let mut fields = Fields { body, id };
        let request = Self::parse_body(id, &mut fields)?;
        if !fields.body.is_empty() {
            return Err(MessageError::Body(id));
        }
        if request.takes_descriptors(descriptors) {
            Ok(request)
        } else {
            Err(MessageError::Descriptors(id, descriptors))
        }
    }

    fn parse_body(id: u32, fields: &mut Fields<'_>) -> Result<Self, MessageError> {
        Ok(match id {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(fields.u64()?),
            3 => Self::SetOwner,
            4 => Self::ResetOwner,
            5 => {
                let count = fields.u32()? as usize;
                let _padding = fields.u32()?;
                if count == 0 || count > DESCRIPTORS_MAX {
                    return Err(MessageError::Body(id));
                }
                Self::SetMemoryTable((0..count).map(|_| fields.region()).collect::<Result<_, _>>()?)
            }
            8 => {
                let (index, size) = fields.vring_state()?;
                let size = u16::try_from(size).map_err(|_| MessageError::Body(id))?;
                Self::SetVringSize { index, size }
            }
            9 => {
                let (index, _flags) = fields.vring_state()?;
                // The order is: descriptors, used, available, and a log, which this backend does
                // not offer.
                let [descriptors, used, available] = [fields.u64()?, fields.u64()?, fields.u64()?];
                let _log = fields.u64()?;
                Self::SetVringAddresses { index, parts: [descriptors, available, used] }
            }
            10 => {
                let (index, base) = fields.vring_state()?;
                let base = u16::try_from(base).map_err(|_| MessageError::Body(id))?;
                Self::SetVringBase { index, base }
            }
            11 => Self::GetVringBase { index: fields.vring_state()?.0 },
            12..=14 => {
                let value = fields.u64()?;
                let index = u8::try_from(value & VRING_INDEX_MASK).expect("eight bits");
                let has_descriptor = value & NO_DESCRIPTOR == 0;
                match id {
                    12 => Self::SetVringKick { index, has_descriptor },
                    13 => Self::SetVringCall { index, has_descriptor },
                    _ => Self::SetVringError { index, has_descriptor },
                }
            }
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(fields.u64()?),
            17 => Self::GetQueueCount,
            18 => {
                let (index, enabled) = fields.vring_state()?;
                Self::SetVringEnable { index, enabled: enabled != 0 }
            }
            36 => Self::GetMemorySlotsMax,
            37 | 38 => {
                let _padding = fields.u64()?;
                let region = fields.region()?;
                if id == 37 {
                    Self::AddMemoryRegion(region)
                } else {
                    Self::RemoveMemoryRegion(region)
                }
            }
            _ => return Err(MessageError::Unknown(id)),
        })
    }

    fn takes_descriptors(&self, count: usize) -> bool {
        match self {
            Self::SetMemoryTable(regions) => count == regions.len(),
            Self::SetVringKick { has_descriptor, .. }
            | Self::SetVringCall { has_descriptor, .. }
            | Self::SetVringError { has_descriptor, .. } => count == usize::from(*has_descriptor),
            Self::AddMemoryRegion(_) => count == 1,
            // Some frontends send the descriptor along; it is ignored.
            Self::RemoveMemoryRegion(_) => count <= 1,
            _ => count == 0,
        }
    }

    pub(crate) fn encode(&self) -> (u32, Vec<u8>) {
        let mut body = Vec::new();
        let mut state = |index: u8, value: u32| {
            body.extend_from_slice(&u32::from(index).to_ne_bytes());
            body.extend_from_slice(&value.to_ne_bytes());
        };
        let id = match self {
            Self::GetFeatures => 1,
            Self::SetFeatures(features) => {
                body.extend_from_slice(&features.to_ne_bytes());
                2
            }
            Self::SetOwner => 3,
            Self::ResetOwner => 4,
            Self::SetMemoryTable(regions) => {
                let count = u32::try_from(regions.len()).expect("a few regions");
                body.extend_from_slice(&count.to_ne_bytes());
                body.extend_from_slice(&[0; 4]);
                for region in regions {
                    put_region(&mut body, region);
                }
                5
            }
            Self::SetVringSize { index, size } => {
                state(*index, u32::from(*size));
                8
            }
            Self::SetVringAddresses { index, parts: [descriptors, available, used] } => {
                state(*index, 0);
                for value in [descriptors, used, available, &0] {
                    body.extend_from_slice(&value.to_ne_bytes());
                }
                9
            }
            Self::SetVringBase { index, base } => {
                state(*index, u32::from(*base));
                10
            }
            Self::GetVringBase { index } => {
                state(*index, 0);
                11
            }
            Self::SetVringKick { index, has_descriptor }
            | Self::SetVringCall { index, has_descriptor }
            | Self::SetVringError { index, has_descriptor } => {
                let none = if *has_descriptor { 0 } else { NO_DESCRIPTOR };
                body.extend_from_slice(&(u64::from(*index) | none).to_ne_bytes());
                match self {
                    Self::SetVringKick { .. } => 12,
                    Self::SetVringCall { .. } => 13,
                    _ => 14,
                }
            }
            Self::GetProtocolFeatures => 15,
            Self::SetProtocolFeatures(features) => {
                body.extend_from_slice(&features.to_ne_bytes());
                16
            }
            Self::GetQueueCount => 17,
            Self::SetVringEnable { index, enabled } => {
                state(*index, u32::from(*enabled));
                18
            }
            Self::GetMemorySlotsMax => 36,
            Self::AddMemoryRegion(region) | Self::RemoveMemoryRegion(region) => {
                body.extend_from_slice(&[0; 8]);
                put_region(&mut body, region);
                if matches!(self, Self::AddMemoryRegion(_)) { 37 } else { 38 }
            }
        };
        (id, body)
    }
}

fn put_region(body: &mut Vec<u8>, region: &MemoryRegion) {
    for value in [region.guest, region.len, region.user, region.offset] {
        body.extend_from_slice(&value.to_ne_bytes());
    }
}

impl Fields<'_> {
    /// Parses a "Vring state description": an index and a number.
    fn vring_state(&mut self) -> Result<(u8, u32), MessageError> {
        let index = u8::try_from(self.u32()?).map_err(|_| MessageError::Body(self.id))?;
        Ok((index, self.u32()?))
    }

    fn region(&mut self) -> Result<MemoryRegion, MessageError> {
        let mut octets: &[u8] = &self.octets::<{ MemoryRegion::LEN }>()?;
        let mut next = || {
            let (first, rest) = octets.split_first_chunk().expect("four numbers");
            octets = rest;
            u64::from_ne_bytes(*first)
        };
        Ok(MemoryRegion { guest: next(), len: next(), user: next(), offset: next() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;
    use crate::peer::header::HEADER_LEN;

    fn region() -> impl Strategy<Value = MemoryRegion> {
        any::<[u64; 4]>().prop_map(|[guest, len, user, offset]| MemoryRegion {
            guest,
            len,
            user,
            offset,
        })
    }

    fn request() -> impl Strategy<Value = Request> {
        let vring = (any::<u8>(), any::<bool>());
        prop_oneof![
            Just(Request::GetFeatures),
            any::<u64>().prop_map(Request::SetFeatures),
            Just(Request::SetOwner),
            Just(Request::ResetOwner),
            prop::collection::vec(region(), 1..=DESCRIPTORS_MAX).prop_map(Request::SetMemoryTable),
            any::<(u8, u16)>().prop_map(|(index, size)| Request::SetVringSize { index, size }),
            any::<(u8, [u64; 3])>()
                .prop_map(|(index, parts)| Request::SetVringAddresses { index, parts }),
            any::<(u8, u16)>().prop_map(|(index, base)| Request::SetVringBase { index, base }),
            any::<u8>().prop_map(|index| Request::GetVringBase { index }),
            vring.prop_map(|(index, has_descriptor)| Request::SetVringKick {
                index,
                has_descriptor
            }),
            (any::<u8>(), any::<bool>()).prop_map(|(index, has_descriptor)| {
                Request::SetVringCall { index, has_descriptor }
            }),
            (any::<u8>(), any::<bool>()).prop_map(|(index, has_descriptor)| {
                Request::SetVringError { index, has_descriptor }
            }),
            Just(Request::GetProtocolFeatures),
            any::<u64>().prop_map(Request::SetProtocolFeatures),
            Just(Request::GetQueueCount),
            (any::<u8>(), any::<bool>())
                .prop_map(|(index, enabled)| Request::SetVringEnable { index, enabled }),
            Just(Request::GetMemorySlotsMax),
            region().prop_map(Request::AddMemoryRegion),
            region().prop_map(Request::RemoveMemoryRegion),
        ]
    }

    fn descriptors(request: &Request) -> usize {
        (0..=DESCRIPTORS_MAX).rev().find(|&count| request.takes_descriptors(count)).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 256,
            rng_seed: RngSeed::Fixed(3),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn encoded_messages_parse_back(request in request(), needs_reply in any::<bool>()) {
            let (id, body) = request.encode();
            let header = Header::of_request(id, u32::try_from(body.len()).unwrap(), needs_reply);
            let read = Header::from_octets(header.to_octets()).unwrap();
            prop_assert_eq!(read, header);
            prop_assert_eq!((read.needs_reply(), read.is_reply()), (needs_reply, false));
            let count = descriptors(&request);
            prop_assert_eq!(Request::parse(header, &body, count), Ok(request));
            // One byte less or more is another message.
            if !body.is_empty() {
                prop_assert!(Request::parse(header, &body[1..], count).is_err());
            }
            let longer = [&body[..], &[0]].concat();
            prop_assert!(Request::parse(header, &longer, count).is_err());
            prop_assert!(Request::parse(header, &body, DESCRIPTORS_MAX + 1).is_err());
        }

        #[test]
        fn any_octets_are_read_or_refused(
            header in any::<[u8; HEADER_LEN]>(),
            id in 0..45_u32,
            body in prop::collection::vec(any::<u8>(), 0..300),
            count in 0..10_usize,
        ) {
            let _refused = Header::from_octets(header);
            let header = Header::of_request(id, u32::try_from(body.len()).unwrap(), false);
            if let Ok(request) = Request::parse(header, &body, count) {
                prop_assert!(request.takes_descriptors(count));
                prop_assert_eq!(request.encode().0, id);
            }
        }
    }

    #[test]
    fn a_reply_is_no_request() {
        let reply = Header::of_reply(1, 8);
        assert_eq!(Request::parse(reply, &[0; 8], 0), Err(MessageError::Flags));
    }
}
