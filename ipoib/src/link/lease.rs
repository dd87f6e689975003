//! DHCP client (RFC 2131) for InfiniBand (RFC 4390).

use std::net::Ipv4Addr;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;

use crate::limits::{DHCP_ATTEMPTS_MAX, DHCP_RETRY_FIRST_NS, DHCP_RETRY_LAST_NS};
use crate::wire::dhcp::{Answer, ClientId, Kind, Question};

/// Lease of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub address: Ipv4Addr,
    /// Prefix length of the network, in bits.
    pub prefix_len: u8,
    /// Router for other networks.
    pub router: Option<Ipv4Addr>,
    /// Server of the lease.
    pub server: Ipv4Addr,
    /// Time to renew at the server (T1).
    pub renewal_ns: u64,
    /// Time to rebind at any server (T2).
    pub rebinding_ns: u64,
    /// End of the lease.
    pub end_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseChange {
    Bound(Lease),
    Lost,
}

/// Error: the answer matches no request, or contains an invalid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

#[derive(Debug)]
enum State {
    /// RFC 2131 §4.4.1: waits for offers of any server.
    Selecting,
    /// Requests the chosen offer.
    Requesting { offer: Lease },
    /// BOUND, RENEWING or REBINDING, depending on the time.
    Bound(Lease),
}

#[derive(Debug)]
pub(super) struct Client {
    state: State,
    random: ChaCha20Rng,
    transaction: u32,
    since_ns: u64,
    /// The lease counts from the first request for it (RFC 2131 §4.4.1, §4.4.5).
    asked_ns: u64,
    attempts: u32,
    due_ns: u64,
}

const SECOND_NS: u64 = 1_000_000_000;
/// Interval of renewal requests (RFC 2131 §4.4.5), unless T2 or the end comes first.
const RENEWAL_RETRY_NS: u64 = 60 * SECOND_NS;

impl Client {
    pub(super) fn new(seed: [u8; 32]) -> Self {
        let mut random = ChaCha20Rng::from_seed(seed);
        // The administrator's transactions use the other stream.
        random.set_stream(1);
        let transaction = random.next_u32();
        Self {
            state: State::Selecting,
            random,
            transaction,
            since_ns: 0,
            asked_ns: 0,
            attempts: 0,
            due_ns: 0,
        }
    }

