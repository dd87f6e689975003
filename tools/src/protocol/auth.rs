//! Proofs of keys, in the Private Data of both directions.
//!
//! A server with keys starts a session after two connections of its client:
//!
//! 1. The client asks for a challenge ([`Opening::Asking`]), and the server rejects the connection
//!    with one ([`Challenge`]): a time, and a MAC of the server over the time and the client's
//!    address. The server remembers nothing.
//! 2. The client connects again. Its Private Data has the id of its key, the challenge, a nonce of
//!    its own, its [`Hello`], and a proof over all of these.
//! 3. The server accepts with its [`Welcome`](super::Welcome) and a proof over both Private Data
//!    fields, or rejects.
//!
//! Races: a challenge is good for one session, for [`CHALLENGE_TIME`], from one address. A copy of
//! the Request that arrives later is rejected; one that overtakes it takes its place, and the client
//! is rejected.

use std::time::Duration;

use crate::keys::{ID_LEN, Key, PROOF_LEN, Use};
use crate::protocol::{Hello, Input, ProtocolError, check_header, header};

/// Time for a client to answer a challenge.
pub(crate) const CHALLENGE_TIME: Duration = Duration::from_secs(30);
/// Bytes of a client's own random number.
pub(crate) const NONCE_LEN: usize = 16;

/// Challenge of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Challenge {
    /// Nanoseconds of the server's clock: no two challenges have the same.
    pub(crate) time: u64,
    pub(crate) mac: [u8; PROOF_LEN],
}

/// Request of a client: the codes after those of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// A session, without a key.
    Plain(Hello),
    /// A challenge.
    Asking,
    /// A session, with a proof.
    Proven(Box<Proven>),
}

/// Request with a proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proven {
    pub(crate) id: [u8; ID_LEN],
    pub(crate) challenge: Challenge,
    pub(crate) hello: Hello,
    /// Proof over all bytes before it.
    pub(crate) proof: [u8; PROOF_LEN],
}

const ASKING: u8 = 128;
const PROVEN: u8 = 129;

impl Challenge {
    /// Builds the Private Data of a rejection. A byte that no text begins with marks it.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = header();
        out.push(MARK);
        self.emit_into(&mut out);
        out
    }

    /// Returns the challenge in the Private Data of a rejection; `None` if it is a refusal.
    pub(crate) fn parse(octets: &[u8]) -> Option<Self> {
        let mut input = check_header(octets).ok()?;
        let challenge = (input.u8() == Ok(MARK)).then(|| Self::take(&mut input).ok());
        challenge.flatten().filter(|_| input.end().is_ok())
    }

    fn emit_into(&self, out: &mut Vec<u8>) {
        out.extend(self.time.to_be_bytes());
        out.extend(self.mac);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        Ok(Self { time: input.u64()?, mac: input.take()? })
    }
}

/// First byte of a challenge: in no text of UTF-8 (RFC 3629 §3).
const MARK: u8 = 0xff;

impl Opening {
    /// Builds the request for a challenge.
    pub(crate) fn ask() -> Vec<u8> {
        let mut out = header();
        out.push(ASKING);
        out
    }

    /// Builds the request for a session, with a proof.
    pub(crate) fn prove(
        key: &Key,
        challenge: &Challenge,
        nonce: [u8; NONCE_LEN],
        hello: &Hello,
    ) -> Vec<u8> {
        let mut out = header();
        out.push(PROVEN);
        out.extend(key.id());
        challenge.emit_into(&mut out);
        out.extend(nonce);
        out.extend(hello.emit());
        out.extend(key.proof(Use::Client, &[&out]));
        out
    }

    pub(crate) fn parse(octets: &[u8]) -> Result<Self, ProtocolError> {
        let mut input = check_header(octets)?;
        match input.u8()? {
            ASKING => input.end().map(|()| Self::Asking),
            PROVEN => {
                let id = input.take()?;
                let challenge = Challenge::take(&mut input)?;
                let _nonce: [u8; NONCE_LEN] = input.take()?;
                let (hello, &proof) =
                    input.rest().split_last_chunk().ok_or(ProtocolError::Malformed)?;
                let hello = Hello::parse(hello)?;
                Ok(Self::Proven(Box::new(Proven { id, challenge, hello, proof })))
            }
            _ => Hello::parse(octets).map(Self::Plain),
        }
    }
}

