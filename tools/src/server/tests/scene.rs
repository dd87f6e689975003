//! A server in the thread of the test, and its clients in another, step by step.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use urnic::{Access, SendWr, WrId, monotonic_now};
use urnic_netdev::memory::{self, LinkConfig};

use crate::client::{Client, Depths, Happened};
use crate::host::{Host, StackOptions};
use crate::protocol::{Hello, Session};
use crate::server::{Admission, Limits, Log, Server};

/// Transport of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    KernelTcp,
    Link,
}

/// Longest time of a step, and of a client's wait for the server.
const STEP_MAX: Duration = Duration::from_secs(60);

/// Numbers of steps requested and done.
#[derive(Default)]
struct Steps {
    asked: AtomicUsize,
    done: AtomicUsize,
    /// Set if one of the two threads has ended: the other stops waiting.
    ended: AtomicBool,
}

/// The clients' end.
pub(super) struct Clients<'a> {
    pub(super) host: &'a Host,
    pub(super) remote: SocketAddr,
    steps: &'a Steps,
}

/// The server's end.
pub(super) struct Serving<'a, 'h> {
    pub(super) server: &'a mut Server<'h>,
    steps: &'a Steps,
}

/// Runs a server with these limits and `timeout`, and its clients. Each of the clients' steps ends
/// with [`Clients::step`], and the test starts the next one with [`Serving::step`].
pub(super) fn scene(
    by: By,
    timeout: Duration,
    limits: Limits,
    clients: impl FnOnce(&Clients<'_>) + Send,
    test: impl FnOnce(&mut Serving<'_, '_>),
) {
    let options = StackOptions::kernel(timeout);
    // Clients wait longer than the server, so that the server times out first.
    let far = StackOptions::kernel(STEP_MAX);
    let (host, client_host, local) = match by {
        By::KernelTcp => {
            let open = |options| Host::open(options, Duration::ZERO).unwrap();
            (open(&options), open(&far), SocketAddr::from(([127, 0, 0, 1], 0)))
        }
        By::Link => {
            let (near_end, far_end) = memory::pair(LinkConfig::default());
            let [near, other] = [1, 2].map(|number| Ipv4Addr::new(10, 0, 0, number));
            let local = SocketAddr::from((near, 7174));
            (Host::on_link(near_end, near, options), Host::on_link(far_end, other, far), local)
        }
    };
    let admission = Admission::new(Vec::new(), Vec::new(), None).unwrap();
    let mut server = Server::new(&host, local, limits, admission, Log::Silent).unwrap();
    let (steps, remote) = (&Steps::default(), server.local());
    thread::scope(|scope| {
        let ends = AtEnd(steps);
        scope.spawn(move || {
            let _ends = ends;
            let clients_end = Clients { host: &client_host, remote, steps };
            clients_end.wait();
            clients(&clients_end);
        });
        let _ends = AtEnd(steps);
        test(&mut Serving { server: &mut server, steps });
    });
}

/// Records that its thread has ended, in every case.
struct AtEnd<'a>(&'a Steps);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

impl Clients<'_> {
    /// Ends a step and waits for the next. The sessions stay open meanwhile.
    pub(super) fn step(&self) {
        self.steps.done.fetch_add(1, Ordering::Release);
        self.wait();
    }

    /// Returns true if the next step is requested.
    pub(super) fn is_asked(&self) -> bool {
        let Steps { asked, done, ended } = self.steps;
        asked.load(Ordering::Acquire) > done.load(Ordering::Acquire)
            || ended.load(Ordering::Acquire)
    }

    fn wait(&self) {
        while !self.is_asked() {
            self.host.endpoint.turn(Duration::from_millis(1)).unwrap();
        }
    }

    /// Opens a session.
    pub(super) fn open(
        &self,
        session: Session,
        len: u64,
        depth: u32,
    ) -> anyhow::Result<Client<'_>> {
        let depth_of_echo = if session == Session::Echo { depth as usize } else { 0 };
        let recv_len = if session == Session::Echo { usize::try_from(len)? } else { 0 };
        let depths = Depths { send: 8, recv: depth_of_echo, recv_len };
        Client::connect(self.host, &[self.remote], &Hello { session, len, depth }, depths)
    }

    /// Opens idle sessions.
    pub(super) fn idle(&self, count: usize) -> Vec<Client<'_>> {
        (0..count).map(|_| self.open(Session::Memory, 64, 0).unwrap()).collect()
    }

    /// Echoes `octets` on a session of [`Session::Echo`], with `under_way` messages in flight.
    pub(super) fn echo(&self, client: &mut Client<'_>, octets: &[u8], under_way: usize) {
        let memory = self.host.pd.reg_mr(octets.len(), Access::empty()).unwrap();
        memory.copy_in(0, octets);
        for _ in 0..under_way {
            client.post(SendWr::send(WrId(1), [memory.sge(0..octets.len())])).unwrap();
        }
        let mut left = 2 * under_way;
        while left > 0 {
            match client.wait().unwrap() {
                Happened::Done(_) => {}
                Happened::Payload(wc) => {
                    assert_eq!(client.read_payload(&wc).unwrap(), octets);
                    client.release(&wc).unwrap();
                }
                Happened::Control(other) => panic!("{other:?}"),
            }
            left -= 1;
        }
    }
}

impl Serving<'_, '_> {
    /// Starts the next step of the clients, and serves until it is done.
    pub(super) fn step(&mut self) {
        self.step_with(|_| {});
    }

    /// As [`step`](Self::step), and calls `look` after each turn.
    pub(super) fn step_with(&mut self, mut look: impl FnMut(&mut Server<'_>)) {
        let asked = self.steps.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.until(|server, steps| {
            look(server);
            steps.done.load(Ordering::Acquire) >= asked || steps.ended.load(Ordering::Acquire)
        });
    }

    /// Serves until `is_so` returns true.
    pub(super) fn until_true(&mut self, mut is_so: impl FnMut(&mut Server<'_>) -> bool) {
        self.until(|server, _| is_so(server));
    }

    fn until(&mut self, mut is_so: impl FnMut(&mut Server<'_>, &Steps) -> bool) {
        let deadline = monotonic_now() + STEP_MAX;
        loop {
            self.server.turn().unwrap();
            if is_so(self.server, self.steps) {
                return;
            }
            assert!(monotonic_now() < deadline, "it takes too long");
        }
    }

    /// Serves for some time.
    pub(super) fn serve_for(&mut self, time: Duration) {
        let end = monotonic_now() + time;
        self.until(|_, _| monotonic_now() >= end);
    }
}
