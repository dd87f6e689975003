//! Whether the interface of a device can carry frames now, and the command that mends it.

use std::fmt;
use std::fs;

use urnic::device::{DeviceSpec, Kind};
use urnic_netdev::interface::{Control, Name};

/// What is wrong with an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// It was not set up, or was taken down.
    Down(Name),
    /// Nothing is at its other end.
    NoCarrier {
        name: Name,
        /// Whether the carrier is a setting.
        is_tap: bool,
    },
}

impl Problem {
    /// Whether nothing will go out before the interface is set up.
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

/// What keeps the device from carrying frames, if the kernel tells.
pub(crate) fn problem(spec: &DeviceSpec) -> Option<Problem> {
    let name = spec.interface()?.name;
    let flags = Control::new().ok()?.flags(name).ok()?;
    if !flags.up() {
        return Some(Problem::Down(name));
    }
    // Unlike the flag, this does not lag behind.
    let carrier = fs::read_to_string(format!("/sys/class/net/{name}/carrier")).ok()?;
    let is_tap = matches!(spec.kind(), Kind::Tap(_));
    (carrier.trim() == "0").then_some(Problem::NoCarrier { name, is_tap })
}
