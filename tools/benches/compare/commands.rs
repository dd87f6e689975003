//! `urnic serve` and `urnic bw` or `urnic lat` as a user types them, on the devices of the other
//! cases.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;
use urnic_engine::time::Duration;

use crate::case::{Case, Ratio, Unit, case};
use crate::network::{address, ip};
use crate::programs::{Server, URNIC, output};

/// A device of a command, and the cases to compare it with.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    /// The link between the two.
    name: &'static str,
    /// The case of the same work in one process.
    bench: &'static str,
    /// The case that measures the same latency in one process.
    latency: &'static str,
    /// Settings of both.
    settings: &'static str,
    /// Prepares both devices, before the ends are started.
    prepare: fn() -> Result<[String; 2]>,
}

pub(crate) const PAIRS: [Pair; 5] = [
    Pair {
        name: "TAP, super-frames",
        bench: "urnic TAP, super-frames",
        latency: "urnic Write, 8 B, TAP, super-frames",
        settings: "",
        prepare: taps,
    },
    Pair {
        name: "TAP, MTU 1500",
        bench: "urnic TAP, MTU 1500",
        latency: "urnic Write, 8 B, TAP",
        settings: ",vnet=off",
        prepare: taps,
    },
    Pair {
        name: "vhost-user, frontend",
        bench: "urnic vhost-user, frontend",
        latency: "urnic Write, 8 B, vhost-user",
        settings: "",
        prepare: || {
            let path = std::env::temp_dir().join(format!("urnic-bw-{}", std::process::id()));
            Ok(["virtio-user", "vhost-user"].map(|kind| format!("{kind}:{}", path.display())))
        },
    },
    Pair {
        name: "vhost-user, frontend shares",
        bench: "urnic vhost-user, frontend shares",
        latency: "urnic Write, 8 B, vhost-user",
        settings: "",
        prepare: || {
            let path = std::env::temp_dir().join(format!("urnic-bw-{}", std::process::id()));
            let path = path.display();
            Ok([format!("virtio-user:{path},share"), format!("vhost-user:{path}")])
        },
    },
    Pair {
        name: "shm",
        bench: "urnic shm",
        latency: "urnic Write, 8 B, shm",
        settings: "",
        prepare: || {
            let path = std::env::temp_dir().join(format!("urnic-bw-shm-{}", std::process::id()));
            Ok(["", ",listen"].map(|role| format!("shm:{}{role}", path.display())))
        },
    },
];

/// Rate and latency on each device.
pub(crate) fn cases() -> Vec<Case> {
    let of = |pair: Pair| {
        let lat = |percentile: &str, key: &'static str| {
            case(&pair.case("lat, 8 B", percentile), Unit::Latency, move |_, _| {
                pair.measure(&["lat", "--op", "write", "--size", "8"], key)
            })
        };
        let seconds = move |time: Duration| time.as_secs_f64().to_string();
        [
            case(&pair.case("bw", ""), Unit::Rate, move |_, time| {
                pair.measure(&["bw", "--seconds", &seconds(time)], "gbps")
            }),
            lat("", "p50_us"),
            lat(", 99.9th percentile", "p99_9_us"),
        ]
    };
    PAIRS.into_iter().flat_map(of).collect()
}

/// Ratios of the commands to the same work in one process of the bench.
pub(crate) fn ratios() -> Vec<Ratio> {
    let of = |pair: Pair| {
        let named = |what: &str, command: &str, case: &str, aim| {
            let command = pair.case(command, "");
            Ratio::new(&format!("{what}, {}, to the bench", pair.name), (&command, case), aim)
        };
        [
            named("urnic bw", "bw", pair.bench, 0.9),
            named("urnic lat", "lat, 8 B", pair.latency, 1.1),
        ]
    };
    PAIRS.into_iter().flat_map(of).collect()
}

impl Pair {
    pub(crate) fn case(&self, command: &str, figure: &str) -> String {
        format!("urnic {command}, {}{figure}", self.name)
    }

    /// Returns one figure of a client, with a server of its own.
    pub(crate) fn measure(&self, client: &[&str], key: &str) -> Result<f64> {
        let [near, far] = (self.prepare)()?;
        let device = |text: &str, host| format!("{text},ip={}/24{}", address(host), self.settings);
        let listen = format!("{}:7174", address(2));
        let serve = ["serve", "--listen", &listen, "--dev", &device(&far, 2)];
        let server = Server::start(Command::new(URNIC).args(serve))?;
        let (command, rest) = client.split_first().context("a command")?;
        let mut program = Command::new(URNIC);
        program.args([*command, &listen, "--json", "--dev", &device(&near, 1)]).args(rest);
        let printed = output(&mut program);
        drop(server);
        for name in [near, far].iter().filter_map(|device| device.strip_prefix("tap:")) {
            ip(&format!("link del {name}"))?;
        }
        let printed: Value = serde_json::from_str(&printed?)?;
        printed[key].as_f64().with_context(|| format!("urnic {command} has no {key}: {printed}"))
    }
}

/// Makes two TAP interfaces on the bridge, which stay until they are deleted.
fn taps() -> Result<[String; 2]> {
    let names = ["tap-n", "tap-f"];
    for name in names {
        ip(&format!("tuntap add dev {name} mode tap"))?;
        ip(&format!("link set {name} up master bridge0"))?;
    }
    Ok(names.map(|name| format!("tap:{name}")))
}
