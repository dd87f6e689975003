//! Port numbers of RDMA, which are independent of TCP ports as on InfiniBand. RDMA runs over TCP
//! here: a listener with number N whose TCP port another socket has listens at another TCP port.
//!
//! 1. A listener takes TCP port N if it is free, as siw expects. Otherwise it takes any TCP port.
//! 2. In both cases it takes UDP port N, and answers questions there with its TCP port.
//! 3. A connecting end connects to TCP port N, and sends a question to UDP port N at the same time.
//!    It repeats the question until there is an answer, for up to 2 s, or for up to 300 ms if no
//!    socket has UDP port N.
//! 4. **The TCP port of the number takes precedence**: if the server at TCP port N sends an MPA
//!    Reply, answers are ignored.
//! 5. The end connects to the TCP port of the answer if the attempt at TCP port N failed without an
//!    MPA Reply, or if a [`Probe`] shows that the server at TCP port N does not speak MPA.
//!
//! ```text
//!   0  "uRPT"    4  version (1)    5  1: question, 2: answer    6  TCP port (2), 0 in a question    8  nonce (8)
//! ```
//!
//! Racy and hostile cases:
//!
//! - *Another process has UDP port N.* A listener without TCP port N fails. A listener with TCP
//!   port N continues, since step 4 protects it while it runs. But it is refused if that process is
//!   another user's and the application chose N: the process could redirect peers at other times.
//! - *A question or an answer is lost.* The end repeats the question. Without an answer only TCP
//!   port N counts.
//! - *A stale or forged answer.* The end ignores an answer with another nonce or from another port
//!   than N.
//! - *The server at TCP port N is silent.* It may be the peer, whose application has not answered
//!   yet, or a server of another protocol. The probe decides.
#![expect(unsafe_code, reason = "a socket option that no crate used here has")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;

use crossbeam::channel::{Receiver, Sender, bounded};
use libc::c_int;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use socket2::{Domain, Socket, Type};
use tracing::{debug, warn};
use urnic::{ListenParams, Listener, monotonic_now};
use urnic_engine::time::{Duration, Instant};

use super::probe::{Probe, Speaks};
use super::udp_users::{Holder, holder, is_for_all_users};
use crate::errno::Errno;
use crate::fork;
use crate::network;
use crate::process::process;
use crate::thread::run_as_own;

const MAGIC: [u8; 4] = *b"uRPT";
const VERSION: u8 = 1;
const QUESTION: u8 = 1;
const ANSWER: u8 = 2;
const LEN: usize = 16;
const IN_USE: Errno = Errno(libc::EADDRINUSE);
/// Attempts at a UDP port that is taken, but has no holder when the holder is looked up.
const TRIES: usize = 10;

fn message(kind: u8, tcp_port: u16, nonce: [u8; 8]) -> [u8; LEN] {
    let mut octets = [0; LEN];
    octets[..4].copy_from_slice(&MAGIC);
    (octets[4], octets[5]) = (VERSION, kind);
    octets[6..8].copy_from_slice(&tcp_port.to_be_bytes());
    octets[8..].copy_from_slice(&nonce);
    octets
}

fn parse(octets: &[u8], kind: u8) -> Option<(u16, [u8; 8])> {
    let (head, rest) = octets.split_first_chunk::<6>()?;
    let (tcp_port, rest) = rest.split_first_chunk()?;
    let nonce = rest.first_chunk()?;
    let expected = message(kind, 0, [0; 8]);
    (head[..] == expected[..6]).then_some((u16::from_be_bytes(*tcp_port), *nonce))
}

/// Opens a UDP socket at the number of a listener. The kernel lets only one process have it, so it
/// identifies the listener of RDMA with this number.
fn questions_at(local: SocketAddr, only_ipv6: bool) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM, None)?;
    if local.is_ipv6() {
        socket.set_only_v6(only_ipv6)?;
    }
    socket.bind(&local.into())?;
    Ok(socket.into())
}

