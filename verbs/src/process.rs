//! The one RNIC and endpoint of a process, made at the first device or connection id.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use urnic::device::DeviceSpec;
use urnic::{EndpointConfig, Error, Rnic, RnicConfig, StartupConfig, Wc, random_seed};

use crate::abi::{ibv_context, ibv_cq, ibv_pd, ibv_srq};
use crate::errno::Errno;
use crate::event_queue::locked;
use crate::exit::{self, Connections};
use crate::fork::{self, PerProcess};
use crate::log;
use crate::network::{self, Network};
use crate::numbers::Numbers;
use crate::object::CPtr;
use crate::thread::run_as_own;

/// Queue pairs for modules below them: completion queues, receive queues and connections.
pub(crate) trait QueuePair: Debug + Send + Sync {
    fn number(&self) -> u32;

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;

    fn inner(&self) -> urnic::Qp;

    fn link(&self) -> Option<Arc<dyn Any + Send + Sync>>;

    fn completes_to(&self, cq: *mut ibv_cq) -> bool;

    /// Returns true if it takes receives from this queue.
    fn receives_from(&self, srq: *mut ibv_srq) -> bool;

    /// Returns true if the application sees the completion.
    fn store_fetched(&self, wc: &Wc) -> bool;

    /// Reports once that it is in error and has taken its last buffer from a shared queue.
    fn tell_last_wqe(&self);
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) rnic: Rnic,
    pub(crate) network: Network,
    /// Queue pairs by number, which completions carry.
    qps: RwLock<HashMap<u32, Arc<dyn QueuePair>>>,
    pub(crate) numbers: Numbers,
    /// Opened once and never closed.
    pub(crate) of_ids: OnceLock<CPtr<ibv_context>>,
    pub(crate) pd_of_ids: OnceLock<CPtr<ibv_pd>>,
    generation: u32,
}

impl Process {
    /// False if this process inherited it by a fork, without the threads.
    pub(crate) fn is_own(&self) -> bool {
        self.generation == fork::generation()
    }

    pub(crate) fn add_qp(&self, qp: Arc<dyn QueuePair>) {
        self.qps.write().unwrap_or_else(PoisonError::into_inner).insert(qp.number(), qp);
    }

    pub(crate) fn remove_qp(&self, number: u32) {
        self.qps.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        self.numbers.give_back(number);
    }

    /// `None` if there is no such queue pair. Only calls of the application may keep a reference to
    /// one: when `ibv_destroy_qp` returns, no other thread uses it or its domain.
    pub(crate) fn with_qp<T>(
        &self,
        number: u32,
        use_qp: impl FnOnce(&Arc<dyn QueuePair>) -> T,
    ) -> Option<T> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).get(&number).map(use_qp)
    }

    pub(crate) fn uses(&self, cq: *mut ibv_cq) -> bool {
        let qps = self.qps.read().unwrap_or_else(PoisonError::into_inner);
        qps.values().any(|qp| qp.completes_to(cq))
    }

    pub(crate) fn uses_srq(&self, srq: *mut ibv_srq) -> bool {
        let qps = self.qps.read().unwrap_or_else(PoisonError::into_inner);
        qps.values().any(|qp| qp.receives_from(srq))
    }
}

impl Connections for Process {
    fn finish(&self, limit: Duration) -> Result<(), Error> {
        self.network.endpoint.finish(limit)
    }
}

/// Empty in a forked child: threads of the parent's network are not in it.
static PROCESS: PerProcess<Mutex<Option<Arc<Process>>>> =
    PerProcess::new(|_parents| Mutex::new(None));
/// Values for `handle` fields, which only people look at.
static HANDLES: AtomicU32 = AtomicU32::new(1);

/// Makes them at the first call, and keeps them until the process ends: applications open and close
/// devices often, and the threads of an endpoint are expensive to start.
pub(crate) fn process() -> Result<Arc<Process>, Errno> {
    let mut process = locked(PROCESS.of_this());
    if let Some(process) = process.as_ref() {
        return Ok(Arc::clone(process));
    }
    log::start();
    let rnic = Rnic::new(RnicConfig { seed: random_seed().map_err(Errno::from)? });
    let (rnic, network) = run_as_own(move || {
        // Applications may poll, sleep, or both.
        let config = EndpointConfig { polled: true, ..EndpointConfig::default() };
        let network = Network::open(&rnic, &config);
        network.map(|network| (rnic, network))
    })??;
    let made = Arc::new(Process {
        rnic,
        network,
        qps: RwLock::default(),
        numbers: Numbers::default(),
        of_ids: OnceLock::new(),
        pd_of_ids: OnceLock::new(),
        generation: fork::generation(),
    });
    exit::prepare(|| existing().map(|process| process as _));
    Ok(Arc::clone(process.insert(made)))
}

/// `None` also while another thread makes them. Allocates nothing: the exit handler may have
/// interrupted an allocation.
pub(crate) fn existing() -> Option<Arc<Process>> {
    PROCESS.present()?.try_lock().ok()?.clone()
}

/// Opens the network if DHCP needs it.
fn leased() -> Option<IpAddr> {
    let uses_dhcp = network::device().is_some_and(DeviceSpec::uses_dhcp);
    uses_dhcp.then(|| process().ok()?.network.leased).flatten()
}

/// None with the kernel's TCP.
pub(crate) fn addresses() -> Vec<IpAddr> {
    network::addresses(leased())
}

pub(crate) fn source_for(spec: &DeviceSpec, remote: IpAddr) -> Result<IpAddr, Errno> {
    let leased = || addresses().into_iter().find(|own| own.is_ipv4() && remote.is_ipv4());
    let source = spec.source_for(remote);
    source.or_else(|| leased().filter(|_| spec.uses_dhcp())).ok_or(Errno(libc::ENETUNREACH))
}

pub(crate) fn startup() -> StartupConfig {
    // Applications for InfiniBand send first from either end (RFC 6581 §9.2), with immediate data.
    let (peer_to_peer, immediates) = (true, true);
    StartupConfig { peer_to_peer, immediates, silence_probe: true, ..StartupConfig::default() }
}

pub(crate) fn next_handle() -> u32 {
    HANDLES.fetch_add(1, Ordering::Relaxed)
}
