//! Subnet administrator: groups and their members, paths, subscriptions. Answers like OpenSM.

use std::collections::BTreeMap;

use super::State;
use crate::multicast::MulticastMap;
use crate::wire::address::{Gid, Guid, Lid, PKey, QKey};
use crate::wire::mad::{
    Attribute, InformInfo, JoinState, MAD_LEN, McMemberRecord, MemberMask, Method, Notice,
    PathRecord, SaMad, Status, Trap,
};

/// One MLID each.
const GROUPS_MAX: usize = 0x3ffe;

/// Counters of an administrator's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Joins of groups.
    pub joins: u64,
    /// Leaves of groups.
    pub leaves: u64,
    /// Path queries.
    pub paths: u64,
    /// Subscriptions.
    pub subscriptions: u64,
    /// Reports that were acknowledged.
    pub reports_answered: u64,
}

#[derive(Debug)]
struct Group {
    record: McMemberRecord,
    /// The group is of the manager's configuration: it exists without members.
    is_permanent: bool,
    members: BTreeMap<Gid, JoinState>,
}

#[derive(Debug)]
pub(super) struct Administrator {
    pub(super) lid: Lid,
    pub(super) silent: bool,
    pub(super) busy: u32,
    pub(super) mute: u32,
    pub(super) double: u32,
    pub(super) asked: RequestCounts,
    groups: BTreeMap<Gid, Group>,
    subscriptions: Vec<(Gid, Trap)>,
    next_mlid: u16,
    next_transaction: u64,
}

/// 10 Gbit/s.
const RATE: u8 = 3;

impl Administrator {
    pub(super) const fn new(lid: Lid) -> Self {
        Self {
            lid,
            silent: false,
            busy: 0,
            mute: 0,
            double: 0,
            asked: RequestCounts {
                joins: 0,
                leaves: 0,
                paths: 0,
                subscriptions: 0,
                reports_answered: 0,
            },
            groups: BTreeMap::new(),
            subscriptions: Vec::new(),
            next_mlid: Lid::MULTICAST_FIRST.0,
            next_transaction: 1,
        }
    }

    pub(super) fn add_broadcast(&mut self, map: MulticastMap, q_key: QKey, mtu_octets: usize) {
        let record = McMemberRecord {
            mgid: map.broadcast(),
            port_gid: Gid([0; 16]),
            q_key,
            mlid: self.new_mlid(),
            mtu: McMemberRecord::mtu_code(mtu_octets).unwrap_or(0x84),
            traffic_class: 0,
            p_key: map.p_key(),
            rate: 0x80 | RATE,
            packet_life_time: 0x80 | 18,
            service_level: 0,
            flow_label: 0,
            hop_limit: 0,
            scope: map.scope().nibble(),
            join_state: JoinState(0),
        };
        let group = Group { record, is_permanent: true, members: BTreeMap::new() };
        self.groups.insert(record.mgid, group);
    }

    pub(super) fn restart(&mut self, lid: Lid) {
        self.lid = lid;
        self.subscriptions.clear();
        self.groups.retain(|_, group| {
            group.members.clear();
            group.is_permanent
        });
        // A new manager assigns other MLIDs.
        for group in self.groups.values_mut() {
            group.record.mlid = Lid(self.next_mlid);
            self.next_mlid += 1;
        }
    }

    pub(super) fn remove_port(&mut self, gid: Gid) {
        self.subscriptions.retain(|(port, _)| *port != gid);
        self.groups.retain(|_, group| {
            group.members.remove(&gid);
            group.is_permanent || group.has_full_member()
        });
    }

    pub(super) fn members(&self, mgid: Gid) -> Option<usize> {
        self.groups.get(&mgid).map(|group| group.members.len())
    }

    /// `None` if `sender` is no member.
    pub(super) fn receivers(&self, mlid: Lid, sender: Gid) -> Option<Vec<Gid>> {
        let group = self.groups.values().find(|group| group.record.mlid == mlid)?;
        group.members.get(&sender)?;
        let receives = |(gid, state): (&Gid, &JoinState)| {
            (*gid != sender && *state != JoinState::SEND_ONLY_NON_MEMBER).then_some(*gid)
        };
        Some(group.members.iter().filter_map(receives).collect())
    }

    fn new_mlid(&mut self) -> Lid {
        let mlid = Lid(self.next_mlid);
        self.next_mlid = if self.next_mlid >= 0xfffd { 0xc000 } else { self.next_mlid + 1 };
        mlid
    }

