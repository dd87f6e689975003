//! Multicast groups other than the broadcast group: joined to receive, or to send only.

use std::collections::BTreeMap;

use super::waiting::{Budget, Waiting};
use crate::limits::{ABSENT_NS, GROUP_IDLE_NS, GROUPS_MAX};
use crate::wire::address::{Gid, Lid};
use crate::wire::mad::{JoinState, McMemberRecord};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Multicast {
    pub(super) mlid: Lid,
    pub(super) service_level: u8,
    pub(super) traffic_class: u8,
    pub(super) flow_label: u32,
    pub(super) hop_limit: u8,
}

impl Multicast {
    pub(super) const fn of(record: &McMemberRecord) -> Self {
        Self {
            mlid: record.mlid,
            service_level: record.service_level,
            traffic_class: record.traffic_class,
            flow_label: record.flow_label,
            hop_limit: record.hop_limit,
        }
    }
}

#[derive(Debug)]
enum State {
    Joining,
    Member(Multicast),
    /// The group does not exist, or the administrator refuses this port.
    Absent {
        until_ns: u64,
    },
}

#[derive(Debug)]
struct Group {
    receives: bool,
    /// Administrator's possible memberships of this port. Each state is joined and left separately.
    held: JoinState,
    state: State,
    waiting: Waiting<()>,
    used_ns: u64,
}

impl Group {
    const fn join_state(&self) -> JoinState {
        if self.receives { JoinState::FULL_MEMBER } else { JoinState::SEND_ONLY_NON_MEMBER }
    }
}

#[derive(Debug, Default)]
pub(super) struct Groups {
    table: BTreeMap<Gid, Group>,
    /// Memberships to leave at the next refresh: of evicted groups, and of unanswered leaves.
    owed: BTreeMap<Gid, JoinState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Member(Multicast),
    /// Queue it; with `ask`, a join must be sent.
    Wait {
        ask: Option<JoinState>,
    },
    /// The group does not exist, or this port could not join it.
    Absent,
    /// The table is full of groups in use.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// The link receives the group already.
    Already,
    Joins,
    /// The table is full of groups in use.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// States in which the administrator may have this port as member.
    pub(super) held: JoinState,
    pub(super) dropped: u64,
}

impl Groups {
    /// RFC 4391 §10: joins a group to send only; a negative answer is cached.
    // spec: IPOIB-10-5
    pub(super) fn route(&mut self, now_ns: u64, mgid: Gid) -> Route {
        let Some(group) = self.table.get_mut(&mgid) else {
            if !self.insert(now_ns, mgid, false) {
                return Route::Full;
            }
            return Route::Wait { ask: Some(JoinState::SEND_ONLY_NON_MEMBER) };
        };
        group.used_ns = now_ns;
        match group.state {
            State::Member(multicast) => Route::Member(multicast),
            State::Joining => Route::Wait { ask: None },
            State::Absent { until_ns } if until_ns > now_ns => Route::Absent,
            State::Absent { .. } => {
                group.state = State::Joining;
                Route::Wait { ask: Some(group.join_state()) }
            }
        }
    }

    pub(super) fn wait(&mut self, mgid: Gid, payload: Vec<u8>, budget: &mut Budget) -> u64 {
        let Some(group) = self.table.get_mut(&mgid) else { return 1 };
        group.waiting.push(budget, (), payload)
    }

    pub(super) fn receive(&mut self, now_ns: u64, mgid: Gid) -> Received {
        match self.table.get_mut(&mgid) {
            Some(group) if group.receives => return Received::Already,
            Some(group) => {
                group.receives = true;
                group.state = State::Joining;
            }
            None => {
                let is_in = self.insert(now_ns, mgid, true);
                return if is_in { Received::Joins } else { Received::Full };
            }
        }
        Received::Joins
    }

    /// `None` if the group was not received.
    pub(super) fn leave(&mut self, mgid: Gid, budget: &mut Budget) -> Option<Left> {
        self.table.get(&mgid).filter(|group| group.receives)?;
        let mut group = self.table.remove(&mgid)?;
        Some(Left { held: group.held, dropped: group.waiting.clear(budget) })
    }

    pub(super) fn receives(&self, mgid: Gid) -> bool {
        self.is_member(mgid) && self.wanted(mgid) == JoinState::FULL_MEMBER
    }

    pub(super) fn is_member(&self, mgid: Gid) -> bool {
        self.table.get(&mgid).is_some_and(|group| matches!(group.state, State::Member(_)))
    }

