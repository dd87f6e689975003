//! Survey of the fabric: nodes, cables and the tables that the subnet manager programmed, read hop
//! by hop from one node.

use std::collections::HashMap;
use std::io;

use super::IbsimError;
use super::client::Client;
use crate::wire::address::{Guid, Lid, PKey};
use crate::wire::smp::{HOPS_MAX, NodeInfo, PortSetup, SMP_DATA_LEN, SmpAttribute, p_keys};

const NODES_MAX: usize = 4096;
/// Entries of a block of a linear forwarding table.
const LINEAR_BLOCK: usize = 64;
/// Groups of a block of a multicast forwarding table.
const MULTICAST_BLOCK: usize = 32;
/// Ports of one position in a multicast forwarding table.
const POSITION_PORTS: u8 = 16;
/// Most blocks of groups that are read: 1024 groups.
const MULTICAST_BLOCKS_MAX: u32 = 32;

/// A switch, by the GUID of its node, and one of its ports.
pub type SwitchPort = (Guid, u8);

/// Other end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Port of a host.
    Port(Guid),
    /// A switch, and its port.
    Switch(Guid, u8),
}

/// Tables and cables of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchTables {
    /// Output port for each LID; 255 for none.
    pub linear: Vec<u8>,
    /// Mask of output ports for each multicast group, by its number.
    pub multicast: Vec<u64>,
    /// Cables of its ports.
    pub cables: HashMap<u8, Peer>,
}

/// Port of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndPort {
    /// Switch port that it is cabled to.
    pub at: Option<SwitchPort>,
    /// Settings of the port.
    pub setup: PortSetup,
    /// Keys of the partitions that the port is in.
    pub p_keys: Vec<PKey>,
}

/// The fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Switches, by the GUID of the node.
    pub switches: HashMap<Guid, SwitchTables>,
    /// Ports of hosts, by their GUID.
    pub ports: HashMap<Guid, EndPort>,
}

impl Survey {
    pub(super) fn read(client: &mut Client) -> Result<Self, IbsimError> {
        let name = client.simulator().to_owned();
        let mut survey = Self::default();
        survey.walk(client).map_err(|cause| IbsimError::Protocol { name, cause })?;
        Ok(survey)
    }

    fn walk(&mut self, client: &mut Client) -> io::Result<()> {
        // With the switch and port by which each node was reached.
        let mut routes: Vec<(Vec<u8>, Option<SwitchPort>)> = vec![(Vec::new(), None)];
        let mut at = 0;
        while let Some((route, from)) = routes.get(at).cloned() {
            at += 1;
            let Some(info) = client.ask(SmpAttribute::NodeInfo, 0, &route)? else { continue };
            let Ok(info) = NodeInfo::parse(&info) else { continue };
            let here = if info.is_switch {
                Peer::Switch(info.node_guid, info.local_port)
            } else {
                Peer::Port(info.port_guid)
            };
            if let Some((switch, port)) = from
                && let Some(tables) = self.switches.get_mut(&switch)
            {
                tables.cables.insert(port, here);
            }
            if !info.is_switch {
                self.end_port(client, &route, info, from)?;
                // The first node of the survey has a switch behind its port.
                if from.is_none() {
                    routes.push((vec![info.local_port], None));
                }
                continue;
            }
            let is_known = self.switches.contains_key(&info.node_guid);
            if is_known || route.len() >= HOPS_MAX || self.switches.len() >= NODES_MAX {
                continue;
            }
            let tables = tables(client, &route, info.ports)?;
            self.switches.insert(info.node_guid, tables);
            for port in 1..=info.ports {
                let setup = client.ask(SmpAttribute::PortInfo, port.into(), &route)?;
                let setup = setup.and_then(|setup| PortSetup::parse(&setup).ok());
                if setup.is_some_and(|setup| setup.is_linked) {
                    let further = [&route[..], &[port]].concat();
                    routes.push((further, Some((info.node_guid, port))));
                }
            }
        }
        Ok(())
    }

