//! Multicast groups beside the broadcast group: joined to receive, or to send only.

use std::collections::HashMap;

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
    table: HashMap<Gid, Group>,
    /// Groups that made room for others, to be left.
    displaced: Vec<Gid>,
}

/// What to do with a packet to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Member(Multicast),
    /// It waits; with `ask`, nothing is under way yet.
    Wait {
        ask: bool,
    },
    /// There is no such group.
    Absent,
    /// The table is full of groups that are received.
    Full,
}

/// What became of a group that is not received any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// Whether the administrator had let this port in.
    pub(super) was_member: bool,
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
            return Route::Wait { ask: true };
        };
        group.used_ns = now_ns;
        match group.state {
            State::Member(multicast) => Route::Member(multicast),
            State::Joining => Route::Wait { ask: false },
            State::Absent { until_ns } if until_ns > now_ns => Route::Absent,
            State::Absent { .. } => {
                group.state = State::Joining;
                Route::Wait { ask: true }
            }
        }
    }

    pub(super) fn wait(&mut self, mgid: Gid, payload: Vec<u8>, budget: &mut Budget) -> u64 {
        let Some(group) = self.table.get_mut(&mgid) else { return 1 };
        group.waiting.push(budget, (), payload)
    }

    /// Begins to receive a group; whether it has to be joined for that.
    pub(super) fn receive(&mut self, now_ns: u64, mgid: Gid) -> bool {
        match self.table.get_mut(&mgid) {
            Some(group) if group.receives => return false,
            Some(group) => {
                group.receives = true;
                group.state = State::Joining;
            }
            None => return self.insert(now_ns, mgid, true),
        }
        true
    }

    /// Ends receiving a group; `None` when it was not received.
    pub(super) fn leave(&mut self, mgid: Gid, budget: &mut Budget) -> Option<Left> {
        self.table.get(&mgid).filter(|group| group.receives)?;
        let mut group = self.table.remove(&mgid)?;
        let was_member = matches!(group.state, State::Member(_));
        Some(Left { was_member, dropped: group.waiting.clear(budget) })
    }

    /// Whether packets to the group are this link's.
    pub(super) fn receives(&self, mgid: Gid) -> bool {
        let group = self.table.get(&mgid);
        group.is_some_and(|group| group.receives && matches!(group.state, State::Member(_)))
    }

    /// The administrator has let this port in.
    pub(super) fn joined(&mut self, mgid: Gid, multicast: Multicast) {
        if let Some(group) = self.table.get_mut(&mgid) {
            group.state = State::Member(multicast);
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
    pub(super) fn absent(&mut self, now_ns: u64, mgid: Gid, budget: &mut Budget) -> Vec<Vec<u8>> {
        let Some(group) = self.table.get_mut(&mgid) else { return Vec::new() };
        group.state = State::Absent { until_ns: now_ns.saturating_add(ABSENT_NS) };
        std::iter::from_fn(|| group.waiting.pop(budget)).map(|((), payload)| payload).collect()
    }

    /// RFC 4391 §10: a group was made, or is no more. Either way it is asked for when it is used
    /// next; the MLID of one that is gone is not used again (RFC 4392 §4.2.3). Whether it has to be
    /// joined again, because it is received.
    pub(super) fn changed(&mut self, mgid: Gid, exists: bool) -> bool {
        let Some(group) = self.table.get_mut(&mgid) else { return false };
        match group.state {
            State::Member(_) if exists => return false,
            State::Joining => return false,
            _ if group.receives => {
                group.state = State::Joining;
                return true;
            }
            _ => {}
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

    /// RFC 4392 §4.2.5: groups that nothing was sent to for long; they are left.
    pub(super) fn expire(&mut self, now_ns: u64) -> Vec<Gid> {
        let mut left = std::mem::take(&mut self.displaced);
        // One that made room may be in use again.
        left.retain(|mgid| !self.table.contains_key(mgid));
        self.table.retain(|&mgid, group| {
            let is_idle = now_ns >= group.used_ns.saturating_add(GROUP_IDLE_NS);
            let goes = is_idle && !group.receives && group.waiting.is_empty();
            if goes && matches!(group.state, State::Member(_)) {
                left.push(mgid);
            }
            !goes
        });
        left
    }

    /// All groups that this port is a member of, to be left.
    pub(super) fn members(&self) -> Vec<(Gid, JoinState)> {
        let members = self.table.iter();
        let members = members.filter(|(_, group)| matches!(group.state, State::Member(_)));
        members.map(|(&mgid, group)| (mgid, group.join_state())).collect()
    }

    /// Forgets all memberships; groups that are received stay to be joined. How many payloads were
    /// dropped.
    pub(super) fn clear(&mut self, budget: &mut Budget) -> u64 {
        let mut dropped = 0;
        self.table.retain(|_, group| {
            dropped += group.waiting.clear(budget);
            group.state = State::Joining;
            group.receives
        });
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
            self.table.remove(&oldest);
            if self.displaced.len() < GROUPS_MAX {
                self.displaced.push(oldest);
            }
        }
        let group =
            Group { receives, state: State::Joining, waiting: Waiting::default(), used_ns: now_ns };
        self.table.insert(mgid, group);
        true
    }
}
