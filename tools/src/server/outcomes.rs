//! How sessions have ended: told, and kept for the exit status.

use crate::server::peer::Peer;
use crate::server::{Ended, Event, Log};
use urnic_engine::time::Instant;

/// What has become of the sessions that have ended.
#[derive(Debug)]
pub(super) struct Outcomes {
    pub(super) log: Log,
    /// How they did so; `None` while none has.
    pub(super) ended: Option<Ended>,
    /// Why sessions have failed, and how many have gone.
    #[cfg(test)]
    pub(super) told: (Vec<String>, usize),
}

impl Outcomes {
    pub(super) const fn new(log: Log) -> Self {
        Self {
            log,
            ended: None,
            #[cfg(test)]
            told: (Vec::new(), 0),
        }
    }

    /// A peer has closed the connection, and all is done.
    #[cold]
    pub(super) fn gone(&mut self, peer: &Peer, now: Instant) {
        if let Some(event) = peer.ended_well(now) {
            self.log.tell(&event);
            #[cfg(test)]
            {
                self.told.1 += 1;
            }
        }
        self.ended.get_or_insert(Ended::Well);
    }

    /// A session has failed.
    #[cold]
    pub(super) fn failed(&mut self, peer: &Peer, error: &anyhow::Error) {
        let (remote, session) = (peer.remote(), peer.session().to_owned());
        let reason = format!("{error:#}");
        #[cfg(test)]
        self.told.0.push(reason.clone());
        self.log.tell(&Event::Failed { peer: remote, session, reason });
        self.ended = Some(Ended::Badly);
    }
}
