//! Subnet-management datagrams with a directed route, by which a manager reads ports and switches.
//!
//! ```text
//!   0 base version | class 0x81 | class version | method | status (2) | hop pointer | hop count
//!   8 transaction (8) | attribute (2) | reserved (2) | modifier (4) | M_Key (8)
//!  32 source LID (2) | destination LID (2) | reserved (28) | 64 data (64)
//! 128 initial path (64) | 192 return path (64)
//! ```

use super::address::{Guid, Lid, PKey};
use super::mad::MAD_LEN;
use super::{TooShort, take};

/// Length of the data, in bytes.
pub const SMP_DATA_LEN: usize = 64;
/// Most hops of a directed route.
pub const HOPS_MAX: usize = 63;
const DATA_AT: usize = 64;
const PATH_AT: usize = 128;
const CLASS_DIRECTED: u8 = 0x81;
const GET: u8 = 1;
const GET_RESP: u8 = 0x81;

/// Attribute that a manager reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SmpAttribute {
    /// Kind of the node.
    NodeInfo,
    /// Capabilities of a switch.
    SwitchInfo,
    /// Settings of a port.
    PortInfo,
    /// Partition keys of a port, 32 at a time.
    PKeyTable,
    /// Port for each LID, 64 LIDs at a time.
    LinearForwarding,
    /// Ports for each multicast group, 32 groups at a time.
    MulticastForwarding,
}

impl SmpAttribute {
    const fn number(self) -> u16 {
        match self {
            Self::NodeInfo => 0x11,
            Self::SwitchInfo => 0x12,
            Self::PortInfo => 0x15,
            Self::PKeyTable => 0x16,
            Self::LinearForwarding => 0x19,
            Self::MulticastForwarding => 0x1b,
        }
    }
}

/// Returns a request along a directed route, which lists the outgoing port of each node.
///
/// # Panics
/// If the route is longer than [`HOPS_MAX`].
#[must_use]
pub fn request(
    attribute: SmpAttribute,
    modifier: u32,
    transaction: u64,
    route: &[u8],
) -> [u8; MAD_LEN] {
    assert!(route.len() <= HOPS_MAX, "a route has 63 hops at most");
    let hops = u8::try_from(route.len()).unwrap_or(0);
    let parts: [&[u8]; 9] = [
        &[1, CLASS_DIRECTED, 1, GET, 0, 0, 0, hops],
        &transaction.to_be_bytes(),
        &attribute.number().to_be_bytes(),
        &[0; 2],
        &modifier.to_be_bytes(),
        &[0; 8],
        &Lid::PERMISSIVE.0.to_be_bytes(),
        &Lid::PERMISSIVE.0.to_be_bytes(),
        // The path begins at its second byte.
        &[0; PATH_AT - 36 + 1],
    ];
    let mut mad = [0; MAD_LEN];
    for (octet, value) in mad.iter_mut().zip(parts.into_iter().flatten().chain(route)) {
        *octet = *value;
    }
    mad
}

/// Returns transaction and data of an answer; `None` if it is no answer, or not successful.
#[must_use]
pub fn answer(mad: &[u8; MAD_LEN]) -> Option<(u64, [u8; SMP_DATA_LEN])> {
    let mut rest = &mad[..];
    let [base, class, version, method, s0, s1, _, _] = take(&mut rest).ok()?;
    let transaction = u64::from_be_bytes(take(&mut rest).ok()?);
    // The top bit of the status is the direction.
    let is_success = s0 & 0x7f == 0 && s1 == 0;
    let is_answer = (base, class, version, method) == (1, CLASS_DIRECTED, 1, GET_RESP);
    let data = mad.get(DATA_AT..)?.first_chunk()?;
    (is_answer && is_success).then_some((transaction, *data))
}

/// Kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// True for a switch, false for a host's adapter.
    pub is_switch: bool,
    /// Number of ports, port 0 of a switch not counted.
    pub ports: u8,
    /// GUID of the node, assigned by the manufacturer.
    pub node_guid: Guid,
    /// GUID of the port by which it was reached.
    pub port_guid: Guid,
    /// Number of the port by which it was reached.
    pub local_port: u8,
}