impl Proven {
    /// Returns true if the Private Data `octets`, from which this was parsed, has a proof of `key`.
    pub(crate) fn is_of(&self, key: &Key, octets: &[u8]) -> bool {
        let body = &octets[..octets.len().saturating_sub(PROOF_LEN)];
        key.is_proof(Use::Client, &[body], &self.proof)
    }
}

/// Adds the server's proof to the Private Data of its Reply: over the Request and the Reply.
pub(crate) fn prove_reply(key: &Key, request: &[u8], reply: &mut Vec<u8>) {
    reply.extend(key.proof(Use::Server, &[&len_of(request), request, reply]));
}

/// Checks the Private Data of a Reply and returns it without the proof; `None` if the server does
/// not prove that it has the key.
pub(crate) fn proven_reply<'r>(key: &Key, request: &[u8], reply: &'r [u8]) -> Option<&'r [u8]> {
    let (reply, proof) = reply.split_last_chunk()?;
    key.is_proof(Use::Server, &[&len_of(request), request, reply], proof).then_some(reply)
}

fn len_of(octets: &[u8]) -> [u8; 8] {
    (octets.len() as u64).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{NAME_LEN_MAX, Session, emit_refusal, refusal_from};

    const CHALLENGE: Challenge = Challenge { time: 0x0102_0304_0506_0708, mac: [9; PROOF_LEN] };

    fn hello(len: usize) -> Hello {
        Hello { session: Session::Get { name: "n".repeat(len) }, len: 7, depth: 3 }
    }

    fn proven(octets: &[u8]) -> Result<Proven, ProtocolError> {
        match Opening::parse(octets)? {
            Opening::Proven(proven) => Ok(*proven),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_opening_reads_back() {
        assert_eq!(Opening::parse(&Opening::ask()), Ok(Opening::Asking));
        let plain = hello(9);
        assert_eq!(Opening::parse(&plain.emit()), Ok(Opening::Plain(plain)));
        let key = Key::random().unwrap();
        let octets = Opening::prove(&key, &CHALLENGE, [1; NONCE_LEN], &hello(9));
        let parsed = proven(&octets).unwrap();
        assert_eq!((parsed.id, parsed.challenge), (key.id(), CHALLENGE));
        assert_eq!(parsed.hello, hello(9));
        for len in 0..octets.len() {
            let cut = Opening::parse(&octets[..len]);
            let is_right =
                matches!(cut, Ok(Opening::Proven(one)) if one.is_of(&key, &octets[..len]));
            assert!(!is_right, "{len}");
        }
    }

    #[test]
    fn a_challenge_is_no_refusal() {
        assert_eq!(Challenge::parse(&CHALLENGE.emit()), Some(CHALLENGE));
        assert_eq!(refusal_from(&CHALLENGE.emit()), None);
        for other in [emit_refusal("no"), emit_refusal(""), Vec::new()] {
            assert_eq!(Challenge::parse(&other), None);
        }
        let long = [CHALLENGE.emit(), vec![0]].concat();
        assert_eq!(Challenge::parse(&long), None);
    }

    #[test]
    fn longest_proven_request_fits_into_private_data() {
        let key = Key::random().unwrap();
        let octets = Opening::prove(&key, &CHALLENGE, [1; NONCE_LEN], &hello(NAME_LEN_MAX));
        assert!(octets.len() <= 508, "RFC 6581 leaves 508 bytes: {}", octets.len());
    }

    /// A changed bit of either Private Data field makes a proof wrong.
    #[test]
    fn proofs_cover_both_fields() {
        let key = Key::random().unwrap();
        let request = Opening::prove(&key, &CHALLENGE, [1; NONCE_LEN], &hello(3));
        let is_right = |request: &[u8]| proven(request).is_ok_and(|one| one.is_of(&key, request));
        assert!(is_right(&request));
        let mut reply = vec![5; 40];
        prove_reply(&key, &request, &mut reply);
        assert_eq!(proven_reply(&key, &request, &reply), Some(&[5; 40][..]));
        for bit in 8 * header().len() + 8..8 * request.len() {
            let mut wrong = request.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_right(&wrong), "bit {bit} of the request");
            assert_eq!(proven_reply(&key, &wrong, &reply), None, "bit {bit} of the request");
        }
        for bit in 0..8 * reply.len() {
            let mut wrong = reply.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(proven_reply(&key, &request, &wrong), None, "bit {bit} of the reply");
        }
        let other = Key::random().unwrap();
        assert_eq!(proven_reply(&other, &request, &reply), None);
        assert_eq!(proven_reply(&key, &request, &[]), None);
    }
}
