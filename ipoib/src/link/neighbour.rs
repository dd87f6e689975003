//! Neighbours: maps IP addresses of the link to link-layer addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::waiting::{Budget, Waiting};
use crate::limits::{NEIGHBOUR_ATTEMPTS_MAX, NEIGHBOUR_RETRY_NS, NEIGHBOURS_MAX, REACHABLE_NS};
use crate::wire::address::{Gid, LinkAddress};

#[derive(Debug)]
enum State {
    /// Multicast questions resolve it.
    Asking { attempts: u32, due_ns: u64 },
    /// RFC 4391 §9.4: must be confirmed, since a port's queue pair may change. The first datagram
    /// after the reachable time starts unicast probes, which a timer repeats (RFC 4861 §7.3.3).
    Known { at: LinkAddress, fresh_until_ns: u64, probes: u32, due_ns: u64 },
}

#[derive(Debug)]
struct Neighbour {
    state: State,
    waiting: Waiting<()>,
    used_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct Neighbours {
    table: BTreeMap<IpAddr, Neighbour>,
    /// The first due entry; may be too early.
    due_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Send it to this address; with `probe`, the caller must also probe the neighbour.
    Known { at: LinkAddress, probe: bool },
    /// Queue it.
    Wait,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Ask(IpAddr),
    Probe(IpAddr, LinkAddress),
    /// The neighbour does not answer at its known address, and is resolved again by the next
    /// datagram. The path to its port may have changed.
    Lost(LinkAddress),
    /// The neighbour does not answer: these payloads cannot be delivered.
    Silent(Vec<Vec<u8>>),
}

impl Neighbours {
    /// Adds an unknown neighbour to the table.
    // spec: IPOIB-9.4-1
    pub(super) fn route(&mut self, now_ns: u64, ip: IpAddr, budget: &mut Budget) -> Route {
        let Some(entry) = self.table.get_mut(&ip) else {
            self.insert(now_ns, ip, State::Asking { attempts: 0, due_ns: now_ns }, budget);
            self.due_ns = Some(now_ns);
            return Route::Wait;
        };
        entry.used_ns = now_ns;
        let State::Known { at, fresh_until_ns, probes, due_ns } = &mut entry.state else {
            return Route::Wait;
        };
        let at = *at;
        if now_ns < *fresh_until_ns || *probes > 0 {
            return Route::Known { at, probe: false };
        }
        *probes = 1;
        *due_ns = now_ns.saturating_add(NEIGHBOUR_RETRY_NS);
        let due_ns = *due_ns;
        self.due_ns = Some(self.due_ns.map_or(due_ns, |first_ns| first_ns.min(due_ns)));
        Route::Known { at, probe: true }
    }

    /// Returns the number of dropped payloads.
    pub(super) fn wait(&mut self, ip: IpAddr, payload: Vec<u8>, budget: &mut Budget) -> u64 {
        let Some(entry) = self.table.get_mut(&ip) else { return 1 };
        entry.waiting.push(budget, (), payload)
    }

    /// Adds a new neighbour only if `wanted`.
    pub(super) fn learn(
        &mut self,
        now_ns: u64,
        ip: IpAddr,
        at: LinkAddress,
        wanted: bool,
        budget: &mut Budget,
    ) {
        let fresh_until_ns = now_ns.saturating_add(REACHABLE_NS);
        let state = State::Known { at, fresh_until_ns, probes: 0, due_ns: 0 };
        match self.table.get_mut(&ip) {
            Some(entry) => entry.state = state,
            None if wanted => self.insert(now_ns, ip, state, budget),
            None => {}
        }
    }

    pub(super) fn pop(
        &mut self,
        ip: IpAddr,
        budget: &mut Budget,
    ) -> Option<(LinkAddress, Vec<u8>)> {
        let entry = self.table.get_mut(&ip)?;
        let State::Known { at, .. } = entry.state else { return None };
        let ((), payload) = entry.waiting.pop(budget)?;
        Some((at, payload))
    }

    /// The port has left or changed: its neighbours are probed at their next use.
    pub(super) fn doubt(&mut self, gid: Gid) {
        for entry in self.table.values_mut() {
            if let State::Known { at, fresh_until_ns, .. } = &mut entry.state
                && at.gid == gid
            {
                *fresh_until_ns = 0;
            }
        }
    }

    /// Their announcements were missed while this port was down.
    pub(super) fn forget_known(&mut self) {
        self.table.retain(|_, entry| matches!(entry.state, State::Asking { .. }));
    }

