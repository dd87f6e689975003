//! Groups that the kernel's programs receive: the kernel reports them on the TUN interface, by IGMP
//! and MLD, and the gate joins them on the link (RFC 4605 §4.1).

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

use urnic_ipoib::wire::reports::{self, Change};

use super::limits::KERNEL_GROUPS_MAX;
use super::rule::stays_on_link;

#[derive(Debug, Default)]
pub(super) struct Membership {
    groups: BTreeSet<IpAddr>,
    /// Changes not yet reported to the link: at most those of one burst of reports.
    changes: VecDeque<Change>,
    /// The table was full.
    pub(super) refused: u64,
}

impl Membership {
    pub(super) fn receives(&self, group: IpAddr) -> bool {
        self.groups.contains(&group)
    }

    /// Handles a datagram that is a report. Groups in `fixed` are always received.
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
                // Only the last change of a group counts.
                self.changes
                    .retain(|(Change::Joins(other) | Change::Leaves(other))| *other != group);
                self.changes.push_back(change);
            }
        });
    }

    pub(super) fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }
}
