//! Attributes that the device and its port report. Numbers are the engine's limits.
#![expect(unsafe_code, reason = "answers are written where C wants them")]

use std::net::IpAddr;

use libc::c_int;
use urnic_engine::limits::{CQ_DEPTH_MAX, READS_OUTSTANDING_MAX, SGE_MAX, WINDOWS_MAX};

use crate::abi::{
    IBV_ATOMIC_HCA, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2B,
    IBV_DEVICE_RC_RNR_NAK_GEN, IBV_LINK_LAYER_ETHERNET, IBV_MTU_4096, IBV_PORT_ACTIVE,
    IBV_PORT_CM_SUP, IBV_PORT_IP_BASED_GIDS, ibv_context, ibv_device_attr, ibv_device_attr_ex,
    ibv_port_attr, ibv_query_device_ex_input,
};
use crate::device::{copy_text, node_guid};
use crate::errno::{Errno, number};
use crate::gid::{self, PORT};

/// Depth in work requests. The engine could take more; each entry costs memory.
pub(crate) const WR_MAX: u32 = 16_384;
pub(crate) const INLINE_MAX: u32 = 512;
pub(crate) const ELEMENTS_MAX: u32 = 6;
const _: () = assert!(ELEMENTS_MAX as usize == SGE_MAX);
pub(crate) const CQE_MAX: c_int = (1 << 20) - 1;
const _: () = assert!(CQE_MAX.cast_unsigned() as usize == CQ_DEPTH_MAX - 1);

/// Vendor ID: not 0, and none of a vendor for whose devices applications have workarounds.
const VENDOR_ID: u32 = 0xffff;
const PORT_PHYSICALLY_UP: u8 = 5;
/// Nominal rate, which applications print: 4 lanes of 10 Gbit/s.
const WIDTH_4X: u8 = 2;
const SPEED_10_GBPS: u8 = 4;

pub(crate) fn device_attributes() -> ibv_device_attr {
    let mut attributes = ibv_device_attr::zeroed();
    copy_text(&mut attributes.fw_ver, VERSION);
    attributes.node_guid = node_guid();
    attributes.sys_image_guid = node_guid();
    attributes.max_mr_size = u64::MAX;
    attributes.page_size_cap = !0xfff;
    attributes.vendor_id = VENDOR_ID;
    attributes.vendor_part_id = 1;
    attributes.max_qp = 1 << 16;
    attributes.max_qp_wr = WR_MAX.cast_signed();
    attributes.max_sge = ELEMENTS_MAX.cast_signed();
    attributes.max_sge_rd = ELEMENTS_MAX.cast_signed();
    attributes.max_cq = 1 << 16;
    attributes.max_cqe = CQE_MAX;
    attributes.max_mr = 1 << 20;
    attributes.max_pd = 1 << 16;
    attributes.max_qp_rd_atom = c_int::from(READS_OUTSTANDING_MAX);
    attributes.max_res_rd_atom = c_int::from(READS_OUTSTANDING_MAX) << 16;
    attributes.max_qp_init_rd_atom = c_int::from(READS_OUTSTANDING_MAX);
    attributes.atomic_cap = IBV_ATOMIC_HCA;
    attributes.device_cap_flags =
        IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    attributes.max_mw = c_int::try_from(WINDOWS_MAX).unwrap_or(c_int::MAX);
    attributes.max_srq = 1 << 16;
    attributes.max_srq_wr = WR_MAX.cast_signed();
    attributes.max_srq_sge = ELEMENTS_MAX.cast_signed();
    attributes.max_ah = 1 << 16;
    attributes.max_pkeys = 1;
    attributes.phys_port_cnt = PORT;
    attributes
}

const VERSION: &std::ffi::CStr = {
    match std::ffi::CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => c"0",
    }
};

/// Speed in units of 100 Mbit/s: four lanes of 10 Gbit/s.
pub(crate) const PORT_SPEED: u64 = 400;