/// Returns true if another socket has the UDP port of this number: a listener without the TCP port
/// of its number could then not answer peers.
pub(super) fn is_taken(local: SocketAddr, only_ipv6: bool) -> bool {
    let made = questions_at(local, only_ipv6);
    made.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

/// UDP port of a listener's number, and the thread that answers questions there.
#[derive(Debug)]
pub(super) struct Announced {
    pub(super) local: SocketAddr,
    stop: OwnedFd,
    /// Disconnected when the thread has closed the UDP port. A child forked after `generation` has
    /// no such thread.
    closed: Receiver<()>,
    generation: u32,
}

impl Announced {
    /// Takes the UDP port for a listener that has the TCP port of its number. Returns `None` if
    /// that fails.
    ///
    /// # Errors
    /// EADDRINUSE if another user's process has the UDP port, the application chose the number
    /// (`is_chosen`), and all users may have it. The refusal gives no user new power: a user who
    /// may take UDP port N may as well take TCP port N.
    pub(super) fn hold(
        local: SocketAddr,
        only_ipv6: bool,
        is_chosen: bool,
    ) -> Result<Option<Self>, Errno> {
        let is_exposed = is_chosen && is_for_all_users(local.port());
        for _ in 0..TRIES {
            let held = questions_at(local, only_ipv6)
                .map_err(Errno::from)
                .and_then(|questions| Self::answering(questions, local, local.port()));
            let errno = match held {
                Ok(held) => return Ok(Some(held)),
                Err(errno) => errno,
            };
            if errno != IN_USE {
                warn!(target: "urnic", %local, ?errno,
                    "cannot hold the UDP port of this number: another process can take it");
                return Ok(None);
            }
            match holder(local) {
                // The holder has closed its socket meanwhile.
                Holder::None => {}
                Holder::AnotherUser if is_exposed => {
                    warn!(target: "urnic", %local, "another user has the UDP port of this number");
                    return Err(IN_USE);
                }
                _ => {
                    warn!(target: "urnic", %local,
                        "another process has the UDP port of this number: it can name another TCP port to peers");
                    return Ok(None);
                }
            }
        }
        if is_exposed { Err(IN_USE) } else { Ok(None) }
    }

    /// Listens at any TCP port, with the UDP port of the number.
    pub(super) fn listen(
        local: SocketAddr,
        params: ListenParams,
    ) -> Result<(Listener, Self), Errno> {
        let questions = questions_at(local, params.only_ipv6)?;
        let any = SocketAddr::new(local.ip(), 0);
        let listener = process()?.network.endpoint.listen(any, params)?;
        let tcp_port = listener.local().port();
        debug!(target: "urnic", %local, tcp_port, "another process has the TCP port of this number");
        Ok((listener, Self::answering(questions, local, tcp_port)?))
    }

    fn answering(questions: UdpSocket, local: SocketAddr, tcp_port: u16) -> Result<Self, Errno> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let stopped = rustix::io::dup(&stop)?;
        let (is_open, closed) = bounded(0);
        let body = move || {
            answer(&questions, &stopped, tcp_port);
            drop(questions);
            drop::<Sender<()>>(is_open);
        };
        let start = move || thread::Builder::new().name("urnic-rdma-port".to_owned()).spawn(body);
        run_as_own(start)??;
        Ok(Self { local, stop, closed, generation: fork::generation() })
    }
}

impl Drop for Announced {
    /// Stops the thread. The address is free when this returns.
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // The thread and its eventfd belong to the parent.
            return;
        }
        // The write cannot block: the counter would have to be full.
        let _told = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        let _disconnected = self.closed.recv();
    }
}

/// Answers questions until it is stopped. An answer is no longer than its question.
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

/// Question of a connecting end to a listener, and the decision on the answer.
#[derive(Debug)]
pub(super) struct Asking {
    socket: UdpSocket,
    remote: SocketAddr,
    nonce: [u8; 8],
    again: Instant,
    wait: Duration,
    begun: Instant,
    /// The peer's host has reported that no socket had the UDP port when the last question came.
    is_refused: bool,
    answer: Option<u16>,
    probe: Option<Probe>,
}

const FIRST_WAIT: Duration = Duration::from_millis(20);
/// Time to wait for an answer: the thread that answers may wait for a processor.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time to wait if no socket has the UDP port: the application may listen soon.
const REFUSED_PATIENCE: Duration = Duration::from_millis(300);
/// Most datagrams and errors a check, so that a peer's flood does not hold the thread of all ids.
const RECEIVED_AT_ONCE_MAX: usize = 32;
/// Interval of the checks of a probe.
const LOOK: Duration = Duration::from_millis(5);

