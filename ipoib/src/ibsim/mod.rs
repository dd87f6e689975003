//! Nodes of a fabric simulated by `ibsim`: a port for a link, and the switch that forwards data by
//! the tables that the subnet manager programmed.
//!
//! ibsim carries management datagrams only. Packets go between a [`Node`] and `urnic ibswitch`, by
//! abstract Unix sockets whose names begin with ibsim's. Any process of the network namespace may
//! take such a name, so the sender of each datagram must be a trusted user.
//!
//! ```text
//!   control   requests to ibsim itself;  client   a place at a node: management datagrams
//!   plug      packets to and from the switch;  node   both: the port of a link
//!   survey    reads the fabric hop by hop;  switch   forwards packets by its tables
//! ```

mod client;
mod control;
mod node;
mod plug;
mod survey;
mod switch;

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

use urnic_netdev::local_peer::ForeignUser;

pub use node::Node;
pub use survey::{EndPort, Peer, Survey, SwitchPort, SwitchTables};
pub use switch::{Switch, SwitchCounters};

use crate::wire::address::Guid;

/// Reasons why a place in a simulated fabric is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IbsimError {
    /// No socket with that name.
    #[error(
        "there is no ibsim by the name '{name}' ({cause}): start it with IBSIM_SOCKNAME={name}, in \
         this network namespace"
    )]
    NoSimulator {
        /// The name.
        name: String,
        /// Error of the kernel.
        cause: io::Error,
    },
    /// ibsim did not answer, or not in its protocol.
    #[error("ibsim '{name}' does not answer as expected: {cause}")]
    Protocol {
        /// Name of the ibsim.
        name: String,
        /// The failure.
        cause: io::Error,
    },
    /// ibsim has no such node, or no room for another client.
    #[error(
        "ibsim '{name}' gives no place at node '{node}': is it in its net file, and are fewer \
             clients connected than it takes?"
    )]
    Refused {
        /// Name of the ibsim.
        name: String,
        /// The node.
        node: String,
    },
    /// ibsim runs as a user that is not trusted.
    #[error(
        "ibsim '{name}': {foreign}: start another by another name, or add peer={} (ibswitch: --peer) if \
         that user may be the fabric",
        foreign.uid
    )]
    ForeignUser {
        /// Name of the ibsim.
        name: String,
        /// User of the process.
        foreign: ForeignUser,
    },
    /// A socket could not be created.
    #[error("{action}: {cause}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// Error of the kernel.
        cause: io::Error,
    },
}

const TRACE: &str = "urnic::ipoib";

const NAME_LEN_MAX: usize = 31;

fn address(name: &[u8]) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

fn switch_name(simulator: &str) -> Vec<u8> {
    format!("{simulator}:urnic-switch").into_bytes()
}

fn port_name(simulator: &str, guid: Guid) -> Vec<u8> {
    format!("{simulator}:urnic-port-{:016x}", guid.0).into_bytes()
}

fn port_of(simulator: &str, name: &[u8]) -> Option<Guid> {
    let guid = name.strip_prefix(format!("{simulator}:urnic-port-").as_bytes())?;
    let guid = std::str::from_utf8(guid).ok().filter(|guid| guid.len() == 16)?;
    u64::from_str_radix(guid, 16).ok().map(Guid)
}
