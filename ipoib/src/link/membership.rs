//! The broadcast group (RFC 4391 §5): the link is up while this port is a full member. Also joins,
//! subscriptions, and their restart when the port or its subnet manager changes.

use std::fmt;
use tracing::{debug, info, warn};

use super::groups::{Groups, Multicast};
use super::joins::TRAPS;
use super::path::Hop;
use super::sa::{Failure, Outcome, Request};
use super::{Link, TRACE};
use crate::fabric::PortInfo;
use crate::limits::{ABSENT_NS, P_KEYS_MAX, REFRESH_NS, REPORTS_WAITING_MAX};
use crate::wire::address::{Lid, PKey, QKey, Qpn};
use crate::wire::datagram::HEADER_LEN;
use crate::wire::mad::{
    Attribute, InformInfo, JoinState, McMemberRecord, Method, Notice, PathRecord, SaMad, Status,
    Trap,
};

/// Reasons why a link is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DownReason {
    /// The port is unknown.
    NoPort,
    /// The interface has left the link.
    Left,
    /// The subnet manager has not set the port up, or its cable is disconnected.
    PortDown,
    /// The port is not in the partition.
    NotInPartition(PKey),
    /// The broadcast group is being joined.
    Joining,
    /// The administrator refused the join.
    Refused(Status),
    /// The administrator does not answer.
    Silent,
    /// The group's packets may be longer than the port can carry (RFC 4392 §4).
    Mtu {
        /// Largest payload of the group's packets, in bytes.
        group: usize,
        /// Largest payload of the port's packets, in bytes.
        port: usize,
    },
}

impl fmt::Display for DownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPort => f.write_str("nothing is known of the port yet"),
            Self::Left => f.write_str("the interface has left the link"),
            Self::PortDown => f.write_str("the subnet manager has not set the port up"),
            Self::NotInPartition(key) => write!(
                f,
                "the port is not in partition {:#06x}: the subnet manager's configuration gives it",
                key.0
            ),
            Self::Joining => f.write_str("the broadcast group is being joined"),
            Self::Refused(status) => write!(
                f,
                "the subnet administrator refused the broadcast group with status {:#06x}: is \
                 there one for this partition and scope, of an MTU that the port can carry?",
                status.0
            ),
            Self::Silent => f.write_str("the subnet administrator does not answer"),
            Self::Mtu { group, port } => {
                write!(f, "the broadcast group has an MTU of {group}, the port can carry {port}")
            }
        }
    }
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The link carries no datagrams.
    Down(DownReason),
    /// The link carries datagrams, with the parameters of the broadcast group.
    Up {
        /// Largest datagram, in bytes.
        mtu: usize,
        /// Q_Key of all datagrams (RFC 4391 §9.1.2).
        q_key: QKey,
        /// LID of the broadcast group.
        mlid: Lid,
    },
}

#[derive(Debug)]
enum Broadcast {
    Down { reason: DownReason, retry_ns: Option<u64> },
    Up { record: McMemberRecord, mtu: usize, refresh_ns: u64 },
}

#[derive(Debug)]
pub(super) struct Membership(Broadcast);

impl Default for Membership {
    fn default() -> Self {
        Self(Broadcast::Down { reason: DownReason::NoPort, retry_ns: None })
    }
}

impl Membership {
    pub(super) const fn state(&self) -> LinkState {
        match self.0 {
            Broadcast::Down { reason, .. } => LinkState::Down(reason),
            Broadcast::Up { record, mtu, .. } => {
                LinkState::Up { mtu, q_key: record.q_key, mlid: record.mlid }
            }
        }
    }

    pub(super) const fn record(&self) -> Option<&McMemberRecord> {
        match &self.0 {
            Broadcast::Up { record, .. } => Some(record),
            Broadcast::Down { .. } => None,
        }
    }

    pub(super) const fn poll_timeout(&self) -> Option<u64> {
        match self.0 {
            Broadcast::Down { retry_ns, .. } => retry_ns,
            Broadcast::Up { refresh_ns, .. } => Some(refresh_ns),
        }
    }
}