    /// Records a sent request: from now on this port may be a member.
    pub(super) fn asked(&mut self, mgid: Gid, state: JoinState) {
        if let Some(group) = self.table.get_mut(&mgid) {
            group.held = group.held.and(state);
        }
    }

    /// The state may be no longer wanted.
    pub(super) fn joined(&mut self, mgid: Gid, state: JoinState, multicast: Multicast) {
        let Some(group) = self.table.get_mut(&mgid) else { return };
        group.held = group.held.and(state);
        if state == group.join_state() {
            group.state = State::Member(multicast);
        }
    }

    /// No state if the table lacks the group.
    pub(super) fn wanted(&self, mgid: Gid) -> JoinState {
        self.table.get(&mgid).map_or_else(JoinState::default, Group::join_state)
    }

    /// The next refresh leaves the group, unless it needs that state again. Drops the record if
    /// there are [`GROUPS_MAX`] of other groups.
    pub(super) fn owe(&mut self, mgid: Gid, state: JoinState) {
        if let Some(group) = self.table.get_mut(&mgid) {
            group.held = group.held.and(state);
        } else if !state.is_none()
            && (self.owed.len() < GROUPS_MAX || self.owed.contains_key(&mgid))
        {
            let owed = self.owed.entry(mgid).or_default();
            *owed = owed.and(state);
        }
    }

    pub(super) fn pop(&mut self, mgid: Gid, budget: &mut Budget) -> Option<(Multicast, Vec<u8>)> {
        let group = self.table.get_mut(&mgid)?;
        let State::Member(multicast) = group.state else { return None };
        let ((), payload) = group.waiting.pop(budget)?;
        Some((multicast, payload))
    }

    /// Returns the waiting payloads, for the caller to send elsewhere or to drop.
    pub(super) fn absent(
        &mut self,
        now_ns: u64,
        mgid: Gid,
        state: JoinState,
        budget: &mut Budget,
    ) -> Vec<Vec<u8>> {
        let group = self.table.get_mut(&mgid).filter(|group| group.join_state() == state);
        let Some(group) = group else { return Vec::new() };
        group.state = State::Absent { until_ns: now_ns.saturating_add(ABSENT_NS) };
        std::iter::from_fn(|| group.waiting.pop(budget)).map(|((), payload)| payload).collect()
    }

    pub(super) fn refused(&mut self, mgid: Gid, state: JoinState) {
        if let Some(group) = self.table.get_mut(&mgid) {
            group.held = group.held.without(state);
        }
    }

    /// RFC 4391 §10. The next packet to the group joins it again, since a deleted group's MLID must
    /// not be used (RFC 4392 §4.2.3). Returns true if the caller must join it now, to receive.
    // spec: IPOIB-ARCH-14
    pub(super) fn changed(&mut self, mgid: Gid, exists: bool) -> bool {
        if !exists {
            self.owed.remove(&mgid);
        }
        let Some(group) = self.table.get_mut(&mgid) else { return false };
        match group.state {
            State::Member(_) if exists => return false,
            State::Joining => return false,
            _ => {}
        }
        if !exists {
            group.held = JoinState::default();
        }
        if group.receives {
            group.state = State::Joining;
            return true;
        }
        if exists {
            group.state = State::Absent { until_ns: 0 };
        } else if group.waiting.is_empty() {
            self.table.remove(&mgid);
        }
        false
    }

    /// Returns all memberships, and received groups without a membership.
    pub(super) fn refresh(&mut self) -> Vec<(Gid, JoinState)> {
        let wanted = self
            .table
            .iter_mut()
            .filter(|(_, group)| matches!(group.state, State::Member(_)) || group.receives);
        wanted
            .map(|(&mgid, group)| {
                if !matches!(group.state, State::Member(_)) {
                    group.state = State::Joining;
                }
                (mgid, group.join_state())
            })
            .collect()
    }

    /// Unused send-only groups (RFC 4392 §4.2.5), recorded ones, and former states of this port.
    // spec: IPOIB-ARCH-13
    pub(super) fn expire(&mut self, now_ns: u64) -> Vec<(Gid, JoinState)> {
        let mut left: Vec<_> = std::mem::take(&mut self.owed).into_iter().collect();
        self.table.retain(|&mgid, group| {
            let is_idle = now_ns >= group.used_ns.saturating_add(GROUP_IDLE_NS);
            let goes = is_idle && !group.receives && group.waiting.is_empty();
            let kept = if goes { JoinState::default() } else { group.join_state() };
            let over = group.held.without(kept);
            group.held = group.held.without(over);
            if !over.is_none() {
                left.push((mgid, over));
            }
            !goes
        });
        left
    }

