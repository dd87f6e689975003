//! Groups that the kernel's programs receive: it reports them on the TUN interface, by IGMP and MLD, and
//! the gate receives them on the link for it (RFC 4605 §4.1).

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

use urnic_ipoib::wire::reports::{self, Change};

use super::limits::KERNEL_GROUPS_MAX;
use super::rule::stays_on_link;

/// What the kernel receives.
#[derive(Debug, Default)]
pub(super) struct Membership {
    groups: BTreeSet<IpAddr>,
    /// What the link has not been told yet: at most what one burst of reports says.
    changes: VecDeque<Change>,
    /// Groups that were not taken up for want of room.
    pub(super) refused: u64,
}

impl Membership {
    /// Whether a program of the kernel receives the group.
    pub(super) fn receives(&self, group: IpAddr) -> bool {
        self.groups.contains(&group)
    }

    /// Takes in what a datagram of the kernel reports, if it is a report. `fixed` are received in any
    /// case.
    pub(super) fn note(&mut self, datagram: &[u8], fixed: &BTreeSet<IpAddr>) {
        if !reports::may_be_report(datagram) {
            return;
        }
        reports::changes(datagram, &mut |change| {
            let (Change::Joins(group) | Change::Leaves(group)) = change;
            if !group.is_multicast() || stays_on_link(group) || fixed.contains(&group) {
                return;
            }
            let is_change = match change {
                Change::Joins(_) if self.groups.contains(&group) => false,
                Change::Joins(_) if self.groups.len() >= KERNEL_GROUPS_MAX => {
                    self.refused += 1;
                    false
                }
                Change::Joins(_) => self.groups.insert(group),
                Change::Leaves(_) => self.groups.remove(&group),
            };
            if is_change {
                // Of one group only what was said last counts.
                self.changes
                    .retain(|(Change::Joins(other) | Change::Leaves(other))| *other != group);
                self.changes.push_back(change);
            }
        });
    }

    /// What the link is to be told next.
    pub(super) fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }
}
