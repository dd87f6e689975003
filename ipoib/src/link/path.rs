//! Paths: the LID and service level for each port, from the subnet administrator.

use std::collections::BTreeMap;

use super::waiting::{Budget, Waiting};
use crate::limits::{ABSENT_NS, PATH_DOUBT_NS, PATH_REFRESH_NS, PATHS_MAX};
use crate::wire::address::{Gid, Lid, Qpn};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) dlid: Lid,
    pub(super) service_level: u8,
}

#[derive(Debug)]
enum State {
    Asking,
    Known { hop: Hop, asked_ns: u64 },
    Absent { until_ns: u64 },
}

#[derive(Debug)]
struct Path {
    state: State,
    waiting: Waiting<Qpn>,
    used_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct Paths {
    table: BTreeMap<Gid, Path>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Send it; with `ask`, the path is old and must be queried again.
    Known { hop: Hop, ask: bool },
    /// Queue it; with `ask`, a query must be sent.
    Wait { ask: bool },
    /// There is no path.
    Absent,
}

impl Paths {
    /// Adds a new port to the table.
    pub(super) fn route(&mut self, now_ns: u64, gid: Gid, budget: &mut Budget) -> Route {
        let Some(entry) = self.table.get_mut(&gid) else {
            self.make_room(budget);
            let entry = Path { state: State::Asking, waiting: Waiting::default(), used_ns: now_ns };
            self.table.insert(gid, entry);
            return Route::Wait { ask: true };
        };
        entry.used_ns = now_ns;
        match &mut entry.state {
            State::Known { hop, asked_ns } => {
                let ask = now_ns >= asked_ns.saturating_add(PATH_REFRESH_NS);
                if ask {
                    *asked_ns = now_ns;
                }
                Route::Known { hop: *hop, ask }
            }
            State::Asking => Route::Wait { ask: false },
            State::Absent { until_ns } if *until_ns > now_ns => Route::Absent,
            State::Absent { .. } => {
                entry.state = State::Asking;
                Route::Wait { ask: true }
            }
        }
    }

    /// Returns true if a received source LID differs from the known path, and the path was not
    /// queried recently: the caller must query it.
    pub(super) fn has_moved(&mut self, now_ns: u64, gid: Gid, slid: Lid) -> bool {
        let Some(Path { state: State::Known { hop, asked_ns }, .. }) = self.table.get_mut(&gid)
        else {
            return false;
        };
        let asks = hop.dlid != slid && now_ns >= asked_ns.saturating_add(PATH_DOUBT_NS);
        if asks {
            *asked_ns = now_ns;
        }
        asks
    }

    /// Returns the number of dropped payloads.
    pub(super) fn wait(
        &mut self,
        gid: Gid,
        qpn: Qpn,
        payload: Vec<u8>,
        budget: &mut Budget,
    ) -> u64 {
        let Some(entry) = self.table.get_mut(&gid) else { return 1 };
        entry.waiting.push(budget, qpn, payload)
    }

    pub(super) fn learn(&mut self, now_ns: u64, gid: Gid, hop: Hop) {
        if let Some(entry) = self.table.get_mut(&gid) {
            entry.state = State::Known { hop, asked_ns: now_ns };
        }
    }

    pub(super) fn pop(&mut self, gid: Gid, budget: &mut Budget) -> Option<(Hop, Qpn, Vec<u8>)> {
        let entry = self.table.get_mut(&gid)?;
        let State::Known { hop, .. } = entry.state else { return None };
        let (qpn, payload) = entry.waiting.pop(budget)?;
        Some((hop, qpn, payload))
    }

    /// Keeps a known path if the administrator was `silent`. Returns the waiting payloads.
    pub(super) fn fail(
        &mut self,
        now_ns: u64,
        gid: Gid,
        silent: bool,
        budget: &mut Budget,
    ) -> Vec<Vec<u8>> {
        let Some(entry) = self.table.get_mut(&gid) else { return Vec::new() };
        if silent && matches!(entry.state, State::Known { .. }) {
            return Vec::new();
        }
        // After a missing answer, the next packet sends a query at once.
        let until_ns = if silent { now_ns } else { now_ns.saturating_add(ABSENT_NS) };
        entry.state = State::Absent { until_ns };
        std::iter::from_fn(|| entry.waiting.pop(budget)).map(|(_, payload)| payload).collect()
    }

