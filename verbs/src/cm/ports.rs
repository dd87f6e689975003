//! Ports of RDMA beside those of TCP. On InfiniBand the two are different things: servers listen at one number for
//! both. Here a listener takes the TCP port of its number if that is free, as siw expects it. If a program has it
//! for TCP, the listener takes another one, and tells peers which at the same number of UDP:
//!
//! ```text
//!   0  "uRPT"    4  version (1)    5  1: question, 2: answer    6  TCP port (2), 0 in a question    8  nonce (8)
//! ```
//!
//! An end that connects asks while it connects: the answer of a peer that has the TCP port is the MPA Reply.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use socket2::{Domain, SockAddr, Socket, Type};
use tracing::debug;
use urnic::{ListenParams, Listener, monotonic_now};
use urnic_engine::time::{Duration, Instant};

use crate::errno::Errno;
use crate::gid;
use crate::network;
use crate::process::process;
use crate::thread::run_as_own;

const MAGIC: [u8; 4] = *b"uRPT";
const VERSION: u8 = 1;
const QUESTION: u8 = 1;
const ANSWER: u8 = 2;
const LEN: usize = 16;

fn message(kind: u8, tcp_port: u16, nonce: [u8; 8]) -> [u8; LEN] {
    let mut octets = [0; LEN];
    octets[..4].copy_from_slice(&MAGIC);
    (octets[4], octets[5]) = (VERSION, kind);
    octets[6..8].copy_from_slice(&tcp_port.to_be_bytes());
    octets[8..].copy_from_slice(&nonce);
    octets
}

/// The TCP port and the nonce of a message of this kind.
fn parse(octets: &[u8], kind: u8) -> Option<(u16, [u8; 8])> {
    let (head, rest) = octets.split_first_chunk::<6>()?;
    let (tcp_port, rest) = rest.split_first_chunk()?;
    let nonce = rest.first_chunk()?;
    let expected = message(kind, 0, [0; 8]);
    (head[..] == expected[..6]).then_some((u16::from_be_bytes(*tcp_port), *nonce))
}