impl Link {
    /// Handles changed settings of the port: restarts the link, and drops what is known of the
    /// fabric.
    pub fn handle_port(&mut self, now_ns: u64, mut port: PortInfo) {
        port.p_keys.truncate(P_KEYS_MAX);
        if self.port.as_ref() == Some(&port) {
            return;
        }
        debug!(target: TRACE, ?port, "port changed");
        // RFC 4391 §4.1: the partition is configured; the port's table decides on full membership.
        // spec: IPOIB-5-2
        let partition = self.config.p_key.full_member();
        let of_partition = port.p_keys.iter().filter(|key| key.full_member() == partition);
        let own_key = of_partition.max_by_key(|key| key.is_full_member()).copied();
        let reason = if !port.is_active || port.lid == Lid(0) || port.sm_lid == Lid(0) {
            Some(DownReason::PortDown)
        } else if own_key.is_none() {
            Some(DownReason::NotInPartition(self.config.p_key))
        } else {
            None
        };
        self.own_key = own_key.unwrap_or(self.config.p_key);
        self.port = Some(port);
        self.forget_requests();
        self.forget_fabric();
        match reason {
            Some(reason) => self.go_down(reason, None),
            None => self.join_broadcast(now_ns),
        }
    }

    /// Handles a management datagram to queue pair 1 from `from`. One that is not from the
    /// administrator's port, or matches no request, is only counted.
    pub fn handle_mad(&mut self, now_ns: u64, from: Lid, mad: &[u8]) {
        let Ok(mad) = SaMad::parse(mad) else {
            self.counters.mads_malformed += 1;
            return;
        };
        let is_administrator = self.port.as_ref().is_some_and(|port| port.sm_lid == from);
        if !is_administrator {
            self.counters.mads_refused += 1;
            return;
        }
        if mad.method == Method::Report && mad.attribute == Attribute::Notice {
            return self.handle_report(now_ns, from, &mad);
        }
        match self.client.handle_answer(now_ns, &mad) {
            Ok(Some(outcome)) => {
                self.handle_outcome(now_ns, outcome);
                self.run_chores(now_ns);
            }
            Ok(None) => {}
            Err(super::sa::NoAnswer) => self.counters.mads_refused += 1,
        }
    }

    /// Otherwise the administrator would repeat it.
    fn handle_report(&mut self, now_ns: u64, from: Lid, mad: &SaMad) {
        let Ok(Some(notice)) = Notice::parse(&mad.data) else {
            self.counters.mads_malformed += 1;
            return;
        };
        if self.answers.len() >= REPORTS_WAITING_MAX {
            return;
        }
        self.answers.push_back((from, mad.report_taken().to_bytes()));
        self.counters.reports += 1;
        debug!(target: TRACE, ?notice, "report");
        match notice.trap {
            Trap::GidIn | Trap::GidOut => {
                let dropped = self.paths.forget(notice.gid, &mut self.budget);
                self.counters.without_path += dropped;
                self.neighbours.doubt(notice.gid);
            }
            Trap::GroupDeleted if notice.gid == self.map.broadcast() => {
                if self.membership.record().is_some() {
                    self.forget_fabric();
                    self.join_broadcast(now_ns);
                }
            }
            Trap::GroupCreated | Trap::GroupDeleted => {
                let exists = notice.trap == Trap::GroupCreated;
                if self.groups.changed(notice.gid, exists) {
                    self.ask_join(now_ns, notice.gid, JoinState::FULL_MEMBER, true);
                }
            }
            Trap::Unknown(_) => {}
        }
    }