    pub(super) fn members(&self) -> Vec<(Gid, JoinState)> {
        let held = self.table.iter().map(|(&mgid, group)| (mgid, group.held));
        let owed = self.owed.iter().map(|(&mgid, &state)| (mgid, state));
        held.chain(owed).filter(|(_, state)| !state.is_none()).collect()
    }

    /// Resets all groups after a change of the fabric: received ones will be joined again, others
    /// left, since the administrator may be the same. Returns the number of dropped payloads.
    pub(super) fn clear(&mut self, budget: &mut Budget) -> u64 {
        let mut dropped = 0;
        let mut over = Vec::new();
        self.table.retain(|&mgid, group| {
            dropped += group.waiting.clear(budget);
            group.state = State::Joining;
            if !group.receives {
                over.push((mgid, group.held));
            }
            group.receives
        });
        for (mgid, state) in over {
            self.owe(mgid, state);
        }
        dropped
    }

    /// Adds a group, perhaps in place of the send-only one unused for the longest time. Returns
    /// false if the table is full of groups in use.
    fn insert(&mut self, now_ns: u64, mgid: Gid, receives: bool) -> bool {
        if self.table.len() >= GROUPS_MAX {
            let idle =
                self.table.iter().filter(|(_, group)| !group.receives && group.waiting.is_empty());
            let Some(oldest) = idle.min_by_key(|(_, group)| group.used_ns).map(|(&mgid, _)| mgid)
            else {
                return false;
            };
            if let Some(group) = self.table.remove(&oldest) {
                self.owe(oldest, group.held);
            }
        }
        let held = self.owed.remove(&mgid).unwrap_or_default();
        let state = State::Joining;
        let group = Group { receives, held, state, waiting: Waiting::default(), used_ns: now_ns };
        self.table.insert(mgid, group);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4391 §10: the administrator has no members of a deleted group, so there is none to
    /// leave.
    #[test]
    fn deleted_group_has_no_membership_to_leave() {
        let mut groups = Groups::default();
        let mgid = Gid([0xff; 16]);
        assert_eq!(groups.receive(0, mgid), Received::Joins);
        groups.asked(mgid, JoinState::FULL_MEMBER);
        assert_eq!(groups.members(), [(mgid, JoinState::FULL_MEMBER)]);
        groups.absent(0, mgid, JoinState::FULL_MEMBER, &mut Budget::default());
        assert!(groups.changed(mgid, false), "it is received, so it is joined again");
        assert_eq!(groups.members(), []);
        assert_eq!(groups.expire(0), []);
    }

    /// A full table reports it, and adds nothing.
    #[test]
    fn full_table_adds_no_group() {
        let mut groups = Groups::default();
        let mgid = |at: usize| {
            let mut octets = [0xff; 16];
            octets[8..].copy_from_slice(&at.to_be_bytes());
            Gid(octets)
        };
        for at in 0..GROUPS_MAX {
            assert_eq!(groups.receive(0, mgid(at)), Received::Joins);
            assert_eq!(groups.receive(0, mgid(at)), Received::Already);
        }
        assert_eq!(groups.receive(0, mgid(GROUPS_MAX)), Received::Full);
        assert_eq!(groups.wanted(mgid(GROUPS_MAX)), JoinState::default());
        assert_eq!(groups.route(0, mgid(GROUPS_MAX)), Route::Full);
    }

    /// RFC 4391 §10: a group that is only sent to is left when it is idle.
    #[test]
    fn a_group_only_sent_to_is_left_after_its_idle_time() {
        let mut groups = Groups::default();
        let (mgid, state) = (Gid([0xff; 16]), JoinState::SEND_ONLY_NON_MEMBER);
        assert_eq!(groups.route(7, mgid), Route::Wait { ask: Some(state) });
        let multicast = Multicast {
            mlid: Lid(0xc001),
            service_level: 0,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 0,
        };
        groups.joined(mgid, state, multicast);
        assert_eq!(groups.expire(6 + GROUP_IDLE_NS), []);
        assert_eq!(groups.route(9, mgid), Route::Member(multicast));
        assert_eq!(groups.expire(8 + GROUP_IDLE_NS), []);
        assert_eq!(groups.expire(9 + GROUP_IDLE_NS), [(mgid, state)]);
        assert_eq!(groups.members(), []);
    }
}