impl Asking {
    /// Sends a question. Returns `None` if it cannot be sent, or on an interface with urnic's own
    /// TCP: then only the TCP port of the number counts.
    pub(super) fn start(remote: SocketAddr) -> Option<Self> {
        if network::device().is_some() {
            // Only RDMA uses the ports of urnic's own TCP.
            return None;
        }
        let any: IpAddr = match remote {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
        socket.set_nonblocking(true).ok()?;
        report_refusals(&socket, remote);
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).ok()?;
        let now = monotonic_now();
        let asking = Self {
            socket,
            remote,
            nonce,
            again: now + FIRST_WAIT,
            wait: FIRST_WAIT,
            begun: now,
            is_refused: false,
            answer: None,
            probe: None,
        };
        asking.ask();
        Some(asking)
    }

    fn ask(&self) {
        let question = message(QUESTION, 0, self.nonce);
        let _lost_as_datagrams_are = self.socket.send_to(&question, self.remote);
    }

    fn receive(&mut self) -> Option<u16> {
        let mut octets = [0; LEN];
        // The nonce identifies the answer: a peer with several addresses may answer from another
        // one.
        for _ in 0..RECEIVED_AT_ONCE_MAX {
            match self.socket.recv_from(&mut octets) {
                Ok((len, from)) => {
                    let answer =
                        parse(&octets[..len], ANSWER).filter(|_| from.port() == self.remote.port());
                    if let Some((tcp_port, _)) = answer.filter(|(_, nonce)| *nonce == self.nonce) {
                        return (tcp_port != 0).then_some(tcp_port);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => self.is_refused |= error.kind() == io::ErrorKind::ConnectionRefused,
            }
        }
        let now = monotonic_now();
        if now >= self.again {
            self.wait *= 2;
            self.again = now + self.wait;
            self.is_refused = false;
            self.ask();
        }
        None
    }

    /// Returns the TCP port of the answer if the end must connect there (step 5). `stands` is true
    /// while the attempt at the TCP port of the number is in progress, false if it failed without
    /// an MPA Reply. Only this function decides if an answer is used.
    pub(super) fn elsewhere(&mut self, stands: bool) -> Option<u16> {
        if self.answer.is_none() {
            self.answer = self.receive();
        }
        let tcp_port = self.answer.filter(|tcp_port| *tcp_port != self.remote.port())?;
        if !stands {
            return Some(tcp_port);
        }
        let probe = self.probe.get_or_insert_with(|| Probe::start(self.remote));
        (probe.look() == Some(Speaks::Other)).then_some(tcp_port)
    }

    pub(super) fn awaits_answer(&self) -> bool {
        self.answer.is_none() && monotonic_now() < self.begun + self.patience()
    }

    const fn patience(&self) -> Duration {
        if self.is_refused { REFUSED_PATIENCE } else { PATIENCE }
    }

    /// Returns the time of the next check; `None` if there is nothing left to wait for.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let probes = self.probe.as_ref().is_some_and(|probe| probe.found.is_none());
        let pause = if probes { LOOK } else { self.wait / LOOKS_PER_WAIT };
        (probes || self.awaits_answer()).then(|| monotonic_now() + pause)
    }
}

const LOOKS_PER_WAIT: u32 = 4;

/// Has the kernel report that the UDP port of a question is closed. It does not by itself, since
/// the socket has no fixed peer (ip(7), `IP_RECVERR`). If it refuses, the question waits as without
/// an answer.
fn report_refusals(socket: &UdpSocket, remote: SocketAddr) {
    // Datagrams to an IPv4-mapped address are those of IPv4.
    let (level, name) = match remote.ip().to_canonical() {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    };
    let yes: c_int = 1;
    let len = libc::socklen_t::try_from(size_of_val(&yes)).unwrap_or(0);
    // SAFETY: a live socket, and an integer of the given length, which the call reads.
    let _refused =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const yes).cast(), len) };
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::super::probe::WRONG_REQUEST;
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

    /// Returns a TCP server at a port that no other test has.
    fn tcp_server() -> (TcpListener, SocketAddr) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = server.local_addr().unwrap();
        (server, local)
    }

    #[test]
    fn a_number_is_one_listeners_at_all_addresses_that_cover_its_own() {
        let (_server, local) = tcp_server();
        let at = |ip: &str| -> SocketAddr { format!("{ip}:{}", local.port()).parse().unwrap() };
        let is_taken = |ip: &str| is_taken(at(ip), false);
        assert!(!is_taken("127.0.0.1"));
        let hold = |local| Announced::hold(local, false, true).unwrap();
        let held = hold(local);
        assert!(held.is_some() && hold(local).is_none(), "another goes on without");
        assert!(is_taken("127.0.0.1") && is_taken("0.0.0.0"));
        assert!(!is_taken("127.0.0.2"));
        drop(held);
        let held = hold(at("0.0.0.0"));
        assert!(held.is_some() && is_taken("127.0.0.2"));
        drop(held);
        assert!(!is_taken("127.0.0.1"));
    }

    /// A process of another user at the UDP port could name peers another TCP port.
    #[test]
    fn port_number_with_a_foreign_udp_socket_is_refused() {
        let (_server, local) = tcp_server();
        let holder = UdpSocket::bind(local).unwrap();
        let hold = |is_chosen| Announced::hold(local, false, is_chosen).map(|held| held.is_some());
        assert_eq!(hold(true), Ok(false), "of this user");
        let is_root = rustix::process::geteuid().is_root();
        if !is_root || std::os::unix::fs::fchown(&holder, Some(65_534), None).is_err() {
            let name = "port_number_with_a_foreign_udp_socket_is_refused";
            return urnic_testkit::skip(name, "it needs root, to have sockets of two users");
        }
        assert_eq!(hold(true), Err(IN_USE));
        assert_eq!(hold(false), Ok(false), "the kernel chose the number");
        drop(holder);
        assert_eq!(hold(true), Ok(true));
    }

    /// Repeats `look` until it returns a value.
    fn look_until<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let until = monotonic_now() + Duration::from_secs(20);
        loop {
            if let Some(seen) = look() {
                return seen;
            }
            assert!(monotonic_now() < until, "nothing is seen");
            thread::yield_now();
        }
    }

    /// A listener that has its TCP port answers with it: no other port is tried.
    #[test]
    fn a_listener_with_its_own_tcp_port_says_so() {
        let (_server, local) = tcp_server();
        let _held = Announced::hold(local, false, true).unwrap().unwrap();
        let mut asking = Asking::start(local).unwrap();
        look_until(|| {
            assert_eq!(asking.elsewhere(true), None);
            asking.answer
        });
        assert_eq!(asking.answer, Some(local.port()));
        assert_eq!(asking.elsewhere(false), None);
        assert!(asking.next_look().is_none() && !asking.awaits_answer());
    }

    /// Answers the first question with TCP port 7.
    fn says_seven(peer: &UdpSocket) {
        let mut octets = [0; LEN];
        let (len, from) = peer.recv_from(&mut octets).unwrap();
        let (_, nonce) = parse(&octets[..len], QUESTION).unwrap();
        peer.send_to(&message(ANSWER, 7, nonce), from).unwrap();
    }

    /// Another process has the UDP port of the number, and names another TCP port.
    #[test]
    fn an_answer_counts_only_where_tcp_is_refused_or_speaks_something_else() {
        let (server, local) = tcp_server();
        let peer = UdpSocket::bind(local).unwrap();
        let asked = || {
            let mut asking = Asking::start(local).unwrap();
            says_seven(&peer);
            look_until(|| {
                assert_eq!(asking.elsewhere(true), None, "nothing is proved yet");
                asking.answer
            });
            asking
        };
        // The server closes the connection at the wrong key, as responders do.
        let mut asking = asked();
        let mut met = server.accept().unwrap().0;
        let mut octets = [0; 20];
        met.read_exact(&mut octets).unwrap();
        assert_eq!(octets, WRONG_REQUEST);
        drop(met);
        look_until(|| {
            assert_eq!(asking.elsewhere(true), None);
            asking.probe.as_ref().unwrap().found
        });
        assert_eq!(asking.elsewhere(true), None, "and never");
        assert!(asking.next_look().is_none());
        assert_eq!(asking.elsewhere(false), Some(7), "the attempt there has failed");
        // The server is silent, or answers something else.
        let mut asking = asked();
        let silent = server.accept().unwrap();
        assert_eq!(look_until(|| asking.elsewhere(true)), 7);
        drop(silent);
        let mut asking = asked();
        server.accept().unwrap().0.write_all(b"-ERR\r\n").unwrap();
        look_until(|| asking.elsewhere(true));
        let mut asking = asked();
        server.accept().unwrap().0.write_all(b"MPA ID Rep Frame").unwrap();
        look_until(|| {
            assert_eq!(asking.elsewhere(true), None);
            asking.probe.as_ref().unwrap().found
        });
        // Nothing listens.
        drop(server);
        let mut asking = asked();
        look_until(|| {
            assert_eq!(asking.elsewhere(true), None);
            asking.probe.as_ref().unwrap().found
        });
        assert_eq!(asking.elsewhere(false), Some(7));
    }

    /// An answer from another port than the asked one does not count, even with the nonce.
    #[test]
    fn answer_from_another_port_is_ignored() {
        let (_server, local) = tcp_server();
        let peer = UdpSocket::bind(local).unwrap();
        let mut asking = Asking::start(local).unwrap();
        let mut octets = [0; LEN];
        let (len, from) = peer.recv_from(&mut octets).unwrap();
        let (_, nonce) = parse(&octets[..len], QUESTION).unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        other.send_to(&message(ANSWER, 7, nonce), from).unwrap();
        peer.send_to(&message(ANSWER, 8, nonce), from).unwrap();
        look_until(|| {
            let _not_failed = asking.elsewhere(true);
            asking.answer
        });
        assert_eq!(asking.answer, Some(8));
    }

    /// The listener's thread may wait for a processor; where no socket has the number, none answers.
    #[test]
    fn an_answer_is_awaited_longer_while_a_socket_has_the_number() {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut asking = Asking::start(peer.local_addr().unwrap()).unwrap();
        let remote = peer.local_addr().unwrap();
        peer.recv_from(&mut [0; LEN]).unwrap();
        asking.again = monotonic_now() + PATIENCE;
        assert_eq!((asking.receive(), asking.patience()), (None, PATIENCE));
        drop(peer);
        asking.ask();
        look_until(|| {
            assert_eq!(asking.receive(), None);
            asking.is_refused.then_some(())
        });
        assert_eq!(asking.patience(), REFUSED_PATIENCE, "no socket has the number");
        // The last question decides: the application listens now.
        let _peer = UdpSocket::bind(remote).unwrap();
        asking.again = monotonic_now();
        assert_eq!(asking.receive(), None);
        assert_eq!(asking.patience(), PATIENCE);
    }

    /// A peer that sends faster than this end reads does not keep it from other work.
    #[test]
    fn a_check_takes_a_limited_number_of_datagrams() {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut asking = Asking::start(peer.local_addr().unwrap()).unwrap();
        asking.again = monotonic_now() + PATIENCE;
        let mut octets = [0; LEN];
        let (len, from) = peer.recv_from(&mut octets).unwrap();
        let (_, nonce) = parse(&octets[..len], QUESTION).unwrap();
        // Loopback delivers each datagram before `send_to` returns.
        for _ in 0..RECEIVED_AT_ONCE_MAX {
            peer.send_to(b"no answer", from).unwrap();
        }
        peer.send_to(&message(ANSWER, 7, nonce), from).unwrap();
        assert_eq!([asking.receive(), asking.receive()], [None, Some(7)]);
    }

    /// A question without an answer is repeated; an answer with a wrong nonce does not count.
    #[test]
    fn answer_must_match_its_query() {
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
            assert_eq!(asking.receive(), None);
        }
        let (len, from) = peer.recv_from(&mut octets).unwrap();
        assert_eq!(parse(&octets[..len], QUESTION), Some((0, nonce)), "asked again");
        peer.send_to(&message(ANSWER, 7, nonce), from).unwrap();
        assert_eq!(look_until(|| asking.receive()), 7);
    }
}
