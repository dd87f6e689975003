//! Options of a demo run.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use serde::{Serialize, Serializer};
use urnic_engine::port::LowerLayer;
use urnic_netdev::impair::ImpairConfig;
use urnic_netdev::memory::LinkConfig;

use crate::{size, units};

/// Data and link of a run. All options that influence the run are here; the fields serialize in the
/// form in which the command line takes them.
#[derive(Args, Clone, Debug, Serialize)]
pub(crate) struct Options {
    /// Payload to move in each direction, in bytes; 0 still does one operation of each kind
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "512M")]
    pub(super) bytes: u64,

    /// Longest operation, 1 to 16M. Lengths vary from 0 up to it, often around the edges of
    /// FPDUs, with most bytes in long operations; Sends are at most 64K
    #[arg(long, value_name = "SIZE", value_parser = message_len, default_value = "1M")]
    pub(super) message: usize,

    /// Seed of everything random; the same seed and options give the same run
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Markers in both directions (RFC 5044 §4.3): FPDUs are found, and placed, in segments that
    /// arrive ahead of others
    #[arg(long, value_name = "on|off", value_parser = units::on_off(), default_value = "off",
          action = clap::ArgAction::Set, help_heading = PROTOCOL)]
    pub(super) markers: bool,

    /// CRC32c over every FPDU (RFC 5044 §4.4)
    #[arg(long, value_name = "on|off", value_parser = units::on_off(), default_value = "on",
          action = clap::ArgAction::Set, help_heading = PROTOCOL)]
    pub(super) crc: bool,

    /// How MPA uses TCP
    #[arg(long, value_name = "STACK", value_enum, default_value_t, help_heading = PROTOCOL)]
    pub(super) stack: Stack,

    /// Largest IP datagram, 256 to 65535 bytes
    #[arg(long, value_name = "SIZE", value_parser = mtu, default_value = "1500",
          help_heading = LINK)]
    pub(super) mtu: usize,

    /// Time a frame travels: a number with ns, us, ms or s; at most 1s
    #[arg(long, value_name = "TIME", value_parser = latency, default_value = "10us",
          help_heading = LINK)]
    #[serde(rename = "latency_ns", serialize_with = "nanos")]
    pub(super) latency: Duration,

    /// Bits per second in each direction, such as 10G; without, frames are sent in no time
    #[arg(long, value_name = "RATE", value_parser = rate, help_heading = LINK)]
    pub(super) rate: Option<u64>,

    /// Let the link carry runs of segments in one frame, as kernel devices with segmentation
    /// offload do: off, on (63K of payload), or the payload, 1K to 63K. Not together with --corrupt
    /// and --resegment, which need ordinary frames
    #[arg(long, value_name = "on|off|SIZE", value_parser = super_frames, default_value = "off",
          help_heading = LINK)]
    pub(super) super_frames: SuperFrames,

    /// Frames lost, in percent
    #[arg(long, value_name = "PERCENT", value_parser = units::percent, default_value = "0",
          help_heading = IMPAIR)]
    pub(super) loss: f64,

    /// Frames overtaken by up to three later ones, in percent
    #[arg(long, value_name = "PERCENT", value_parser = units::percent, default_value = "0",
          help_heading = IMPAIR)]
    pub(super) reorder: f64,

    /// Frames that arrive twice, in percent
    #[arg(long, value_name = "PERCENT", value_parser = units::percent, default_value = "0",
          help_heading = IMPAIR)]
    pub(super) duplicate: f64,

    /// Frames with a bit flipped behind the Ethernet header, in percent. TCP's checksum finds
    /// every such error, so that this verifies with --crc off too; errors in several bits, which
    /// it can miss, are what CRCs are for
    #[arg(long, value_name = "PERCENT", value_parser = units::percent, default_value = "0",
          help_heading = IMPAIR)]
    pub(super) corrupt: f64,

    /// TCP segments cut into up to four, as a middlebox might, in percent: they no longer begin
    /// and end with FPDUs. Without a number, half of them
    #[arg(long, value_name = "PERCENT", value_parser = units::percent, default_value = "0",
          num_args = 0..=1, default_missing_value = "50", help_heading = IMPAIR)]
    pub(super) resegment: f64,

    /// Write the frames of both directions to a pcapng file as they leave the impairment: each
    /// receiver's view, with copies and errors, without what was lost. Times are the link's own
    #[arg(long, value_name = "FILE.pcapng", help_heading = OUTPUT)]
    #[serde(skip)]
    pub(super) record: Option<PathBuf>,
}

