//! Frames of an interface: headers, neighbours, routes and paths.

pub(super) mod demux;
mod discovery;
pub(super) mod emit;
pub(super) mod framing;
pub(super) mod icmp;
pub(super) mod neighbour;
pub(super) mod outlet;
pub(super) mod path;
pub(super) mod reassembly;
pub(super) mod route;

use urnic_netdev::Capabilities;

use crate::port::config::VlanId;
use crate::port::interface::framing::LinkFraming;
use crate::port::interface::neighbour::Neighbours;
use crate::port::interface::outlet::Refused;
use crate::port::interface::path::KnownPaths;
use crate::port::interface::reassembly::Reassembly;
use crate::siphash::Key;

#[derive(Debug)]
pub(super) struct Interface {
    pub(super) capabilities: Capabilities,
    pub(super) framing: LinkFraming,
    pub(super) link_up: bool,
    pub(super) neighbours: Neighbours,
    pub(super) paths: KnownPaths,
    pub(super) reassembly: Reassembly,
    pub(super) refused: Refused,
}

impl Interface {
    pub(super) fn new(capabilities: Capabilities, vlan: Option<VlanId>, table_key: Key) -> Self {
        Self {
            framing: LinkFraming::new(capabilities.medium, vlan),
            capabilities,
            link_up: true,
            neighbours: Neighbours::new(table_key),
            paths: KnownPaths::new(table_key),
            reassembly: Reassembly::default(),
            refused: Refused::default(),
        }
    }
}