    /// Returns the number of its waiting payloads.
    pub(super) fn forget(&mut self, gid: Gid, budget: &mut Budget) -> u64 {
        self.table.remove(&gid).map_or(0, |mut entry| entry.waiting.clear(budget))
    }

    /// Returns the number of waiting payloads.
    pub(super) fn clear(&mut self, budget: &mut Budget) -> u64 {
        std::mem::take(&mut self.table)
            .into_values()
            .map(|mut entry| entry.waiting.clear(budget))
            .sum()
    }

    fn make_room(&mut self, budget: &mut Budget) {
        if self.table.len() < PATHS_MAX {
            return;
        }
        let oldest = self.table.iter().min_by_key(|(_, entry)| entry.used_ns);
        if let Some(gid) = oldest.map(|(&gid, _)| gid)
            && let Some(mut entry) = self.table.remove(&gid)
        {
            entry.waiting.evict(budget);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOP: Hop = Hop { dlid: Lid(7), service_level: 0 };

    fn gid(number: usize) -> Gid {
        let mut octets = [0xfe; 16];
        octets[8..].copy_from_slice(&number.to_be_bytes());
        Gid(octets)
    }

    /// An answer or a failure ends a request; neither starts the next one before its time.
    #[test]
    fn a_known_path_is_requested_once_in_each_refresh_time() {
        let (mut paths, mut budget) = (Paths::default(), Budget::default());
        let at = gid(1);
        assert_eq!(paths.route(0, at, &mut budget), Route::Wait { ask: true });
        assert_eq!(paths.route(0, at, &mut budget), Route::Wait { ask: false });
        paths.learn(0, at, HOP);
        for (now_ns, ask) in [(PATH_REFRESH_NS - 1, false), (PATH_REFRESH_NS, true)] {
            assert_eq!(paths.route(now_ns, at, &mut budget), Route::Known { hop: HOP, ask });
        }
        assert_eq!(paths.fail(PATH_REFRESH_NS, at, true, &mut budget), Vec::<Vec<u8>>::new());
        for (ahead_ns, ask) in [(0, false), (PATH_REFRESH_NS - 1, false), (PATH_REFRESH_NS, true)] {
            let route = paths.route(PATH_REFRESH_NS + ahead_ns, at, &mut budget);
            assert_eq!(route, Route::Known { hop: HOP, ask }, "{ahead_ns}");
        }
    }

    /// A refusal is believed for a time. A silent administrator is asked again at the next use.
    #[test]
    fn a_missing_path_is_requested_again_after_its_time() {
        for (silent, absent_ns) in [(true, 0), (false, ABSENT_NS)] {
            let (mut paths, mut budget) = (Paths::default(), Budget::default());
            let at = gid(1);
            paths.route(5, at, &mut budget);
            assert_eq!(paths.wait(at, Qpn::GSI, vec![1, 2], &mut budget), 0);
            assert_eq!(paths.fail(5, at, silent, &mut budget), [[1, 2]]);
            assert_eq!(budget.used(), 0);
            if absent_ns > 0 {
                assert_eq!(paths.route(4 + absent_ns, at, &mut budget), Route::Absent);
            }
            let again = paths.route(5 + absent_ns, at, &mut budget);
            assert_eq!(again, Route::Wait { ask: true }, "{silent}");
        }
    }

    #[test]
    fn a_full_table_evicts_the_path_unused_for_the_longest_time() {
        let (mut paths, mut budget) = (Paths::default(), Budget::default());
        for number in 0..PATHS_MAX {
            paths.route(number as u64, gid(number), &mut budget);
            paths.wait(gid(number), Qpn::GSI, vec![0], &mut budget);
        }
        assert_eq!((paths.len(), budget.take_evicted()), (PATHS_MAX, 0));
        paths.route(PATHS_MAX as u64, gid(0), &mut budget);
        paths.route(PATHS_MAX as u64, gid(PATHS_MAX), &mut budget);
        assert_eq!((paths.len(), budget.take_evicted()), (PATHS_MAX, 1));
        let lost = |number| !paths.table.contains_key(&gid(number));
        assert_eq!([0, 1, 2, PATHS_MAX].map(lost), [false, true, false, false]);
    }
}
