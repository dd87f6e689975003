//! Nodes of a fabric that `ibsim` simulates: a port to put a link on, and the switch that carries data
//! by the tables which the subnet manager programmed there.
//!
//! ibsim carries management datagrams only. Packets go between a [`Node`] and `urnic ibswitch`, in
//! datagrams of abstract Unix sockets whose names begin with ibsim's. Any process of the network namespace may take
//! such a name: each datagram's sender has to be of a user that is trusted.
//!
//! ```text
//!   control   requests to ibsim itself;  client   a place at a node: management datagrams
//!   plug      packets to and from the switch;  node   both: what a link is put on
//!   survey    the fabric, read hop by hop;  switch   packets by its tables
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

/// Why a place in a simulated fabric could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IbsimError {
    /// Nothing listens by that name.
    #[error(
        "there is no ibsim by the name '{name}' ({cause}): start it with IBSIM_SOCKNAME={name}, in \
         this network namespace"
    )]
    NoSimulator {
        /// The name.
        name: String,
        /// What the kernel said.
        cause: io::Error,
    },
    /// It did not answer, or not in its protocol.
    #[error("ibsim '{name}' does not answer as expected: {cause}")]
    Protocol {
        /// Its name.
        name: String,
        /// What went wrong.
        cause: io::Error,
    },
    /// It has no such node, or no place for one more client.
    #[error(
        "ibsim '{name}' gives no place at node '{node}': is it in its net file, and are fewer \
             clients connected than it takes?"
    )]
    Refused {
        /// Its name.
        name: String,
        /// The node.
        node: String,
    },
    /// ibsim is of a user that is not trusted.
    #[error(
        "ibsim '{name}': {foreign}: start another by another name, or add peer={} (ibswitch: --peer) if \
         that user may be the fabric",
        foreign.uid
    )]
    ForeignUser {
        /// Its name.
        name: String,
        /// Its user.
        foreign: ForeignUser,
    },
    /// A socket could not be had.
    #[error("{action}: {cause}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
}

const TRACE: &str = "urnic::ipoib";

/// Bytes of a name of ibsim or of a node.
const NAME_LEN_MAX: usize = 31;

fn address(name: &[u8]) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// Where the switch of a fabric takes packets.
fn switch_name(simulator: &str) -> Vec<u8> {
    format!("{simulator}:urnic-switch").into_bytes()
}

/// Where a port of it does.
fn port_name(simulator: &str, guid: Guid) -> Vec<u8> {
    format!("{simulator}:urnic-port-{:016x}", guid.0).into_bytes()
}

/// The port that a socket's name is of.
fn port_of(simulator: &str, name: &[u8]) -> Option<Guid> {
    let guid = name.strip_prefix(format!("{simulator}:urnic-port-").as_bytes())?;
    let guid = std::str::from_utf8(guid).ok().filter(|guid| guid.len() == 16)?;
    u64::from_str_radix(guid, 16).ok().map(Guid)
}
