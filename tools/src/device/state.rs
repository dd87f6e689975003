//! Problems of an interface that keep a device from carrying frames, and their remedies.

use std::fmt;
use std::fs;

use urnic::device::{DeviceSpec, Kind};
use urnic_netdev::interface::{Control, Name};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    Down(Name),
    NoCarrier {
        name: Name,
        /// The carrier of a TAP interface is a setting.
        is_tap: bool,
    },
}

impl Problem {
    /// No frame can be sent before the interface is up.
    pub(crate) const fn is_down(&self) -> bool {
        matches!(self, Self::Down(_))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(name) => {
                write!(f, "{name} is down: set it up with 'ip link set dev {name} up'")
            }
            Self::NoCarrier { name, is_tap: true } => write!(
                f,
                "{name} has no carrier: give it one with 'ip link set dev {name} carrier on'"
            ),
            Self::NoCarrier { name, is_tap: false } => write!(
                f,
                "{name} has no carrier: its cable is out, or its other end is down ('ip link set \
                 dev PEER up', where that is an interface of this machine)"
            ),
        }
    }
}

pub(crate) fn problem(spec: &DeviceSpec) -> Option<Problem> {
    let name = spec.interface()?.name;
    let flags = Control::new().ok()?.flags(name).ok()?;
    if !flags.up() {
        return Some(Problem::Down(name));
    }
    // Always current, unlike the flag.
    let carrier = fs::read_to_string(format!("/sys/class/net/{name}/carrier")).ok()?;
    let is_tap = matches!(spec.kind(), Kind::Tap(_));
    (carrier.trim() == "0").then_some(Problem::NoCarrier { name, is_tap })
}
