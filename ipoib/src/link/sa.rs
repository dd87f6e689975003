//! Requests to the subnet administrator: sending, retransmission, and matching of answers.
//!
//! An answer is accepted if it comes from the administrator's port, has the transaction of an
//! outstanding request and is about the requested subject. Transactions are random.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;

use crate::limits::{SA_ATTEMPTS_MAX, SA_REQUESTS_MAX, SA_RETRY_FIRST_NS, SA_RETRY_LAST_NS};
use crate::wire::address::Gid;
use crate::wire::mad::{
    Attribute, InformInfo, JoinState, MAD_LEN, McMemberRecord, MemberMask, Method, PathMask,
    PathRecord, SaMad, Status, Trap,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Joins a group; with `creates`, with parameters, so that a missing group is created.
    Join { record: McMemberRecord, creates: bool },
    /// Leaves a group.
    Leave(McMemberRecord),
    /// Queries a path.
    Path(PathRecord),
    /// Subscribes to Reports.
    Subscribe(InformInfo),
}

/// Subject of a request; at most one of each is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Join(Gid, JoinState),
    Leave(Gid, JoinState),
    Path(Gid),
    Subscribe(Trap),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Joined {
        asked: McMemberRecord,
        granted: McMemberRecord,
    },
    NotJoined {
        asked: McMemberRecord,
        creates: bool,
        why: Failure,
    },
    Path(PathRecord),
    NoPath {
        gid: Gid,
        why: Failure,
    },
    /// The administrator did not answer: this port may still be in the group.
    NotLeft(McMemberRecord),
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Refused(Status),
    Silent,
}

#[derive(Debug)]
pub(super) struct NoAnswer;

impl Request {
    pub(super) const fn subject(&self) -> Subject {
        match self {
            Self::Join { record, .. } => Subject::Join(record.mgid, record.join_state),
            Self::Leave(record) => Subject::Leave(record.mgid, record.join_state),
            Self::Path(record) => Subject::Path(record.dgid),
            Self::Subscribe(info) => Subject::Subscribe(info.trap),
        }
    }

    /// Returns true if a part remains that `later` does not reverse.
    fn yields_to(&mut self, later: &Self) -> bool {
        match (self, later) {
            (Self::Leave(record), Self::Join { record: later, .. })
                if record.mgid == later.mgid =>
            {
                record.join_state = record.join_state.without(later.join_state);
                !record.join_state.is_none()
            }
            (Self::Join { record, .. }, Self::Leave(later)) if record.mgid == later.mgid => {
                !later.join_state.has(record.join_state)
            }
            _ => true,
        }
    }

    fn mad(&self, transaction: u64) -> SaMad {
        let (method, attribute, mask, data) = match self {
            Self::Join { record, creates } => {
                let mask = if *creates { MemberMask::CREATE } else { MemberMask::JOIN };
                (Method::Set, Attribute::McMemberRecord, mask, record.to_bytes())
            }
            Self::Leave(record) => {
                let mask = MemberMask::JOIN;
                (Method::Delete, Attribute::McMemberRecord, mask, record.to_bytes())
            }
            Self::Path(record) => {
                (Method::Get, Attribute::PathRecord, PathMask::QUERY, record.to_bytes())
            }
            Self::Subscribe(info) => (Method::Set, Attribute::InformInfo, 0, info.to_bytes()),
        };
        SaMad::new(method, attribute, transaction, &data).masked(mask)
    }

    /// `None` if the answer is not about this request's subject.
    fn answered(&self, mad: &SaMad) -> Option<Outcome> {
        let expected = match self {
            Self::Join { .. } | Self::Subscribe(_) | Self::Path(_) => Method::GetResp,
            Self::Leave(_) => Method::DeleteResp,
        };
        let attribute = self.mad(0).attribute;
        if mad.method != expected || mad.attribute != attribute {
            return None;
        }
        if mad.status != Status::SUCCESS {
            return Some(self.failed(Failure::Refused(mad.status)));
        }
        match self {
            Self::Join { record: asked, .. } => {
                let granted = McMemberRecord::parse(&mad.data).ok()?;
                let is_about_it = granted.mgid == asked.mgid
                    && granted.port_gid == asked.port_gid
                    && granted.p_key.full_member() == asked.p_key.full_member()
                    && granted.mlid.is_multicast();
                is_about_it.then_some(Outcome::Joined { asked: *asked, granted })
            }
            Self::Path(asked) => {
                let path = PathRecord::parse(&mad.data).ok()?;
                let is_about_it = path.dgid == asked.dgid
                    && path.sgid == asked.sgid
                    && path.dlid.0 != 0
                    && !path.dlid.is_multicast();
                is_about_it.then_some(Outcome::Path(path))
            }
            Self::Leave(_) | Self::Subscribe(_) => Some(Outcome::Other),
        }
    }

