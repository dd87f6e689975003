//! Functions that urnic does not support and that need no state, refused as rdma-core does over a
//! device whose driver lacks the operation. Also the few helpers of libibverbs that librdmacm and
//! `ibv_devinfo` use, which work.
#![expect(unsafe_code, reason = "functions exported to C")]

use std::ffi::{CStr, CString, OsStr};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;
use std::{fs, ptr};

use libc::{c_char, c_int, c_void, sockaddr};
use urnic::environment;

use crate::abi::{
    IBV_SYSFS_PATH_MAX, ib_user_path_rec, ib_uverbs_ah_attr, ib_uverbs_qp_attr, ibv_ah_attr,
    ibv_context, ibv_dm, ibv_ece, ibv_gid, ibv_global_route, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_cap, ibv_sa_path_rec, rdma_cm_id, rdma_cm_join_mc_attr_ex,
};
use crate::errno::{Errno, minus_one, number, or_null};

/// `name(arguments) -> type = answer;` …
macro_rules! refused {
    ($($name:ident($($argument:ty),*) -> $type:ty = $answer:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($(_: $argument),*) -> $type {
                $answer
            }
        )*
    };
}

refused! {
    ibv_attach_mcast(*mut ibv_qp, *const ibv_gid, u16) -> c_int = libc::EOPNOTSUPP;
    ibv_detach_mcast(*mut ibv_qp, *const ibv_gid, u16) -> c_int = libc::EOPNOTSUPP;
    rdma_join_multicast(*mut rdma_cm_id, *mut sockaddr, *mut c_void) -> c_int = not_supported();
    rdma_join_multicast_ex(*mut rdma_cm_id, *mut rdma_cm_join_mc_attr_ex, *mut c_void) -> c_int =
        not_supported();
    // No group was ever joined: librdmacm returns this.
    rdma_leave_multicast(*mut rdma_cm_id, *mut sockaddr) -> c_int =
        minus_one(Err(Errno(libc::EADDRNOTAVAIL)));

    ibv_import_device(c_int) -> *mut ibv_context = none();
    ibv_import_pd(*mut ibv_context, u32) -> *mut ibv_pd = none();
    ibv_import_mr(*mut ibv_pd, u32) -> *mut ibv_mr = none();
    ibv_import_dm(*mut ibv_context, u32) -> *mut ibv_dm = none();
    ibv_unimport_pd(*mut ibv_pd) -> () = ();
    ibv_unimport_mr(*mut ibv_mr) -> () = ();
    ibv_unimport_dm(*mut ibv_dm) -> () = ();
    ibv_reg_dmabuf_mr(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr = none();

    // librspreload of rdma-core 65 turns `epoll_create` into this.
    repoll_create(c_int) -> c_int = not_supported();
    repoll_ctl(c_int, c_int, c_int, *mut c_void) -> c_int = minus_one(Err(Errno(libc::EBADF)));
    repoll_wait(c_int, *mut c_void, c_int, c_int) -> c_int = minus_one(Err(Errno(libc::EBADF)));

    ibv_query_ece(*mut ibv_qp, *mut ibv_ece) -> c_int = unsupported();
    ibv_set_ece(*mut ibv_qp, *mut ibv_ece) -> c_int = unsupported();
    rdma_set_local_ece(*mut rdma_cm_id, *mut ibv_ece) -> c_int = not_supported();

    ibv_dm_export_dmabuf_fd(*mut ibv_dm) -> c_int = not_supported();
    // The buffers of `ibv_alloc_buf` are memory of the process, behind no file.
    ibv_export_buf_dmabuf_fd(*mut c_void) -> c_int = not_supported();
    ibv_qp_attach_comp_cntr(*mut ibv_qp, *mut c_void, *mut c_void) -> c_int = unsupported();
    // Their arguments are not read, and C's calling conventions leave their removal to the caller.
    ibv_alloc_dmah() -> *mut c_void = none();
    ibv_dealloc_dmah() -> c_int = unsupported();
    ibv_create_comp_cntr() -> *mut c_void = none();
    ibv_destroy_comp_cntr() -> c_int = unsupported();
    ibv_inc_comp_cntr() -> c_int = unsupported();
    ibv_inc_err_comp_cntr() -> c_int = unsupported();
    ibv_read_comp_cntr() -> c_int = unsupported();
    ibv_read_err_comp_cntr() -> c_int = unsupported();
    ibv_set_comp_cntr() -> c_int = unsupported();
    ibv_set_err_comp_cntr() -> c_int = unsupported();
    _ibv_query_comp_cntr_caps() -> c_int = unsupported();
}

fn unsupported() -> c_int {
    number(Err(Errno::NOT_SUPPORTED))
}

fn not_supported() -> c_int {
    minus_one(Err(Errno::NOT_SUPPORTED))
}

fn none<C>() -> *mut C {
    or_null(Err(Errno::NOT_SUPPORTED))
}

/// The wire carries no vendor options, so all are zero, as for a peer without options. Fails unless
/// the queue pair is the application's own.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: an id of the caller's, or NULL.
    let qp = unsafe { id.as_ref() }.map(|id| id.qp);
    if ece.is_null() || qp != Some(ptr::null_mut()) {
        return minus_one(Err(Errno::INVALID));
    }
    // SAFETY: memory for the options, by the contract of the function in C.
    unsafe { ece.write(ibv_ece::zeroed()) };
    0
}

