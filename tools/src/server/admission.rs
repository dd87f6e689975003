//! Peers that a server admits: by their networks and their keys.
//!
//! Everything here comes before a peer gets a place, memory or a look at a file. The exchange is in
//! [`crate::protocol::auth`].

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{bail, ensure};
use urnic_engine::time::Instant;

use crate::keys::{ID_LEN, Key, Use};
use crate::network::Network;
use crate::protocol::Hello;
use crate::protocol::auth::{CHALLENGE_TIME, Challenge, Opening, Proven};
use crate::server::Limits;
use crate::server::places::Source;

/// Key of a client, and its limits.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) key: Key,
    pub(crate) limits: Limits,
}

/// Rules that decide which peers are admitted.
#[derive(Debug)]
pub(crate) struct Admission {
    allow: Vec<Network>,
    deny: Vec<Network>,
    keys: Option<Keys>,
    failures: Failures,
    counts: AdmissionCounts,
}

/// The keys of a server, and its challenges.
#[derive(Debug)]
struct Keys {
    holders: HashMap<[u8; ID_LEN], Rc<Holder>>,
    /// Makes challenges; no peer knows it.
    secret: Key,
    /// Time of the latest challenge.
    latest: u64,
    /// Challenges that were answered with a right proof and have not expired.
    used: BTreeSet<u64>,
}

/// Numbers of requests that were not admitted, and of challenges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdmissionCounts {
    /// Challenges to clients that asked for one, as each session with a key begins.
    pub(crate) challenges: u64,
    /// Refused: the address is not in a network that is served.
    pub(crate) by_network: u64,
    /// Refused: no key, an unknown key, or a wrong or stale proof.
    pub(crate) by_key: u64,
    /// Refused: too many failures of the address.
    pub(crate) by_failures: u64,
}

impl AdmissionCounts {
    /// Requests that were refused.
    pub(crate) const fn refused(&self) -> u64 {
        self.by_network + self.by_key + self.by_failures
    }
}

/// Answer to a request.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// The session may begin, with the limits of the holder of the key, if the server has keys.
    Session(Hello, Option<Rc<Holder>>),
    /// The client must answer the challenge on another connection.
    Challenge(Challenge),
}

impl Admission {
    /// Admits peers of `allow`, or of all networks if there is none, but not of `deny`, and with
    /// `holders` only peers with one of their keys.
    ///
    /// # Errors
    /// If the operating system has no randomness.
    pub(crate) fn new(
        allow: Vec<Network>,
        deny: Vec<Network>,
        holders: Option<Vec<Holder>>,
    ) -> anyhow::Result<Self> {
        let keys = holders.map(Keys::new).transpose()?;
        let (failures, counts) = (Failures::default(), AdmissionCounts::default());
        Ok(Self { allow, deny, keys, failures, counts })
    }

    /// Decides on a request from an address, before its Private Data is looked at.
    ///
    /// # Errors
    /// The reason of the refusal, for the peer.
    pub(crate) fn check_address(&mut self, remote: SocketAddr) -> anyhow::Result<()> {
        let is_in = |networks: &[Network]| networks.iter().any(|one| one.contains(remote.ip()));
        if is_in(&self.deny) || !(self.allow.is_empty() || is_in(&self.allow)) {
            self.counts.by_network += 1;
            bail!("this server does not serve your address (--allow, --deny)");
        }
        Ok(())
    }

