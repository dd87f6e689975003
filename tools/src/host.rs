//! Common start of every command on a device: an RNIC, an endpoint, a protection domain.

use std::cell::Cell;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use urnic::top::Shown;
use urnic::{
    ConnectOptions, Endpoint, EndpointConfig, LifeTimes, ListenParams, LowerLayer, Pd, Region,
    Rnic, RnicConfig, SendPath, StartupConfig, random_seed,
};
use urnic_engine::mpa::startup::Framing;

use anyhow::{Context, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::device::{self, DeviceSpec};
use crate::keys::{self, Key};
use crate::report::complain;
use crate::units;

/// Options of every command on a device.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct StackOptions {
    /// The device: kernel, tap:NAME,…, packet:IFACE,…, xdp:IFACE,… and others: --help has all
    #[arg(long, value_name = "DEVICE", default_value = "kernel", help_heading = STACK)]
    pub(crate) dev: DeviceSpec,

    /// Use of TCP by MPA; kernel TCP is always layered, the other devices are optimized by default
    #[arg(long, value_enum, help_heading = STACK)]
    pub(crate) stack: Option<StackKind>,

    /// Ask the peer to send markers; give this at both ends for both directions
    #[arg(long, help_heading = STACK)]
    pub(crate) markers: bool,

    /// Send without CRCs, if the peer was started with this too
    #[arg(long, help_heading = STACK)]
    pub(crate) no_crc: bool,

    /// Way of payload into frames: gathered from registered memory, or copied
    #[arg(long, value_enum, value_name = "PATH", default_value = "auto", help_heading = STACK)]
    pub(crate) send_path: SendPathKind,

    /// Time to wait for a peer that does not answer, or for the process at the other end of the
    /// device, in seconds or with a unit
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::seconds,
          help_heading = STACK)]
    pub(crate) timeout: Duration,

    /// Show connections and counters to 'urnic top', by a Unix socket that only you can reach
    #[arg(long, env = "URNIC_TOP", hide_env_values = true, help_heading = STACK,
          value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) top: bool,
}

/// Options of every client of 'urnic serve'.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ClientOptions {
    /// File with the key of this client, for a server with --keys: proves to the server that the
    /// client has it, and to the client that the server has it
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) stack: StackOptions,
}

/// The heading of these options.
const STACK: &str = "Device and protocol";

/// How MPA uses TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StackKind {
    /// Segments hold whole FPDUs; received ones are placed in any order (RFC 5044 Appendix A)
    Optimized,
    /// TCP is a stream of bytes (RFC 5044 §5)
    Layered,
}

/// How payload gets into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SendPathKind {
    /// The faster way on the device: a TAP interface or packet socket gathers runs of 4096 bytes or
    /// more
    Auto,
    /// The device gathers payload from registered memory: no copy in user space, unless the device
    /// copies
    Gather,
    /// Payload is copied into the frame, and its CRC computed there
    Stage,
}

impl From<SendPathKind> for SendPath {
    fn from(kind: SendPathKind) -> Self {
        match kind {
            SendPathKind::Auto => Self::Auto,
            SendPathKind::Gather => Self::Gather,
            SendPathKind::Stage => Self::Stage,
        }
    }
}

impl StackKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::Layered => "layered",
        }
    }
}

impl StackOptions {
    pub(crate) const fn stack_kind(&self) -> StackKind {
        match self.stack {
            Some(kind) => kind,
            None if self.dev.is_kernel() => StackKind::Layered,
            None => StackKind::Optimized,
        }
    }

    /// Options for a test without privileges.
    #[cfg(test)]
    pub(crate) fn kernel(timeout: Duration) -> Self {
        let dev = "kernel".parse().expect("a device that there is");
        let send_path = SendPathKind::Auto;
        Self { dev, stack: None, markers: false, no_crc: false, send_path, timeout, top: false }
    }

    const fn lower_layer(&self) -> LowerLayer {
        match self.stack_kind() {
            StackKind::Optimized => LowerLayer::Optimized,
            StackKind::Layered => LowerLayer::Layered,
        }
    }

    fn startup(&self) -> StartupConfig {
        // A peer may be siw, and nothing shows this before it stalls.
        let silence_probe = true;
        StartupConfig {
            markers: self.markers,
            crc: !self.no_crc,
            silence_probe,
            ..StartupConfig::default()
        }
    }

    pub(crate) fn connect_options(&self, private_data: Vec<u8>) -> ConnectOptions {
        let (startup, lower_layer) = (self.startup(), self.lower_layer());
        ConnectOptions { startup, private_data, lower_layer, ..ConnectOptions::default() }
    }

    pub(crate) fn listen_params(&self) -> ListenParams {
        let lower_layer = self.lower_layer();
        ListenParams { startup: self.startup(), lower_layer, ..ListenParams::default() }
    }
}

/// Polled by the command's own thread.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) rnic: Rnic,
    pub(crate) pd: Pd,
    pub(crate) endpoint: Endpoint,
    pub(crate) options: StackOptions,
    /// Key that a client of a server with keys proves to have.
    pub(crate) key: Option<Key>,
    /// Set after options without effect were reported, so that this happens once, not for each
    /// connection.
    is_noted: Cell<bool>,
    _shown: Option<Shown>,
}

