//! Messages on the socket between the two ends: parsing and encoding.

use std::os::fd::BorrowedFd;

use crate::peer::channel::{Channel, ChannelError};
use crate::peer::header::{self, Fields, MessageError};

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// First message of each end, with the descriptor of its outbox.
    Hello { mtu: u32, outbox_len: u64 },
    /// Announces a region, with the descriptor of its memory file. Numbers grow within a session.
    Publish { number: u32, len: u64 },
    /// Withdraws a region: no frame descriptor from `position` on refers to it.
    Withdraw { number: u32, position: u32 },
    /// This end has not mapped the region: the peer copies its bytes.
    Refuse { number: u32 },
    /// Wakes the peer: the event that it requested in its outbox has occurred.
    Wake,
}

/// Reasons why a message ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ParseError {
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error("it is not an shm device")]
    Magic,
    #[error("it speaks version {0} of shm, this end version {VERSION}")]
    Version(u32),
}

impl Message {
    pub(super) fn parse(
        header: header::Header,
        body: &[u8],
        descriptors: usize,
    ) -> Result<Self, ParseError> {
        let id = header.request;
        if header.is_reply() || header.needs_reply() {
            return Err(MessageError::Flags.into());
        }
        let mut fields = Fields { body, id };
        let message = match id {
            HELLO => {
                if fields.octets()? != MAGIC {
                    return Err(ParseError::Magic);
                }
                // Checked before the rest, which later versions may change.
                match fields.u32()? {
                    VERSION => Self::Hello { mtu: fields.u32()?, outbox_len: fields.u64()? },
                    other => return Err(ParseError::Version(other)),
                }
            }
            PUBLISH => Self::Publish { number: fields.u32()?, len: fields.u64()? },
            WITHDRAW => Self::Withdraw { number: fields.u32()?, position: fields.u32()? },
            REFUSE => Self::Refuse { number: fields.u32()? },
            WAKE => Self::Wake,
            _ => return Err(MessageError::Unknown(id).into()),
        };
        if !fields.body.is_empty() {
            return Err(MessageError::Body(id).into());
        }
        if descriptors != usize::from(message.has_descriptor()) {
            return Err(MessageError::Descriptors(id, descriptors).into());
        }
        Ok(message)
    }

    pub(super) fn encode(&self) -> (header::Header, Vec<u8>) {
        let (id, body) = match *self {
            Self::Hello { mtu, outbox_len } => {
                let numbers = [VERSION, mtu].map(u32::to_ne_bytes).concat();
                (HELLO, [&MAGIC[..], &numbers, &outbox_len.to_ne_bytes()].concat())
            }
            Self::Publish { number, len } => {
                (PUBLISH, [&number.to_ne_bytes()[..], &len.to_ne_bytes()].concat())
            }
            Self::Withdraw { number, position } => {
                (WITHDRAW, [number, position].map(u32::to_ne_bytes).concat())
            }
            Self::Refuse { number } => (REFUSE, number.to_ne_bytes().to_vec()),
            Self::Wake => (WAKE, Vec::new()),
        };
        let len = u32::try_from(body.len()).expect("a few bytes");
        (header::Header::of_request(id, len, false), body)
    }

    pub(super) fn send(
        &self,
        channel: &Channel,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let (header, body) = self.encode();
        channel.send(header, &body, files)
    }

    const fn has_descriptor(self) -> bool {
        matches!(self, Self::Hello { .. } | Self::Publish { .. })
    }
}

const MAGIC: [u8; 8] = *b"urnicshm";
/// Version of the messages and of the outbox layout.
const VERSION: u32 = 1;

const HELLO: u32 = 1;
const PUBLISH: u32 = 2;
const WITHDRAW: u32 = 3;
const REFUSE: u32 = 4;
const WAKE: u32 = 5;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;
    use crate::peer::header::Header;

    fn message() -> impl Strategy<Value = Message> {
        let number = any::<u32>;
        prop_oneof![
            (number(), any::<u64>())
                .prop_map(|(mtu, outbox_len)| Message::Hello { mtu, outbox_len }),
            (number(), any::<u64>()).prop_map(|(number, len)| Message::Publish { number, len }),
            (number(), number())
                .prop_map(|(number, position)| Message::Withdraw { number, position }),
            number().prop_map(|number| Message::Refuse { number }),
            Just(Message::Wake),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(7), ..ProptestConfig::default() })]

        #[test]
        fn encoded_messages_parse_back(message in message()) {
            let (header, body) = message.encode();
            let count = usize::from(message.has_descriptor());
            prop_assert_eq!(Message::parse(header, &body, count), Ok(message));
            prop_assert!(Message::parse(header, &body, count + 1).is_err());
            prop_assert!(Message::parse(header, &[&body[..], &[0]].concat(), count).is_err());
            if let Some((_, shorter)) = body.split_last() {
                prop_assert!(Message::parse(header, shorter, count).is_err());
            }
        }

        #[test]
        fn any_octets_are_read_or_refused(
            id in 0_u32..8, body in proptest::collection::vec(any::<u8>(), 0..40), count in 0_usize..3,
        ) {
            let header = Header::of_request(id, u32::try_from(body.len()).unwrap(), false);
            if let Ok(message) = Message::parse(header, &body, count) {
                prop_assert_eq!(message.encode(), (header, body));
            }
        }
    }

    #[test]
    fn another_version_is_named() {
        let (header, mut body) = Message::Hello { mtu: 1500, outbox_len: 1 }.encode();
        body[8] = 9;
        body.push(1);
        let error = Message::parse(header, &body, 0).unwrap_err();
        assert_eq!(error.to_string(), "it speaks version 9 of shm, this end version 1");
        body[0] = 9;
        assert_eq!(Message::parse(header, &body, 1), Err(ParseError::Magic));
    }
}