    fn end_port(
        &mut self,
        client: &mut Client,
        route: &[u8],
        info: NodeInfo,
        from: Option<SwitchPort>,
    ) -> io::Result<()> {
        if self.ports.len() >= NODES_MAX {
            return Ok(());
        }
        let setup = client.ask(SmpAttribute::PortInfo, info.local_port.into(), route)?;
        let keys = client.ask(SmpAttribute::PKeyTable, 0, route)?;
        if let Some(setup) = setup.and_then(|setup| PortSetup::parse(&setup).ok()) {
            let p_keys = keys.map(|keys| p_keys(&keys)).unwrap_or_default();
            let port = self.ports.entry(info.port_guid);
            let port = port.or_insert(EndPort { at: from, setup, p_keys });
            port.at = port.at.or(from);
        }
        Ok(())
    }

    /// Returns the ports that receive a packet of one port, as the switches forward it.
    #[must_use]
    pub fn destinations(&self, from: Guid, dlid: Lid) -> Vec<Guid> {
        let mut found = Vec::new();
        let Some((switch, port)) = self.ports.get(&from).and_then(|port| port.at) else {
            return found;
        };
        let mut hops = vec![(switch, port)];
        let mut budget = HOPS_MAX * 16;
        while let Some((switch, came_by)) = hops.pop() {
            let Some(tables) = self.switches.get(&switch) else { continue };
            // Ends a loop in the manager's tables.
            budget = match budget.checked_sub(1) {
                Some(budget) => budget,
                None => break,
            };
            for port in tables.ports_to(dlid, came_by) {
                match tables.cables.get(&port) {
                    Some(Peer::Port(guid)) if !found.contains(guid) => found.push(*guid),
                    Some(Peer::Switch(next, by)) => hops.push((*next, *by)),
                    Some(Peer::Port(_)) | None => {}
                }
            }
        }
        found
    }
}

impl SwitchTables {
    fn ports_to(&self, dlid: Lid, came_by: u8) -> Vec<u8> {
        if !dlid.is_multicast() {
            let port = self.linear.get(usize::from(dlid.0)).copied();
            return port.filter(|port| *port != NO_PORT && *port != 0).into_iter().collect();
        }
        let group = usize::from(dlid.0 - Lid::MULTICAST_FIRST.0);
        let mask = self.multicast.get(group).copied().unwrap_or(0);
        (1..64).filter(|port| mask >> port & 1 == 1 && *port != came_by).collect()
    }
}

const NO_PORT: u8 = 255;

fn tables(client: &mut Client, route: &[u8], ports: u8) -> io::Result<SwitchTables> {
    let mut tables = SwitchTables::default();
    let Some(info) = client.ask(SmpAttribute::SwitchInfo, 0, route)? else { return Ok(tables) };
    let top = usize::from(u16::from_be_bytes([info[6], info[7]]));
    let blocks = u32::try_from(top / LINEAR_BLOCK).unwrap_or(0);
    for block in 0..=blocks {
        let Some(data) = client.ask(SmpAttribute::LinearForwarding, block, route)? else { break };
        tables.linear.extend(data);
    }
    tables.linear.truncate(top + 1);
    for block in 0..multicast_blocks(&info) {
        let mut masks = [0_u64; MULTICAST_BLOCK];
        for position in 0..=(ports / POSITION_PORTS).min(3) {
            let modifier = u32::from(position) << 28 | block;
            let data = client.ask(SmpAttribute::MulticastForwarding, modifier, route)?;
            let Some(data) = data else { return Ok(tables) };
            for (mask, pair) in masks.iter_mut().zip(data.chunks_exact(2)) {
                let ports = u64::from(u16::from_be_bytes([pair[0], pair[1]]));
                *mask |= ports << (u32::from(position) * u32::from(POSITION_PORTS));
            }
        }
        tables.multicast.extend(masks);
    }
    Ok(tables)
}