    /// Decides on a request by its Private Data.
    ///
    /// # Errors
    /// The reason of the refusal, for the peer.
    pub(crate) fn admit(
        &mut self,
        private_data: &[u8],
        remote: SocketAddr,
        now: Instant,
    ) -> anyhow::Result<Admitted> {
        let opening = Opening::parse(private_data);
        let Some(keys) = &mut self.keys else {
            let Opening::Plain(hello) = opening? else {
                bail!("this server has no keys and proves nothing: leave out --key to trust it")
            };
            return Ok(Admitted::Session(hello, None));
        };
        let refusal = match opening {
            Ok(Opening::Asking) => {
                self.counts.challenges += 1;
                return Ok(Admitted::Challenge(keys.challenge(remote, now)));
            }
            Ok(Opening::Proven(proven)) => {
                if let Some(holder) = keys.holder(&proven, private_data) {
                    // Others behind the same address may have failed: a right key counts for more.
                    let used = keys.use_up(proven.challenge, remote, now);
                    self.counts.by_key += u64::from(used.is_err());
                    return used.map(|()| Admitted::Session(proven.hello, Some(holder)));
                }
                anyhow::anyhow!("this server does not know your key (--key)")
            }
            Ok(Opening::Plain(_)) => {
                anyhow::anyhow!("this server serves only holders of a key: give --key FILE")
            }
            Err(error) => error.into(),
        };
        let source = Source::of(remote);
        if self.failures.is_blocked(source, now) {
            self.counts.by_failures += 1;
            bail!("too many attempts of your address without a right key: wait for a minute");
        }
        self.counts.by_key += 1;
        self.failures.note(source, now);
        Err(refusal)
    }

    /// Numbers of requests so far.
    pub(crate) const fn counts(&self) -> AdmissionCounts {
        self.counts
    }
}

impl Keys {
    fn new(holders: Vec<Holder>) -> anyhow::Result<Self> {
        let holders = holders.into_iter().map(|one| (one.key.id(), Rc::new(one))).collect();
        Ok(Self { holders, secret: Key::random()?, latest: 0, used: BTreeSet::new() })
    }

    fn challenge(&mut self, remote: SocketAddr, now: Instant) -> Challenge {
        // No two are the same: each is good for one session.
        self.latest = now.as_nanos().max(self.latest + 1);
        let time = self.latest;
        Challenge { time, mac: self.secret.proof(Use::Challenge, &[&of_client(time, remote)]) }
    }

    /// Returns the holder of the key that made the proof.
    fn holder(&self, proven: &Proven, private_data: &[u8]) -> Option<Rc<Holder>> {
        let holder = self.holders.get(&proven.id);
        holder.filter(|holder| proven.is_of(&holder.key, private_data)).map(Rc::clone)
    }

    /// Uses up a challenge for a session.
    fn use_up(
        &mut self,
        challenge: Challenge,
        remote: SocketAddr,
        now: Instant,
    ) -> anyhow::Result<()> {
        let Challenge { time, mac } = challenge;
        let oldest = now.as_nanos().saturating_sub(CHALLENGE_NS);
        let is_fresh = time >= oldest
            && self.secret.is_proof(Use::Challenge, &[&of_client(time, remote)], &mac);
        while self.used.first().is_some_and(|first| *first < oldest) {
            self.used.pop_first();
        }
        ensure!(
            is_fresh && !self.used.contains(&time),
            "the challenge was answered already, from another address, or later than after \
             {CHALLENGE_TIME:?}: try again"
        );
        ensure!(self.used.len() < USED_MAX, "too many sessions begin at this time: try again");
        self.used.insert(time);
        Ok(())
    }
}

/// Bytes that a challenge is about: its time, and the address of the client.
fn of_client(time: u64, remote: SocketAddr) -> [u8; 24] {
    let address = match remote.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let mut octets = [0; 24];
    octets[..8].copy_from_slice(&time.to_be_bytes());
    octets[8..].copy_from_slice(&address.octets());
    octets
}

/// Failed attempts of each address.
#[derive(Debug, Default)]
struct Failures(HashMap<Source, Failed>);

/// Failed attempts of an address.
#[derive(Clone, Copy, Debug)]
struct Failed {
    count: u32,
    latest: Instant,
}

impl Failures {
    /// Returns true if the address has failed too often, and the latest failure is not long ago.
    fn is_blocked(&self, source: Source, now: Instant) -> bool {
        self.0
            .get(&source)
            .is_some_and(|failed| failed.count >= FAILURES_MAX && failed.is_recent(now))
    }

    fn note(&mut self, source: Source, now: Instant) {
        if !self.0.contains_key(&source) && self.0.len() >= SOURCES_MAX {
            self.0.retain(|_, failed| failed.is_recent(now));
            // Still full: the address that failed last longest ago is forgotten.
            if self.0.len() >= SOURCES_MAX
                && let Some(oldest) =
                    self.0.iter().min_by_key(|(_, one)| one.latest).map(|(of, _)| *of)
            {
                self.0.remove(&oldest);
            }
        }
        let failed = self.0.entry(source).or_insert(Failed { count: 0, latest: now });
        if !failed.is_recent(now) {
            failed.count = 0;
        }
        *failed = Failed { count: failed.count.saturating_add(1), latest: now };
    }
}

