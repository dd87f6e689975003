//! The oracle: checks of a connection that is over.

use urnic_engine::verbs::QpState;

use crate::flow::Flow;
use crate::memory::Part;
use crate::plan::{Deed, Ending, Sabotage};

impl Flow<'_> {
    /// Everything posted has completed, and memory holds the expected bytes.
    pub(super) fn check_end(&mut self) -> Result<(), String> {
        for side in [0, 1] {
            let peer_live = self.sides[1 - side].live_counter();
            let end = &mut self.sides[side];
            end.poll(self.plan, &self.model, peer_live, None)
                .map_err(|text| format!("side {side}: {text}"))?;
        }
        for side in [0, 1] {
            let end = &self.sides[side];
            self.sabotage.inspect(|sabotage| sabotage.touch(&end.memory));
            end.check_revoked(self.plan).map_err(|text| format!("side {side}: {text}"))?;
            self.check_left_behind(side)?;
            let end = &self.sides[side];
            // An end without a connection has no requests to complete.
            if end.connection.is_some() {
                end.check_all_completed(self.plan)
                    .map_err(|text| format!("side {side}: {text}"))?;
                let state = end.queues.qp.state();
                let state = self.sabotage.map_or(state, |sabotage| sabotage.state(state));
                if self.is_silent && !end.has_left && state != QpState::Error {
                    return Err(format!("side {side}: the queue pair is {state:?} after the end"));
                }
            }
            self.check_memory(side)?;
        }
        Ok(())
    }

    /// The peer got all messages posted before an end left, unless it ended the connection too, or
    /// was never established.
    fn check_left_behind(&self, side: usize) -> Result<(), String> {
        let Ending::Acts(acts) = self.plan.ending else { return Ok(()) };
        let more = usize::from(self.sabotage == Some(Sabotage::LeftBehind));
        let (left, peer) = (self.left_behind[side] + more, &self.sides[1 - side]);
        let ends_itself = acts[1 - side].what != Deed::Nothing || !peer.established;
        if !ends_itself && !self.is_silent && peer.progress.delivered < left {
            let delivered = peer.progress.delivered;
            return Err(format!("side {side} left {left} messages, but only {delivered} came"));
        }
        Ok(())
    }

    fn check_memory(&self, side: usize) -> Result<(), String> {
        let memory = &self.sides[side].memory;
        let (found, expected) = (memory.content(), &self.model.memory[side]);
        if found == *expected {
            return Ok(());
        }
        let initial = memory.layout.initial(side);
        let numbers = memory.layout.part(Part::Numbers);
        let wrong = (0..found.len()).find(|at| {
            let unfinished =
                self.fails_by_plan() && (found[*at] == initial[*at] || numbers.contains(at));
            found[*at] != expected[*at] && !unfinished && !self.sides[side].is_live(self.plan, *at)
        });
        match wrong {
            None => Ok(()),
            Some(at) => {
                let place = memory.layout.describe(at);
                Err(format!(
                    "side {side}: byte {at} of memory ({place}) is {:#04x}, not {:#04x}",
                    found[at], expected[at]
                ))
            }
        }
    }
}
