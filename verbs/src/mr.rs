//! Memory regions: the application's own memory, registered.
#![expect(unsafe_code, reason = "the program's memory is named by address and length")]

pub(crate) mod rereg;

use std::ptr;
use std::sync::{Arc, Mutex};

use libc::{c_int, c_uint, c_void};
use urnic::{Access, MrPart, Region, TaggedOffset};

use crate::abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND,
    IBV_ACCESS_OPTIONAL_RANGE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_ZERO_BASED, ibv_mr, ibv_pd,
};
use crate::errno::{Errno, number, or_null};
use crate::event_queue::locked;
use crate::fault::{self, Call};
use crate::object::Object;
use crate::pd::{Pd, pd};
use crate::region::Registered;

/// Current registration behind C's pointer to a region; `ibv_rereg_mr` replaces it.
#[derive(Debug)]
struct Held {
    pd: Arc<Pd>,
    registered: Arc<Registered>,
}

type MrObject = Object<ibv_mr, Mutex<Held>>;

fn access(flags: c_uint) -> Result<Access, Errno> {
    let known = IBV_ACCESS_OPTIONAL_RANGE | (IBV_ACCESS_ON_DEMAND - 1) | IBV_ACCESS_HUGETLB;
    if flags & IBV_ACCESS_ON_DEMAND != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    let remote_writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    let local_write = flags & IBV_ACCESS_LOCAL_WRITE != 0;
    // As on InfiniBand, a peer gets no right to write that the owner does not have.
    if flags & !known != 0 || (flags & remote_writes != 0 && !local_write) {
        return Err(Errno::INVALID);
    }
    let mut access = Access::empty();
    for (flag, right) in [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_MW_BIND, Access::MW_BIND),
        // A right of its own, as on InfiniBand.
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ] {
        if flags & flag != 0 {
            access |= right;
        }
    }
    Ok(access)
}

/// Makes all pages present, as a device that pins them does: unmapped memory is an error now, not a
/// signal later.
fn populate(addr: *mut c_void, len: usize, writable: bool) -> Result<(), Errno> {
    let Some(last) = addr.addr().checked_add(len) else { return Err(Errno::INVALID) };
    let page = rustix::param::page_size();
    let start = addr.addr() / page * page;
    let advice = if writable {
        rustix::mm::Advice::LinuxPopulateWrite
    } else {
        rustix::mm::Advice::LinuxPopulateRead
    };
    let first = addr.with_addr(start);
    // SAFETY: no memory is changed or unmapped by this advice; pages become present.
    let advised = unsafe { rustix::mm::madvise(first, last - start, advice) };
    match advised {
        Ok(()) => Ok(()),
        // Kernels before 5.14 do not know the advice: the pages stay as they are.
        Err(rustix::io::Errno::INVAL) if !knows_populate() => Ok(()),
        Err(_) => Err(Errno(libc::EFAULT)),
    }
}

fn knows_populate() -> bool {
    // SAFETY: a length of 0 names no memory.
    unsafe { rustix::mm::madvise(ptr::null_mut(), 0, rustix::mm::Advice::LinuxPopulateRead) }
        .is_ok()
}

fn register(
    of: *mut ibv_pd,
    pd: &Arc<Pd>,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    flags: c_uint,
) -> Result<*mut ibv_mr, Errno> {
    fault::check(Call::RegMr)?;
    let access = access(flags)?;
    if isize::try_from(len).is_err() {
        return Err(Errno::NO_MEMORY);
    }
    let region = region(addr, len, access)?;
    let base = if flags & IBV_ACCESS_ZERO_BASED == 0 { iova } else { 0 };
    let part = MrPart { range: 0..len, base: TaggedOffset(base), access, only: None };
    let mr = pd.inner.reg_part(region, part).map_err(|_| Errno::NO_MEMORY)?;
    let registered = Arc::new(Registered::new(mr, base, flags));
    let key = registered.key();
    pd.add(Arc::clone(&registered));
    let mut c = ibv_mr::zeroed();
    (c.context, c.pd) = (context_of(of), of);
    (c.addr, c.length) = (addr, len);
    (c.handle, c.lkey, c.rkey) = (key, key, key);
    Ok(MrObject::make(c, |_| Mutex::new(Held { pd: Arc::clone(pd), registered })))
}

