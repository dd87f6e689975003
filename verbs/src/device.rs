//! The list of devices, which has one entry: `urnic0`.
#![expect(unsafe_code, reason = "lists and names that C reads by pointers")]

use std::ffi::CStr;
use std::net::IpAddr;
use std::ptr;
use std::sync::OnceLock;

use libc::{c_char, c_int};
use urnic::environment;

use crate::abi::{IBV_NODE_CA, IBV_NODE_RNIC, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, ibv_device};
use crate::errno::Errno;
use crate::gid;
use crate::object::{CPtr, Object};

/// Zeros behind an `ibv_device`. Vendor libraries read there if the device is theirs.
type BehindDevice = [u64; 64];

/// The wire is iWARP in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Personality {
    /// RoCE v2: accepted by applications that know only InfiniBand's transport.
    Ib,
    Iwarp,
}

/// `urnic run --personality` sets it.
pub(crate) const PERSONALITY: &str = "URNIC_PERSONALITY";

pub(crate) fn personality() -> Personality {
    static PERSONALITY_OF_PROCESS: OnceLock<Personality> = OnceLock::new();
    *PERSONALITY_OF_PROCESS.get_or_init(|| match environment(PERSONALITY) {
        Some(word) if word == "iwarp" => Personality::Iwarp,
        _ => Personality::Ib,
    })
}

/// Returns the device. It is never freed: applications keep it after the list.
pub(crate) fn device() -> *mut ibv_device {
    static DEVICE: OnceLock<CPtr<ibv_device>> = OnceLock::new();
    DEVICE
        .get_or_init(|| {
            let mut device = ibv_device::zeroed();
            (device.node_type, device.transport_type) = match personality() {
                Personality::Ib => (IBV_NODE_CA, IBV_TRANSPORT_IB),
                Personality::Iwarp => (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP),
            };
            copy_text(&mut device.name, c"urnic0");
            copy_text(&mut device.dev_name, c"urnic0");
            copy_text(&mut device.dev_path, c"/sys/class/infiniband_verbs/urnic0");
            copy_text(&mut device.ibdev_path, c"/sys/class/infiniband/urnic0");
            CPtr(Object::<ibv_device, BehindDevice>::make(device, |_| [0; 64]))
        })
        .0
}

pub(crate) fn copy_text<const LEN: usize>(field: &mut [c_char; LEN], text: &CStr) {
    let octets = text.to_bytes();
    for (place, octet) in field.iter_mut().zip(octets.iter().take(LEN - 1)) {
        *place = c_char::from_ne_bytes([*octet]);
    }
}

/// Returns a number in network order: the same in all processes of a host, and not 0.
pub(crate) fn node_guid() -> u64 {
    let host = match gid::first_address() {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() & u128::from(u32::MAX)).try_into().unwrap_or(1),
    };
    // The first three bytes belong to no vendor: locally administered.
    (0x02ff_ff00_0000_0000_u64 | (host << 8) | 1).to_be()
}

/// # Safety
/// `count` is NULL or points at memory for the number.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if !count.is_null() {
        // SAFETY: not NULL, so memory for a number, by this function's contract.
        unsafe { count.write(1) };
    }
    Box::into_raw(Box::new([device(), ptr::null_mut()])).cast()
}

/// # Safety
/// `list` came from [`ibv_get_device_list`] and is freed once.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: made by `Box::into_raw` of this type, by this function's contract.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
    }
}

/// # Safety
/// `device` is from a list of [`ibv_get_device_list`].
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a device of ours lives for ever; only the address is taken.
    unsafe { &raw const (*device).name }.cast()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    node_guid()
}

/// -1, because no kernel numbers this device.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    Errno::NOT_SUPPORTED.set();
    -1
}