fn port_attributes() -> ibv_port_attr {
    let mut attributes = ibv_port_attr::zeroed();
    attributes.state = IBV_PORT_ACTIVE;
    attributes.max_mtu = IBV_MTU_4096;
    attributes.active_mtu = IBV_MTU_4096;
    attributes.gid_tbl_len = c_int::try_from(gid::table().len()).unwrap_or(c_int::MAX);
    attributes.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    attributes.max_msg_sz = 1 << 31;
    attributes.pkey_tbl_len = 1;
    attributes.lid = lid();
    attributes.max_vl_num = 1;
    attributes.active_width = WIDTH_4X;
    attributes.active_speed = SPEED_10_GBPS;
    attributes.phys_state = PORT_PHYSICALLY_UP;
    attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
    attributes
}

/// The low half of the host's address. Applications that connect by LID are on one network.
pub(crate) fn lid() -> u16 {
    let octets = match gid::first_address() {
        IpAddr::V4(address) => [address.octets()[2], address.octets()[3]],
        IpAddr::V6(address) => [address.octets()[14], address.octets()[15]],
    };
    u16::from_be_bytes(octets)
}

/// # Safety
/// `place` points at memory for the answer.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    _context: *mut ibv_context,
    place: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the caller's memory for the answer, by this function's contract.
    unsafe { place.write(device_attributes()) };
    0
}

/// `size` is the size of the structure that the application knows.
///
/// # Safety
/// `place` points at `size` bytes for the answer.
pub(crate) unsafe extern "C" fn query_device_ex(
    _context: *mut ibv_context,
    _input: *const ibv_query_device_ex_input,
    place: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    if size < size_of::<ibv_device_attr>() {
        return number(Err(Errno::INVALID));
    }
    let mut attributes = ibv_device_attr_ex::zeroed();
    attributes.orig_attr = device_attributes();
    attributes.phys_port_cnt_ex = PORT.into();
    // SAFETY: `size` bytes are the application's. `write_prefix` reads at most the size of
    // `attributes`.
    unsafe { write_prefix(&attributes, place, size) };
    0
}

/// # Safety
/// `place` points at `len` bytes for the answer.
pub(crate) unsafe extern "C" fn query_port(
    _context: *mut ibv_context,
    port: u8,
    place: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    if port != PORT {
        return number(Err(Errno::INVALID));
    }
    // SAFETY: `len` bytes are the application's, by this function's contract.
    unsafe { write_prefix(&port_attributes(), place, len) };
    0
}

/// Serves applications built before the macro, which know 48 bytes.
///
/// # Safety
/// `place` points at 48 bytes for the answer.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    place: *mut ibv_port_attr,
) -> c_int {
    const OLD_LEN: usize = 48;
    // SAFETY: this function's contract, with that length.
    unsafe { query_port(context, port, place, OLD_LEN) }
}

