//! A fabric in memory: a subnet manager with its administrator, and a switch that forwards by what
//! the administrator has granted. Under a clock that its users give; ports may live on several threads.
//!
//! [`Fabric`] is the handle that tests and simulations turn things with; [`MemoryPort`] is what a link
//! is plugged into.

mod administrator;
mod port;
mod switch;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use administrator::Asked;
pub use port::MemoryPort;
pub use switch::SwitchCounters;
pub(crate) use switch::{may_receive, may_send, payload_len};

use crate::fabric::PortInfo;
use crate::multicast::{MulticastMap, Scope};
use crate::wire::address::{Gid, Guid, Lid, PKey, QKey};
use crate::wire::mad::{MAD_LEN, Trap};
use administrator::Administrator;
use port::Plug;

/// What a fabric is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// Bytes of the largest payload of a packet: 256, 512, 1024, 2048 or 4096.
    pub mtu_octets: usize,
    /// How long packets and management datagrams are in flight, in nanoseconds.
    pub latency_ns: u64,
}

impl Default for FabricConfig {
    /// Packets of 2048 bytes (RFC 4391 §7), and no latency.
    fn default() -> Self {
        Self { mtu_octets: 2048, latency_ns: 0 }
    }
}

/// A handle on a fabric; clones are handles on the same one.
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

/// The subnet manager's own port.
const SM_LID: Lid = Lid(1);

impl Fabric {
    /// A fabric with no port, and the broadcast group of the default partition.
    #[must_use]
    pub fn new(config: FabricConfig) -> Self {
        let mut administrator = Administrator::new(SM_LID);
        let map = MulticastMap::new(Scope::LINK_LOCAL, PKey(0xffff));
        administrator.add_broadcast(map, QKey(0x8001_0b1b), config.mtu_octets);
        let counters = SwitchCounters::default();
        let state = State { config, ports: BTreeMap::new(), administrator, counters, next_lid: 2 };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Plugs in a port, which gets a LID of its own.
    ///
    /// # Panics
    /// When there are as many ports as there are LIDs.
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

    /// A port that was plugged in before, for a link that is started anew on it.
    #[must_use]
    pub fn port(&self, guid: Guid) -> Option<MemoryPort> {
        let is_there = self.lock().ports.values().any(|plug| plug.info.guid == guid);
        is_there.then(|| MemoryPort::new(self.clone(), guid))
    }

    /// Makes the broadcast group of a partition and scope, as a subnet manager does that is configured
    /// for IPoIB.
    pub fn add_partition(&self, p_key: PKey, scope: Scope, q_key: QKey) {
        let mut state = self.lock();
        let mtu = state.config.mtu_octets;
        state.administrator.add_broadcast(MulticastMap::new(scope, p_key), q_key, mtu);
    }

    /// Takes a port's link out, or puts it in again; the others are told.
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

    /// Another subnet manager takes over, at another LID, and knows of no member and no subscription.
    pub fn restart_manager(&self) {
        let mut state = self.lock();
        let lid = Lid(state.next_lid);
        state.next_lid += 1;
        state.administrator.restart(lid);
        for plug in state.ports.values_mut() {
            plug.info.sm_lid = lid;
        }
    }

    /// The administrator answers nothing, or does again.
    pub fn set_silent(&self, silent: bool) {
        self.lock().administrator.silent = silent;
    }

    /// The administrator answers so many requests with BUSY.
    pub fn set_busy(&self, answers: u32) {
        self.lock().administrator.busy = answers;
    }

    /// The administrator does what so many requests ask for, and the answers are lost.
    pub fn set_mute(&self, answers: u32) {
        self.lock().administrator.mute = answers;
    }

    /// The administrator answers so many requests twice.
    pub fn set_double(&self, answers: u32) {
        self.lock().administrator.double = answers;
    }

    /// What the administrator was asked.
    #[must_use]
    pub fn asked(&self) -> Asked {
        self.lock().administrator.asked
    }

    /// Who is a member of a group; `None` when there is none.
    #[must_use]
    pub fn members(&self, mgid: Gid) -> Option<usize> {
        self.lock().administrator.members(mgid)
    }

    /// What the switch did.
    #[must_use]
    pub fn counters(&self) -> SwitchCounters {
        self.lock().counters
    }

    /// Brings a management datagram to a port as if it came from `from`.
    pub fn forge_mad(&self, now_ns: u64, to: Guid, from: Lid, mad: &[u8; MAD_LEN]) {
        let mut state = self.lock();
        let plug = state.ports.values_mut().find(|plug| plug.info.guid == to);
        if let Some(plug) = plug {
            plug.push_mad(now_ns, from, *mad);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What a panic leaves behind is at worst a packet less.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