/// Prints a failure and continues, for example if another user has the name of the folder.
fn shown(endpoint: &Endpoint) -> anyhow::Result<Option<Shown>> {
    match Shown::start(endpoint) {
        Ok(shown) => Ok(Some(shown)),
        Err(error) => {
            writeln!(io::stderr(), "urnic: --top: {error}; going on without")
                .context("standard error")?;
            Ok(None)
        }
    }
}

impl Host {
    /// The thread polls for `spin` before it sleeps. Errors say what to do.
    pub(crate) fn open(options: &StackOptions, spin: Duration) -> anyhow::Result<Self> {
        if options.dev.is_kernel() && options.stack == Some(StackKind::Optimized) {
            bail!(
                "--stack optimized needs a device with urnic's TCP, such as --dev tap:NAME,…: \
                 over the kernel's TCP, MPA is always layered"
            );
        }
        if options.dev.is_kernel() {
            allow_descriptors();
        }
        let seed = random_seed().context("drawing a random number")?;
        let rnic = Rnic::new(RnicConfig { seed });
        let mut life = LifeTimes::default();
        // A peer that connects and sends no Request is also a peer that does nothing.
        life.request = life.request.min(options.timeout);
        let send_path = options.send_path.into();
        let config = EndpointConfig {
            own_thread: false,
            spin,
            life,
            send_path,
            ..EndpointConfig::default()
        };
        let endpoint = device::open(&options.dev, &rnic, &config, options.timeout)?;
        let shown = if options.top { shown(&endpoint)? } else { None };
        let (pd, is_noted) = (rnic.alloc_pd(), Cell::new(false));
        let (options, key) = (options.clone(), None);
        Ok(Self { rnic, pd, endpoint, options, key, is_noted, _shown: shown })
    }

    /// Opens the device of a client.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub(crate) fn client(options: &ClientOptions, spin: Duration) -> anyhow::Result<Self> {
        let key = options.key.as_deref().map(keys::read_one).transpose().context("--key")?;
        Ok(Self { key, ..Self::open(&options.stack, spin)? })
    }

    #[cfg(test)]
    pub(crate) fn on_link(
        device: urnic_netdev::memory::MemoryDevice,
        address: std::net::Ipv4Addr,
        options: StackOptions,
    ) -> Self {
        let seed = u64::from(address.to_bits());
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let config = EndpointConfig { own_thread: false, ..EndpointConfig::default() };
        let port = urnic::PortConfig::for_ipv4(address);
        let endpoint = Endpoint::on_device(&rnic, device, port, &config).expect("an endpoint");
        Self {
            pd: rnic.alloc_pd(),
            rnic,
            endpoint,
            options,
            key: None,
            is_noted: Cell::new(false),
            _shown: None,
        }
    }
}

impl Host {
    /// Allocates memory for `len` bytes of transfers. It is published if the device sends published
    /// memory without a copy. Otherwise it is of huge pages if it fills at least half of one: a
    /// page of 2 MiB for each of a thousand connections with small messages would be 2 GiB.
    pub(crate) fn memory(&self, len: usize) -> io::Result<Arc<Region>> {
        // What cannot be published, for example beyond some descriptors, is copied for sending.
        if self.options.dev.sends_published()
            && let Ok(region) = Region::published(self.rnic.publisher(), len)
        {
            return Ok(region);
        }
        if len < HUGE_LEN_MIN { Region::anonymous(len) } else { Region::huge(len) }
    }

    /// `framing` is that of a connection with `payload` in this direction. Reports only once.
    pub(crate) fn note_framing(&self, framing: Framing, payload: Payload) {
        if !self.is_noted.replace(true) {
            without_effect(&self.options, framing, payload).iter().for_each(|line| complain(line));
        }
    }

    /// `None` if no checksum was wrong.
    pub(crate) fn checksum_advice(&self) -> Option<String> {
        let wrong = self.endpoint.drops().ok()?.tcp_checksum;
        let dev = &self.options.dev;
        (wrong > 0).then(|| {
            format!(
                "frames with wrong TCP checksums arrive on {dev} ({wrong} dropped). If the sender \
                 is on this machine it may leave checksums to a card that is not there. 'ethtool \
                 -K PEER tx off' makes it compute them; PEER is the interface at the other end \
                 of the link"
            )
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    ToPeer,
    FromPeer,
    Both,
}

/// A line for each option of this end that has no effect, or less than expected.
fn without_effect(options: &StackOptions, framing: Framing, payload: Payload) -> Vec<String> {
    let mut lines = Vec::new();
    if options.markers && payload != Payload::FromPeer && !framing.markers_to_peer {
        let only = if payload == Payload::Both {
            "only the server's payload has them"
        } else {
            "payload has none"
        };
        lines.push(format!(
            "--markers asks the server to send markers; {only}: start the server with --markers, too"
        ));
    }
    if options.no_crc && framing.crc {
        lines.push(
            "--no-crc: CRCs are used, because the server was started without --no-crc".into(),
        );
    }
    lines
}

/// Each connection over the kernel's TCP takes a descriptor.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // If the limit cannot be raised, opening a connection fails later.
    let _as_it_was = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Smallest length for which memory is of huge pages, in bytes.
const HUGE_LEN_MIN: usize = 1 << 20;

/// Time of polling before a sleep: longer than most answers take on a link, short enough to leave a
/// core to others.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
