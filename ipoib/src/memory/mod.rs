//! Fabric in memory: a subnet manager with its administrator, and a switch that forwards as the
//! administrator has granted. Runs under the callers' clock; ports may be used by several threads.
//!
//! [`Fabric`] is the handle for tests and simulations; a link is attached to a [`MemoryPort`].

mod administrator;
mod port;
mod switch;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use administrator::RequestCounts;
pub use port::MemoryPort;
pub use switch::SwitchCounters;
pub(crate) use switch::{may_receive, may_send, payload_len};

use crate::fabric::PortInfo;
use crate::multicast::{MulticastMap, Scope};
use crate::wire::address::{Gid, Guid, Lid, PKey, QKey};
use crate::wire::mad::{MAD_LEN, Trap};
use administrator::Administrator;
use port::Plug;

/// Settings of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// Largest payload of a packet, in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu_octets: usize,
    /// Latency of packets and management datagrams, in nanoseconds.
    pub latency_ns: u64,
}

impl Default for FabricConfig {
    /// Returns packets of 2048 bytes (RFC 4391 §7), and no latency.
    fn default() -> Self {
        Self { mtu_octets: 2048, latency_ns: 0 }
    }
}

/// Handle to a fabric; clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct Fabric(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    config: FabricConfig,
    ports: BTreeMap<Lid, Plug>,
    administrator: Administrator,
    counters: SwitchCounters,
    next_lid: u16,
}

const SM_LID: Lid = Lid(1);

impl Fabric {
    /// Creates a fabric without ports, with the broadcast group of the default partition.
    #[must_use]
    pub fn new(config: FabricConfig) -> Self {
        let mut administrator = Administrator::new(SM_LID);
        let map = MulticastMap::new(Scope::LINK_LOCAL, PKey(0xffff));
        administrator.add_broadcast(map, QKey(0x8001_0b1b), config.mtu_octets);
        let counters = SwitchCounters::default();
        let state = State { config, ports: BTreeMap::new(), administrator, counters, next_lid: 2 };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Adds a port with its own LID.
    ///
    /// # Panics
    /// If all LIDs are in use.
    #[must_use]
    pub fn plug(&self, guid: Guid, p_keys: &[PKey]) -> MemoryPort {
        let mut state = self.lock();
        let lid = Lid(state.next_lid);
        assert!(!lid.is_multicast(), "a subnet has 48 Ki LIDs");
        state.next_lid += 1;
        let info = PortInfo {
            guid,
            prefix: Gid::DEFAULT_PREFIX,
            lid,
            sm_lid: state.administrator.lid,
            is_active: true,
            mtu_octets: state.config.mtu_octets,
            p_keys: p_keys.to_vec(),
        };
        state.ports.insert(lid, Plug::new(info));
        drop(state);
        MemoryPort::new(self.clone(), guid)
    }

    /// Returns a port that was added before, for a link that is restarted on it.
    #[must_use]
    pub fn port(&self, guid: Guid) -> Option<MemoryPort> {
        let is_there = self.lock().ports.values().any(|plug| plug.info.guid == guid);
        is_there.then(|| MemoryPort::new(self.clone(), guid))
    }

    /// Creates the broadcast group of a partition and scope, as a subnet manager for IPoIB.
    pub fn add_partition(&self, p_key: PKey, scope: Scope, q_key: QKey) {
        let mut state = self.lock();
        let mtu = state.config.mtu_octets;
        state.administrator.add_broadcast(MulticastMap::new(scope, p_key), q_key, mtu);
    }

    /// Disconnects or reconnects a port, and reports it to the others.
    pub fn set_link(&self, now_ns: u64, guid: Guid, is_active: bool) {
        let mut state = self.lock();
        let Some(plug) = state.ports.values_mut().find(|plug| plug.info.guid == guid) else {
            return;
        };
        plug.info.is_active = is_active;
        plug.clear();
        let gid = plug.info.gid();
        if !is_active {
            state.administrator.remove_port(gid);
        }
        let trap = if is_active { Trap::GidIn } else { Trap::GidOut };
        state.tell(now_ns, trap, gid);
    }

    /// Gives a port another LID, as a subnet manager may.
    pub fn move_port(&self, guid: Guid) {
        let mut state = self.lock();
        let Some(lid) =
            state.ports.iter().find(|(_, plug)| plug.info.guid == guid).map(|(lid, _)| *lid)
        else {
            return;
        };
        let next = Lid(state.next_lid);
        state.next_lid += 1;
        if let Some(mut plug) = state.ports.remove(&lid) {
            plug.info.lid = next;
            state.ports.insert(next, plug);
        }
    }

    /// Replaces the subnet manager by one at another LID, without members and subscriptions.
    pub fn restart_manager(&self) {
        let mut state = self.lock();
        let lid = Lid(state.next_lid);
        state.next_lid += 1;
        state.administrator.restart(lid);
        for plug in state.ports.values_mut() {
            plug.info.sm_lid = lid;
        }
    }

    /// Makes the administrator silent, or ends that.
    pub fn set_silent(&self, silent: bool) {
        self.lock().administrator.silent = silent;
    }

    /// Makes the administrator answer the next `answers` requests with BUSY.
    pub fn set_busy(&self, answers: u32) {
        self.lock().administrator.busy = answers;
    }

    /// Makes the administrator execute the next `answers` requests, and loses the answers.
    pub fn set_mute(&self, answers: u32) {
        self.lock().administrator.mute = answers;
    }

    /// Makes the administrator answer the next `answers` requests twice.
    pub fn set_double(&self, answers: u32) {
        self.lock().administrator.double = answers;
    }

    /// Returns counters of the administrator's requests.
    #[must_use]
    pub fn asked(&self) -> RequestCounts {
        self.lock().administrator.asked
    }

    /// Returns the number of members of a group; `None` if there is no such group.
    #[must_use]
    pub fn members(&self, mgid: Gid) -> Option<usize> {
        self.lock().administrator.members(mgid)
    }

    /// Returns the counters of the switch.
    #[must_use]
    pub fn counters(&self) -> SwitchCounters {
        self.lock().counters
    }

    /// Delivers a management datagram to a port as if `from` had sent it.
    pub fn forge_mad(&self, now_ns: u64, to: Guid, from: Lid, mad: &[u8; MAD_LEN]) {
        let mut state = self.lock();
        let plug = state.ports.values_mut().find(|plug| plug.info.guid == to);
        if let Some(plug) = plug {
            plug.push_mad(now_ns, from, *mad);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic loses at worst a packet.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