/// `SYSFS_PATH` without a final slash, or `/sys`. Ignores the variable if the process has rights
/// that its user does not have.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    PATH.get_or_init(|| {
        let mut path =
            environment("SYSFS_PATH").map_or_else(|| b"/sys".to_vec(), OsStringExt::into_vec);
        path.truncate(IBV_SYSFS_PATH_MAX);
        while path.last() == Some(&b'/') {
            path.pop();
        }
        CString::new(path).unwrap_or_default()
    })
    .as_ptr()
}

/// Reads a file without its line end, as a C string. Returns the length; -1 after an error, or if
/// the string does not fit.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: a C string, by the contract of the function in C.
    let folder = unsafe { CStr::from_ptr(folder) };
    // SAFETY: as above.
    let file = unsafe { CStr::from_ptr(file) };
    let path = Path::new(OsStr::from_bytes(folder.to_bytes()));
    match sysfs_text(&path.join(OsStr::from_bytes(file.to_bytes())), size) {
        Ok(text) => {
            let len = c_int::try_from(text.len()).unwrap_or(c_int::MAX);
            let text = text.into_iter().chain([0]).collect::<Vec<u8>>();
            // SAFETY: the caller's buffer has `size` bytes, and the text with its final zero has at
            // most as many.
            unsafe { ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len()) };
            len
        }
        Err(errno) => minus_one(Err(errno)),
    }
}

