//! The settings of devices (`--dev KIND:NAME,key=value,…`): each with a value that works and values
//! that are refused.

use crate::options::run::Case;
use crate::options::scene::Device;
use crate::options::table::Expect::{self, Ends, Refused, Works};

/// One setting. `KIND` and `IFACE` are replaced by the device; the worker's address ends in
/// `WORKER`.
struct Key {
    name: &'static str,
    devices: &'static [Device],
    /// A whole command line.
    ordinary: (&'static str, Expect),
    /// Values that the command line parser refuses.
    extreme: &'static [&'static str],
}

const ALL: &[Device] = &[Device::Tap, Device::Packet, Device::Xdp];
const PING: &str = "ping 10.7.0.2:7174 --count 1 --timeout 5s --dev KIND:IFACE,ip=10.7.0.WORKER/24";

const KEYS: &[Key] = &[
    Key {
        name: "ip",
        devices: ALL,
        ordinary: ("", Works),
        extreme: &[
            "ip",
            "ip=",
            "ip=10.0.0.1/33",
            "ip=10.0.0.1/",
            "ip=10.0.0.256/24",
            "ip=fd07::1/64",
            "ip=größer/24",
        ],
    },
    Key {
        name: "ip6",
        devices: ALL,
        ordinary: (
            "!ping [fd07::2]:7174 --count 1 --timeout 5s --dev KIND:IFACE,ip6=fd07::WORKER/64",
            Works,
        ),
        extreme: &["ip6=", "ip6=fd07::1/129", "ip6=10.0.0.1/24", "ip6=fd07:::1/64"],
    },
    Key {
        name: "gw",
        devices: ALL,
        ordinary: ("gw=10.7.0.1", Works),
        extreme: &["ip=10.0.0.1/24,gw=", "ip=10.0.0.1/24,gw=10.0.0", "ip=10.0.0.1/24,gw=fd07::1"],
    },
    Key {
        name: "gw6",
        devices: ALL,
        ordinary: ("ip6=fd07::WORKER/64,gw6=fd07::1", Works),
        extreme: &["ip6=fd07::1/64,gw6=", "ip6=fd07::1/64,gw6=10.0.0.1"],
    },
    Key {
        name: "mac",
        devices: ALL,
        ordinary: ("mac=02:00:00:00:77:WORKER", Works),
        extreme: &[
            "ip=10.0.0.1/24,mac=",
            "ip=10.0.0.1/24,mac=02:00:00:00:00",
            "ip=10.0.0.1/24,mac=02:00:00:00:00:zz",
            "ip=10.0.0.1/24,mac=02:00:00:00:00:00:00",
        ],
    },
    Key {
        name: "vlan",
        devices: &[Device::Tap, Device::Packet],
        ordinary: (
            "!ping 10.8.0.2:7174 --count 1 --timeout 5s --dev KIND:IFACE,ip=10.8.0.WORKER/24,vlan=5",
            Works,
        ),
        extreme: &[
            "ip=10.0.0.1/24,vlan=",
            "ip=10.0.0.1/24,vlan=0",
            "ip=10.0.0.1/24,vlan=4095",
            "ip=10.0.0.1/24,vlan=-1",
        ],
    },
    Key {
        // A veth passes no VLAN tags to an AF_XDP socket.
        name: "vlan",
        devices: &[Device::Xdp],
        ordinary: (
            "!ping 10.8.0.2:7174 --count 1 --timeout 1s --dev KIND:IFACE,ip=10.8.0.WORKER/24,vlan=5",
            Ends,
        ),
        extreme: &["ip=10.0.0.1/24,vlan=4096"],
    },
    Key {
        // There is no DHCP server: the command must report it in time.
        name: "dhcp",
        devices: ALL,
        ordinary: ("!ping 10.7.0.2:7174 --count 1 --timeout 1s --dev KIND:IFACE,dhcp", Refused("")),
        extreme: &["dhcp=yes", "ip=10.0.0.1/24,dhcp"],
    },
    Key {
        name: "congestion",
        devices: ALL,
        ordinary: ("congestion=dctcp", Works),
        extreme: &[
            "ip=10.0.0.1/24,congestion",
            "ip=10.0.0.1/24,congestion=",
            "ip=10.0.0.1/24,congestion=DCTCP",
        ],
    },
    Key {
        name: "mtu",
        devices: &[Device::Tap],
        ordinary: ("mtu=1400", Works),
        extreme: &[
            "ip=10.0.0.1/24,mtu=",
            "ip=10.0.0.1/24,mtu=0",
            "ip=10.0.0.1/24,mtu=18446744073709551616",
        ],
    },
    Key {
        name: "vnet",
        devices: &[Device::Tap, Device::Packet],
        ordinary: ("vnet=off", Works),
        extreme: &["ip=10.0.0.1/24,vnet=", "ip=10.0.0.1/24,vnet=maybe"],
    },
    Key {
        name: "queues",
        devices: &[Device::Tap, Device::Packet],
        ordinary: ("queues=1", Works),
        extreme: &["ip=10.0.0.1/24,queues=0", "ip=10.0.0.1/24,queues=65", "ip=10.0.0.1/24,queues="],
    },
    Key {
        name: "queue",
        devices: &[Device::Xdp],
        ordinary: ("queue=0", Works),
        extreme: &["ip=10.0.0.1/24,queue=", "ip=10.0.0.1/24,queue=4294967296"],
    },
    Key {
        name: "zerocopy",
        devices: &[Device::Xdp],
        ordinary: ("zerocopy=off", Works),
        extreme: &["ip=10.0.0.1/24,zerocopy=", "ip=10.0.0.1/24,zerocopy=maybe"],
    },
];

/// The settings of a device.
pub(crate) fn of(device: Device) -> impl Iterator<Item = &'static str> {
    KEYS.iter().filter(move |key| key.devices.contains(&device)).map(|key| key.name)
}

pub(crate) fn cases(device: Device) -> Vec<Case> {
    let kind = match device {
        Device::Kernel => return Vec::new(),
        Device::Tap => "tap",
        Device::Packet => "packet",
        Device::Xdp => "xdp",
    };
    let mut cases = Vec::new();
    for key in KEYS.iter().filter(|key| key.devices.contains(&device)) {
        let mut push = |line: &str, expect| {
            let line = line.strip_prefix('!').map_or_else(
                || match line {
                    "" => PING.to_owned(),
                    more => format!("{PING},{more}"),
                },
                str::to_owned,
            );
            cases.push(Case {
                command: "ping".to_owned(),
                option: key.name.to_owned(),
                arguments: format!("!{}", line.replace("KIND", kind)),
                expect,
            });
        };
        push(key.ordinary.0, key.ordinary.1);
        for extreme in key.extreme {
            let line = format!("!ping 10.7.0.2:7174 --count 1 --dev KIND:IFACE,{extreme}");
            push(&line, Refused("--dev"));
        }
    }
    cases
}