    pub(super) fn handle_outcome(&mut self, now_ns: u64, outcome: Outcome) {
        match outcome {
            Outcome::Joined { granted, .. } if granted.mgid == self.map.broadcast() => {
                self.broadcast_joined(now_ns, granted);
            }
            Outcome::Joined { asked, granted } => {
                self.groups.joined(asked.mgid, asked.join_state, Multicast::of(&granted));
                self.flush_group(asked.mgid);
            }
            Outcome::NotJoined { asked, why, .. } if asked.mgid == self.map.broadcast() => {
                self.broadcast_refused(now_ns, why);
            }
            Outcome::NotJoined { asked, creates: true, why: Failure::Refused(status) }
                if status != Status::NO_RECORDS =>
            {
                // The group exists, with other parameters than the broadcast group's.
                let joined = self.ask_join(now_ns, asked.mgid, asked.join_state, false);
                if !joined {
                    self.group_absent(now_ns, &asked);
                }
            }
            Outcome::NotJoined { asked, why, .. } => {
                // RFC 4391 §12: failures of multicast operations are logged.
                // spec: IPOIB-12-1
                warn!(target: TRACE, group = %asked.mgid, state = asked.join_state.0, ?why,
                      "group not joined");
                match why {
                    Failure::Refused(_) => self.groups.refused(asked.mgid, asked.join_state),
                    // A silent administrator does not end memberships.
                    Failure::Silent if self.groups.is_member(asked.mgid) => return,
                    Failure::Silent => {}
                }
                self.group_absent(now_ns, &asked);
            }
            Outcome::Path(path) => self.path_found(now_ns, &path),
            Outcome::NoPath { gid, why } => {
                let silent = why == Failure::Silent;
                let waited = self.paths.fail(now_ns, gid, silent, &mut self.budget);
                self.without_path(waited);
            }
            Outcome::NotLeft(record) => self.groups.owe(record.mgid, record.join_state),
            Outcome::Other => {}
        }
    }

    fn group_absent(&mut self, now_ns: u64, asked: &McMemberRecord) {
        let waited = self.groups.absent(now_ns, asked.mgid, asked.join_state, &mut self.budget);
        for payload in waited {
            self.send_to_routers(now_ns, asked.mgid, &payload);
        }
    }

    fn path_found(&mut self, now_ns: u64, path: &PathRecord) {
        let hop = Hop { dlid: path.dlid, service_level: path.service_level };
        self.paths.learn(now_ns, path.dgid, hop);
        self.flush_path(path.dgid);
    }

    fn broadcast_joined(&mut self, now_ns: u64, record: McMemberRecord) {
        let port_mtu = self.port.as_ref().map_or(0, |port| port.mtu_octets);
        let group = record.mtu_octets().unwrap_or(0);
        // RFC 4392 §4: a port that cannot carry the group's packets is not in the subnet.
        // spec: IPOIB-4.1-3, IPOIB-ARCH-12
        if group <= HEADER_LEN || group > port_mtu {
            let reason = DownReason::Mtu { group, port: port_mtu };
            self.go_down(reason, Some(now_ns.saturating_add(REFRESH_NS)));
            return;
        }
        let was_up = self.membership.record().is_some();
        let mtu = group - HEADER_LEN;
        let refresh_ns = now_ns.saturating_add(REFRESH_NS);
        self.membership.0 = Broadcast::Up { record, mtu, refresh_ns };
        if was_up {
            return;
        }
        self.counters.link_ups += 1;
        info!(target: TRACE, mtu, group = %record.mgid, mlid = record.mlid.0, "link up");
        // A lease that has ended while the link was down must not be announced.
        self.run_dhcp(now_ns);
        for mgid in self.own_groups() {
            self.receive_group(now_ns, mgid);
        }
        self.refresh(now_ns);
        self.announce(now_ns);
    }

    fn broadcast_refused(&mut self, now_ns: u64, why: Failure) {
        let is_up = self.membership.record().is_some();
        match why {
            // A silent administrator does not take the link down.
            Failure::Silent if is_up => {}
            Failure::Silent => {
                let retry_ns = now_ns.saturating_add(ABSENT_NS);
                self.go_down(DownReason::Silent, Some(retry_ns));
            }
            Failure::Refused(status) => {
                let retry_ns = now_ns.saturating_add(ABSENT_NS);
                self.go_down(DownReason::Refused(status), Some(retry_ns));
            }
        }
    }