impl Failed {
    fn is_recent(self, now: Instant) -> bool {
        now - self.latest < FAILURE_TIME
    }
}

/// Attempts without a right key after which an address is blocked.
const FAILURES_MAX: u32 = 16;
/// Time after its latest failure for which a blocked address stays blocked.
const FAILURE_TIME: Duration = Duration::from_secs(60);
/// Addresses whose failures are remembered.
const SOURCES_MAX: usize = 4096;
/// [`CHALLENGE_TIME`] in nanoseconds.
const CHALLENGE_NS: u64 = CHALLENGE_TIME.as_secs() * 1_000_000_000;
/// Answered challenges that are remembered: only holders of keys cause any.
const USED_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ProtocolError, Session};
    use crate::server::tests::limits;

    const ADDRESS: &str = "192.0.2.1:1000";

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(1000 + seconds)
    }

    fn hello() -> Hello {
        Hello { session: Session::Memory, len: 7, depth: 0 }
    }

    fn admission(key: &Key) -> Admission {
        let holder = Holder { key: key.clone(), limits: limits() };
        Admission::new(Vec::new(), Vec::new(), Some(vec![holder])).unwrap()
    }

    fn challenge(admission: &mut Admission, remote: &str, seconds: u64) -> Challenge {
        let admitted = admission.admit(&Opening::ask(), remote.parse().unwrap(), at(seconds));
        match admitted.unwrap() {
            Admitted::Challenge(challenge) => challenge,
            Admitted::Session(..) => panic!("a session without a proof"),
        }
    }

    /// The outcome of a request: the reason if it is refused.
    fn outcome(admission: &mut Admission, octets: &[u8], remote: &str, seconds: u64) -> String {
        match admission.admit(octets, remote.parse().unwrap(), at(seconds)) {
            Ok(Admitted::Session(found, Some(_))) => {
                assert_eq!(found, hello());
                String::new()
            }
            Ok(other) => panic!("{other:?}"),
            Err(why) => why.to_string(),
        }
    }

    #[test]
    fn a_proof_opens_one_session_from_one_address_in_time() {
        let key = Key::random().unwrap();
        let admission = &mut admission(&key);
        let request = |admission: &mut Admission, seconds| {
            let challenge = challenge(admission, ADDRESS, seconds);
            Opening::prove(&key, &challenge, [3; 16], &hello())
        };
        let one = request(admission, 0);
        assert_eq!(outcome(admission, &one, "192.0.2.1:2000", 29), "", "the port may differ");
        assert!(outcome(admission, &one, ADDRESS, 29).contains("answered already"), "a copy");
        let two = request(admission, 40);
        assert!(outcome(admission, &two, "192.0.2.2:1000", 40).contains("another address"));
        assert!(outcome(admission, &two, ADDRESS, 71).contains("later than"));
        let three = request(admission, 80);
        let same_time = request(admission, 80);
        assert_eq!(outcome(admission, &three, "[::ffff:192.0.2.1]:5", 80), "");
        assert_eq!(outcome(admission, &same_time, ADDRESS, 80), "", "no two are the same");
        assert!(admission.keys.as_ref().unwrap().used.len() <= 2, "expired ones are forgotten");
        let forged = Challenge { time: at(80).as_nanos(), mac: [0; 16] };
        let forged = Opening::prove(&key, &forged, [3; 16], &hello());
        assert!(outcome(admission, &forged, ADDRESS, 80).contains("challenge"));
        assert_eq!(admission.counts().challenges, 4);
        assert_eq!(admission.counts().by_key, 4);
    }

    #[test]
    fn peers_without_a_known_key_are_refused() {
        let (key, other) = (Key::random().unwrap(), Key::random().unwrap());
        let admission = &mut admission(&key);
        assert!(outcome(admission, &hello().emit(), ADDRESS, 0).contains("--key FILE"));
        let challenge = challenge(admission, ADDRESS, 0);
        let unknown = Opening::prove(&other, &challenge, [3; 16], &hello());
        assert!(outcome(admission, &unknown, ADDRESS, 0).contains("does not know your key"));
        let mut wrong = Opening::prove(&key, &challenge, [3; 16], &hello());
        let last = wrong.len() - 1;
        wrong[last] ^= 1;
        assert!(outcome(admission, &wrong, ADDRESS, 0).contains("does not know your key"));
        let right = Opening::prove(&key, &challenge, [3; 16], &hello());
        assert_eq!(outcome(admission, &right, ADDRESS, 0), "", "no failure has used it up");
        let foreign = admission.admit(b"anything", ADDRESS.parse().unwrap(), at(0)).unwrap_err();
        assert_eq!(foreign.downcast::<ProtocolError>().unwrap(), ProtocolError::Foreign);
    }

    #[test]
    fn without_keys_nothing_is_proven() {
        let mut open = Admission::new(Vec::new(), Vec::new(), None).unwrap();
        let remote = ADDRESS.parse().unwrap();
        let admitted = open.admit(&hello().emit(), remote, at(0)).unwrap();
        assert!(matches!(admitted, Admitted::Session(_, None)));
        let refused = open.admit(&Opening::ask(), remote, at(0)).unwrap_err().to_string();
        assert!(refused.contains("has no keys"), "{refused}");
    }

    /// An address that fails too often is refused for a time; others are not, and a right key of the
    /// same address opens a session.
    #[test]
    fn failures_are_limited_by_address() {
        let key = Key::random().unwrap();
        let admission = &mut admission(&key);
        let is_blocked = |admission: &mut Admission, remote: &str, seconds| {
            outcome(admission, &hello().emit(), remote, seconds).contains("too many attempts")
        };
        for _ in 1..FAILURES_MAX {
            assert!(!is_blocked(admission, ADDRESS, 0));
        }
        let refused = admission.admit(b"anything", ADDRESS.parse().unwrap(), at(0)).unwrap_err();
        assert_eq!(refused.downcast::<ProtocolError>().unwrap(), ProtocolError::Foreign);
        assert_eq!(admission.counts().by_key, u64::from(FAILURES_MAX));
        assert!(is_blocked(admission, ADDRESS, 59) && !is_blocked(admission, "192.0.2.2:1", 59));
        assert_eq!(admission.counts().by_failures, 1);
        let challenge = challenge(admission, ADDRESS, 59);
        let right = Opening::prove(&key, &challenge, [3; 16], &hello());
        assert_eq!(outcome(admission, &right, ADDRESS, 59), "");
        assert!(outcome(admission, &right, ADDRESS, 59).contains("answered already"));
        // A minute after the last attempt that counted.
        assert!(!is_blocked(admission, ADDRESS, 60), "counted anew");
        assert!(!is_blocked(admission, ADDRESS, 60));
        for number in (0_u32..).take(SOURCES_MAX + 9) {
            let remote = SocketAddr::from((number.to_be_bytes(), 1));
            admission.failures.note(Source::of(remote), at(61));
        }
        assert_eq!(admission.failures.0.len(), SOURCES_MAX);
    }

    #[test]
    fn networks_that_are_denied_or_not_allowed_are_refused() {
        let networks =
            |text: &str| text.split_whitespace().map(|one| one.parse().unwrap()).collect();
        let check = |allow: &str, deny: &str, remote: &str| {
            let mut admission = Admission::new(networks(allow), networks(deny), None).unwrap();
            let is_ok = admission.check_address(remote.parse().unwrap()).is_ok();
            assert_eq!(admission.counts().by_network, u64::from(!is_ok));
            is_ok
        };
        assert!(check("", "", ADDRESS) && !check("", "192.0.2.0/24", ADDRESS));
        assert!(check("192.0.2.0/24", "", ADDRESS) && !check("10.0.0.0/8", "", ADDRESS));
        assert!(!check("0.0.0.0/0 ::/0", "192.0.2.1", ADDRESS), "deny wins");
        assert!(check("10.0.0.0/8 192.0.2.1", "192.0.2.2", ADDRESS));
    }
}
