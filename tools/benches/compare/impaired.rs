//! The engine and the kernel's TCP through the same bad link: `urnic impair` between two
//! interfaces, with a round trip of 20 ms and 1 Gbit/s.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};

use anyhow::{Result, bail};
use urnic_engine::port::LowerLayer;
use urnic_engine::time::Duration;

use crate::case::{Case, Ratio, Unit, case};
use crate::network::{self, Far, IMPAIRED, Link};
use crate::others;
use crate::writes::{self, Spec};

/// Names, and options of `urnic impair` besides rate and delay.
const CELLS: &[(&str, &str)] = &[
    ("no loss", ""),
    ("0.1 % loss", "--loss 0.1"),
    ("1 % loss", "--loss 1"),
    ("3 % loss", "--loss 3"),
    ("5 % reordered", "--reorder 5"),
    ("bursts", "--burst 0.02 --burst-length 8"),
    ("1 % loss, 5 % reordered", "--loss 1 --reorder 5"),
];

/// Writes in flight: more than a round trip's worth.
const DEPTH: usize = 128;

/// The kernel's addresses on the impaired interfaces.
pub(crate) const KERNEL: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 79, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 79, 0, 2))];

/// Senders, as figures name them.
const KINDS: [&str; 4] = ["urnic", "urnic, markers", "urnic, layered", "iperf3, CUBIC"];

/// Returns cases for each sender and each kind of link.
pub(crate) fn cases() -> Vec<Case> {
    let of = |&(name, options): &(&'static str, &'static str)| {
        KINDS.into_iter().enumerate().map(move |(kind, who)| {
            let run = move |far: &Far, time| through(far, options, kind, time);
            let case = case(&format!("{name}: {who}"), Unit::Goodput, run);
            let needs = (kind == 3).then_some(("iperf3", "iperf3"));
            Case { needs, ..case }
        })
    };
    CELLS.iter().flat_map(of).collect()
}

/// Ratios that the project aims at, cell by cell.
pub(crate) fn ratios() -> Vec<Ratio> {
    let of = |&(name, _): &(&str, &str)| {
        let figure = |kind: usize| format!("{name}: {}", KINDS[kind]);
        let (own, layered, kernel) = (figure(0), figure(2), figure(3));
        [
            Ratio::new(&format!("{name}, to the kernel"), (&own, &kernel), 1.0),
            Ratio::new(&format!("{name}, to layered"), (&own, &layered), 0.9),
        ]
    };
    CELLS.iter().flat_map(of).collect()
}

/// Returns the goodput in Mbit/s.
fn through(far: &Far, options: &str, kind: usize, time: Duration) -> Result<f64> {
    let _link = Impaired::start(far, &format!("--rate 1G --delay 10ms {options}"))?;
    let spec = Spec { depth: DEPTH, ..Spec::on(Link::Impaired { flow: 0 }) };
    let rate = match kind {
        0 => writes::write_rate(far, &spec, time)?,
        1 => writes::write_rate(far, &Spec { markers: true, ..spec }, time)?,
        2 => writes::write_rate(far, &Spec { lower_layer: LowerLayer::Layered, ..spec }, time)?,
        _ => others::iperf3_to(far, KERNEL[1], time)?,
    };
    Ok(rate * 1000.0)
}

/// A running `urnic impair`.
pub(crate) struct Impaired(Child);

impl Impaired {
    pub(crate) fn start(far: &Far, options: &str) -> Result<Self> {
        let child = Command::new(env!("CARGO_BIN_EXE_urnic"))
            .args(["impair", IMPAIRED[0], IMPAIRED[1], "--quiet"])
            .args(options.split_whitespace())
            .stdout(Stdio::null())
            .spawn()?;
        let mut link = Self(child);
        for _ in 0..100 {
            // `urnic impair` sets its interface up last.
            if network::is_up(IMPAIRED[1]) {
                network::ip(&format!("address add {}/24 dev {}", KERNEL[0], IMPAIRED[0]))?;
                network::ip(&format!("link set {} up", IMPAIRED[0]))?;
                far.adopt(IMPAIRED[1], KERNEL[1])?;
                return Ok(link);
            }
            if let Some(status) = link.0.try_wait()? {
                bail!("urnic impair ended: {status}");
            }
            network::pause();
        }
        bail!("urnic impair makes no interfaces");
    }
}

impl Drop for Impaired {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}
