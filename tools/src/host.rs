//! What every command on a device begins with: an RNIC, an endpoint on the device, a domain.

use std::time::Duration;

use clap::ValueEnum;
use urnic::driver::{ConnectOptions, Endpoint, EndpointConfig, random_seed};
use urnic::mpa::startup::StartupConfig;
use urnic::port::{ListenParams, LowerLayer};
use urnic::verbs::{Pd, Rnic, RnicConfig};

use anyhow::{Context, bail};

use crate::device::{self, DeviceSpec};
use crate::units;

/// Options of every command on a device.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct StackOptions {
    /// The device: kernel, tap:NAME,…, packet:IFACE,… or xdp:IFACE,… (see below)
    #[arg(long, value_name = "DEVICE", default_value = "kernel", help_heading = STACK)]
    pub(crate) dev: DeviceSpec,

    /// How MPA uses TCP; kernel TCP is always layered, the others are optimized unless told
    #[arg(long, value_enum, help_heading = STACK)]
    pub(crate) stack: Option<StackKind>,

    /// Ask the peer for markers in what it sends; give it at both ends for both directions
    #[arg(long, help_heading = STACK)]
    pub(crate) markers: bool,

    /// Do without CRCs, if the peer was started with this too
    #[arg(long, help_heading = STACK)]
    pub(crate) no_crc: bool,

    /// How long to wait for a peer that does not answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration,
          help_heading = STACK)]
    pub(crate) timeout: Duration,
}

/// The heading of these options.
const STACK: &str = "Device and protocol";

/// How MPA uses TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StackKind {
    /// Segments hold whole FPDUs; received ones are placed in any order (RFC 5044 Appendix A)
    Optimized,
    /// TCP is a stream of octets (RFC 5044 §5)
    Layered,
}

impl StackKind {
    /// As it is reported.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::Layered => "layered",
        }
    }
}

impl StackOptions {
    /// The stack that the options select.
    pub(crate) const fn stack_kind(&self) -> StackKind {
        match self.stack {
            Some(kind) => kind,
            None if self.dev.is_kernel() => StackKind::Layered,
            None => StackKind::Optimized,
        }
    }

    const fn lower_layer(&self) -> LowerLayer {
        match self.stack_kind() {
            StackKind::Optimized => LowerLayer::Optimized,
            StackKind::Layered => LowerLayer::Layered,
        }
    }

    fn startup(&self) -> StartupConfig {
        // A peer may be siw, and nothing tells before it stalls.
        let nudge = true;
        StartupConfig {
            markers: self.markers,
            crc: !self.no_crc,
            nudge,
            ..StartupConfig::default()
        }
    }

    /// What to connect with.
    pub(crate) fn connect_options(&self, private_data: Vec<u8>) -> ConnectOptions {
        let (startup, lower_layer) = (self.startup(), self.lower_layer());
        ConnectOptions { startup, private_data, lower_layer, ..ConnectOptions::default() }
    }

    /// What to listen with.
    pub(crate) fn listen_params(&self) -> ListenParams {
        let (startup, lower_layer) = (self.startup(), self.lower_layer());
        ListenParams { startup, lower_layer, ..ListenParams::default() }
    }
}

/// An endpoint on the device of a command, turned by the command's own thread.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) rnic: Rnic,
    pub(crate) pd: Pd,
    pub(crate) endpoint: Endpoint,
    pub(crate) options: StackOptions,
}

impl Host {
    /// Opens the device. The thread looks for work for `spin` before it sleeps.
    ///
    /// # Errors
    /// When that is not possible; the message says what to do.
    pub(crate) fn open(options: &StackOptions, spin: Duration) -> anyhow::Result<Self> {
        if options.dev.is_kernel() && options.stack == Some(StackKind::Optimized) {
            bail!(
                "--stack optimized needs a device whose TCP is ours, such as --dev tap:NAME,…: \
                 over the kernel's TCP, MPA is always layered"
            );
        }
        let seed = random_seed().context("drawing a random number")?;
        let rnic = Rnic::new(RnicConfig { seed });
        let config = EndpointConfig { own_thread: false, spin, ..EndpointConfig::default() };
        let endpoint = device::open(&options.dev, &rnic, &config)?;
        let pd = rnic.alloc_pd();
        Ok(Self { rnic, pd, endpoint, options: options.clone() })
    }
}

impl Host {
    /// What to say where checksums were found wrong; `None` where none was.
    pub(crate) fn checksum_advice(&self) -> Option<String> {
        let wrong = self.endpoint.drops().ok()?.tcp_checksum;
        let dev = &self.options.dev;
        (wrong > 0).then(|| {
            format!(
                "frames with wrong TCP checksums arrive on {dev} ({wrong} dropped). If the sender \
                 is on this machine it may leave checksums to a card that is not there: 'ethtool \
                 -K PEER tx off', PEER being the interface at the other end of the link, makes it \
                 finish them"
            )
        })
    }
}

/// How long a thread that waits looks for work before it sleeps: longer than most answers take on a
/// link, short enough to leave a core to others.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
