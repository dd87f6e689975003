//! Options of a bad link.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Serialize, Serializer};
use urnic_netdev::impair::{BurstLoss, ImpairConfig, PIECES_MAX};

use crate::impair::Outage;
use crate::units;

/// Frames of each direction that wait for the bottleneck or are in flight. At the largest MTU in
/// use, 9000, this is 280 MiB.
const HELD_FRAMES_MAX: usize = 32_768;

/// Delay of frames so that several are moved together.
const GRAIN_NS_MAX: u64 = 50_000;
/// Smallest number of grains in a delay.
const GRAINS_PER_DELAY: u64 = 20;

/// Faults of frames. Percentages are of the frames of one direction.
#[derive(Args, Clone, Debug, Serialize)]
pub(crate) struct Options {
    /// Frames lost, each independently
    #[arg(long, value_name = "PERCENT", value_parser = units::percent, default_value = "0")]
    loss: f64,

    /// Frames after which a burst of losses begins
    #[arg(long, value_name = "PERCENT", value_parser = units::percent, default_value = "0")]
    burst: f64,

    /// Frames lost in a burst, on average (Gilbert-Elliott model)
    #[arg(long, value_name = "FRAMES", default_value_t = 4, requires = "burst",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    burst_length: u32,

    /// Pure acknowledgments (TCP segments without payload) lost, in addition
    #[arg(long, value_name = "PERCENT", value_parser = units::percent, default_value = "0")]
    ack_loss: f64,

    /// Time a frame travels, in each direction: half the round trip
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "0")]
    #[serde(rename = "delay_ns", serialize_with = "nanos")]
    delay: Duration,

    /// Longest additional delay; it is drawn for each frame, and keeps the order
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "0")]
    #[serde(rename = "jitter_ns", serialize_with = "nanos")]
    jitter: Duration,

    /// Frames overtaken by others
    #[arg(long, value_name = "PERCENT", value_parser = units::percent, default_value = "0")]
    reorder: f64,

    /// Frames that overtake a reordered one, at most
    #[arg(long, value_name = "FRAMES", default_value_t = 3, requires = "reorder",
          value_parser = clap::value_parser!(u64).range(1..))]
    reorder_frames: u64,

    /// Frames that arrive twice
    #[arg(long, value_name = "PERCENT", value_parser = units::percent, default_value = "0")]
    duplicate: f64,

    /// Frames with a bit flipped behind the link header
    #[arg(long, value_name = "PERCENT", value_parser = units::percent, default_value = "0")]
    corrupt: f64,

    /// TCP segments cut into several
    #[arg(long, value_name = "PERCENT", value_parser = units::percent, default_value = "0")]
    resegment: f64,

    /// TCP segments merged with the next one, where the MTU allows it
    #[arg(long, value_name = "PERCENT", value_parser = units::percent, default_value = "0")]
    coalesce: f64,

    /// Bits per second of the bottleneck in each direction, such as 1G
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    rate: Option<u64>,

    /// Frames that wait for the bottleneck, at most; the tail of a full queue is dropped
    #[arg(long, value_name = "FRAMES", default_value_t = 1000, requires = "rate",
          value_parser = clap::value_parser!(u32).range(1..=HELD_FRAMES_MAX as i64))]
    queue: u32,

    /// Largest IP datagram that passes, in bytes; longer ones are lost silently
    #[arg(long, value_name = "SIZE")]
    path_mtu: Option<usize>,

    /// Time from one outage of the link to the next
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "10s",
          requires = "outage_for")]
    #[serde(rename = "outage_every_ns", serialize_with = "nanos")]
    outage_every: Duration,

    /// Length of each outage
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "0")]
    #[serde(rename = "outage_for_ns", serialize_with = "nanos")]
    outage_for: Duration,

    /// The direction in which frames are lost, changed and delayed; rate and delay hold for both
    #[arg(long, value_name = "WHICH", value_enum, default_value_t)]
    direction: Direction,

    /// Seed of everything random: the same frames at the same times have the same faults
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Directions that have faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Direction {
    /// Both
    #[default]
    Both,
    /// Frames that A received
    AToB,
    /// Frames that B received
    BToA,
}