impl NodeInfo {
    /// Parses the data of an answer.
    ///
    /// # Errors
    /// If there are too few bytes.
    pub fn parse(mut data: &[u8]) -> Result<Self, TooShort> {
        let rest = &mut data;
        let [_, _, kind, ports] = take(rest)?;
        let _system: [u8; 8] = take(rest)?;
        let node_guid = Guid(u64::from_be_bytes(take(rest)?));
        let port_guid = Guid(u64::from_be_bytes(take(rest)?));
        let [_, _, _, _, _, _, _, _, local_port] = take(rest)?;
        Ok(Self { is_switch: kind == 2, ports, node_guid, port_guid, local_port })
    }
}

/// Settings of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSetup {
    /// Prefix of its subnet.
    pub prefix: u64,
    /// LID in the subnet.
    pub lid: Lid,
    /// LID of the subnet manager.
    pub sm_lid: Lid,
    /// True if the port is Active: it carries packets.
    pub is_active: bool,
    /// True if another port is at the end of its cable.
    pub is_linked: bool,
    /// Largest payload that it can carry, in bytes.
    pub mtu_octets: usize,
}

impl PortSetup {
    /// Parses the data of an answer.
    ///
    /// # Errors
    /// If there are too few bytes.
    pub fn parse(mut data: &[u8]) -> Result<Self, TooShort> {
        let rest = &mut data;
        let _m_key: [u8; 8] = take(rest)?;
        let prefix = u64::from_be_bytes(take(rest)?);
        let lid = Lid(u16::from_be_bytes(take(rest)?));
        let sm_lid = Lid(u16::from_be_bytes(take(rest)?));
        let _capabilities: [u8; 12] = take(rest)?;
        let [state, _, _, _, _, _, _, _, _, mtu_cap] = take(rest)?;
        let mtu_octets = match mtu_cap & 0x0f {
            code @ 1..=5 => 128 << code,
            _ => 0,
        };
        // States: 1 Down, 2 Initialize, 3 Armed, 4 Active.
        let (is_active, is_linked) = (state & 0x0f == 4, state & 0x0f >= 2);
        Ok(Self { prefix, lid, sm_lid, is_active, is_linked, mtu_octets })
    }
}

/// Returns the partition keys of a block of a table.
#[must_use]
pub fn p_keys(data: &[u8]) -> Vec<PKey> {
    let (pairs, _) = data.as_chunks::<2>();
    let keys = pairs.iter().map(|pair| PKey(u16::from_be_bytes(*pair)));
    keys.filter(|key| key.full_member() != PKey(0x8000)).collect()
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;

    #[test]
    fn subnet_management_request_has_the_specified_octets() {
        let mad = request(SmpAttribute::PortInfo, 3, 0x0102_0304_0506_0708, &[1, 4]);
        let head = hex!(
            "01 81 01 01 0000 00 02 0102030405060708 0015 0000 00000003"
            "0000000000000000 ffff ffff"
        );
        assert_eq!(mad[..head.len()], head);
        assert!(mad[head.len()..PATH_AT].iter().all(|octet| *octet == 0));
        assert_eq!(mad[PATH_AT..PATH_AT + 4], [0, 1, 4, 0]);
        assert_eq!(answer(&mad), None, "a request is no answer");
        let mut back = mad;
        (back[3], back[4]) = (0x81, 0x80);
        assert_eq!(answer(&back).map(|(transaction, _)| transaction), Some(0x0102_0304_0506_0708));
        back[5] = 0x1c;
        assert_eq!(answer(&back), None, "not supported");
    }

    /// As OpenSM has set up the port of a node of ibsim.
    #[test]
    fn port_setup_of_opensm_is_parsed() {
        let mut data = [0; SMP_DATA_LEN];
        data[8] = 0xfe;
        data[9] = 0x80;
        data[16..20].copy_from_slice(&[0, 4, 0, 1]);
        (data[32], data[41]) = (0x14, 0x04);
        let setup = PortSetup::parse(&data).unwrap();
        assert_eq!((setup.prefix, setup.lid, setup.sm_lid), (0xfe80 << 48, Lid(4), Lid(1)));
        assert!(setup.is_active && setup.is_linked && setup.mtu_octets == 2048);
        data[32] = 0x12;
        let setup = PortSetup::parse(&data).unwrap();
        assert!(!setup.is_active && setup.is_linked);
        for len in 0..42 {
            assert!(PortSetup::parse(&data[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn empty_entries_are_no_partitions() {
        assert_eq!(p_keys(&hex!("ffff 8001 0000 8000 0001")), [0xffff, 0x8001, 1].map(PKey));
    }
}