    fn join(&mut self, mad: &SaMad, port: Gid, keys: &[PKey], mtu: usize) -> Joined {
        self.asked.joins += 1;
        let Ok(asked) = McMemberRecord::parse(&mad.data) else {
            return Err(Status::REQ_INVALID);
        };
        let partition = asked.p_key.full_member();
        let is_in = keys.iter().any(|key| key.full_member() == partition);
        if asked.port_gid != port || !asked.mgid.is_multicast() || !is_in {
            return Err(Status::REQ_INVALID);
        }
        let creates = mad.component_mask & MemberMask::CREATE == MemberMask::CREATE;
        let is_made = !self.groups.contains_key(&asked.mgid);
        if is_made {
            self.make(&asked, creates, mtu)?;
        }
        let group = self.groups.get_mut(&asked.mgid).ok_or(Status::REQ_INVALID)?;
        let record = &group.record;
        let fits = record.p_key.full_member() == partition
            && record.mtu_octets().is_some_and(|octets| octets <= mtu)
            && (!creates || (asked.q_key == record.q_key && asked.mtu == record.mtu));
        if !fits {
            return Err(Status::REQ_INVALID);
        }
        // A membership may have several states at once, each joined and left separately.
        let state = group.members.entry(port).or_insert(JoinState(0));
        *state = state.and(asked.join_state);
        let granted = McMemberRecord { port_gid: port, join_state: *state, ..group.record };
        Ok((granted, is_made))
    }

    /// Creates a group for a first full member, with the parameters of the request (RFC 4392
    /// §1.3.2). An IPoIB group requires the broadcast group of its partition and scope.
    fn make(&mut self, asked: &McMemberRecord, creates: bool, mtu: usize) -> Result<(), Status> {
        if asked.join_state != JoinState::FULL_MEMBER {
            return Err(Status::REQ_INVALID);
        }
        if !creates {
            return Err(Status::INSUFFICIENT_COMPONENTS);
        }
        let of_link = |group: &Group| {
            group.is_permanent
                && group.record.p_key.full_member() == asked.p_key.full_member()
                && group.record.mgid.0[1] == asked.mgid.0[1]
        };
        let fits = asked.mtu_octets().is_some_and(|octets| octets <= mtu);
        if !fits || !self.groups.values().any(of_link) || self.groups.len() >= GROUPS_MAX {
            return Err(Status::REQ_INVALID);
        }
        let mlid = self.new_mlid();
        let record = McMemberRecord { mlid, ..*asked };
        let group = Group { record, is_permanent: false, members: BTreeMap::new() };
        self.groups.insert(asked.mgid, group);
        Ok(())
    }

    /// Removes a member, and the group after its last full member.
    fn leave(&mut self, mad: &SaMad, port: Gid) -> Result<(McMemberRecord, bool), Status> {
        self.asked.leaves += 1;
        let asked = McMemberRecord::parse(&mad.data).map_err(|_| Status::REQ_INVALID)?;
        let group = self.groups.get_mut(&asked.mgid).ok_or(Status::REQ_INVALID)?;
        // A request to end a state that is not held ends none.
        let holds = |held: &JoinState| asked.join_state.without(*held).is_none();
        let state = group.members.get_mut(&port).filter(|state| holds(state));
        let state = state.filter(|_| asked.port_gid == port).ok_or(Status::REQ_INVALID)?;
        *state = state.without(asked.join_state);
        if state.is_none() {
            group.members.remove(&port);
        }
        let is_gone = !group.is_permanent && !group.has_full_member();
        if is_gone {
            self.groups.remove(&asked.mgid);
        }
        Ok((asked, is_gone))
    }
}

type Joined = Result<(McMemberRecord, bool), Status>;

impl Group {
    fn has_full_member(&self) -> bool {
        self.members.values().any(|state| state.has(JoinState::FULL_MEMBER))
    }
}