impl Options {
    /// Faults that can be limited to one direction.
    const fn has_faults(&self) -> bool {
        let percent = self.loss
            + self.burst
            + self.ack_loss
            + self.reorder
            + self.duplicate
            + self.corrupt
            + self.resegment
            + self.coalesce;
        percent > 0.0
            || !self.jitter.is_zero()
            || self.path_mtu.is_some()
            || !self.outage_for.is_zero()
    }

    /// Fails if the options contradict each other.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if !self.outage_for.is_zero() && self.outage().is_none() {
            anyhow::bail!("--outage-for is longer than --outage-every: the link would never be up");
        }
        if self.direction != Direction::Both && !self.has_faults() {
            anyhow::bail!(
                "--direction: no option makes a fault that could be in one direction only"
            );
        }
        Ok(())
    }

    pub(crate) fn outage(&self) -> Option<Outage> {
        Outage::new(self.outage_every, self.outage_for)
    }

    /// Time between two turns, like the interrupt moderation of a network card: each turn moves
    /// several frames. It is short compared with the delay of the path.
    pub(crate) fn grain_ns(&self) -> u64 {
        (nanos_of(self.delay) / GRAINS_PER_DELAY).min(GRAIN_NS_MAX)
    }

    /// Returns the configurations for frames to B and to A.
    pub(crate) fn configs(&self, outage: bool) -> [ImpairConfig; 2] {
        let sound = ImpairConfig {
            delay_ns: nanos_of(self.delay),
            rate_bits_per_second: self.rate,
            queue_frames_max: usize::try_from(self.queue).unwrap_or(HELD_FRAMES_MAX),
            held_max: HELD_FRAMES_MAX,
            ..ImpairConfig::default()
        };
        let faulty = ImpairConfig {
            loss: self.loss / 100.0,
            burst: BurstLoss {
                enter: self.burst / 100.0,
                leave: 1.0 / f64::from(self.burst_length),
                loss: 1.0,
            },
            ack_loss: self.ack_loss / 100.0,
            outage,
            path_mtu: self.path_mtu,
            jitter: if self.jitter.is_zero() { 0.0 } else { 1.0 },
            jitter_ns_max: nanos_of(self.jitter),
            reorder: self.reorder / 100.0,
            reorder_frames_max: self.reorder_frames,
            duplicate: self.duplicate / 100.0,
            corrupt: self.corrupt / 100.0,
            resegment: self.resegment / 100.0,
            resegment_pieces_max: PIECES_MAX / 4,
            coalesce: self.coalesce / 100.0,
            ..sound
        };
        match self.direction {
            Direction::Both => [faulty, faulty],
            Direction::AToB => [faulty, sound],
            Direction::BToA => [sound, faulty],
        }
    }
}

fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn nanos<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(nanos_of(*duration))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn options(arguments: &[&str]) -> Options {
        Cli::try_parse_from([&["impair"], arguments].concat()).unwrap().options
    }

    #[test]
    fn faults_are_those_of_the_chosen_direction_and_the_path_is_the_same_for_both() {
        let options =
            options(&["--loss", "3", "--delay", "10ms", "--rate", "1G", "--direction", "b-to-a"]);
        let [to_b, to_a] = options.configs(false);
        assert_eq!((to_b.loss, to_a.loss), (0.0, 0.03));
        assert_eq!((to_b.delay_ns, to_a.delay_ns), (10_000_000, 10_000_000));
        assert_eq!(to_b.rate_bits_per_second, Some(1_000_000_000));
    }

    #[test]
    fn without_options_nothing_happens_to_frames() {
        let [to_b, to_a] = options(&[]).configs(false);
        assert_eq!(to_b, to_a);
        assert!(to_b.loss == 0.0 && to_b.delay_ns == 0 && to_b.rate_bits_per_second.is_none());
    }

    #[test]
    fn a_link_that_is_never_up_is_refused() {
        assert!(options(&["--outage-for", "20s"]).check().is_err());
        assert!(options(&["--outage-for", "2s"]).check().is_ok());
    }
}
