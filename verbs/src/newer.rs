//! Functions of libibverbs newer than rdma-core 44 that work here. The others are in `refused`.
#![expect(unsafe_code, reason = "functions exported to C, with C's pointers")]

use std::ptr;

use libc::{c_int, c_uint, c_void};

use crate::abi::{ibv_context, ibv_mr, ibv_pd};
use crate::attributes::PORT_SPEED;
use crate::errno::{Errno, number, or_null};
use crate::gid::PORT;
use crate::mr::ibv_reg_mr_iova2;

/// Returns units of 100 Mbit/s, as the attributes of the port say.
///
/// # Safety
/// `place` points at memory for the answer.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port_speed(
    _context: *mut ibv_context,
    port: u32,
    place: *mut u64,
) -> c_int {
    if port != u32::from(PORT) {
        return number(Err(Errno::INVALID));
    }
    // SAFETY: the caller's memory for the answer, by this function's contract.
    unsafe { place.write(PORT_SPEED) };
    0
}

/// A buffer of [`ibv_alloc_buf`]: C has only its address.
pub(crate) struct Buffer {
    start: *mut c_void,
    len: usize,
}

/// Allocates whole pages, which are zero.
///
/// # Safety
/// `place` points at memory for the handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_buf(
    _pd: *mut ibv_pd,
    size: usize,
    place: *mut *mut Buffer,
) -> *mut c_void {
    if size == 0 || place.is_null() {
        return or_null(Err(Errno::INVALID));
    }
    let (flags, access) =
        (rustix::mm::MapFlags::PRIVATE, rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE);
    // SAFETY: a new mapping at an address that the kernel chooses.
    match unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size, access, flags) } {
        Ok(start) => {
            // SAFETY: the caller's memory for the handle, by this function's contract.
            unsafe { place.write(Box::into_raw(Box::new(Buffer { start, len: size }))) };
            start
        }
        Err(errno) => or_null(Err(errno.into())),
    }
}

/// The buffer's registrations are gone before.
///
/// # Safety
/// `buffer` is NULL, or came from [`ibv_alloc_buf`] and is not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_buf(buffer: *mut Buffer) {
    if buffer.is_null() {
        return;
    }
    // SAFETY: made by `Box::into_raw` in `ibv_alloc_buf`, and freed once.
    let Buffer { start, len } = *unsafe { Box::from_raw(buffer) };
    // SAFETY: the mapping of that call; nothing uses it, by this function's contract.
    let _a_mapping_of_this_file_can_be_unmapped = unsafe { rustix::mm::munmap(start, len) };
}

/// # Safety
/// The domain and the buffer are live.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_buf_mr(
    of: *mut ibv_pd,
    buffer: *mut Buffer,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let comp_mask = MASK_BUF | MASK_ADDR;
    let none = ptr::null_mut();
    let attr = ibv_mr_init_attr {
        length,
        access,
        comp_mask,
        iova: 0,
        addr,
        fd: -1,
        fd_offset: 0,
        dmah: none,
        buf: buffer,
    };
    // SAFETY: as this function's contract, and attributes.
    unsafe { ibv_reg_mr_ex(of, &raw const attr) }
}

/// Headers before rdma-core 59 lack the structure, and those before 64 its last field.
#[repr(C)]
pub(crate) struct ibv_mr_init_attr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
    fd: c_int,
    fd_offset: u64,
    dmah: *mut c_void,
    /// Valid only if [`MASK_BUF`] is set.
    buf: *mut Buffer,
}

const MASK_IOVA: u64 = 1 << 0;
const MASK_ADDR: u64 = 1 << 1;
const MASK_FD: u64 = 1 << 2;
const MASK_FD_OFFSET: u64 = 1 << 3;
const MASK_DMAH: u64 = 1 << 4;
const MASK_BUF: u64 = 1 << 5;

/// EOPNOTSUPP for memory behind a file of another device, and for hints of where to cache it.
///
/// # Safety
/// The domain is live; `attr` points at the fields that its mask names.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_ex(of: *mut ibv_pd, attr: *const ibv_mr_init_attr) -> *mut ibv_mr {
    // SAFETY: every header has the fields `length`, `access`, `comp_mask` and `addr`.
    let length = unsafe { (*attr).length };
    // SAFETY: as above.
    let access = unsafe { (*attr).access };
    // SAFETY: as above.
    let mask = unsafe { (*attr).comp_mask };
    // SAFETY: as above.
    let addr = unsafe { (*attr).addr };
    if mask & (MASK_FD | MASK_FD_OFFSET | MASK_DMAH) != 0 {
        return or_null(Err(Errno::NOT_SUPPORTED));
    }
    if mask & !(MASK_IOVA | MASK_ADDR | MASK_BUF) != 0 || mask & MASK_ADDR == 0 {
        return or_null(Err(Errno::INVALID));
    }
    if mask & MASK_BUF != 0 {
        // SAFETY: the mask names the field.
        let buffer = unsafe { (*attr).buf };
        // SAFETY: NULL or a live buffer, by this function's contract.
        let holds = unsafe { buffer.as_ref() }.is_some_and(|buffer| buffer.holds(addr, length));
        if !holds {
            return or_null(Err(Errno::INVALID));
        }
    }
    let iova = if mask & MASK_IOVA == 0 {
        addr.addr() as u64
    } else {
        // SAFETY: the mask names the field.
        unsafe { (*attr).iova }
    };
    let access: c_uint = access.cast_unsigned();
    // SAFETY: as this function's contract.
    unsafe { ibv_reg_mr_iova2(of, addr, length, iova, access) }
}

impl Buffer {
    fn holds(&self, addr: *mut c_void, len: usize) -> bool {
        let at = addr.addr().checked_sub(self.start.addr());
        at.is_some_and(|at| at <= self.len && len <= self.len - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::IBV_ACCESS_LOCAL_WRITE;
    use crate::mr::ibv_dereg_mr;
    use crate::{context, device, operations, pd};

    #[test]
    fn a_buffer_is_registered_within_its_bounds() {
        let context = operations::open(device::device()).unwrap();
        // SAFETY: just opened.
        let pd = pd::alloc(context, unsafe { context::context(context) });
        let mut buffer = ptr::null_mut();
        // SAFETY: a live domain, and memory for the handle.
        let start = unsafe { ibv_alloc_buf(pd, 5000, &raw mut buffer) };
        assert_eq!(start.addr() % rustix::param::page_size(), 0);
        let write = IBV_ACCESS_LOCAL_WRITE.cast_signed();
        let register = |at: usize, len| {
            // SAFETY: a live domain and buffer.
            unsafe { ibv_reg_buf_mr(pd, buffer, start.wrapping_byte_add(at), len, write) }
        };
        for (at, len) in [(0, 5001), (5001, 0), (1, 5000), (usize::MAX, 1)] {
            assert!(register(at, len).is_null(), "{at} {len}");
        }
        for (at, len) in [(0, 5000), (4000, 1000)] {
            let mr = register(at, len);
            // SAFETY: C's part of a live region.
            let region = unsafe { &*mr };
            assert_eq!((region.addr, region.length), (start.wrapping_byte_add(at), len));
            // SAFETY: live, and not used again.
            assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
        }
        // SAFETY: a live buffer, not used again.
        unsafe { ibv_free_buf(buffer) };
    }
}
