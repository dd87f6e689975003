//! Parser for `ib:`: the text of a port of a simulated InfiniBand fabric.

use urnic_ipoib::multicast::Scope;
use urnic_ipoib::wire::address::PKey;

use crate::device::network::Network;
use crate::device::settings::{settings_of, user};

/// A port of an InfiniBand fabric, and this host's link on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbPort {
    /// Name of ibsim's sockets.
    pub simulator: String,
    /// Name of the node.
    pub node: String,
    /// Key of the partition.
    pub p_key: PKey,
    /// Scope of the link's multicast.
    pub scope: Scope,
    /// A user whose ibsim and `urnic ibswitch` are trusted, besides this process's user and root.
    pub peer: Option<u32>,
    /// This host in the network of the link.
    pub network: Network,
}

impl IbPort {
    /// Parses `sim=NAME,node=NODE,key=value,…`, in any order.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut own =
            [("sim", None), ("node", None), ("pkey", None), ("scope", None), ("peer", None)];
        let mut settings = Vec::new();
        for part in text.split(',') {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let Some((_, place)) = own.iter_mut().find(|(name, _)| *name == key) else {
                settings.push(part);
                continue;
            };
            if value.is_empty() {
                return Err(format!("'{part}': a value is wanted"));
            }
            if place.replace(value).is_some() {
                return Err(format!("'{key}' is said twice"));
            }
        }
        let [(_, simulator), (_, node), (_, p_key), (_, scope), (_, peer)] = own;
        let missing = |key| move || format!("{key}= is missing: such as ib:sim=sim,node=Hca2,ip=…");
        let simulator = simulator.ok_or_else(missing("sim"))?.to_owned();
        let node = node.ok_or_else(missing("node"))?.to_owned();
        let p_key = partition(p_key.unwrap_or("ffff"));
        let p_key = p_key.ok_or("'pkey': a partition is wanted, such as ffff or 8001")?;
        let scope = u8::from_str_radix(scope.unwrap_or("2"), 16).ok().and_then(Scope::new);
        let scope =
            scope.ok_or("'scope': a digit from 1 to e is wanted: 2 is the link, 5 a site")?;
        let peer = peer.map(user).transpose().map_err(|why| format!("'peer': {why}"))?;
        // The rest is parsed like the settings of other devices, whose names come first.
        let settings = settings.join(",");
        let text = if settings.is_empty() { "ib".into() } else { format!("ib,{settings}") };
        let network = settings_of(&text, &settings, &[])?.network;
        if network.mac.is_some() || network.vlan.is_some() {
            return Err("mac and vlan are of Ethernet: leave them out".into());
        }
        Ok(Self { simulator, node, p_key, scope, peer, network })
    }
}

/// RFC 4391 §4.1: a partition, whose number is not zero.
fn partition(text: &str) -> Option<PKey> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let key = PKey(u16::from_str_radix(digits, 16).ok()?);
    (key.full_member() != PKey(0x8000)).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceSpec, Kind};

    #[test]
    fn every_setting_of_a_port_is_read() {
        let ib: DeviceSpec =
            "ib:sim=x,node=Hca2,pkey=8001,scope=5,peer=1000,ip=10.0.0.1/8".parse().unwrap();
        assert_eq!(ib.addresses().unwrap().len(), 1);
        assert!(ib.interface().is_none() && ib.copies_to_send());
        let Kind::Ib(ib) = ib.kind() else { panic!("{ib:?}") };
        assert_eq!((&*ib.simulator, &*ib.node), ("x", "Hca2"));
        assert_eq!((ib.p_key, ib.scope, ib.peer), (PKey(0x8001), Scope::SITE_LOCAL, Some(1000)));
        let leased: DeviceSpec = "ib:sim=x,node=Hca2,dhcp".parse().unwrap();
        assert!(leased.uses_dhcp() && leased.addresses().unwrap().is_empty());
    }

    #[test]
    fn a_refusal_of_a_port_names_the_part_that_is_wrong() {
        for (text, part) in [
            ("ib", "which port"),
            ("ib:node=a,ip=10.0.0.1/8", "sim= is missing"),
            ("ib:sim=a,ip=10.0.0.1/8", "node= is missing"),
            ("ib:sim=a,node=,ip=10.0.0.1/8", "'node=': a value"),
            ("ib:sim=a,node=b", "needs an address"),
            ("ib:sim=a,node=b,node=c,ip=10.0.0.1/8", "'node' is said twice"),
            ("ib:sim=a,node=b,pkey=8000,ip=10.0.0.1/8", "'pkey': a partition"),
            ("ib:sim=a,node=b,pkey=18001,ip=10.0.0.1/8", "'pkey': a partition"),
            ("ib:sim=a,node=b,peer=me,ip=10.0.0.1/8", "'peer': the number of a user"),
            ("ib:sim=a,node=b,scope=f,ip=10.0.0.1/8", "'scope': a digit"),
            ("ib:sim=a,node=b,dhcp,vlan=7", "leave them out"),
            ("ib:sim=a,node=b,dhcp,ip=10.0.0.1/8", "not for you to choose"),
            ("ib:sim=a,node=b,ip=10.0.0.1/8,mac=02:00:00:00:00:01", "leave them out"),
            ("ib:sim=a,node=b,ip=10.0.0.1/8,mtu=9", "unknown setting 'mtu'"),
        ] {
            let why = text.parse::<DeviceSpec>().unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
