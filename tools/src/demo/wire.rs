//! The link of the demo: a pair of memory devices, recorded and impaired.

use std::fs::File;
use std::io::BufWriter;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Context;
use urnic_engine::poll::{Lockstep, Poller};
use urnic_engine::port::{Port, PortConfig};
use urnic_engine::time::Duration;
use urnic_netdev::Device;
use urnic_netdev::impair::Impair;
use urnic_netdev::memory;
use urnic_netdev::record::{CaptureWriter, Directions, Recorder};

use super::end::End;
use super::options::Options;
use super::pattern::Random;

/// The recorder, if there is one, is behind the impairment.
pub(super) type Link = Impair<Box<dyn Device>>;
type Capture = CaptureWriter<BufWriter<File>>;

#[derive(Debug)]
pub(super) struct Wire {
    pub(super) link: Lockstep<Link, Link>,
    capture: Option<Capture>,
}

impl Wire {
    pub(super) fn new(
        options: &Options,
        random: &mut Random,
        ends: &[End; 2],
        addresses: [Ipv4Addr; 2],
    ) -> anyhow::Result<Self> {
        let capture = options.record.as_deref().map(create).transpose()?;
        let (a, b) = memory::pair(options.link());
        let mut poller = |device: memory::MemoryDevice, number: usize| {
            let end: &End = &ends[number];
            let device: Box<dyn Device> = match &capture {
                None => Box::new(device),
                Some(capture) => {
                    Box::new(Recorder::new(device, capture, end.name, Directions::Sent))
                }
            };
            let device = Impair::new(device, options.impairments(), random.next());
            let config = port_config(options, addresses[number]);
            Poller::new(Port::new(&end.rnic, config, device.capabilities()), device)
        };
        let link = Lockstep::new(poller(a, 0), poller(b, 1));
        Ok(Self { link, capture })
    }

    pub(super) const fn port(&mut self, end: usize) -> &mut Port {
        if end == 0 { &mut self.link.a.port } else { &mut self.link.b.port }
    }

    pub(super) const fn device(&self, end: usize) -> &Link {
        if end == 0 { &self.link.a.device } else { &self.link.b.device }
    }

    /// Returns the first error while writing it.
    pub(super) fn finish(&self, options: &Options) -> anyhow::Result<()> {
        let (Some(capture), Some(path)) = (&self.capture, &options.record) else { return Ok(()) };
        capture.finish().with_context(|| format!("cannot write {}", path.display()))
    }
}

fn create(path: &Path) -> anyhow::Result<Capture> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let capture = CaptureWriter::new(BufWriter::new(file));
    capture.with_context(|| format!("cannot write {}", path.display()))
}

/// Configures for a very bad link: TCP retransmits earlier and gives up later than elsewhere.
fn port_config(options: &Options, address: Ipv4Addr) -> PortConfig {
    let mut config = PortConfig::for_ipv4(address);
    config.tcp.rto_initial = RTO_INITIAL.max(4 * options.latency);
    config.tcp.user_timeout = GIVE_UP;
    config.tcp.syn_timeout = GIVE_UP;
    config.tcp.time_wait = TIME_WAIT;
    config
}

/// MPA's startup timeout may be needed mostly for retransmissions.
const RTO_INITIAL: Duration = Duration::from_millis(50);
/// Long enough for the peer's FIN to arrive after many retransmissions.
const TIME_WAIT: Duration = Duration::from_secs(3600);
/// Hours of virtual time take no real time.
const GIVE_UP: Duration = Duration::from_secs(4 * 3600);
