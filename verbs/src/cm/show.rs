//! Fills in C's part of an id: the device, addresses, the route, the state of the queue pair.
#![expect(unsafe_code, reason = "C's part of an id is written where C reads it")]

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use super::address;
use super::id::Id;
use crate::abi::{
    IBV_MTU_4096, IBV_QPS_ERR, IBV_QPS_RTS, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED,
    ibv_context, ibv_gid, ibv_pd, ibv_sa_path_rec, rdma_addr_addr, rdma_addr_dst, rdma_addr_src,
    rdma_ib_addr,
};
use crate::context;
use crate::device::device;
use crate::errno::Errno;
use crate::event_queue::locked;
use crate::gid::{self, PORT};
use crate::object::{CPtr, Place};
use crate::operations;
use crate::pd;
use crate::process::process;

pub(super) fn verbs() -> Result<*mut ibv_context, Errno> {
    let process = process()?;
    if let Some(open) = process.of_ids.get() {
        return Ok(open.0);
    }
    let opened = operations::open(device())?;
    Ok(process.of_ids.get_or_init(|| CPtr(opened)).0)
}

/// Returns the domain of ids whose applications name none.
pub(super) fn default_pd() -> Result<*mut ibv_pd, Errno> {
    let open = verbs()?;
    // SAFETY: the device that ids show is never closed.
    let made = || CPtr(pd::alloc(open, unsafe { context::context(open) }));
    Ok(process()?.pd_of_ids.get_or_init(made).0)
}

impl Id {
    pub(super) fn show_device(&self) -> Result<(), Errno> {
        let verbs = verbs()?;
        let c = self.c.0;
        // SAFETY: C's part of a live id; C lets one call at a time change it.
        unsafe { (*c).verbs = verbs };
        // SAFETY: as above.
        unsafe { (*c).port_num = PORT };
        // SAFETY: as above.
        if unsafe { (*c).pd }.is_null() {
            let pd = default_pd()?;
            // SAFETY: as above.
            unsafe { (*c).pd = pd };
        }
        Ok(())
    }

    pub(super) fn show_addresses(&self, local: SocketAddr, remote: Option<SocketAddr>) {
        let c = self.c.0;
        // SAFETY: a place inside C's part of a live id; C lets one call at a time change it.
        let place = unsafe { &raw mut (*c).route.addr };
        // SAFETY: as above.
        let mut addresses = unsafe { place.read() };
        let mut gids = rdma_ib_addr::zeroed();
        gids.pkey = gid::DEFAULT_PKEY;
        gids.sgid = ibv_gid { raw: gid::octets(local.ip()) };
        addresses.src = rdma_addr_src { src_storage: address::storage(local) };
        if let Some(remote) = remote {
            gids.dgid = ibv_gid { raw: gid::octets(remote.ip()) };
            addresses.dst = rdma_addr_dst { dst_storage: address::storage(remote) };
        }
        addresses.addr = rdma_addr_addr { ibaddr: gids };
        // SAFETY: as above.
        unsafe { place.write(addresses) };
    }

    /// Shows C a route like that of an InfiniBand device.
    pub(super) fn show_route(&self) {
        let place = self.path.get_or_init(Box::<Place<_>>::default);
        let c = self.c.0;
        // SAFETY: a place inside C's part of a live id; C lets one call at a time change it.
        let addresses = unsafe { (*c).route.addr.addr };
        // SAFETY: both fields of the union are plain numbers; `show_addresses` has written this one.
        let gids = unsafe { addresses.ibaddr };
        let mut path = ibv_sa_path_rec::zeroed();
        let mtu = u8::try_from(IBV_MTU_4096).unwrap_or(0);
        (path.dgid, path.sgid, path.pkey) = (gids.dgid, gids.sgid, gids.pkey);
        (path.reversible, path.numb_path, path.mtu) = (1, 1, mtu);
        place.put(path);
        // SAFETY: as above.
        unsafe { (*c).route.path_rec = place.pointer() };
        // SAFETY: as above.
        unsafe { (*c).route.num_paths = 1 };
    }

    /// Shows C the new state before the event that announces it.
    pub(super) fn show_queue_pair(&self, event: u32) {
        if self.has_own_qp.load(Ordering::Acquire) {
            return;
        }
        let Some(qp) = locked(&self.qp).clone() else { return };
        let state = match event {
            RDMA_CM_EVENT_ESTABLISHED => IBV_QPS_RTS,
            RDMA_CM_EVENT_DISCONNECTED => IBV_QPS_ERR,
            _ => return,
        };
        if state == IBV_QPS_RTS {
            self.record_attributes(&qp);
        }
        // SAFETY: C's part of a live queue pair; the call is one that may change it.
        unsafe { (*qp.c.0).state = state };
    }
}
