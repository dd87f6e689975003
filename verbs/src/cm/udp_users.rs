//! Finds the user that has a UDP port: `/proc/net/udp` names the user of each socket (proc(5)).

use std::fs;
use std::net::{IpAddr, SocketAddr};

use rustix::process::geteuid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    None,
    /// This process's user, root, or a user that cannot be determined.
    Trusted,
    AnotherUser,
}

/// Default if `ip_unprivileged_port_start` cannot be read (ip(7)).
const UNPRIVILEGED_FIRST: u16 = 1024;

pub(super) fn is_for_all_users(port: u16) -> bool {
    let said = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first = said.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(UNPRIVILEGED_FIRST);
    port >= first
}

/// Counts sockets whose address overlaps: both are equal, or one is unspecified.
pub(super) fn holder(local: SocketAddr) -> Holder {
    // The namespace is that of the calling thread, which has tried to bind.
    let Ok(mut text) = fs::read_to_string("/proc/thread-self/net/udp") else {
        return Holder::Trusted;
    };
    // Absent if the kernel has no IPv6.
    text += &fs::read_to_string("/proc/thread-self/net/udp6").unwrap_or_default();
    let own = geteuid().as_raw();
    users(&text, local).fold(Holder::None, |found, user| match found {
        Holder::AnotherUser => found,
        _ if user == 0 || user == own => Holder::Trusted,
        _ => Holder::AnotherUser,
    })
}

fn users(text: &str, local: SocketAddr) -> impl Iterator<Item = u32> {
    text.lines().filter_map(move |line| {
        let mut words = line.split_ascii_whitespace();
        let (ip, port) = words.nth(1)?.split_once(':')?;
        let ip = address(ip)?;
        let overlaps =
            ip.is_unspecified() || local.ip().is_unspecified() || ip == local.ip().to_canonical();
        let is_here = overlaps && u16::from_str_radix(port, 16) == Ok(local.port());
        let user = words.nth(5)?.parse().ok()?;
        is_here.then_some(user)
    })
}

/// Words of 32 bits in this processor's byte order, in hexadecimal.
fn address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| -> Option<[u8; 4]> {
        let word = u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(word(0)?.into()),
        32 => {
            let mut octets = [0; 16];
            for (index, place) in octets.chunks_exact_mut(4).enumerate() {
                place.copy_from_slice(&word(8 * index)?);
            }
            Some(IpAddr::from(octets).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn users_are_those_of_sockets_at_overlapping_addresses() {
        let (loopback, v6) = if cfg!(target_endian = "little") {
            ("0100007F", "0000000000000000FFFF00000100007F")
        } else {
            ("7F000001", "00000000000000000000FFFF7F000001")
        };
        let line = |address: &str, port: &str, user: &str| {
            format!(
                "  1: {address}:{port} 00000000:0000 07 00000000:00000000 00:00000000 00000000 {user:>5} 0 9 2 00 0\n"
            )
        };
        let none = "0".repeat(32);
        let text = "  sl  local_address rem_address   st\n".to_owned()
            + &line(loopback, "1F90", "7")
            + &line(loopback, "1F91", "8")
            + &line("00000000", "1F90", "1000")
            + &line(v6, "1F90", "9")
            + &line(&none, "1F90", "65534")
            + "  2: 0100007F:1F90";
        let of = |local: &str| users(&text, local.parse().unwrap()).collect::<Vec<_>>();
        assert_eq!(of("127.0.0.1:8080"), [7, 1000, 9, 65534]);
        assert_eq!(of("127.0.0.2:8080"), [1000, 65534]);
        assert_eq!(of("0.0.0.0:8080"), [7, 1000, 9, 65534]);
        assert_eq!(of("127.0.0.1:8081"), [8]);
        assert!(of("127.0.0.1:8082").is_empty());
    }

    #[test]
    fn the_kernel_names_the_user_of_a_socket() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            // A machine without IPv6 has no such socket.
            let Ok(socket) = UdpSocket::bind(any) else { continue };
            let local = socket.local_addr().unwrap();
            assert_eq!(holder(local), Holder::Trusted);
        }
    }
}