/// Refuses a file of `size` bytes or more, without its line end.
fn sysfs_text(path: &Path, size: usize) -> Result<Vec<u8>, Errno> {
    let mut text = Vec::new();
    let limit = u64::try_from(size).unwrap_or(u64::MAX);
    fs::File::open(path)?.take(limit).read_to_end(&mut text)?;
    if text.ends_with(b"\n") {
        text.pop();
    }
    if text.len() < size { Ok(text) } else { Err(Errno::INVALID) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    to: *mut ibv_ah_attr,
    from: *const ib_uverbs_ah_attr,
) {
    // SAFETY: an address of the kernel's form, by the contract of the function in C.
    let from = unsafe { from.read() };
    // SAFETY: memory for an address.
    unsafe { to.write(ah_attr(&from)) };
}

/// Keeps `qp_state` and `rate_limit` of the destination.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    to: *mut ibv_qp_attr,
    from: *const ib_uverbs_qp_attr,
) {
    // SAFETY: attributes of the kernel's form, by the contract of the function in C.
    let from = unsafe { from.read() };
    // SAFETY: attributes of the caller's, which were initialized before.
    let old = unsafe { to.read() };
    // SAFETY: the same place.
    unsafe { to.write(qp_attr(&from, &old)) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    // SAFETY: a path of the kernel's form, by the contract of the function in C.
    let from = unsafe { from.read() };
    let path = ibv_sa_path_rec {
        dgid: ibv_gid { raw: from.dgid },
        sgid: ibv_gid { raw: from.sgid },
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic.cast_signed(),
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible.cast_signed(),
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        // A number below six: 32 bits in the kernel's form, 8 bits in the application's.
        mtu: from.mtu.to_ne_bytes()[if cfg!(target_endian = "little") { 0 } else { 3 }],
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: memory for a path.
    unsafe { to.write(path) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    to: *mut ib_user_path_rec,
    from: *const ibv_sa_path_rec,
) {
    // SAFETY: a path, by the contract of the function in C.
    let from = unsafe { from.read() };
    let path = ib_user_path_rec {
        dgid: raw(from.dgid),
        sgid: raw(from.sgid),
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic.cast_unsigned(),
        flow_label: from.flow_label,
        reversible: from.reversible.cast_unsigned(),
        mtu: from.mtu.into(),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: memory for a path of the kernel's form.
    unsafe { to.write(path) };
}

fn raw(gid: ibv_gid) -> [u8; 16] {
    // SAFETY: 16 bytes by either name.
    unsafe { gid.raw }
}

fn ah_attr(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.grh.dgid },
            flow_label: from.grh.flow_label,
            sgid_index: from.grh.sgid_index,
            hop_limit: from.grh.hop_limit,
            traffic_class: from.grh.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

fn qp_attr(from: &ib_uverbs_qp_attr, old: &ibv_qp_attr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: old.qp_state,
        cur_qp_state: from.cur_qp_state,
        path_mtu: from.path_mtu,
        path_mig_state: from.path_mig_state,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: from.max_send_wr,
            max_recv_wr: from.max_recv_wr,
            max_send_sge: from.max_send_sge,
            max_recv_sge: from.max_recv_sge,
            max_inline_data: from.max_inline_data,
        },
        ah_attr: ah_attr(&from.ah_attr),
        alt_ah_attr: ah_attr(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: old.rate_limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives each named field a number of its own, from `first` on.
    macro_rules! number {
        ($of:expr, $first:expr, $($field:ident)*) => {
            let mut next: u8 = $first;
            $( $of.$field = next.into(); next += 1; )*
            let _end = next;
        };
    }

    /// Compares the named fields of both forms.
    macro_rules! compare {
        ($a:expr, $b:expr, $($field:ident)*) => {
            $( assert_eq!(i64::from($a.$field), i64::from($b.$field), stringify!($field)); )*
        };
    }

    fn errno() -> Option<c_int> {
        std::io::Error::last_os_error().raw_os_error()
    }

    #[test]
    fn a_path_is_the_same_in_both_forms() {
        let mut kernels = ib_user_path_rec::zeroed();
        number!(
            kernels, 1,
            dlid slid raw_traffic flow_label reversible mtu pkey hop_limit traffic_class numb_path
            sl mtu_selector rate_selector rate packet_life_time_selector packet_life_time preference
        );
        (kernels.dgid, kernels.sgid) = ([0xd; 16], [0x5; 16]);
        let mut path = ibv_sa_path_rec::zeroed();
        // SAFETY: a path, and memory for one.
        unsafe { ibv_copy_path_rec_from_kern(&raw mut path, &raw const kernels) };
        let mut back = ib_user_path_rec::zeroed();
        // SAFETY: as above.
        unsafe { ibv_copy_path_rec_to_kern(&raw mut back, &raw const path) };
        assert_eq!((raw(path.dgid), raw(path.sgid)), (kernels.dgid, kernels.sgid));
        assert_eq!((back.dgid, back.sgid), (kernels.dgid, kernels.sgid));
        compare!(
            path, kernels,
            dlid slid raw_traffic flow_label reversible mtu pkey hop_limit traffic_class numb_path
            sl mtu_selector rate_selector rate packet_life_time_selector packet_life_time preference
        );
        compare!(
            path, back,
            dlid slid raw_traffic flow_label reversible mtu pkey hop_limit traffic_class numb_path
            sl mtu_selector rate_selector rate packet_life_time_selector packet_life_time preference
        );
    }

    fn kernels_address(first: u8) -> ib_uverbs_ah_attr {
        let mut address = ib_uverbs_ah_attr::zeroed();
        number!(address, first, dlid sl src_path_bits static_rate is_global port_num);
        number!(address.grh, first + 10, flow_label sgid_index hop_limit traffic_class);
        address.grh.dgid = [first; 16];
        address
    }

    fn assert_same_address(to: &ibv_ah_attr, from: &ib_uverbs_ah_attr) {
        compare!(to, from, dlid sl src_path_bits static_rate is_global port_num);
        compare!(to.grh, from.grh, flow_label sgid_index hop_limit traffic_class);
        assert_eq!(raw(to.grh.dgid), from.grh.dgid);
    }

    #[test]
    fn an_address_and_attributes_are_the_same_in_both_forms() {
        let kernels = kernels_address(1);
        let mut address = ibv_ah_attr::zeroed();
        // SAFETY: an address, and memory for one.
        unsafe { ibv_copy_ah_attr_from_kern(&raw mut address, &raw const kernels) };
        assert_same_address(&address, &kernels);
        let mut kernels = ib_uverbs_qp_attr::zeroed();
        number!(
            kernels, 1,
            qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num
            qp_access_flags max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data
            pkey_index alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic
            max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num
            alt_timeout
        );
        (kernels.ah_attr, kernels.alt_ah_attr) = (kernels_address(100), kernels_address(200));
        let mut to = ibv_qp_attr::zeroed();
        (to.qp_state, to.rate_limit) = (77, 78);
        // SAFETY: attributes of both forms.
        unsafe { ibv_copy_qp_attr_from_kern(&raw mut to, &raw const kernels) };
        assert_eq!((to.qp_state, to.rate_limit), (77, 78), "kept");
        compare!(
            to, kernels,
            cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags
            pkey_index alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic
            max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num
            alt_timeout
        );
        compare!(
            to.cap, kernels,
            max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data
        );
        assert_same_address(&to.ah_attr, &kernels.ah_attr);
        assert_same_address(&to.alt_ah_attr, &kernels.alt_ah_attr);
    }

    #[test]
    fn refusals_are_those_of_a_device_without_the_operation() {
        let (qp, id, none) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let unsupported = [
            ibv_attach_mcast(qp, ptr::null(), 0),
            ibv_detach_mcast(qp, ptr::null(), 0),
            ibv_query_ece(qp, ptr::null_mut()),
            ibv_set_ece(qp, ptr::null_mut()),
        ];
        assert_eq!(unsupported, [libc::EOPNOTSUPP; 4]);
        Errno(0).set();
        assert_eq!((rdma_join_multicast(id, ptr::null_mut(), none), errno()), (-1, Some(95)));
        Errno(0).set();
        assert_eq!((rdma_join_multicast_ex(id, ptr::null_mut(), none), errno()), (-1, Some(95)));
        Errno(0).set();
        assert_eq!((rdma_set_local_ece(id, ptr::null_mut()), errno()), (-1, Some(95)));
        let left = rdma_leave_multicast(id, ptr::null_mut());
        assert_eq!((left, errno()), (-1, Some(libc::EADDRNOTAVAIL)));
        Errno(0).set();
        let pd = ptr::null_mut();
        assert!(ibv_import_device(0).is_null() && ibv_import_pd(ptr::null_mut(), 0).is_null());
        assert!(ibv_import_mr(pd, 0).is_null() && ibv_import_dm(ptr::null_mut(), 0).is_null());
        assert!(ibv_reg_dmabuf_mr(pd, 0, 0, 0, 0, 0).is_null());
        assert_eq!(errno(), Some(libc::EOPNOTSUPP));
        let mut ece = ibv_ece::zeroed();
        // SAFETY: no id, and memory for the options.
        assert_eq!(unsafe { rdma_get_remote_ece(id, &raw mut ece) }, -1);
        assert_eq!(errno(), Some(libc::EINVAL));
    }

    #[test]
    fn a_file_is_read_without_its_line_end_if_it_fits() {
        let folder = tempfile::tempdir().unwrap();
        let path = CString::new(folder.path().as_os_str().as_bytes()).unwrap();
        let read = |content: &str, size: usize| {
            fs::write(folder.path().join("f"), content).unwrap();
            let mut buffer = [b'#'; 8];
            // SAFETY: two C strings, and a buffer of at least `size` bytes.
            let len = unsafe {
                ibv_read_sysfs_file(path.as_ptr(), c"f".as_ptr(), buffer.as_mut_ptr().cast(), size)
            };
            (len, buffer)
        };
        assert_eq!(read("abc\n", 8), (3, *b"abc\0####"));
        assert_eq!(read("abc", 4), (3, *b"abc\0####"));
        assert_eq!(read("", 8), (0, *b"\0#######"));
        assert_eq!((read("abcd", 4), errno()), ((-1, *b"########"), Some(libc::EINVAL)));
        let mut buffer = [0_u8; 8];
        // SAFETY: as above.
        let len = unsafe {
            ibv_read_sysfs_file(path.as_ptr(), c"none".as_ptr(), buffer.as_mut_ptr().cast(), 8)
        };
        assert_eq!((len, errno()), (-1, Some(libc::ENOENT)));
    }
}