    pub(super) fn poll_due(&mut self, now_ns: u64, budget: &mut Budget) -> Option<Due> {
        if self.due_ns.is_none_or(|due_ns| due_ns > now_ns) {
            return None;
        }
        let mut next_ns = None::<u64>;
        let mut found = None;
        for (&ip, entry) in &mut self.table {
            let (at, attempts, due_ns) = match &mut entry.state {
                State::Asking { attempts, due_ns } => (None, attempts, due_ns),
                State::Known { probes: 0, .. } => continue,
                State::Known { at, probes, due_ns, .. } => (Some(*at), probes, due_ns),
            };
            if found.is_none() && *due_ns <= now_ns {
                let is_over = *attempts >= NEIGHBOUR_ATTEMPTS_MAX;
                found = Some((ip, at, is_over));
                if is_over {
                    continue;
                }
                *attempts += 1;
                *due_ns = now_ns.saturating_add(NEIGHBOUR_RETRY_NS);
            }
            next_ns = Some(next_ns.map_or(*due_ns, |next| next.min(*due_ns)));
        }
        self.due_ns = next_ns;
        Some(match found? {
            (ip, None, false) => Due::Ask(ip),
            (ip, Some(at), false) => Due::Probe(ip, at),
            (ip, at, true) => {
                let mut entry = self.table.remove(&ip)?;
                match at {
                    Some(at) => Due::Lost(at),
                    None => {
                        let waiting = std::iter::from_fn(|| entry.waiting.pop(budget));
                        Due::Silent(waiting.map(|((), payload)| payload).collect())
                    }
                }
            }
        })
    }

    pub(super) const fn poll_timeout(&self) -> Option<u64> {
        self.due_ns
    }

    /// Evicts the least recently used neighbour if the table is full.
    fn insert(&mut self, now_ns: u64, ip: IpAddr, state: State, budget: &mut Budget) {
        if self.table.len() >= NEIGHBOURS_MAX {
            let oldest = self.table.iter().min_by_key(|(_, entry)| entry.used_ns);
            if let Some(ip) = oldest.map(|(&ip, _)| ip)
                && let Some(mut entry) = self.table.remove(&ip)
            {
                entry.waiting.evict(budget);
            }
        }
        let entry = Neighbour { state, waiting: Waiting::default(), used_ns: now_ns };
        self.table.insert(ip, entry);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::address::Qpn;

    /// The clock may have started less than the reachable time ago.
    #[test]
    fn a_doubted_neighbour_is_probed_at_its_next_use_at_any_time_of_the_clock() {
        for now_ns in [1, REACHABLE_NS - 1, REACHABLE_NS, 5 * REACHABLE_NS] {
            let (mut neighbours, mut budget) = (Neighbours::default(), Budget::default());
            let ip = IpAddr::from([10, 0, 0, 2]);
            let at = LinkAddress { qpn: Qpn::from_bits(7), gid: Gid([1; 16]) };
            neighbours.learn(now_ns, ip, at, true, &mut budget);
            let trusted = Route::Known { at, probe: false };
            assert_eq!(neighbours.route(now_ns, ip, &mut budget), trusted);
            neighbours.doubt(Gid([2; 16]));
            assert_eq!(neighbours.route(now_ns, ip, &mut budget), trusted, "another port");
            neighbours.doubt(at.gid);
            let doubted = neighbours.route(now_ns, ip, &mut budget);
            assert_eq!(doubted, Route::Known { at, probe: true }, "{now_ns}");
        }
    }

    #[test]
    fn a_full_table_evicts_the_neighbour_unused_for_the_longest_time() {
        let (mut neighbours, mut budget) = (Neighbours::default(), Budget::default());
        let ip = |number: usize| IpAddr::from(u32::try_from(number).unwrap().to_be_bytes());
        for number in 0..NEIGHBOURS_MAX {
            assert_eq!(neighbours.route(number as u64, ip(number), &mut budget), Route::Wait);
            assert_eq!(neighbours.wait(ip(number), vec![0], &mut budget), 0);
        }
        assert_eq!((neighbours.len(), budget.take_evicted()), (NEIGHBOURS_MAX, 0));
        for number in [0, NEIGHBOURS_MAX] {
            neighbours.route(NEIGHBOURS_MAX as u64, ip(number), &mut budget);
        }
        assert_eq!((neighbours.len(), budget.take_evicted()), (NEIGHBOURS_MAX, 1));
        let lost = |number| !neighbours.table.contains_key(&ip(number));
        assert_eq!([0, 1, 2, NEIGHBOURS_MAX].map(lost), [false, true, false, false]);
    }
}
