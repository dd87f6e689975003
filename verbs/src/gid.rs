//! The GID table: the addresses of this host, encoded as RoCE does (IPv4 as IPv4-mapped).
#![expect(unsafe_code, reason = "entries are written where C wants them")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{c_int, c_uint};

use crate::abi::{IBV_GID_TYPE_ROCE_V2, ibv_context, ibv_gid, ibv_gid_entry};
use crate::errno::{Errno, number};
use crate::network;
use crate::process::addresses;

/// The one port of the device.
pub(crate) const PORT: u8 = 1;

#[derive(Clone, Debug)]
pub(crate) struct Gid {
    pub(crate) address: IpAddr,
    pub(crate) interface_index: u32,
}

impl Gid {
    pub(crate) fn octets(&self) -> [u8; 16] {
        octets(self.address)
    }
}

pub(crate) const fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

pub(crate) fn address(octets: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}

/// Returns the present table: the addresses of the interface or, with the kernel's TCP, of the
/// host. IPv4 comes first, because applications take the first entry; loopback comes last, because
/// it reaches no other host.
pub(crate) fn table() -> Vec<Gid> {
    if network::device().is_some() {
        // No interface of the kernel has these addresses.
        let gid = |address| Gid { address, interface_index: 0 };
        return addresses().into_iter().map(gid).collect();
    }
    let mut table: Vec<Gid> = if_addrs::get_if_addrs()
        .unwrap_or_default()
        .into_iter()
        .filter(|interface| interface.is_oper_up() || interface.is_loopback())
        .map(|interface| Gid {
            address: interface.ip(),
            interface_index: interface.index.unwrap_or(0),
        })
        .collect();
    if table.is_empty() {
        // Applications give up on a port without an address.
        table.push(Gid { address: Ipv4Addr::LOCALHOST.into(), interface_index: 0 });
    }
    table.sort_by_key(|gid| (gid.address.is_loopback(), gid.address.is_ipv6()));
    table
}

/// Returns the first address of the table: most applications use only this one.
pub(crate) fn first_address() -> IpAddr {
    table().first().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |gid| gid.address)
}

fn entry(index: usize, gid: &Gid) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: gid.octets() },
        gid_index: u32::try_from(index).unwrap_or(u32::MAX),
        port_num: PORT.into(),
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: gid.interface_index,
    }
}

/// -1 if there is no such entry.
///
/// # Safety
/// `gid` points at memory for one.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    match table().get(index).filter(|_| port == PORT) {
        Some(found) => {
            // SAFETY: the caller's memory for the answer, by this function's contract.
            unsafe { gid.write(ibv_gid { raw: found.octets() }) };
            0
        }
        None => {
            Errno::INVALID.set();
            -1
        }
    }
}

/// # Safety
/// `place` points at memory for one.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    _context: *mut ibv_context,
    port: u32,
    index: u32,
    place: *mut ibv_gid_entry,
    _flags: u32,
    _size: usize,
) -> c_int {
    if port != u32::from(PORT) {
        return number(Err(Errno::INVALID));
    }
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    match table().get(index) {
        Some(gid) => {
            // SAFETY: the caller's memory for the answer, by this function's contract.
            unsafe { place.write(entry(index, gid)) };
            0
        }
        None => number(Err(Errno(libc::ENODATA))),
    }
}

/// Returns the number of entries written, or a negative error number if there is no room.
///
/// # Safety
/// `entries` points at memory for `max_entries` entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    _context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    _flags: u32,
    _size: usize,
) -> isize {
    let table = table();
    if table.len() > max_entries {
        return -(libc::EINVAL as isize);
    }
    for (index, gid) in table.iter().enumerate() {
        // SAFETY: `index` is below `max_entries`.
        let place = unsafe { entries.add(index) };
        // SAFETY: in the caller's memory for the answer, by this function's contract.
        unsafe { place.write(entry(index, gid)) };
    }
    isize::try_from(table.len()).unwrap_or(isize::MAX)
}

/// A private symbol that applications use. All entries have the type that it calls RoCE v2.
///
/// # Safety
/// `kind` points at memory for the answer.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    _context: *mut ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    if port != PORT || usize::try_from(index).unwrap_or(usize::MAX) >= table().len() {
        Errno::INVALID.set();
        return -1;
    }
    // SAFETY: the caller's memory for the answer, by this function's contract.
    unsafe { kind.write(SYSFS_ROCE_V2) };
    0
}

/// `IBV_GID_TYPE_SYSFS_ROCE_V2` of rdma-core's private header.
const SYSFS_ROCE_V2: c_uint = 1;

