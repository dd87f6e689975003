//! Memory that one end keeps writing while the other reads it.

use crate::live;
use crate::memory::{Part, Spot};
use crate::plan::{FlowPlan, Kind};
use crate::side::Side;

impl Side {
    pub(crate) fn live_counter(&self) -> u64 {
        let count = self.live.counter();
        self.sabotage.map_or(count, |sabotage| sabotage.counter(count))
    }

    /// Returns the peer's count when a request is posted.
    pub(super) fn counter_at_post(&self, peer: &Self) -> u64 {
        let count = peer.live.counter();
        self.sabotage.map_or(count, |sabotage| sabotage.posted(count))
    }

    /// Returns the bytes at the destination of a Read.
    pub(super) fn landed(&self, spot: Spot, len: usize) -> Vec<u8> {
        let mut octets = vec![0; len];
        self.memory.part(Part::Landing).copy_out(spot.to, &mut octets);
        octets
    }

    /// The peer's bytes after the invalidation must not arrive.
    pub(crate) fn check_revoked(&self, flow: &FlowPlan) -> Result<(), String> {
        let initial = self.memory.layout.initial(self.index);
        let landing = self.memory.layout.part(Part::Landing).start;
        let work = flow.sides[self.index].work.iter().enumerate();
        for (index, op) in work.filter(|(_, op)| op.kind == Kind::ReadLive) {
            let at = landing + self.spots[index].to;
            let found = self.landed(self.spots[index], op.len);
            let is_revoked =
                |(octet, before): (&u8, &u8)| *octet == live::REVOKED && octet != before;
            if found.iter().zip(&initial[at..]).any(is_revoked) {
                return Err(format!(
                    "Read {index} brought bytes that were written after the invalidation"
                ));
            }
        }
        Ok(())
    }

    /// This end keeps writing the byte, or Reads bring such bytes.
    pub(crate) fn is_live(&self, flow: &FlowPlan, at: usize) -> bool {
        let layout = &self.memory.layout;
        let landing = layout.part(Part::Landing).start;
        let reads = flow.sides[self.index].work.iter().zip(&self.spots);
        layout.part(Part::Live).contains(&at)
            || reads
                .filter(|(op, _)| op.kind == Kind::ReadLive)
                .any(|(op, spot)| (landing + spot.to..landing + spot.to + op.len).contains(&at))
    }
}
