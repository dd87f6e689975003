//! Requests for groups: subscriptions, joins and leaves, and their periodic refresh.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Link;
use super::discovery::solicited_node;
use super::groups::Received;
use super::sa::Request;
use crate::limits::{GROUPS_MAX, IP_GROUPS_MAX};
use crate::multicast::MulticastMap;
use crate::wire::address::{Gid, Lid, QKey, Qpn};
use crate::wire::mad::{InformInfo, JoinState, McMemberRecord, Trap};
use crate::wire::reports::{self, Change};

/// RFC 4391 §10 requires created and deleted groups; arriving and leaving ports change paths.
// spec: IPOIB-10-2
pub(super) const TRAPS: [Trap; 4] =
    [Trap::GidIn, Trap::GidOut, Trap::GroupCreated, Trap::GroupDeleted];

impl Link {
    /// Subscribes, and defers the joins of all groups of this port and the leaves of unused ones.
    pub(super) fn refresh(&mut self, now_ns: u64) {
        for trap in TRAPS {
            let info = InformInfo { trap, subscribe: true, qpn: Qpn::GSI };
            self.client.ask(now_ns, Request::Subscribe(info));
        }
        let joins = self.groups.refresh().into_iter().map(|(mgid, state)| (mgid, state, true));
        let left = self.groups.expire(now_ns).into_iter();
        let leaves = left.map(|(mgid, state)| (mgid, state, false));
        // These joins include the deferred ones of the last refresh.
        self.chores.retain(|(_, _, joins)| !joins);
        self.chores.extend(joins.chain(leaves));
        // While the administrator is silent, nothing is sent: beyond the limit, record leaves.
        while self.chores.len() > 2 * GROUPS_MAX
            && let Some(at) = self.chores.iter().rposition(|(.., joins)| !joins)
            && let Some((mgid, state, _)) = self.chores.remove(at)
        {
            self.groups.owe(mgid, state);
        }
    }

    /// Sends as many as there is room for. If too many are deferred, drops a join, which the next
    /// refresh repeats for a received group, or records a leave.
    pub(super) fn add_chore(&mut self, now_ns: u64, chore: (Gid, JoinState, bool)) {
        if self.chores.len() < 2 * GROUPS_MAX {
            self.chores.push_back(chore);
        } else if let (mgid, state, false) = chore {
            self.groups.owe(mgid, state);
        }
        self.run_chores(now_ns);
    }

    /// Sends deferred requests as long as there is room.
    pub(super) fn run_chores(&mut self, now_ns: u64) {
        while self.client.has_room()
            && let Some((mgid, state, joins)) = self.chores.pop_front()
        {
            if joins {
                self.ask_join(now_ns, mgid, state, state == JoinState::FULL_MEMBER);
                continue;
            }
            // The group may be in use again since the leave was deferred.
            let wanted = self.groups.wanted(mgid);
            if state.has(wanted) {
                self.groups.owe(mgid, wanted);
            }
            let state = state.without(wanted);
            if !state.is_none() {
                self.ask_leave(now_ns, mgid, state);
            }
        }
    }

