//! Results of sessions: logged, and kept for the exit status.

use crate::server::log::Budget;
use crate::server::peer::Peer;
use crate::server::{Ended, Event, Log};
use urnic_engine::time::Instant;

#[derive(Debug)]
pub(super) struct Outcomes {
    pub(super) log: Log,
    /// `None` while no session has ended.
    pub(super) ended: Option<Ended>,
    /// Budgets for lines about peers: of normal events, and of all others.
    well: Budget,
    badly: Budget,
    /// Reasons of failed sessions, and the number of sessions that ended normally.
    #[cfg(test)]
    pub(super) reported: (Vec<String>, usize),
}

impl Outcomes {
    pub(super) fn new(log: Log, now: Instant) -> Self {
        Self {
            log,
            ended: None,
            well: Budget::new(now),
            badly: Budget::new(now),
            #[cfg(test)]
            reported: (Vec::new(), 0),
        }
    }

    /// Logs within the budget.
    pub(super) fn report(&mut self, event: &Event, now: Instant) {
        if !self.log.shows(event) {
            return;
        }
        let is_well = matches!(event, Event::Started { .. } | Event::Ended { .. });
        let budget = if is_well { &mut self.well } else { &mut self.badly };
        if budget.take(now) {
            self.log.report(event);
        }
    }

    /// Logs the number of lines left out, if a report is due.
    pub(super) fn report_left_out(&mut self, now: Instant) {
        self.report_counts(|budget| budget.left_out(now));
    }

    /// Logs the number of lines left out, at the end.
    pub(super) fn report_rest(&mut self) {
        self.report_counts(Budget::rest);
    }

    fn report_counts(&mut self, count: impl Fn(&mut Budget) -> Option<u64>) {
        for (budget, of) in
            [(&mut self.well, "began or ended well"), (&mut self.badly, "failed or were refused")]
        {
            if let Some(count) = count(budget) {
                let every = Budget::INTERVAL;
                self.log.notice(format!(
                    "{count} lines of sessions that {of} were left out: more than one each {every:?}"
                ));
            }
        }
    }

    #[cold]
    pub(super) fn gone(&mut self, peer: &Peer, now: Instant) {
        if let Some(event) = peer.ended_well(now) {
            self.report(&event, now);
            #[cfg(test)]
            {
                self.reported.1 += 1;
            }
        }
        self.ended.get_or_insert(Ended::Well);
    }

    #[cold]
    pub(super) fn failed(&mut self, peer: &Peer, error: &anyhow::Error, now: Instant) {
        let (remote, key, session) = (peer.remote(), peer.key(), peer.session().to_owned());
        let reason = format!("{error:#}");
        #[cfg(test)]
        self.reported.0.push(reason.clone());
        self.report(&Event::Failed { peer: remote, key, session, reason }, now);
        self.ended = Some(Ended::Badly);
    }
}
