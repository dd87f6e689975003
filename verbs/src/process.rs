//! The one RNIC and endpoint of a process, made when the first device is opened or the first
//! connection id needs one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use urnic::{EndpointConfig, Rnic, RnicConfig, StartupConfig, random_seed};

use crate::abi::{ibv_context, ibv_cq, ibv_pd, ibv_srq};
use crate::errno::Errno;
use crate::event_queue::locked;
use crate::exit;
use crate::fork;
use crate::log;
use crate::network::Network;
use crate::object::CPtr;
use crate::peer::numbers::Numbers;
use crate::qp::Qp;
use crate::thread::run_as_own;

/// State that all objects of a process share.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) rnic: Rnic,
    pub(crate) network: Network,
    /// Queue pairs by number, which completions carry.
    qps: RwLock<HashMap<u32, Arc<Qp>>>,
    pub(crate) numbers: Numbers,
    /// The open device that all ids of rdma_cm show. It is opened once and never closed.
    pub(crate) of_ids: OnceLock<CPtr<ibv_context>>,
    /// The protection domain of ids whose applications name none.
    pub(crate) pd_of_ids: OnceLock<CPtr<ibv_pd>>,
    /// Fork generation (`fork::generation`) in which this was made.
    generation: u32,
}

impl Process {
    /// Returns true if this process made the `Process`, false if it inherited the parent's by a
    /// fork, without the threads.
    pub(crate) fn is_own(&self) -> bool {
        self.generation == fork::generation()
    }

    pub(crate) fn add_qp(&self, qp: Arc<Qp>) {
        self.qps.write().unwrap_or_else(PoisonError::into_inner).insert(qp.number(), qp);
    }

    pub(crate) fn remove_qp(&self, number: u32) {
        self.qps.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        self.numbers.give_back(number);
    }

    /// Calls `use_qp` with the queue pair of this number, or returns `None` if there is none.
    /// Threads of the library must not keep a reference to the queue pair: when `ibv_destroy_qp`
    /// returns, no thread of the library uses the queue pair or its domain.
    pub(crate) fn with_qp<T>(&self, number: u32, use_qp: impl FnOnce(&Arc<Qp>) -> T) -> Option<T> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).get(&number).map(use_qp)
    }

    /// Returns true if a queue pair completes to this queue.
    pub(crate) fn uses(&self, cq: *mut ibv_cq) -> bool {
        let qps = self.qps.read().unwrap_or_else(PoisonError::into_inner);
        qps.values().any(|qp| qp.completes_to(cq))
    }

    /// Returns true if a queue pair takes receives from this queue.
    pub(crate) fn uses_srq(&self, srq: *mut ibv_srq) -> bool {
        let qps = self.qps.read().unwrap_or_else(PoisonError::into_inner);
        qps.values().any(|qp| qp.receives_from(srq))
    }
}

static PROCESS: Mutex<Option<Arc<Process>>> = Mutex::new(None);
/// Values for `handle` fields, which only people look at.
static HANDLES: AtomicU32 = AtomicU32::new(1);

/// Returns the RNIC and endpoint of this process, and makes them at the first call. They are kept
/// until the process ends: applications open and close devices often, and the threads of an
/// endpoint are expensive to start.
pub(crate) fn process() -> Result<Arc<Process>, Errno> {
    let generation = fork::generation();
    let mut process = locked(&PROCESS);
    if let Some(process) = process.as_ref().filter(|process| process.generation == generation) {
        return Ok(Arc::clone(process));
    }
    log::start();
    let rnic = Rnic::new(RnicConfig { seed: random_seed().map_err(Errno::from)? });
    // Applications may poll, sleep, or both.
    let config = EndpointConfig { polled: true, ..EndpointConfig::default() };
    let network = run_as_own(|| Network::open(&rnic, &config))??;
    let made = Arc::new(Process {
        rnic,
        network,
        qps: RwLock::default(),
        numbers: Numbers::default(),
        of_ids: OnceLock::new(),
        pd_of_ids: OnceLock::new(),
        generation,
    });
    exit::prepare();
    if let Some(inherited) = process.replace(Arc::clone(&made)) {
        // The parent's: its threads are not in this process, and nothing may wait for them.
        fork::forget(inherited);
    }
    Ok(made)
}

/// Returns the process's RNIC and endpoint if they exist and no other thread is making them now.
pub(crate) fn existing() -> Option<Arc<Process>> {
    let process = PROCESS.try_lock().ok()?.clone();
    process.filter(|process| process.is_own())
}

/// Returns how connections start (MPA negotiation).
pub(crate) fn startup() -> StartupConfig {
    // Applications written for InfiniBand send first from either end (RFC 6581 §9.2), and with
    // immediate data.
    let (peer_to_peer, immediates) = (true, true);
    StartupConfig { peer_to_peer, immediates, nudge: true, ..StartupConfig::default() }
}

pub(crate) fn next_handle() -> u32 {
    HANDLES.fetch_add(1, Ordering::Relaxed)
}