/// Makes all pages present.
pub(crate) fn region(addr: *mut c_void, len: usize, access: Access) -> Result<Arc<Region>, Errno> {
    if len > 0 {
        populate(addr, len, access.contains(Access::LOCAL_WRITE))?;
    }
    let place = if addr.is_null() { ptr::dangling_mut() } else { addr.cast::<u8>() };
    if addr.is_null() && len > 0 {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the pages are present. That they stay mapped until `ibv_dereg_mr` returns is the
    // application's part of the contract of `ibv_reg_mr`. This crate makes no reference into them.
    Ok(unsafe { Region::from_raw_parts(place, len) })
}

fn context_of(pd: *mut ibv_pd) -> *mut crate::abi::ibv_context {
    // SAFETY: a live domain: callers have used its Rust part already.
    unsafe { (*pd).context }
}

/// # Safety
/// `of` is a live domain; the memory stays mapped until the region is deregistered.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    of: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: a live domain, by this function's contract.
    let pd = unsafe { pd(of) };
    or_null(register(of, pd, addr, len, addr.addr() as u64, access.cast_unsigned()))
}

/// Peers and requests name the first byte by `iova`.
///
/// # Safety
/// As [`ibv_reg_mr`].
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    of: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as this function's contract.
    unsafe { ibv_reg_mr_iova2(of, addr, len, iova, access.cast_unsigned()) }
}

/// The macro `ibv_reg_mr` calls it if the rights are not constant.
///
/// # Safety
/// As [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    of: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: a live domain, by this function's contract.
    let pd = unsafe { pd(of) };
    or_null(register(of, pd, addr, len, iova, access))
}

/// When it returns, no peer can access the memory. EBUSY while windows are bound to it.
///
/// # Safety
/// `mr` is live, and not used again if the function returns 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: made in `register`, by this function's contract.
    let held = unsafe { MrObject::of(mr) };
    {
        let Held { pd, registered } = &*locked(held);
        if !registered.mr.invalidate_unless_bound() {
            return number(Err(Errno::BUSY));
        }
        registered.go();
        pd.remove(registered.key());
    }
    // SAFETY: as above, and freed once: the answer is 0.
    drop(unsafe { MrObject::free(mr) });
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_given_no_right_to_write_that_the_owner_does_not_have() {
        assert_eq!(access(IBV_ACCESS_REMOTE_WRITE), Err(Errno::INVALID));
        assert_eq!(access(IBV_ACCESS_REMOTE_ATOMIC), Err(Errno::INVALID));
        assert_eq!(access(IBV_ACCESS_ON_DEMAND), Err(Errno::NOT_SUPPORTED));
        assert_eq!(access(1 << 15), Err(Errno::INVALID));
        assert_eq!(access(IBV_ACCESS_REMOTE_READ), Ok(Access::REMOTE_READ));
        let atomic = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
        assert_eq!(access(atomic), Ok(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC));
        let both = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | (1 << 20);
        assert_eq!(access(both), Ok(Access::LOCAL_WRITE | Access::REMOTE_WRITE));
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_and_not_a_signal() {
        let page = rustix::param::page_size();
        assert_eq!(populate(ptr::without_provenance_mut(page), 8, true), Err(Errno(libc::EFAULT)));
        let mut octets = [0_u8; 8];
        assert_eq!(populate((&raw mut octets).cast(), octets.len(), true), Ok(()));
        // Of two pages, the second one alone is missing.
        let (flags, access) = (
            rustix::mm::MapFlags::PRIVATE,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
        );
        // SAFETY: a new mapping at an address that the kernel chooses.
        let pages = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), 2 * page, access, flags) };
        let pages = pages.unwrap();
        let second = pages.wrapping_byte_add(page);
        // SAFETY: a page of this test; no reference to it is kept.
        unsafe { rustix::mm::mprotect(second, page, rustix::mm::MprotectFlags::empty()) }.unwrap();
        assert_eq!(populate(pages, page, true), Ok(()));
        for len in [page + 1, 2 * page] {
            assert_eq!(populate(pages, len, true), Err(Errno(libc::EFAULT)), "{len}");
        }
    }
}
