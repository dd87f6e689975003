//! Multicast groups beside the broadcast group: joined to receive, or to send only.

use std::collections::BTreeMap;

use super::waiting::{Budget, Waiting};
use crate::limits::{ABSENT_NS, GROUP_IDLE_NS, GROUPS_MAX};
use crate::wire::address::{Gid, Lid};
use crate::wire::mad::{JoinState, McMemberRecord};

/// How packets to a group are addressed.
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
    /// It does not exist, or does not let this port in.
    Absent {
        until_ns: u64,
    },
}

#[derive(Debug)]
struct Group {
    receives: bool,
    /// As what the administrator may have let this port in. It joins and leaves each of these for itself.
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

/// The groups of a link.
#[derive(Debug, Default)]
pub(super) struct Groups {
    table: BTreeMap<Gid, Group>,
    /// Memberships that are to be left: of groups that made room for others, or whose leave was not
    /// heard.
    owed: BTreeMap<Gid, JoinState>,
}

/// What to do with a packet to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Member(Multicast),
    /// It waits; with `ask`, nothing is in flight yet.
    Wait {
        ask: Option<JoinState>,
    },
    /// There is no such group.
    Absent,
    /// The table is full of groups that are received.
    Full,
}

/// What it takes to receive a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Nothing: it is received.
    Already,
    /// It is to be joined.
    Joins,
    /// The table is full of groups that are in use.
    Full,
}

/// What became of a group that is not received any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// As what the administrator may have let this port in.
    pub(super) held: JoinState,
    /// Payloads that waited for that.
    pub(super) dropped: u64,
}

impl Groups {
    /// How a packet reaches the group. RFC 4391 §10: one that this port is no member of is joined to
    /// send only; whether it exists is remembered.
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

    /// Begins to receive a group.
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

    /// Ends receiving a group; `None` when it was not received.
    pub(super) fn leave(&mut self, mgid: Gid, budget: &mut Budget) -> Option<Left> {
        self.table.get(&mgid).filter(|group| group.receives)?;
        let mut group = self.table.remove(&mgid)?;
        Some(Left { held: group.held, dropped: group.waiting.clear(budget) })
    }

    /// Whether packets to the group are this link's.
    pub(super) fn receives(&self, mgid: Gid) -> bool {
        self.is_member(mgid) && self.wanted(mgid) == JoinState::FULL_MEMBER
    }

    /// Whether the administrator has let this port in as what it wants to be.
    pub(super) fn is_member(&self, mgid: Gid) -> bool {
        self.table.get(&mgid).is_some_and(|group| matches!(group.state, State::Member(_)))
    }

    /// The administrator is asked to let this port in.
    pub(super) fn asked(&mut self, mgid: Gid, state: JoinState) {
        if let Some(group) = self.table.get_mut(&mgid) {
            group.held = group.held.and(state);
        }
    }

    /// The administrator has let this port in: as what it wants to be, or as what it wanted before.
    pub(super) fn joined(&mut self, mgid: Gid, state: JoinState, multicast: Multicast) {
        let Some(group) = self.table.get_mut(&mgid) else { return };
        group.held = group.held.and(state);
        if state == group.join_state() {
            group.state = State::Member(multicast);
        }
    }

    /// As what this port is, or wants to be, in a group.
    pub(super) fn wanted(&self, mgid: Gid) -> JoinState {
        self.table.get(&mgid).map_or_else(JoinState::default, Group::join_state)
    }

    /// A membership may be left over, to be left at the next refresh.
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

    /// The next payload that waited for a group which is joined now.
    pub(super) fn pop(&mut self, mgid: Gid, budget: &mut Budget) -> Option<(Multicast, Vec<u8>)> {
        let group = self.table.get_mut(&mgid)?;
        let State::Member(multicast) = group.state else { return None };
        let ((), payload) = group.waiting.pop(budget)?;
        Some((multicast, payload))
    }

    /// The administrator has not let this port in: what waited goes elsewhere.
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

    /// The administrator has said no: this port is not in the group as this.
    pub(super) fn refused(&mut self, mgid: Gid, state: JoinState) {
        if let Some(group) = self.table.get_mut(&mgid) {
            group.held = group.held.without(state);
        }
    }

    /// RFC 4391 §10: a group was made, or is no more. Either way it is asked for when it is used
    /// next; the MLID of one that is gone is not used again (RFC 4392 §4.2.3). Whether it has to be
    /// joined again, because it is received.
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

    /// Groups that are joined again from time to time, and those that are received and were not let
    /// into.
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

    /// Memberships to leave: of groups that nothing was sent to for long (RFC 4392 §4.2.5), those that
    /// are left over, and those of a port that has become something else in a group.
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

    /// All memberships, to be left.
    pub(super) fn members(&self) -> Vec<(Gid, JoinState)> {
        let held = self.table.iter().map(|(&mgid, group)| (mgid, group.held));
        let owed = self.owed.iter().map(|(&mgid, &state)| (mgid, state));
        held.chain(owed).filter(|(_, state)| !state.is_none()).collect()
    }

    /// Forgets what was told of all groups; those that are received stay to be joined, the others are
    /// to be left: the administrator may be the same. How many payloads were dropped.
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

    /// Takes up a group; one that is only sent to and was not used for long makes room.
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

    /// RFC 4391 §10: the administrator has no member of a group that is no more, so none is left.
    #[test]
    fn no_membership_is_held_in_a_group_that_is_no_more() {
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

    /// A table that is full says so, and takes nothing up.
    #[test]
    fn a_full_table_receives_no_more() {
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
}