    /// Returns all hosts (RFC 1112 §4), all nodes, and the solicited-node groups of the interface's
    /// addresses (RFC 4861 §7.2.1).
    pub(super) fn own_groups(&self) -> Vec<Gid> {
        let all_hosts = self.config.ipv4.map(|_| self.map.ipv4(Ipv4Addr::new(224, 0, 0, 1)));
        let ipv6 = self.own_ipv6().into_iter().flatten();
        let all_nodes = self.config.ipv6.map(|_| Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
        let ipv6 = all_nodes.into_iter().chain(ipv6.map(solicited_node));
        all_hosts.into_iter().chain(ipv6.map(|group| self.map.ipv6(group))).collect()
    }

    /// Joins and leaves the groups that an IP datagram of the host reports, by IGMP or MLD (RFC
    /// 4391 §10). Ignores reports that a router forwards for others.
    pub fn note_reports(&mut self, now_ns: u64, datagram: &[u8]) {
        if !reports::source(datagram).is_some_and(|source| self.may_report(source)) {
            return;
        }
        reports::changes(datagram, &mut |change| match change {
            Change::Joins(group) => self.join_group(now_ns, group),
            Change::Leaves(group) => self.leave_group(now_ns, group),
        });
    }

    /// RFC 3376 §4.2.13 and RFC 3810 §5.2.13 allow the unspecified source while the host has no
    /// address; RFC 3810 §5.2.13 requires a link-local one. No router forwards these two.
    fn may_report(&self, source: IpAddr) -> bool {
        let is_of_link = match source {
            IpAddr::V4(source) => source.is_unspecified(),
            IpAddr::V6(source) => source.is_unspecified() || source.is_unicast_link_local(),
        };
        is_of_link || self.owns(source)
    }

    /// Begins to receive an IP group that the host has joined (RFC 4391 §10).
    pub fn join_group(&mut self, now_ns: u64, group: IpAddr) {
        let Some(mgid) = self.map.group(group).filter(|mgid| *mgid != self.map.broadcast()) else {
            return;
        };
        if self.ip_groups.len() >= IP_GROUPS_MAX && !self.ip_groups.contains(&group) {
            self.counters.groups_refused += 1;
            return;
        }
        match self.receive_group(now_ns, mgid) {
            // The host repeats its reports: there may be room then.
            Received::Full => return,
            Received::Joins if self.membership.record().is_some() => {
                self.add_chore(now_ns, (mgid, JoinState::FULL_MEMBER, true));
            }
            Received::Joins | Received::Already => {}
        }
        self.ip_groups.insert(group);
    }

    /// Does not join it.
    pub(super) fn receive_group(&mut self, now_ns: u64, mgid: Gid) -> Received {
        let received = self.groups.receive(now_ns, mgid);
        self.counters.groups_refused += u64::from(received == Received::Full);
        received
    }

    /// Stops receiving an IP group (RFC 4391 §10), unless its InfiniBand group is still needed.
    // spec: IPOIB-10-4
    pub fn leave_group(&mut self, now_ns: u64, group: IpAddr) {
        let Some(mgid) = self.map.group(group).filter(|mgid| !self.own_groups().contains(mgid))
        else {
            return;
        };
        // IPv6 groups that differ above the low 80 bits share one InfiniBand group (RFC 4391 §4).
        let is_left = self.ip_groups.remove(&group);
        let is_shared = || self.ip_groups.iter().any(|other| self.map.group(*other) == Some(mgid));
        if !is_left || is_shared() {
            return;
        }
        let Some(left) = self.groups.leave(mgid, &mut self.budget) else { return };
        self.counters.waiting_dropped += left.dropped;
        self.chores.retain(|(other, _, joins)| !joins || *other != mgid);
        // The administrator may have granted a join although its answer was lost.
        if !left.held.is_none() {
            self.add_chore(now_ns, (mgid, left.held, false));
        }
    }

    /// Sends a join; with `creates`, a missing group gets the broadcast group's parameters (RFC
    /// 4391 §10). Returns false if too many are outstanding: the next refresh repeats it.
    // spec: IPOIB-10-3, IPOIB-ARCH-9
    pub(super) fn ask_join(
        &mut self,
        now_ns: u64,
        mgid: Gid,
        state: JoinState,
        creates: bool,
    ) -> bool {
        let record = self.membership_record(mgid, state);
        let is_asked = self.client.ask(now_ns, Request::Join { record, creates });
        if is_asked {
            self.groups.asked(mgid, state);
        }
        is_asked
    }

    /// One leave for each state: an administrator refuses the whole request if one is not held, and
    /// the held states are not known for sure.
    // spec: IPOIB-ARCH-8
    pub(super) fn ask_leave(&mut self, now_ns: u64, mgid: Gid, states: JoinState) {
        for state in states.each() {
            let record = self.membership_record(mgid, state);
            if !self.client.ask(now_ns, Request::Leave(record)) {
                self.groups.owe(mgid, state);
            }
        }
    }

    /// Records leaves among them.
    pub(super) fn forget_requests(&mut self) {
        let under_way = self.client.forget();
        let chores = std::mem::take(&mut self.chores).into_iter();
        let waiting = chores.filter(|(.., joins)| !joins).map(|(mgid, state, _)| (mgid, state));
        for (mgid, state) in under_way.into_iter().chain(waiting) {
            self.groups.owe(mgid, state);
        }
    }

    // spec: IPOIB-10-3
    pub(super) fn membership_record(&self, mgid: Gid, join_state: JoinState) -> McMemberRecord {
        const SELECT_EXACTLY: u8 = 2 << 6;
        let like = self.membership.record();
        McMemberRecord {
            mgid,
            port_gid: self.own_gid(),
            q_key: like.map_or(QKey(0), |record| record.q_key),
            mlid: Lid(0),
            mtu: like.map_or(0, |record| SELECT_EXACTLY | record.mtu & 0x3f),
            traffic_class: like.map_or(0, |record| record.traffic_class),
            p_key: self.map.p_key(),
            rate: like.map_or(0, |record| SELECT_EXACTLY | record.rate & 0x3f),
            packet_life_time: 0,
            service_level: like.map_or(0, |record| record.service_level),
            flow_label: like.map_or(0, |record| record.flow_label),
            hop_limit: like.map_or(0, |record| record.hop_limit),
            scope: scope_of(self.map),
            join_state,
        }
    }
}

const fn scope_of(map: MulticastMap) -> u8 {
    map.scope().nibble()
}
