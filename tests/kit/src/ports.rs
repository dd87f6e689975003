//! TCP ports for programs that listen at a given port.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// First port, below the range of ephemeral ports: no socket of another test gets such a port by
/// asking for any.
const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;

/// Returns a port that is free for TCP and UDP, and that this process does not get again soon.
///
/// # Panics
/// If all are in use.
pub fn free_port() -> u16 {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    // Processes that run at the same time start at different ports.
    let begin = process::id().wrapping_mul(97);
    for _ in 0..COUNT {
        let number = begin.wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(FIRST + number % COUNT).expect("below 32768");
        let at = (Ipv4Addr::UNSPECIFIED, port);
        if TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}
