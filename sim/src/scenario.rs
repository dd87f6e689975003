//! Scenarios: the kinds of runs, by name.

use crate::random::Random;

/// Kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// No faults at all: nothing may take long.
    Clean,
    /// Random choice of all impairments at once.
    Mixed,
    /// Independent loss.
    Loss,
    /// Loss in bursts.
    Burst,
    /// Reordering and jitter.
    Reorder,
    /// Duplicates.
    Duplicate,
    /// Flipped bits.
    Corrupt,
    /// Segments cut and merged in flight.
    Recut,
    /// Lost acknowledgments.
    AckLoss,
    /// The link goes down and comes back.
    Flap,
    /// One direction loses everything for a while.
    Outage,
    /// A bottleneck with a short queue.
    Bottleneck,
    /// A small piece store and segments in pieces.
    Pressure,
    /// Applications that stop reading, and small windows.
    Stall,
    /// One connection after the other.
    Churn,
    /// Several nodes around one.
    Star,
    /// Requests that are not allowed.
    Mishap,
    /// Ends that abort.
    Abort,
    /// Latency that changes while data is in flight.
    Path,
    /// MTU of the links that changes while data is in flight.
    Mtu,
    /// A path with a smaller MTU than the links, without ICMP messages.
    BlackHole,
    /// Megabytes of data.
    Large,
    /// A peer vanishes without FIN or RST.
    Vanish,
    /// Both sides end connections, by every action and in every order.
    Ends,
    /// Peers that take all resources that they can get, beside one that does its work.
    Exhausted,
    /// Memory that changes while it is read, and is invalidated.
    Changing,
    /// Forged frames, and guessed tags.
    Guesses,
    /// Messages that arrive before their receives, and wait for them.
    Unready,
    /// Hosts on a fabric of InfiniBand: managers that restart, queue pairs and LIDs that change.
    Ipoib,
    /// Hosts that stop for a while. No frame is lost.
    Pause,
    /// Hosts that get another link address in mid-transfer, and are pushed out of neighbour tables.
    Moving,
    /// Connections on one shared receive queue, beside some that claim impossible message numbers.
    Shared,
}

impl Scenario {
    /// All scenarios, with name and weight. Those of weight 0 are drawn from other bits of the
    /// seed, so that old seeds give the same scenario where possible.
    pub const ALL: [(Self, &'static str, u64); 32] = [
        (Self::Clean, "clean", 6),
        (Self::Mixed, "mixed", 12),
        (Self::Loss, "loss", 6),
        (Self::Burst, "burst", 6),
        (Self::Reorder, "reorder", 6),
        (Self::Duplicate, "duplicate", 3),
        (Self::Corrupt, "corrupt", 5),
        (Self::Recut, "recut", 8),
        (Self::AckLoss, "ack-loss", 4),
        (Self::Flap, "flap", 5),
        (Self::Outage, "outage", 5),
        (Self::Bottleneck, "bottleneck", 5),
        (Self::Pressure, "pressure", 5),
        (Self::Stall, "stall", 6),
        (Self::Churn, "churn", 4),
        (Self::Star, "star", 4),
        (Self::Mishap, "mishap", 6),
        (Self::Abort, "abort", 5),
        (Self::Path, "path", 3),
        (Self::Mtu, "mtu", 5),
        (Self::BlackHole, "black-hole", 2),
        (Self::Large, "large", 1),
        (Self::Vanish, "vanish", 0),
        (Self::Ends, "ends", 0),
        (Self::Exhausted, "exhausted", 0),
        (Self::Changing, "changing", 0),
        (Self::Guesses, "guesses", 0),
        (Self::Unready, "unready", 0),
        (Self::Ipoib, "ipoib", 0),
        (Self::Pause, "pause", 0),
        (Self::Moving, "moving", 0),
        (Self::Shared, "shared", 0),
    ];

    /// Returns the scenario's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(scenario, ..)| *scenario == self);
        found.map_or("?", |(_, name, _)| name)
    }

    /// Returns the scenario of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, own, _)| *own == name).map(|(scenario, ..)| *scenario)
    }

    pub(crate) fn draw(random: &mut Random) -> Self {
        let total = Self::ALL.iter().map(|(.., weight)| weight).sum();
        let mut left = random.below(total);
        for (scenario, _, weight) in Self::ALL {
            if left < weight {
                return scenario;
            }
            left -= weight;
        }
        Self::Mixed
    }
}