    fn go_down(&mut self, reason: DownReason, retry_ns: Option<u64>) {
        let before = self.membership.state();
        self.membership.0 = Broadcast::Down { reason, retry_ns };
        match before {
            LinkState::Up { .. } => warn!(target: TRACE, %reason, "link down"),
            LinkState::Down(before) if before != reason => {
                info!(target: TRACE, %reason, "link still down");
            }
            LinkState::Down(_) => {}
        }
    }

    // spec: IPOIB-5-1
    fn join_broadcast(&mut self, now_ns: u64) {
        let retry_ns = Some(now_ns.saturating_add(REFRESH_NS));
        self.go_down(DownReason::Joining, retry_ns);
        let record = self.membership_record(self.map.broadcast(), JoinState::FULL_MEMBER);
        // RFC 4391 §5: without an existing group there is no link; it is not created here.
        self.client.ask(now_ns, Request::Join { record, creates: false });
    }

    /// Drops the neighbours, too: their announcements were missed while the link was down.
    fn forget_fabric(&mut self) {
        self.neighbours.forget_known();
        self.counters.waiting_dropped += self.paths.clear(&mut self.budget);
        self.counters.waiting_dropped += self.groups.clear(&mut self.budget);
    }

    pub(super) fn run_membership(&mut self, now_ns: u64) {
        if self.membership.poll_timeout().is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        match &mut self.membership.0 {
            Broadcast::Down { .. } => self.join_broadcast(now_ns),
            Broadcast::Up { refresh_ns, .. } => {
                *refresh_ns = now_ns.saturating_add(REFRESH_NS);
                let broadcast = self.map.broadcast();
                let record = self.membership_record(broadcast, JoinState::FULL_MEMBER);
                self.client.ask(now_ns, Request::Join { record, creates: false });
                self.refresh(now_ns);
            }
        }
    }

    /// Leaves all groups and subscriptions, by requests that [`poll_mad`](Self::poll_mad) returns.
    pub fn leave_all(&mut self, now_ns: u64) {
        self.release_address(now_ns);
        self.forget_requests();
        let members = self.groups.members().into_iter();
        self.chores = members.map(|(mgid, state)| (mgid, state, false)).collect();
        for trap in TRAPS {
            let info = InformInfo { trap, subscribe: false, qpn: Qpn::GSI };
            self.client.ask(now_ns, Request::Subscribe(info));
        }
        if self.membership.record().is_some() {
            self.ask_leave(now_ns, self.map.broadcast(), JoinState::FULL_MEMBER);
        }
        self.forget_fabric();
        self.groups = Groups::default();
        self.ip_groups.clear();
        self.go_down(DownReason::Left, None);
        self.run_chores(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkConfig;
    use crate::wire::address::Guid;

    /// RFC 4392 §1: without a LID, a subnet manager or the partition there is no link.
    #[test]
    fn each_attribute_of_a_port_is_needed() {
        let whole = PortInfo {
            guid: Guid(7),
            prefix: 0xfe80 << 48,
            lid: Lid(2),
            sm_lid: Lid(1),
            is_active: true,
            mtu_octets: 2048,
            p_keys: vec![PKey(0xffff)],
        };
        let partition = DownReason::NotInPartition(PKey(0xffff));
        for (port, reason) in [
            (whole.clone(), DownReason::Joining),
            (PortInfo { lid: Lid(0), ..whole.clone() }, DownReason::PortDown),
            (PortInfo { sm_lid: Lid(0), ..whole.clone() }, DownReason::PortDown),
            (PortInfo { is_active: false, ..whole.clone() }, DownReason::PortDown),
            (PortInfo { p_keys: vec![PKey(0x8001)], ..whole.clone() }, partition),
        ] {
            let mut link = Link::new(LinkConfig::new(Qpn::from_bits(7), [7; 32]));
            link.handle_port(1, port);
            assert_eq!(link.state(), LinkState::Down(reason));
            assert_eq!(link.poll_mad(1).is_some(), reason == DownReason::Joining);
        }
    }
}