    pub(super) const fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Bound(lease) => Some(lease),
            _ => None,
        }
    }

    pub(super) const fn poll_timeout(&self) -> u64 {
        self.due_ns
    }

    /// Returns the next message if it is due.
    pub(super) fn poll(
        &mut self,
        now_ns: u64,
        client: ClientId,
    ) -> (Option<LeaseChange>, Option<Question>) {
        if self.due_ns > now_ns {
            return (None, None);
        }
        let mut change = None;
        match self.state {
            // RFC 2131 §4.4.5: the address must not be used further.
            State::Bound(lease) if lease.end_ns <= now_ns => {
                self.select(now_ns);
                change = Some(LeaseChange::Lost);
            }
            // RFC 2131 §3.1.5: the server does not answer.
            State::Requesting { .. } if self.attempts >= DHCP_ATTEMPTS_MAX => self.select(now_ns),
            _ => {}
        }
        (change, Some(self.question(now_ns, client)))
    }

    fn question(&mut self, now_ns: u64, client: ClientId) -> Question {
        if self.attempts == 0 {
            self.since_ns = now_ns;
            self.transaction = self.random.next_u32();
        }
        // The first request to a chosen server is the second message of its transaction.
        let is_choice = matches!(self.state, State::Requesting { .. }) && self.attempts == 1;
        if self.attempts == 0 || is_choice {
            self.asked_ns = now_ns;
        }
        self.attempts = self.attempts.saturating_add(1);
        let elapsed_s = now_ns.saturating_sub(self.since_ns) / SECOND_NS;
        let plain = Question {
            kind: Kind::Request,
            transaction: self.transaction,
            seconds: u16::try_from(elapsed_s).unwrap_or(u16::MAX),
            client,
            own: None,
            requested: None,
            server: None,
            to: Ipv4Addr::BROADCAST,
        };
        self.due_ns = now_ns.saturating_add(self.back_off_ns());
        match self.state {
            State::Selecting => Question { kind: Kind::Discover, ..plain },
            // RFC 2131 §4.3.2.
            State::Requesting { offer } => {
                Question { requested: Some(offer.address), server: Some(offer.server), ..plain }
            }
            State::Bound(lease) => {
                let own = Some(lease.address);
                let is_renewing = now_ns < lease.rebinding_ns;
                let until_ns = if is_renewing { lease.rebinding_ns } else { lease.end_ns };
                // RFC 2131 §4.4.5: half of the remaining time.
                let wait_ns = (until_ns.saturating_sub(now_ns) / 2).max(RENEWAL_RETRY_NS);
                self.due_ns = now_ns.saturating_add(wait_ns).min(until_ns);
                let to = if is_renewing { lease.server } else { Ipv4Addr::BROADCAST };
                Question { own, to, ..plain }
            }
        }
    }

    /// RFC 2131 §4.4.6. Returns the message for the server; `None` without a lease.
    pub(super) fn release(&mut self, client: ClientId) -> Option<Question> {
        let lease = *self.lease()?;
        self.state = State::Selecting;
        Some(Question {
            kind: Kind::Release,
            transaction: self.random.next_u32(),
            seconds: 0,
            client,
            own: Some(lease.address),
            requested: None,
            server: Some(lease.server),
            to: lease.server,
        })
    }

    /// RFC 2131 §4.1: [`DHCP_RETRY_FIRST_NS`], doubled each time up to [`DHCP_RETRY_LAST_NS`], plus
    /// or minus up to a second.
    fn back_off_ns(&mut self) -> u64 {
        let doublings = self.attempts.saturating_sub(1).min(16);
        let wait_ns = (DHCP_RETRY_FIRST_NS << doublings).min(DHCP_RETRY_LAST_NS);
        wait_ns - SECOND_NS + u64::from(self.random.next_u32()) * 2 * SECOND_NS / (1 << 32)
    }

    fn select(&mut self, now_ns: u64) {
        self.state = State::Selecting;
        self.attempts = 0;
        self.due_ns = now_ns;
    }

    pub(super) fn handle(
        &mut self,
        now_ns: u64,
        client: &ClientId,
        answer: &Answer,
    ) -> Result<Option<LeaseChange>, Refused> {
        let is_another = answer.client.is_some_and(|id| id != *client);
        if answer.transaction != self.transaction || self.attempts == 0 || is_another {
            return Err(Refused);
        }
        let server = answer.server.ok_or(Refused)?;
        let (is_chosen, held) = match &self.state {
            State::Selecting if answer.kind == Kind::Offer => {
                let offer = self.granted(answer, None)?;
                self.state = State::Requesting { offer };
                // RFC 2131 §4.4.1: keep the transaction.
                self.attempts = 1;
                self.due_ns = now_ns;
                return Ok(None);
            }
            State::Selecting => return Err(Refused),
            State::Requesting { offer } => (server == offer.server, *offer),
            // In REBINDING any server may answer.
            State::Bound(lease) => (server == lease.server || now_ns >= lease.rebinding_ns, *lease),
        };
        if !is_chosen {
            return Err(Refused);
        }
        match answer.kind {
            Kind::Ack => {
                let lease = self.granted(answer, Some(&held))?;
                // Limits the rate of renewals if a server sets T1 to zero.
                self.due_ns = lease.renewal_ns.max(now_ns.saturating_add(SECOND_NS));
                self.attempts = 0;
                self.state = State::Bound(lease);
                Ok(Some(LeaseChange::Bound(lease)))
            }
            Kind::Nak => {
                let was_bound = self.lease().is_some();
                self.select(now_ns);
                // If a server refuses its own offer, wait before the next attempt.
                if !was_bound {
                    self.due_ns = now_ns.saturating_add(DHCP_RETRY_FIRST_NS);
                }
                Ok(was_bound.then_some(LeaseChange::Lost))
            }
            _ => Err(Refused),
        }
    }

    /// Checks that the address is that of `held`, if there is one.
    fn granted(&self, answer: &Answer, held: Option<&Lease>) -> Result<Lease, Refused> {
        let address = answer.address;
        let is_host = !address.is_unspecified()
            && !address.is_loopback()
            && !address.is_multicast()
            && !address.is_broadcast();
        let prefix_len = answer.prefix_len.filter(|len| (1..=32).contains(len)).ok_or(Refused)?;
        let lease_s = answer.lease_s.filter(|lease_s| *lease_s > 0).ok_or(Refused)?;
        if !is_host || held.is_some_and(|held| held.address != address) {
            return Err(Refused);
        }
        let network = |of: Ipv4Addr| u64::from(of.to_bits()) >> (32 - u32::from(prefix_len));
        let is_neighbour =
            |router: &Ipv4Addr| network(*router) == network(address) && *router != address;
        // RFC 2131 §4.4.5: T1 defaults to half of the lease, T2 to seven eighths, from the request.
        let after = |seconds: u64| self.asked_ns.saturating_add(seconds.saturating_mul(SECOND_NS));
        let lease_s = u64::from(lease_s);
        let end_ns = if lease_s == u64::from(u32::MAX) { u64::MAX } else { after(lease_s) };
        let t2 = answer.rebinding_s.map_or(lease_s * 7 / 8, u64::from).min(lease_s);
        let t1 = answer.renewal_s.map_or(lease_s / 2, u64::from).min(t2);
        Ok(Lease {
            address,
            prefix_len,
            router: answer.router.filter(is_neighbour),
            server: answer.server.ok_or(Refused)?,
            renewal_ns: after(t1),
            rebinding_ns: after(t2),
            end_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ClientId = [1; 17];
    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn answer(kind: Kind, transaction: u32) -> Answer {
        Answer {
            kind,
            transaction,
            client: Some(ID),
            address: OWN,
            server: Some(SERVER),
            prefix_len: Some(24),
            router: None,
            lease_s: Some(1000),
            renewal_s: None,
            rebinding_s: None,
        }
    }

    /// Returns a client that has requested the address of an offer at 0, and its transaction.
    fn requested(offer: impl Fn(Answer) -> Answer) -> Option<(Client, u32)> {
        let mut client = Client::new([7; 32]);
        let transaction = client.poll(0, ID).1.unwrap().transaction;
        client.handle(0, &ID, &offer(answer(Kind::Offer, transaction))).ok()?;
        let request = client.poll(0, ID).1.unwrap();
        assert_eq!((request.kind, request.server), (Kind::Request, Some(SERVER)));
        Some((client, transaction))
    }

    /// Returns the lease of a server that gives these terms.
    fn lease(terms: impl Fn(Answer) -> Answer) -> Option<Lease> {
        let (mut client, transaction) = requested(&terms)?;
        match client.handle(0, &ID, &terms(answer(Kind::Ack, transaction))) {
            Ok(Some(LeaseChange::Bound(lease))) => Some(lease),
            other => panic!("{other:?}"),
        }
    }

    /// RFC 2131 §4.4.5: T1 is half of the lease, T2 seven eighths, and T1 <= T2 <= end.
    #[test]
    fn times_of_a_lease_are_in_order() {
        let cases = [
            (1000, None, None, [500, 875, 1000]),
            (1000, Some(100), Some(200), [100, 200, 1000]),
            (1000, Some(300), Some(200), [200, 200, 1000]),
            (1000, Some(5000), None, [875, 875, 1000]),
            (1000, Some(100), Some(5000), [100, 1000, 1000]),
        ];
        for (lease_s, renewal_s, rebinding_s, expected) in cases {
            let terms =
                |answer| Answer { lease_s: Some(lease_s), renewal_s, rebinding_s, ..answer };
            let Lease { renewal_ns, rebinding_ns, end_ns, .. } = lease(terms).unwrap();
            let times = [renewal_ns, rebinding_ns, end_ns].map(|ns| ns / SECOND_NS);
            assert_eq!(times, expected, "{renewal_s:?} {rebinding_s:?}");
        }
        let endless = lease(|answer| Answer { lease_s: Some(u32::MAX), ..answer }).unwrap();
        assert_eq!(endless.end_ns, u64::MAX);
    }

    #[test]
    fn an_offer_is_of_an_address_that_a_host_can_have() {
        let of = |address: [u8; 4]| {
            lease(move |answer| Answer { address: address.into(), ..answer }).is_some()
        };
        let addresses = [[10, 0, 0, 7], [0; 4], [255; 4], [127, 0, 0, 1], [224, 0, 0, 5]];
        assert_eq!(addresses.map(of), [true, false, false, false, false]);
        let of = |prefix_len| lease(move |answer| Answer { prefix_len, ..answer }).is_some();
        let lens = [Some(0), Some(1), Some(32), Some(33), None];
        assert_eq!(lens.map(of), [false, true, true, false, false]);
        let of = |lease_s| lease(move |answer| Answer { lease_s, ..answer }).is_some();
        assert_eq!([Some(0), Some(1), None].map(of), [false, true, false]);
    }

    #[test]
    fn a_router_is_another_host_of_the_network() {
        let of = |router: [u8; 4]| {
            lease(move |answer| Answer { router: Some(router.into()), ..answer }).unwrap().router
        };
        let routers = [[10, 0, 0, 1], [10, 0, 1, 1], OWN.octets()];
        assert_eq!(routers.map(of), [Some(SERVER), None, None]);
    }

    /// RFC 2131 §3.1: a refused request starts again, but not at once, so that a server that refuses
    /// each of them is not flooded.
    #[test]
    fn a_refused_request_starts_again_after_a_pause() {
        let (mut client, transaction) = requested(|offer| offer).unwrap();
        let refusal = answer(Kind::Nak, transaction);
        assert_eq!(client.handle(5, &ID, &refusal), Ok(None));
        assert_eq!(client.poll_timeout(), 5 + DHCP_RETRY_FIRST_NS);
        assert_eq!(client.poll(4 + DHCP_RETRY_FIRST_NS, ID), (None, None));
        let again = client.poll(5 + DHCP_RETRY_FIRST_NS, ID).1.unwrap();
        assert_eq!((again.kind, again.seconds), (Kind::Discover, 0));
        assert_ne!(again.transaction, transaction);
    }

    /// RFC 2131 §2: servers and relays see for how long a client has asked.
    #[test]
    fn questions_carry_the_seconds_since_the_first() {
        let mut client = Client::new([7; 32]);
        let begin_ns = 3 * SECOND_NS;
        let mut now_ns = begin_ns;
        for _ in 0..4 {
            let question = client.poll(now_ns, ID).1.unwrap();
            assert_eq!(u64::from(question.seconds), (now_ns - begin_ns) / SECOND_NS);
            now_ns = client.poll_timeout();
        }
        assert!(now_ns > begin_ns + 20 * SECOND_NS);
    }
}
