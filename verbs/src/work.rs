//! Converts C's work requests to the engine's.
#![expect(unsafe_code, reason = "C's requests are lists of pointers")]

use std::slice;

use libc::c_uint;
use urnic::{Access, MwBind, RemoteBuffer, SendOp, Stag, TaggedOffset};

use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_OPTIONAL_RANGE, IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_ZERO_BASED, IBV_MW_TYPE_2,
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_mw, ibv_mw_bind_info, ibv_send_wr, ibv_sge,
};
use crate::errno::Errno;
use crate::object::optional;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) op: SendOp,
    pub(crate) fence: bool,
    pub(crate) signaled: bool,
    pub(crate) inline: bool,
}

pub(crate) const fn remote(rkey: u32, addr: u64) -> RemoteBuffer {
    RemoteBuffer { stag: Stag(rkey), to: TaggedOffset(addr) }
}

/// Mask of all bits: C's Atomics have no masks.
pub(crate) const ALL_BITS: u64 = u64::MAX;

impl Request {
    pub(crate) fn of(wr: &ibv_send_wr) -> Result<Self, Errno> {
        let flags = wr.send_flags;
        let solicited = flags & IBV_SEND_SOLICITED != 0;
        // SAFETY: the opcode says which field of the union C has filled in; all are numbers.
        let rdma = unsafe { wr.wr.rdma };
        // SAFETY: as above.
        let atomic = unsafe { wr.wr.atomic };
        // SAFETY: as above.
        let invalidate = Stag(unsafe { wr.imm.invalidate_rkey });
        // SAFETY: as above. The application has it in network order.
        let immediate = u32::from_be(unsafe { wr.imm.imm_data });
        let there = remote(rdma.rkey, rdma.remote_addr);
        let number = remote(atomic.rkey, atomic.remote_addr);
        let op = match wr.opcode {
            IBV_WR_RDMA_WRITE => SendOp::RdmaWrite { remote: there },
            IBV_WR_RDMA_READ => SendOp::RdmaRead { remote: there },
            IBV_WR_SEND => SendOp::Send { invalidate: None, solicited },
            IBV_WR_RDMA_WRITE_WITH_IMM => {
                SendOp::RdmaWriteImmediate { remote: there, immediate, solicited }
            }
            IBV_WR_SEND_WITH_IMM => SendOp::SendImmediate { immediate, solicited },
            IBV_WR_SEND_WITH_INV => SendOp::Send { invalidate: Some(invalidate), solicited },
            IBV_WR_LOCAL_INV => SendOp::LocalInvalidate { stag: invalidate },
            IBV_WR_BIND_MW => {
                // SAFETY: this field of the union, by the opcode.
                let bind = unsafe { wr.bind.bind_mw };
                // SAFETY: a live window and region, by the contract of `ibv_post_send`.
                unsafe { bind_type_2(bind.mw, bind.rkey, &bind.bind_info) }?
            }
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                SendOp::FetchAdd { remote: number, add: atomic.compare_add, mask: 0 }
            }
            IBV_WR_ATOMIC_CMP_AND_SWP => compare_and_swap(number, atomic.compare_add, atomic.swap),
            _ => return Err(Errno::NOT_SUPPORTED),
        };
        Ok(Self {
            id: wr.wr_id,
            op,
            fence: flags & IBV_SEND_FENCE != 0,
            signaled: flags & IBV_SEND_SIGNALED != 0,
            inline: flags & IBV_SEND_INLINE != 0,
        })
    }
}

pub(crate) const fn compare_and_swap(remote: RemoteBuffer, compare: u64, swap: u64) -> SendOp {
    SendOp::CmpSwap { remote, compare, compare_mask: ALL_BITS, swap, swap_mask: ALL_BITS }
}

/// # Safety
/// `list` points at `count` elements, which stay valid while the returned slice is used.
pub(crate) unsafe fn elements<'a>(
    list: *const ibv_sge,
    count: i32,
) -> Result<&'a [ibv_sge], Errno> {
    match usize::try_from(count) {
        Err(_) => Err(Errno::INVALID),
        Ok(0) => Ok(&[]),
        Ok(_) if list.is_null() => Err(Errno::INVALID),
        // SAFETY: not NULL, and of `count` elements, by this function's contract. Lists are the
        // application's own: peers cannot write them unless it registers them.
        Ok(count) => Ok(unsafe { slice::from_raw_parts(list, count) }),
    }
}

/// Converts `IBV_WR_BIND_MW` and `ibv_wr_bind_mw`. The new key is the window's with the lowest byte
/// of `rkey`: devices look at no other bits of it.
///
/// # Safety
/// `mw` and the region are NULL or live.
pub(crate) unsafe fn bind_type_2(
    mw: *const ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOp, Errno> {
    // SAFETY: NULL or live, by this function's contract.
    let mw = unsafe { optional(mw) }.ok_or(Errno::INVALID)?;
    if mw.r#type != IBV_MW_TYPE_2 || info.mr.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: as this function's contract.
    unsafe { binding(info, Stag(mw.rkey & !0xff | rkey & 0xff)) }
}

/// The window gets the key `stag`.
///
/// # Safety
/// The region is NULL or live.
pub(crate) unsafe fn binding(info: &ibv_mw_bind_info, stag: Stag) -> Result<SendOp, Errno> {
    let &ibv_mw_bind_info { mr, addr, length: len, mw_access_flags: flags } = info;
    let access = window_access(flags)?;
    // SAFETY: NULL or live, by this function's contract.
    let region = unsafe { optional(mr.cast_const()) };
    if region.is_none() && (addr != 0 || len != 0) {
        return Err(Errno::INVALID);
    }
    let mr = Stag(region.map_or(0, |region| region.lkey));
    let from = TaggedOffset(addr);
    let base = if flags & IBV_ACCESS_ZERO_BASED == 0 { from } else { TaggedOffset(0) };
    Ok(SendOp::BindMw { bind: MwBind { stag, mr, from, len, base, access } })
}

/// The right to write locally, which applications name too, is the region's.
fn window_access(flags: c_uint) -> Result<Access, Errno> {
    let rights = [
        (IBV_ACCESS_LOCAL_WRITE, Access::empty()),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (IBV_ACCESS_ZERO_BASED, Access::empty()),
    ];
    let known = rights.iter().fold(IBV_ACCESS_OPTIONAL_RANGE, |known, (flag, _)| known | flag);
    if flags & !known != 0 {
        return Err(Errno::INVALID);
    }
    Ok(rights.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, right)| *right).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_the_rights_that_it_is_given_and_no_others() {
        const READ: c_uint = IBV_ACCESS_REMOTE_READ;
        const WRITE: c_uint = IBV_ACCESS_REMOTE_WRITE;
        let none = Access::empty();
        for (flags, rights) in [
            (0, none),
            (IBV_ACCESS_LOCAL_WRITE, none),
            (IBV_ACCESS_ZERO_BASED, none),
            (IBV_ACCESS_OPTIONAL_RANGE, none),
            (READ, Access::REMOTE_READ),
            (WRITE, Access::REMOTE_WRITE),
            (READ | WRITE, Access::REMOTE_READ | Access::REMOTE_WRITE),
            (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        ] {
            assert_eq!(window_access(flags).unwrap(), rights, "{flags:#x}");
        }
        assert!(window_access(1 << 10).is_err());
    }
}