    const fn failed(&self, why: Failure) -> Outcome {
        match self {
            Self::Join { record: asked, creates } => {
                Outcome::NotJoined { asked: *asked, creates: *creates, why }
            }
            Self::Path(asked) => Outcome::NoPath { gid: asked.dgid, why },
            Self::Leave(record) if matches!(why, Failure::Silent) => Outcome::NotLeft(*record),
            Self::Leave(_) | Self::Subscribe(_) => Outcome::Other,
        }
    }
}

#[derive(Debug)]
struct Pending {
    request: Request,
    transaction: u64,
    attempts: u32,
    due_ns: u64,
}

#[derive(Debug)]
pub(super) struct Client {
    pending: Vec<Pending>,
    random: ChaCha20Rng,
}

/// Low 48 bits of a transaction: drivers and simulators overwrite the others.
const TRANSACTION_MASK: u64 = (1 << 48) - 1;

impl Client {
    pub(super) fn new(seed: [u8; 32]) -> Self {
        Self { pending: Vec::new(), random: ChaCha20Rng::from_seed(seed) }
    }

    /// Returns false if there are too many. Keeps an equal outstanding request; ends an opposite
    /// one, whose retransmissions would undo this one.
    pub(super) fn ask(&mut self, now_ns: u64, request: Request) -> bool {
        let subject = request.subject();
        if self.pending.iter().any(|pending| pending.request.subject() == subject) {
            return true;
        }
        if self.pending.len() >= SA_REQUESTS_MAX {
            return false;
        }
        self.pending.retain_mut(|pending| pending.request.yields_to(&request));
        let transaction = self.random.next_u64() & TRANSACTION_MASK;
        self.pending.push(Pending { request, transaction, attempts: 0, due_ns: now_ns });
        true
    }

    /// Returns true if half of the room is free: the other half is reserved for urgent requests.
    pub(super) fn has_room(&self) -> bool {
        self.pending.len() < SA_REQUESTS_MAX / 2
    }

    /// The administrator has changed, or this port's LID. Returns the dropped leaves.
    pub(super) fn forget(&mut self) -> Vec<(Gid, JoinState)> {
        let pending = self.pending.drain(..);
        let left = pending.filter_map(|pending| match pending.request {
            Request::Leave(record) => Some((record.mgid, record.join_state)),
            _ => None,
        });
        left.collect()
    }

    pub(super) fn poll(&mut self, now_ns: u64) -> Option<[u8; MAD_LEN]> {
        let next = self
            .pending
            .iter_mut()
            .find(|pending| pending.due_ns <= now_ns && pending.attempts < SA_ATTEMPTS_MAX)?;
        next.attempts += 1;
        let wait_ns = back_off_ns(next.attempts, self.random.next_u32());
        next.due_ns = now_ns.saturating_add(wait_ns);
        Some(next.request.mad(next.transaction).to_bytes())
    }

    /// Returns the outcome of a request whose attempts all had no answer.
    pub(super) fn poll_silent(&mut self, now_ns: u64) -> Option<Outcome> {
        let is_silent =
            |pending: &Pending| pending.due_ns <= now_ns && pending.attempts >= SA_ATTEMPTS_MAX;
        let at = self.pending.iter().position(is_silent)?;
        Some(self.pending.swap_remove(at).request.failed(Failure::Silent))
    }

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.pending.iter().map(|pending| pending.due_ns).min()
    }

    /// `None` if the administrator is busy: the request is repeated later.
    pub(super) fn handle_answer(
        &mut self,
        now_ns: u64,
        mad: &SaMad,
    ) -> Result<Option<Outcome>, NoAnswer> {
        let transaction = mad.transaction & TRANSACTION_MASK;
        let at = self.pending.iter().position(|pending| pending.transaction == transaction);
        let at = at.ok_or(NoAnswer)?;
        let pending = &mut self.pending[at];
        // A request that was not sent yet cannot have an answer.
        if pending.attempts == 0 {
            return Err(NoAnswer);
        }
        let outcome = pending.request.answered(mad).ok_or(NoAnswer)?;
        if mad.status == Status::BUSY {
            let wait_ns = back_off_ns(pending.attempts, self.random.next_u32());
            pending.due_ns = now_ns.saturating_add(wait_ns);
            return Ok(None);
        }
        self.pending.swap_remove(at);
        Ok(Some(outcome))
    }
}

