//! Draws the events of a fabric of InfiniBand.

use urnic_netdev::impair::ImpairConfig;

use crate::plan::{Change, Event, FabricEvent};
use crate::random::Random;

use super::{MILLISECOND_NS, SECOND_NS};

const FABRIC_BITS: u64 = 0x0066_6162_7269_6321;
const FABRIC_ONE_IN: u64 = 16;

pub(super) fn is_drawn(seed: u64) -> bool {
    Random::new(seed ^ FABRIC_BITS).one_in(FABRIC_ONE_IN)
}

/// Draws no bit errors and no cut segments, which an InfiniBand fabric does not have.
pub(super) fn impair(random: &mut Random, quiet: ImpairConfig) -> ImpairConfig {
    let mut perhaps = |percent_max| if random.one_in(3) { 0.0 } else { random.chance(percent_max) };
    ImpairConfig {
        loss: perhaps(8),
        duplicate: perhaps(10),
        reorder: perhaps(20),
        jitter: perhaps(10),
        ..quiet
    }
}

/// Returns the time of the last one, too.
pub(super) fn changes(random: &mut Random, nodes: usize) -> (Vec<Change>, u64) {
    let mut changes = Vec::new();
    let mut at_ns = 0;
    for _ in 0..random.between(1, 10) {
        at_ns += match random.below(4) {
            0 => random.below(200_000),
            1 => random.below(20 * MILLISECOND_NS),
            2 => random.below(SECOND_NS),
            _ => random.below(10 * SECOND_NS),
        };
        let node = random.len(0, nodes - 1);
        let answers = u32::try_from(random.between(1, 5)).unwrap_or(1);
        let what = match random.below(9) {
            0 | 1 => FabricEvent::Manager,
            2 | 3 => FabricEvent::QueuePair(node),
            4 => FabricEvent::Lid(node),
            5 => FabricEvent::Cable(node, random.one_in(2)),
            6 => FabricEvent::Silent(random.one_in(2)),
            7 => FabricEvent::Busy(answers),
            _ => FabricEvent::Mute(answers),
        };
        changes.push(Change { at_ns, what: Event::Fabric(what) });
    }
    let end_ns = at_ns + random.below(3 * SECOND_NS);
    changes.push(Change { at_ns: end_ns, what: Event::Fabric(FabricEvent::Calm) });
    (changes, end_ns)
}