const PROTOCOL: &str = "Protocol";
const LINK: &str = "Link";
const IMPAIR: &str = "Impairment, per frame and direction (0 to 100)";
/// Heading of the options for output.
pub(crate) const OUTPUT: &str = "Output";

/// How MPA uses TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stack {
    /// Segments hold whole FPDUs and are placed in any order (RFC 5044 Appendix A)
    #[default]
    Optimized,
    /// TCP is a byte stream: FPDUs fall where they fall, in order (RFC 5044 §5)
    Layered,
}

/// Most payload of a super-frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct SuperFrames(Option<NonZeroUsize>);

impl Options {
    pub(super) fn link(&self) -> LinkConfig {
        // Impairments put more frames on the link than TCP's window has segments; a short queue
        // would lose frames that no option asked to lose.
        let is_impaired = self.impairments() != no_impairments();
        let defaults = LinkConfig::default();
        LinkConfig {
            queue_frames: if is_impaired { IMPAIRED_QUEUE } else { defaults.queue_frames },
            mtu: self.mtu,
            latency_ns: nanos_of(self.latency),
            rate_bits_per_second: self.rate,
            super_frame_len_max: self.super_frames.0,
            tx_checksum: self.super_frames.0.is_some(),
            ..defaults
        }
    }

    pub(super) fn impairments(&self) -> ImpairConfig {
        ImpairConfig {
            loss: self.loss / 100.0,
            reorder: self.reorder / 100.0,
            duplicate: self.duplicate / 100.0,
            corrupt: self.corrupt / 100.0,
            resegment: self.resegment / 100.0,
            ..no_impairments()
        }
    }

    pub(super) const fn lower_layer(&self) -> LowerLayer {
        match self.stack {
            Stack::Optimized => LowerLayer::Optimized,
            Stack::Layered => LowerLayer::Layered,
        }
    }

    pub(super) const fn has_crc(&self) -> bool {
        self.crc
    }

    /// Fails for an option that another one would make ineffective.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let cut = [("--corrupt", self.corrupt), ("--resegment", self.resegment)];
        for (name, percent) in cut {
            ensure!(
                percent == 0.0 || self.super_frames.0.is_none(),
                "{name} needs ordinary frames: leave out --super-frames"
            );
        }
        Ok(())
    }

    pub(crate) const fn total_bytes(&self) -> u64 {
        self.bytes.saturating_mul(2)
    }
}

/// Returns a configuration with room for all frames that might be held.
fn no_impairments() -> ImpairConfig {
    ImpairConfig { held_max: IMPAIRED_QUEUE, ..ImpairConfig::default() }
}

fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("at most 1 s")
}

fn nanos<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(nanos_of(*duration))
}

fn size_in(text: &str, low: u64, high: u64) -> Result<usize, String> {
    let bytes = size::parse(text)?;
    if !(low..=high).contains(&bytes) {
        return Err(format!("not from {} to {}", size::format(low), size::format(high)));
    }
    usize::try_from(bytes).map_err(|_| "too large".into())
}

fn message_len(text: &str) -> Result<usize, String> {
    size_in(text, 1, 16 << 20)
}

fn mtu(text: &str) -> Result<usize, String> {
    let bytes = size::parse(text)?;
    if !(256..=65_535).contains(&bytes) {
        return Err("an MTU is from 256 to 65535".into());
    }
    usize::try_from(bytes).map_err(|_| "too large".into())
}

fn latency(text: &str) -> Result<Duration, String> {
    let latency = units::duration(text)?;
    if latency > Duration::from_secs(1) { Err("at most 1s".into()) } else { Ok(latency) }
}

fn rate(text: &str) -> Result<u64, String> {
    let rate = units::rate(text)?;
    // At a lower rate, a full queue of frames would take longer than any timeout.
    if rate < RATE_MIN { Err("at least 1M".into()) } else { Ok(rate) }
}

fn super_frames(text: &str) -> Result<SuperFrames, String> {
    match text {
        "off" => Ok(SuperFrames(None)),
        "on" => Ok(SuperFrames(NonZeroUsize::new(SUPER_FRAME_LEN_MAX))),
        size => size_in(size, 1 << 10, SUPER_FRAME_LEN_MAX as u64)
            .map(|bytes| SuperFrames(NonZeroUsize::new(bytes)))
            .map_err(|error| format!("neither on, nor off, nor a size: {error}")),
    }
}

/// Largest payload that fits, with its headers, into the largest IPv4 datagram.
const SUPER_FRAME_LEN_MAX: usize = 63 << 10;
/// Frames in flight on an impaired link: several windows.
const IMPAIRED_QUEUE: usize = 1 << 16;
const RATE_MIN: u64 = 1_000_000;