/// Says to other processes that the port is one of RDMA. It has no length on disk, and goes with its process.
#[derive(Debug)]
pub(super) struct Marker(#[expect(dead_code, reason = "held")] Socket);

impl Marker {
    fn new(local: SocketAddr) -> io::Result<Self> {
        // Of the abstract namespace, which belongs to the network's as TCP ports do (unix(7)).
        let name = format!("\0urnic-rdma-port/{local}");
        let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
        socket.bind(&SockAddr::unix(name)?)?;
        Ok(Self(socket))
    }

    /// Takes it, if it is free. Ids that do not listen yet may share an address.
    pub(super) fn take(local: SocketAddr) -> Option<Self> {
        Self::new(local).ok()
    }
}

/// Whether the port is one of RDMA at an address that this one stands for, or that stands for this one.
pub(super) fn is_taken(local: SocketAddr) -> bool {
    let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let mut addresses = vec![local.ip()];
    addresses.extend(any);
    if local.ip().is_unspecified() {
        addresses.extend(gid::table().iter().map(|gid| gid.address));
    }
    let is_held = |ip| {
        let made = Marker::new(SocketAddr::new(ip, local.port()));
        made.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    addresses.into_iter().any(is_held)
}

/// A listener whose TCP port is another one than its number.
#[derive(Debug)]
pub(super) struct Announced {
    /// The address that programs know.
    pub(super) local: SocketAddr,
    _marker: Marker,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Announced {
    /// Listens at any TCP port, and tells which.
    pub(super) fn listen(
        local: SocketAddr,
        params: ListenParams,
    ) -> Result<(Listener, Self), Errno> {
        let taken = Errno(libc::EADDRINUSE);
        if is_taken(local) {
            return Err(taken);
        }
        let marker = Marker::take(local).ok_or(taken)?;
        let questions = UdpSocket::bind(local)?;
        let any = SocketAddr::new(local.ip(), 0);
        let listener = process()?.network.endpoint.listen(any, params)?;
        let tcp_port = listener.local().port();
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let stopped = rustix::io::dup(&stop)?;
        let body = move || answer(&questions, &stopped, tcp_port);
        let start = || thread::Builder::new().name("urnic-rdma-port".to_owned()).spawn(body);
        let thread = Some(run_as_own(start)??);
        debug!(target: "urnic", %local, tcp_port, "the TCP port of this number is another program's");
        Ok((listener, Self { local, _marker: marker, stop, thread }))
    }
}

impl Drop for Announced {
    /// The address is free when this returns.
    fn drop(&mut self) {
        // It cannot block: the counter would have to be full.
        let _told = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Answers until it is told to stop. The answer is as long as the question, and goes where that came from.
fn answer(questions: &UdpSocket, stop: &OwnedFd, tcp_port: u16) {
    loop {
        let mut ready = [PollFd::new(questions, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if poll(&mut ready, None).is_err() || !ready[1].revents().is_empty() {
            return;
        }
        let mut octets = [0; LEN];
        let Ok((len, from)) = questions.recv_from(&mut octets) else { continue };
        if let Some((_, nonce)) = parse(&octets[..len], QUESTION) {
            let _lost_as_datagrams_are = questions.send_to(&message(ANSWER, tcp_port, nonce), from);
        }
    }
}

/// A question that may be answered.
#[derive(Debug)]
pub(super) struct Asking {
    socket: UdpSocket,
    remote: SocketAddr,
    nonce: [u8; 8],
    /// When it is asked again, and when no more answers are looked for.
    again: Instant,
    wait: Duration,
    until: Instant,
}

/// Between questions at first; each time twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(20);
/// How long an answer is looked for.
const PATIENCE: Duration = Duration::from_millis(300);
/// Between looks.
const LOOK: Duration = Duration::from_millis(5);

impl Asking {
    /// Asks. `None` when that cannot be: then there is only the TCP port.
    pub(super) fn start(remote: SocketAddr) -> Option<Self> {
        if network::device().is_some() {
            // Ports of an interface of urnic's own are those of RDMA.
            return None;
        }
        let any: IpAddr = match remote {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
        socket.set_nonblocking(true).ok()?;
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).ok()?;
        let now = monotonic_now();
        let (again, until) = (now + FIRST_WAIT, now + PATIENCE);
        let asking = Self { socket, remote, nonce, again, wait: FIRST_WAIT, until };
        asking.ask();
        Some(asking)
    }

    fn ask(&self) {
        let question = message(QUESTION, 0, self.nonce);
        let _lost_as_datagrams_are = self.socket.send_to(&question, self.remote);
    }

    /// The TCP port that the peer has told, if it has by now. Asks again when it is time.
    pub(super) fn look(&mut self) -> Option<u16> {
        let mut octets = [0; LEN];
        // What comes from other addresses is an answer too, of a peer that has several: it has the nonce.
        while let Ok((len, _from)) = self.socket.recv_from(&mut octets) {
            let told = parse(&octets[..len], ANSWER);
            if let Some((tcp_port, _)) = told.filter(|(_, nonce)| *nonce == self.nonce) {
                return (tcp_port != 0).then_some(tcp_port);
            }
        }
        let now = monotonic_now();
        if now >= self.again {
            self.wait *= 2;
            self.again = now + self.wait;
            self.ask();
        }
        None
    }

    /// When to look next; `None` when it was looked for long enough.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let now = monotonic_now();
        (now < self.until).then(|| now + LOOK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_16_octets_and_come_back() {
        let octets = message(ANSWER, 0x1234, *b"12345678");
        assert_eq!(octets, *b"uRPT\x01\x02\x12\x3412345678");
        assert_eq!(parse(&octets, ANSWER), Some((0x1234, *b"12345678")));
        assert_eq!(parse(&octets, QUESTION), None);
        for len in 0..LEN {
            assert_eq!(parse(&octets[..len], ANSWER), None);
        }
        for index in 0..6 {
            let mut other = octets;
            other[index] ^= 8;
            assert_eq!(parse(&other, ANSWER), None);
        }
    }

    #[test]
    fn a_marker_stands_for_all_addresses_that_cover_its_own() {
        let local = |text: &str| -> SocketAddr { text.parse().unwrap() };
        // A port that no other test has.
        let keeper = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = keeper.local_addr().unwrap().port();
        let at = |ip: &str| local(&format!("{ip}:{port}"));
        assert!(!is_taken(at("127.0.0.1")));
        let marker = Marker::take(at("127.0.0.1"));
        assert!(marker.is_some() && Marker::take(at("127.0.0.1")).is_none());
        assert!(is_taken(at("127.0.0.1")) && is_taken(at("0.0.0.0")) && is_taken(at("[::]")));
        assert!(!is_taken(at("127.0.0.2")));
        drop(marker);
        let marker = Marker::take(at("0.0.0.0"));
        assert!(marker.is_some() && is_taken(at("127.0.0.2")));
    }

    /// A question without an answer is asked again; one with a wrong nonce is none.
    #[test]
    fn an_answer_is_that_to_the_question() {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut asking = Asking::start(peer.local_addr().unwrap()).unwrap();
        let mut octets = [0; 64];
        let (len, from) = peer.recv_from(&mut octets).unwrap();
        let (_, nonce) = parse(&octets[..len], QUESTION).unwrap();
        let mut wrong = nonce;
        wrong[0] ^= 1;
        peer.send_to(&message(ANSWER, 7, wrong), from).unwrap();
        while asking.again <= monotonic_now() + FIRST_WAIT {
            assert_eq!(asking.look(), None);
        }
        let (len, from) = peer.recv_from(&mut octets).unwrap();
        assert_eq!(parse(&octets[..len], QUESTION), Some((0, nonce)), "asked again");
        peer.send_to(&message(ANSWER, 7, nonce), from).unwrap();
        let told = std::iter::repeat_with(|| asking.look()).find_map(|told| told);
        assert_eq!(told, Some(7));
    }
}