impl State {
    pub(super) fn take_mad(&mut self, now_ns: u64, from: Guid, to: Lid, mad: &[u8; MAD_LEN]) {
        let Some(plug) = self.ports.values().find(|plug| plug.info.guid == from) else { return };
        let (lid, gid, is_active) = (plug.info.lid, plug.info.gid(), plug.info.is_active);
        let keys = plug.info.p_keys.clone();
        let is_heard = to == self.administrator.lid && !self.administrator.silent && is_active;
        let Ok(mad) = SaMad::parse(mad) else { return };
        if !is_heard {
            return;
        }
        let mut told = None;
        let administrator = &mut self.administrator;
        let mtu = self.config.mtu_octets;
        let (method, answer) = match (mad.method, mad.attribute) {
            (Method::ReportResp, _) => {
                administrator.asked.reports_answered += 1;
                return;
            }
            _ if administrator.busy > 0 => {
                administrator.busy -= 1;
                let method = Method::from_number(mad.method.number() | 0x80);
                (method, Err(Status::BUSY))
            }
            (Method::Set, Attribute::McMemberRecord) => {
                let joined = administrator.join(&mad, gid, &keys, mtu);
                told = joined.ok().filter(|(_, made)| *made).map(|_| Trap::GroupCreated);
                (Method::GetResp, joined.map(|(record, _)| record.to_bytes()))
            }
            (Method::Delete, Attribute::McMemberRecord) => {
                let left = administrator.leave(&mad, gid);
                told = left.ok().filter(|(_, gone)| *gone).map(|_| Trap::GroupDeleted);
                (Method::DeleteResp, left.map(|(record, _)| record.to_bytes()))
            }
            (Method::Get, Attribute::PathRecord) => {
                administrator.asked.paths += 1;
                (Method::GetResp, self.path(&mad, &keys))
            }
            (Method::Set, Attribute::InformInfo) => {
                administrator.asked.subscriptions += 1;
                if let Ok(info) = InformInfo::parse(&mad.data) {
                    administrator.subscriptions.retain(|one| *one != (gid, info.trap));
                    if info.subscribe {
                        administrator.subscriptions.push((gid, info.trap));
                    }
                }
                (Method::GetResp, Ok(mad.data))
            }
            _ => return,
        };
        if let (Some(trap), Ok(record)) = (told, McMemberRecord::parse(&mad.data)) {
            self.tell(now_ns, trap, record.mgid);
        }
        if self.administrator.mute > 0 {
            self.administrator.mute -= 1;
            return;
        }
        let sm_lid = self.administrator.lid;
        let at_ns = now_ns.saturating_add(self.config.latency_ns);
        let data = answer.unwrap_or(mad.data);
        let status = answer.err().unwrap_or(Status::SUCCESS);
        let reply = SaMad { method, status, data, ..mad.clone() }.to_bytes();
        let copies = if self.administrator.double > 0 { 2 } else { 1 };
        self.administrator.double = self.administrator.double.saturating_sub(1);
        if let Some(plug) = self.ports.get_mut(&lid) {
            for _ in 0..copies {
                plug.push_mad(at_ns, sm_lid, reply);
            }
        }
    }

    fn path(&self, mad: &SaMad, keys: &[PKey]) -> Result<[u8; crate::wire::mad::DATA_LEN], Status> {
        let asked = PathRecord::parse(&mad.data).map_err(|_| Status::REQ_INVALID)?;
        let active = self.ports.values().filter(|plug| plug.info.is_active);
        let mut found = active.filter(|plug| plug.info.gid() == asked.dgid);
        let plug = found.next().ok_or(Status::NO_RECORDS)?;
        // RFC 4392 §1.2: between two limited members there is no path.
        let of_partition = |key: &&PKey| key.full_member() == asked.p_key.full_member();
        let own: Vec<_> = keys.iter().filter(of_partition).collect();
        let admits = |key: &PKey| own.iter().any(|own| own.admits(*key));
        if !plug.info.p_keys.iter().any(admits) {
            return Err(Status::NO_RECORDS);
        }
        let source = self.ports.values().find(|plug| plug.info.gid() == asked.sgid);
        let record = PathRecord {
            dlid: plug.info.lid,
            slid: source.map_or(Lid(0), |plug| plug.info.lid),
            mtu: McMemberRecord::mtu_code(self.config.mtu_octets).unwrap_or(0x84),
            rate: 0x80 | RATE,
            packet_life_time: 0x80 | 18,
            ..asked
        };
        Ok(record.to_bytes())
    }

    pub(super) fn tell(&mut self, now_ns: u64, trap: Trap, gid: Gid) {
        if self.administrator.silent {
            return;
        }
        let at_ns = now_ns.saturating_add(self.config.latency_ns);
        let sm_lid = self.administrator.lid;
        let notice = Notice { trap, gid }.to_bytes();
        for &(port, of) in &self.administrator.subscriptions {
            let plug = self.ports.values_mut().find(|plug| plug.info.gid() == port);
            let Some(plug) = plug.filter(|_| of == trap) else { continue };
            let transaction = self.administrator.next_transaction;
            self.administrator.next_transaction += 1;
            let report = SaMad::new(Method::Report, Attribute::Notice, transaction, &notice);
            plug.push_mad(at_ns, sm_lid, report.to_bytes());
        }
    }
}

#[cfg(test)]
impl Administrator {
    pub(super) fn is_known(&self, port: Gid) -> bool {
        self.memberships(port) > 0 || self.subscriptions.iter().any(|(of, _)| *of == port)
    }

    pub(super) fn memberships(&self, port: Gid) -> usize {
        self.groups.values().filter(|group| group.members.contains_key(&port)).count()
    }

    pub(super) fn records(&self) -> impl Iterator<Item = McMemberRecord> {
        self.groups.values().map(|group| group.record)
    }

    pub(super) const fn subscriptions(&self) -> usize {
        self.subscriptions.len()
    }
}