/// Doubled after each attempt, plus up to a quarter at random, so that ports do not all repeat
/// their requests at the same time.
fn back_off_ns(attempts: u32, random: u32) -> u64 {
    let doublings = attempts.saturating_sub(1).min(16);
    let wait_ns = (SA_RETRY_FIRST_NS << doublings).min(SA_RETRY_LAST_NS);
    wait_ns + ((wait_ns / 4 * u64::from(random >> 16)) >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::address::{Lid, PKey, QKey};

    fn join() -> McMemberRecord {
        McMemberRecord {
            mgid: Gid([0xff; 16]),
            port_gid: Gid([0xfe; 16]),
            q_key: QKey(0),
            mlid: Lid(0xc001),
            mtu: 0,
            traffic_class: 0,
            p_key: PKey(0xffff),
            rate: 0,
            packet_life_time: 0,
            service_level: 0,
            flow_label: 0,
            hop_limit: 0,
            scope: 2,
            join_state: JoinState::FULL_MEMBER,
        }
    }

    fn path() -> PathRecord {
        let query = PathRecord::query(Gid([0xfe; 16]), Gid([0xfd; 16]), PKey(0xffff));
        PathRecord { dlid: Lid(3), ..query }
    }

    /// Returns a client that has sent a request, and its transaction.
    fn asked(request: Request) -> (Client, u64) {
        let mut client = Client::new([7; 32]);
        assert!(client.ask(0, request));
        let mad = SaMad::parse(&client.poll(0).unwrap()).unwrap();
        (client, mad.transaction)
    }

    /// Answers about another port, group or path do not end a request, and the right one does.
    #[test]
    fn an_answer_is_about_its_request() {
        let other = Gid([9; 16]);
        let joins = [
            McMemberRecord { mgid: other, ..join() },
            McMemberRecord { port_gid: other, ..join() },
            McMemberRecord { p_key: PKey(0x8001), ..join() },
            McMemberRecord { mlid: Lid(3), ..join() },
        ];
        let paths = [
            PathRecord { dgid: other, ..path() },
            PathRecord { sgid: other, ..path() },
            PathRecord { dlid: Lid(0), ..path() },
            PathRecord { dlid: Lid(0xc001), ..path() },
        ];
        let joins = joins.map(|record| (Attribute::McMemberRecord, record.to_bytes()));
        let paths = paths.map(|record| (Attribute::PathRecord, record.to_bytes()));
        let of_join = (Attribute::McMemberRecord, join().to_bytes());
        let of_path = (Attribute::PathRecord, path().to_bytes());
        for (request, wrong, right) in [
            (Request::Join { record: join(), creates: true }, joins, of_join),
            (Request::Path(path()), paths, of_path),
        ] {
            let (mut client, transaction) = asked(request);
            let answer = |(attribute, data): (Attribute, [u8; _])| {
                SaMad::new(Method::GetResp, attribute, transaction, &data)
            };
            for (index, wrong) in wrong.into_iter().enumerate() {
                assert!(client.handle_answer(0, &answer(wrong)).is_err(), "{request:?} {index}");
            }
            assert!(matches!(client.handle_answer(0, &answer(right)), Ok(Some(_))), "{request:?}");
            assert!(client.handle_answer(0, &answer(right)).is_err(), "it has ended");
        }
    }

    #[test]
    fn a_request_that_was_not_sent_has_no_answer() {
        let mut client = Client::new([7; 32]);
        client.ask(0, Request::Path(path()));
        let data = path().to_bytes();
        let transaction = client.pending[0].transaction;
        let mad = SaMad::new(Method::GetResp, Attribute::PathRecord, transaction, &data);
        assert!(client.handle_answer(0, &mad).is_err());
        client.poll(0);
        assert!(client.handle_answer(0, &mad).is_ok());
    }

    /// A busy administrator is asked again no sooner than a silent one.
    #[test]
    fn requests_wait_longer_each_time_for_a_busy_or_silent_administrator() {
        for is_busy in [false, true] {
            let mut client = Client::new([7; 32]);
            client.ask(0, Request::Path(path()));
            let mut now_ns = 0;
            for attempt in 1..=SA_ATTEMPTS_MAX {
                let mad = SaMad::parse(&client.poll(now_ns).unwrap()).unwrap();
                if is_busy {
                    let busy = SaMad { method: Method::GetResp, status: Status::BUSY, ..mad };
                    assert!(matches!(client.handle_answer(now_ns, &busy), Ok(None)));
                }
                let due_ns = client.poll_timeout().unwrap();
                let least_ns = (SA_RETRY_FIRST_NS << (attempt - 1)).min(SA_RETRY_LAST_NS);
                let waits = least_ns..=least_ns / 4 * 5;
                assert!(waits.contains(&(due_ns - now_ns)), "{attempt}: {}", due_ns - now_ns);
                assert!(
                    client.poll(due_ns - 1).is_none() && client.poll_silent(due_ns - 1).is_none()
                );
                now_ns = due_ns;
            }
            assert!(client.poll(now_ns).is_none());
            let why = Failure::Silent;
            let silent = Outcome::NoPath { gid: path().dgid, why };
            assert_eq!(client.poll_silent(now_ns), Some(silent));
            assert_eq!(client.poll_timeout(), None);
        }
    }
}
