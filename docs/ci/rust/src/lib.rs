//! Counts the RDMA devices of this machine.
use std::ffi::{c_int, c_void};

#[link(name = "ibverbs")]
extern "C" {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut c_void;
    fn ibv_free_device_list(list: *mut *mut c_void);
}

/// Number of devices.
pub fn devices() -> usize {
    let mut count = 0;
    // SAFETY: `count` is a live integer, which the call writes.
    let list = unsafe { ibv_get_device_list(&mut count) };
    if !list.is_null() {
        // SAFETY: the list is that of the call above, and is not used after this one.
        unsafe { ibv_free_device_list(list) };
    }
    count.try_into().unwrap_or(0)
}

#[test]
fn there_is_a_device() {
    assert!(devices() > 0);
}
