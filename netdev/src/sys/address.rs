//! IP addresses of the kernel.
#![expect(unsafe_code, reason = "walks the list that getifaddrs allocates")]

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::interface::Name;

/// Returns the kernel's addresses in the calling thread's network namespace, each with its
/// interface.
pub fn addresses() -> io::Result<Vec<(Name, IpAddr)>> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the call writes the head of an allocated list to `list`.
    if unsafe { libc::getifaddrs(&raw mut list) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` walks the list that `getifaddrs` returned; it is freed below.
        let entry: libc::ifaddrs = unsafe { next.read() };
        next = entry.ifa_next;
        // SAFETY: the name of an entry is a zero-terminated string that exists as long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: the address of an entry is null, or has the length of its family's socket
        // addresses.
        let address = unsafe { ip_address(entry.ifa_addr) };
        let name = name.to_str().ok().and_then(|name| name.parse::<Name>().ok());
        found.extend(name.zip(address));
    }
    // SAFETY: `list` came from `getifaddrs`, and nothing refers to it now.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// `None` for null and for other families.
/// # Safety
/// `address` must be null, or readable for the length of its family's socket addresses.
unsafe fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, and every socket address begins with its family, unaligned or not.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: of this family, so this long.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: of this family, so this long.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_on_an_interface_that_exists() {
        let names = crate::interface::names().unwrap();
        for (name, address) in addresses().unwrap() {
            assert!(names.contains(&name), "{name} has {address}");
        }
    }

    #[test]
    fn both_families_are_read() {
        // SAFETY: C structs of integers, for which all zeroes are valid.
        let mut v4: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        v4.sin_family = 2;
        v4.sin_addr.s_addr = u32::from_ne_bytes([10, 1, 2, 3]);
        // SAFETY: as above.
        let mut v6: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        v6.sin6_family = 10;
        v6.sin6_addr.s6_addr = Ipv6Addr::LOCALHOST.octets();
        // SAFETY: a socket address of its family.
        let read = unsafe { ip_address((&raw const v4).cast()) };
        assert_eq!(read, Some(IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3))));
        // SAFETY: a socket address of its family.
        let read = unsafe { ip_address((&raw const v6).cast()) };
        assert_eq!(read, Some(IpAddr::V6(Ipv6Addr::LOCALHOST)));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { ip_address(std::ptr::null()) }, None);
    }
}