/// Writes the first `len` bytes of a value, and zeros behind the value if it is shorter.
///
/// # Safety
/// `place` points at `len` bytes.
unsafe fn write_prefix<T: Copy>(value: &T, place: *mut T, len: usize) {
    let known = len.min(size_of::<T>());
    // SAFETY: `known` bytes are in both, and a value on the stack does not overlap C's memory.
    unsafe { std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), place.cast(), known) };
    // SAFETY: `known` is at most `len`.
    let rest = unsafe { place.cast::<u8>().add(known) };
    // SAFETY: the rest of the `len` bytes.
    unsafe { rest.write_bytes(0, len - known) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The caller was built against a longer or a shorter structure.
    #[test]
    fn answer_is_cut_or_zero_filled_to_the_size_of_the_structure() {
        let known = size_of::<ibv_port_attr>();
        for len in [16, known, known + 16] {
            let mut place = [0xff_u8; 256];
            // SAFETY: `len` bytes of the place; bytes are aligned for any copy of bytes.
            let answer =
                unsafe { query_port(std::ptr::null_mut(), PORT, place.as_mut_ptr().cast(), len) };
            assert_eq!(answer, 0);
            assert!(place[known.min(len)..len].iter().all(|octet| *octet == 0), "{len}");
            assert!(place[len..].iter().all(|octet| *octet == 0xff), "{len}");
        }
    }

    #[test]
    fn a_device_has_one_port() {
        let mut place = ibv_port_attr::zeroed();
        for (port, answer) in [(0, libc::EINVAL), (1, 0), (2, libc::EINVAL)] {
            // SAFETY: a place of that length.
            let asked = unsafe {
                query_port(std::ptr::null_mut(), port, &raw mut place, size_of::<ibv_port_attr>())
            };
            assert_eq!(asked, answer, "{port}");
        }
    }

    /// Applications size their queues by these, and refuse a device with a zero.
    #[test]
    fn the_attributes_are_the_limits_of_the_engine() {
        let mut place = ibv_device_attr_ex::zeroed();
        let (context, size) = (std::ptr::null_mut(), size_of::<ibv_device_attr_ex>());
        // SAFETY: a place of that length.
        let asked = unsafe { query_device_ex(context, std::ptr::null(), &raw mut place, size) };
        assert_eq!((asked, place.phys_port_cnt_ex), (0, 1));
        let of = place.orig_attr;
        let text: Vec<u8> = of.fw_ver.iter().map(|c| c.to_ne_bytes()[0]).collect();
        assert!(text.starts_with(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()));
        assert_eq!((of.node_guid, of.sys_image_guid), (node_guid(), node_guid()));
        assert_eq!((of.max_mr_size, of.page_size_cap), (u64::MAX, !0xfff));
        assert_eq!((of.vendor_id, of.vendor_part_id, of.max_qp), (0xffff, 1, 65_536));
        assert_eq!((of.max_qp_wr, of.max_sge, of.max_sge_rd), (16_384, 6, 6));
        assert_eq!(
            (of.max_cq, of.max_cqe, of.max_mr, of.max_pd),
            (65_536, 1_048_575, 1 << 20, 65_536)
        );
        let reads = c_int::from(READS_OUTSTANDING_MAX);
        assert_eq!((of.max_qp_rd_atom, of.max_qp_init_rd_atom), (reads, reads));
        assert_eq!((of.max_res_rd_atom, of.atomic_cap), (reads * 65_536, IBV_ATOMIC_HCA));
        assert_eq!(of.max_mw, c_int::try_from(WINDOWS_MAX).unwrap());
        assert_eq!((of.max_srq, of.max_srq_wr, of.max_srq_sge), (65_536, 16_384, 6));
        assert_eq!((of.max_ah, of.max_pkeys, of.phys_port_cnt), (65_536, 1, 1));
        let mut plain = ibv_device_attr::zeroed();
        // SAFETY: a place of that length.
        assert_eq!(unsafe { ibv_query_device(context, &raw mut plain) }, 0);
        assert_eq!((plain.max_qp_wr, plain.max_cqe), (of.max_qp_wr, of.max_cqe));
        let short = size_of::<ibv_device_attr>();
        for (size, answer) in [(short - 1, libc::EINVAL), (short, 0)] {
            // SAFETY: a place of that length.
            let asked = unsafe { query_device_ex(context, std::ptr::null(), &raw mut place, size) };
            assert_eq!(asked, answer, "{size}");
        }
    }

    #[test]
    fn the_port_is_an_active_one_of_ethernet() {
        let mut port = ibv_port_attr::zeroed();
        // SAFETY: a place of 48 bytes at least.
        assert_eq!(unsafe { ibv_query_port(std::ptr::null_mut(), PORT, &raw mut port) }, 0);
        assert_eq!((port.state, port.max_mtu, port.active_mtu), (IBV_PORT_ACTIVE, 5, 5));
        assert_eq!(usize::try_from(port.gid_tbl_len), Ok(gid::table().len()));
        assert_eq!(port.port_cap_flags, IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS);
        assert_eq!((port.max_msg_sz, port.pkey_tbl_len, port.lid), (1 << 31, 1, lid()));
        assert_eq!((port.max_vl_num, port.active_width, port.active_speed), (1, 2, 4));
        assert_eq!((port.phys_state, port.link_layer), (5, IBV_LINK_LAYER_ETHERNET));
    }
}