/// The only partition key is the default one.
///
/// # Safety
/// `pkey` points at memory for the answer.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if port != PORT || index != 0 {
        Errno::INVALID.set();
        return -1;
    }
    // SAFETY: the caller's memory for the answer, by this function's contract.
    unsafe { pkey.write(DEFAULT_PKEY) };
    0
}

pub(crate) const DEFAULT_PKEY: u16 = 0xffff;

#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    if port == PORT && pkey == DEFAULT_PKEY { 0 } else { -1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_an_address_and_back() {
        for text in ["10.1.2.3", "fe80::1", "::1"] {
            let parsed: IpAddr = text.parse().unwrap();
            assert_eq!(address(octets(parsed)), parsed);
        }
    }

    #[test]
    fn loopback_comes_last() {
        let table = table();
        let first = table.iter().position(|gid| gid.address.is_loopback());
        let others = first.map_or(0, |first| {
            table[first..].iter().filter(|gid| !gid.address.is_loopback()).count()
        });
        assert_eq!(others, 0);
    }

    /// The ways to ask for an entry agree, and refuse the same entries.
    #[test]
    fn each_question_about_an_entry_has_the_same_answer() {
        let context = std::ptr::null_mut();
        let table = table();
        let mut entries = vec![entry(99, &table[0]); table.len()];
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: memory for the entries.
        let written =
            unsafe { _ibv_query_gid_table(context, entries.as_mut_ptr(), entries.len(), 0, size) };
        assert_eq!(usize::try_from(written), Ok(table.len()));
        // SAFETY: memory for one entry less.
        let refused = unsafe {
            _ibv_query_gid_table(context, entries.as_mut_ptr(), entries.len() - 1, 0, size)
        };
        assert_eq!(refused, -(libc::EINVAL as isize));
        let raw = |gid: ibv_gid| {
            // SAFETY: 16 bytes by either name.
            unsafe { gid.raw }
        };
        let last = c_int::try_from(table.len()).unwrap();
        for (port, index, is_there) in
            [(PORT, 0, true), (PORT, last - 1, true), (PORT, last, false), (2, 0, false)]
        {
            let (mut gid, mut kind) = (ibv_gid { raw: [0; 16] }, 99);
            let unsigned = index.cast_unsigned();
            let expected = if is_there { 0 } else { -1 };
            // SAFETY: memory for the answer.
            assert_eq!(unsafe { ibv_query_gid(context, port, index, &raw mut gid) }, expected);
            // SAFETY: memory for the answer.
            let asked = unsafe { ibv_query_gid_type(context, port, unsigned, &raw mut kind) };
            assert_eq!((asked, kind), (expected, if is_there { SYSFS_ROCE_V2 } else { 99 }));
            let mut found = entries[0];
            found.gid_index = 99;
            let place = &raw mut found;
            // SAFETY: memory for the answer.
            let asked =
                unsafe { _ibv_query_gid_ex(context, port.into(), unsigned, place, 0, size) };
            let error = if port == PORT { libc::ENODATA } else { libc::EINVAL };
            assert_eq!(asked, if is_there { 0 } else { error }, "{port} {index}");
            let Some(of) = table.get(usize::try_from(index).unwrap()).filter(|_| is_there) else {
                continue;
            };
            let listed = entries[usize::try_from(index).unwrap()];
            for entry in [found, listed] {
                assert_eq!(raw(entry.gid), octets(of.address));
                assert_eq!((entry.gid_index, entry.port_num), (unsigned, 1));
                assert_eq!((entry.gid_type, entry.ndev_ifindex), (2, of.interface_index));
            }
            assert_eq!(raw(gid), octets(of.address));
        }
        // SAFETY: no memory is written for an index below zero.
        assert_eq!(unsafe { ibv_query_gid(context, PORT, -1, std::ptr::null_mut()) }, -1);
    }

    #[test]
    fn the_only_partition_is_the_default_one() {
        let context = std::ptr::null_mut();
        for (port, index, answer) in [(PORT, 0, 0), (PORT, 1, -1), (2, 0, -1)] {
            let mut pkey = 7;
            // SAFETY: memory for the answer.
            let asked = unsafe { ibv_query_pkey(context, port, index, &raw mut pkey) };
            assert_eq!((asked, pkey), (answer, if answer == 0 { 0xffff } else { 7 }));
        }
        let index = |port, pkey| ibv_get_pkey_index(context, port, pkey);
        assert_eq!((index(PORT, 0xffff), index(2, 0xffff), index(PORT, 0x7fff)), (0, -1, -1));
    }
}