/// SwitchInfo has MulticastFDBCap at byte 4, and at byte 18 MulticastFDBTop, which a manager may
/// leave unset. An empty block is not the last one: its groups may have members at other switches.
fn multicast_blocks(info: &[u8; SMP_DATA_LEN]) -> u32 {
    let cap = usize::from(u16::from_be_bytes([info[4], info[5]]));
    let top = Lid(u16::from_be_bytes([info[18], info[19]]));
    let groups = match top.0.checked_sub(Lid::MULTICAST_FIRST.0) {
        Some(last) => cap.min(usize::from(last) + 1),
        None => cap,
    };
    u32::try_from(groups.div_ceil(MULTICAST_BLOCK)).unwrap_or(0).min(MULTICAST_BLOCKS_MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::ibsim) const A: Guid = Guid(1);
    pub(in crate::ibsim) const B: Guid = Guid(2);
    const C: Guid = Guid(3);
    const LEFT: Guid = Guid(11);
    const RIGHT: Guid = Guid(12);

    /// Returns A and B at one switch, C at another.
    pub(in crate::ibsim) fn survey() -> Survey {
        let port = |at| EndPort {
            at: Some(at),
            setup: PortSetup {
                prefix: 0,
                lid: Lid(1),
                sm_lid: Lid(1),
                is_active: true,
                is_linked: true,
                mtu_octets: 2048,
            },
            p_keys: vec![PKey(0xffff)],
        };
        let left = SwitchTables {
            linear: vec![255, 1, 2, 8, 255, 8],
            multicast: vec![0b1_0000_0110, 0b10],
            cables: [(1, Peer::Port(A)), (2, Peer::Port(B)), (8, Peer::Switch(RIGHT, 7))].into(),
        };
        let right = SwitchTables {
            linear: vec![255, 7, 7, 1, 255, 7],
            multicast: vec![0b1000_0010],
            cables: [(1, Peer::Port(C)), (7, Peer::Switch(LEFT, 8))].into(),
        };
        Survey {
            switches: [(LEFT, left), (RIGHT, right)].into(),
            ports: [(A, port((LEFT, 1))), (B, port((LEFT, 2))), (C, port((RIGHT, 1)))].into(),
        }
    }

    #[test]
    fn packets_go_where_the_tables_say_and_nowhere_else() {
        let survey = survey();
        assert_eq!(survey.destinations(A, Lid(2)), [B]);
        assert_eq!(survey.destinations(A, Lid(3)), [C]);
        assert_eq!(survey.destinations(C, Lid(1)), [A]);
        assert_eq!(survey.destinations(A, Lid(4)), [], "no port is said");
        assert_eq!(survey.destinations(A, Lid(40)), [], "beyond the table");
        assert_eq!(survey.destinations(A, Lid(5)), [], "a circle");
        assert_eq!(survey.destinations(Guid(9), Lid(1)), []);
    }

    /// A group without a port at this switch may have a lower number than a group with one.
    #[test]
    fn groups_are_read_up_to_the_last_that_the_switch_has_room_for() {
        let blocks = |cap: u16, top: u16| {
            let mut info = [0; SMP_DATA_LEN];
            info[4..6].copy_from_slice(&cap.to_be_bytes());
            info[18..20].copy_from_slice(&top.to_be_bytes());
            multicast_blocks(&info)
        };
        assert_eq!(blocks(1024, 0), 32);
        assert_eq!(blocks(33, 0), 2);
        assert_eq!(blocks(u16::MAX, 0), MULTICAST_BLOCKS_MAX);
        assert_eq!(blocks(1024, 0xc000), 1);
        assert_eq!(blocks(1024, 0xc020), 2);
        assert_eq!(blocks(1024, 0xfffe), 32);
    }

    #[test]
    fn packets_to_a_group_go_by_all_its_ports_but_the_one_they_came_by() {
        let survey = survey();
        let mut reached = survey.destinations(A, Lid(0xc000));
        reached.sort_by_key(|guid| guid.0);
        assert_eq!(reached, [B, C]);
        assert_eq!(survey.destinations(B, Lid(0xc001)), [A], "a sender that is no member");
        assert_eq!(survey.destinations(A, Lid(0xc001)), []);
        assert_eq!(survey.destinations(A, Lid(0xc002)), []);
    }
}
