//! Threads that wait for an endpoint: their wake-ups, and the end of waits for events that will
//! never come.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Wake, Waker};
use std::thread;

use rustix::time::{ClockId, clock_gettime};
use urnic::{
    Access, CompChannel, ConnectOptions, Connection, Cq, Endpoint, EndpointConfig, Error,
    ListenParams, Mr, Offer, Pd, PortConfig, Qp, QpConfig, RecvWr, Rnic, RnicConfig, SendWr,
    WcStatus, WrId, monotonic_now,
};
use urnic_engine::time::Duration;
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_netdev::{Capabilities, Device, RxFrame, TransmitError, TxFrame};

/// Longer than any event takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for a thread to go to sleep.
const SLEEP_BEGINS: Duration = Duration::from_millis(100);

/// An endpoint with the objects for one queue pair.
struct Host {
    endpoint: Endpoint,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    memory: Mr,
}

impl Host {
    fn new(seed: u64, endpoint: impl FnOnce(&Rnic) -> Endpoint) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(64).unwrap());
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let config =
            QpConfig { send_depth: 16, recv_depth: 16, ..QpConfig::with_cqs(send_cq, recv_cq) };
        let qp = pd.create_qp(config).unwrap();
        let memory = pd.reg_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        Self { endpoint: endpoint(&rnic), pd, cq, qp, memory }
    }

    fn kernel(own_thread: bool, seed: u64) -> Self {
        let config = EndpointConfig { own_thread, ..EndpointConfig::default() };
        Self::new(seed, |rnic| Endpoint::kernel(rnic, &config).unwrap())
    }

    fn post_receive(&self, id: u64) {
        self.qp.post_recv(RecvWr::new(WrId(id), [self.memory.sge(0..8)])).unwrap();
    }

    fn post_send(&self, id: u64) {
        self.qp.post_send(SendWr::send(WrId(id), [self.memory.sge(0..8)])).unwrap();
    }
}

/// Connects `client` to `server`, at `address`.
fn connect(client: &Host, server: &Host, address: &str) -> [Connection; 2] {
    let listener =
        server.endpoint.listen(address.parse().unwrap(), ListenParams::default()).unwrap();
    let options = ConnectOptions::default();
    let connecting = client.endpoint.connect(listener.local(), &client.qp, &options).unwrap();
    let request = thread::scope(|scope| {
        let asked = scope.spawn(|| listener.next_request(PATIENCE).unwrap().expect("comes"));
        while !asked.is_finished() {
            client.endpoint.run_for(Duration::from_millis(1)).unwrap();
        }
        asked.join().unwrap()
    });
    let accepting = request.accept(&server.qp, &Offer::default()).unwrap();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| accepting.wait(PATIENCE).unwrap());
        [connecting.wait(PATIENCE).unwrap(), accepted.join().unwrap()]
    })
}

const LOOPBACK: &str = "127.0.0.1:0";

/// Returns the processor time of the calling thread.
fn processor_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap())
}

// ---- several waiters ----

#[test]
fn every_completion_wakes_one_of_the_threads_that_wait_for_a_queue() {
    for own_thread in [true, false] {
        let (client, server) = (Host::kernel(true, 1), Host::kernel(own_thread, 2));
        let _connections = connect(&client, &server, LOOPBACK);
        let started = monotonic_now();
        thread::scope(|scope| {
            for id in 0..3 {
                server.post_receive(id);
                scope.spawn(|| {
                    let wc = server.endpoint.wait(&server.cq, PATIENCE).unwrap();
                    assert_eq!(wc.expect("one for each").status, WcStatus::Success);
                });
            }
            client.endpoint.run_for(SLEEP_BEGINS).unwrap();
            (0..3).for_each(|id| client.post_send(id));
        });
        assert!(monotonic_now() - started < PATIENCE / 2, "own thread {own_thread}");
    }
}

#[test]
fn every_channel_of_a_queue_tells_of_a_completion() {
    let (client, server) = (Host::kernel(true, 1), Host::kernel(true, 2));
    let _connections = connect(&client, &server, LOOPBACK);
    let channels = [(); 2].map(|()| CompChannel::new(&server.cq).unwrap());
    thread::scope(|scope| {
        for (channel, id) in channels.iter().zip(0..) {
            server.post_receive(id);
            scope.spawn(|| assert!(channel.wait(Some(PATIENCE)).unwrap().is_some()));
        }
        client.endpoint.run_for(SLEEP_BEGINS).unwrap();
        (0..2).for_each(|id| client.post_send(id));
    });
    // A dropped channel is not called, and takes no event from the other.
    let [first, second] = channels;
    first.req_notify();
    drop(first);
    server.post_receive(7);
    client.post_send(7);
    assert!(second.wait(Some(PATIENCE)).unwrap().is_some());
}

#[test]
fn threads_that_wait_for_nothing_use_no_processor() {
    const WAIT: Duration = Duration::from_millis(600);
    for own_thread in [true, false] {
        let host = Host::kernel(own_thread, 1);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let before = processor_time();
                    assert_eq!(host.endpoint.wait(&host.cq, WAIT), Ok(None));
                    let used = processor_time() - before;
                    assert!(used < WAIT / 4, "{used:?} of {WAIT:?}, own thread {own_thread}");
                });
            }
        });
    }
}

/// When the thread that polls the endpoint leaves, another must take over.
#[test]
fn a_thread_that_stops_waiting_hands_the_endpoint_on() {
    let (client, server) = (Host::kernel(true, 1), Host::kernel(false, 2));
    let listener =
        server.endpoint.listen(LOOPBACK.parse().unwrap(), ListenParams::default()).unwrap();
    let started = monotonic_now();
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(server.endpoint.wait(&server.cq, 2 * SLEEP_BEGINS), Ok(None));
        });
        let asked = scope.spawn(|| {
            client.endpoint.run_for(SLEEP_BEGINS).unwrap();
            listener.next_request(PATIENCE).unwrap()
        });
        client.endpoint.run_for(3 * SLEEP_BEGINS).unwrap();
        let options = ConnectOptions::default();
        let _asking = client.endpoint.connect(listener.local(), &client.qp, &options).unwrap();
        asked.join().unwrap().expect("comes");
    });
    assert!(monotonic_now() - started < PATIENCE / 2);
}

/// A message that the first thread's poll delivers is available to the second thread at once.
#[test]
fn a_thread_gets_its_message_while_another_turns_the_endpoint() {
    let (client, server) = (Host::kernel(true, 1), Host::kernel(false, 2));
    let listener =
        server.endpoint.listen(LOOPBACK.parse().unwrap(), ListenParams::default()).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                server.endpoint.turn(PATIENCE).unwrap();
            }
        });
        let asked = scope.spawn(|| {
            client.endpoint.run_for(SLEEP_BEGINS).unwrap();
            let started = monotonic_now();
            (listener.next_request(PATIENCE).unwrap().is_some(), monotonic_now() - started)
        });
        client.endpoint.run_for(2 * SLEEP_BEGINS).unwrap();
        let options = ConnectOptions::default();
        let _asking = client.endpoint.connect(listener.local(), &client.qp, &options).unwrap();
        let (came, took) = asked.join().unwrap();
        is_over.store(true, Ordering::Relaxed);
        server.endpoint.waker().wake();
        assert!(came && took < PATIENCE / 2, "{came} after {took:?}");
    });
}

// ---- wakers ----

/// Drops a registration when it is called, as an application may.
struct Revoke(Mutex<Option<Mr>>, mpsc::Sender<()>);

impl Wake for Revoke {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
        self.1.send(()).unwrap();
    }
}

/// An application that polls its queue between turns does not sleep on while its work has failed.
#[test]
fn a_turn_ends_with_the_connection() {
    let (client, server) = (Host::kernel(false, 1), Host::kernel(true, 2));
    let [_open, accepted] = connect(&client, &server, LOOPBACK);
    client.post_receive(1);
    client.endpoint.run_for(Duration::from_millis(1)).unwrap();
    accepted.abort();
    thread::park_timeout(SLEEP_BEGINS);
    let started = monotonic_now();
    let failed = loop {
        client.endpoint.turn(PATIENCE).unwrap();
        if let Some(wc) = client.cq.poll() {
            break wc;
        }
    };
    assert_eq!(failed.status, WcStatus::WrFlushErr);
    assert!(monotonic_now() - started < PATIENCE / 2, "it slept through the reset");
}

#[test]
fn a_waker_may_revoke_memory() {
    let (done, is_done) = mpsc::channel();
    // The engine holds the region table while it places received data. If it waited for itself,
    // this thread would not end.
    thread::spawn(move || {
        a_waker_revokes_memory();
        done.send(()).unwrap();
    });
    is_done.recv_timeout(2 * PATIENCE).expect("the engine does not wait for itself");
}

fn a_waker_revokes_memory() {
    let (client, server) = (Host::kernel(true, 1), Host::kernel(true, 2));
    let _connections = connect(&client, &server, LOOPBACK);
    let mr = server.pd.reg_mr(64, Access::REMOTE_WRITE).unwrap();
    let remote = mr.remote(0);
    let (called, was_called) = mpsc::channel();
    let revoke = Arc::new(Revoke(Mutex::new(Some(mr)), called));
    server.post_receive(1);
    server.cq.req_notify(&Waker::from(revoke));
    client.qp.post_send(SendWr::write(WrId(1), remote, [client.memory.sge(0..8)])).unwrap();
    client.post_send(2);
    was_called.recv_timeout(PATIENCE).expect("the engine does not wait for itself");
    assert!(server.endpoint.wait(&server.cq, PATIENCE).unwrap().is_some());
}

// ---- an endpoint that ends ----

/// A device that panics on request.
#[derive(Debug)]
struct Broken {
    device: MemoryDevice,
    breaks: Arc<AtomicBool>,
}

impl Device for Broken {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        assert!(!self.breaks.load(Ordering::Relaxed), "the device was told to panic");
        self.device.receive(now_ns, burst, sink)
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        self.device.transmit(now_ns, frame)
    }

    fn flush(&mut self, now_ns: u64) {
        self.device.flush(now_ns);
    }
}

/// Returns a host whose endpoint panics once the flag is set, connected to another host.
fn breakable(own_thread: bool) -> (Host, Host, [Connection; 2], Arc<AtomicBool>) {
    const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const FAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    let (near, far) = memory::pair(LinkConfig::default());
    let breaks = Arc::new(AtomicBool::new(false));
    let near = Broken { device: near, breaks: Arc::clone(&breaks) };
    let client = Host::new(1, |rnic| {
        let config = EndpointConfig { own_thread, ..EndpointConfig::default() };
        Endpoint::on_device(rnic, near, PortConfig::for_ipv4(NEAR), &config).unwrap()
    });
    let server = Host::new(2, |rnic| {
        let config = EndpointConfig::default();
        Endpoint::on_device(rnic, far, PortConfig::for_ipv4(FAR), &config).unwrap()
    });
    let address = SocketAddr::from((FAR, 7174)).to_string();
    let connections = connect(&client, &server, &address);
    (client, server, connections, breaks)
}

#[test]
fn waits_end_when_the_thread_of_the_endpoint_panics() {
    let (client, server, [connection, _], breaks) = breakable(true);
    let channel = CompChannel::new(&client.cq).unwrap();
    let idle = Cq::clone(&Host::kernel(true, 3).cq);
    let started = monotonic_now();
    client.post_receive(5);
    client.post_receive(6);
    thread::scope(|scope| {
        let waits_for_ever = scope.spawn(|| channel.wait(None).unwrap());
        let waits_for_idle = scope.spawn(|| client.endpoint.wait(&idle, PATIENCE));
        let waits_for_event = scope.spawn(|| client.endpoint.next_event(PATIENCE));
        let waits_for_end = scope.spawn(|| {
            loop {
                match connection.next_event(PATIENCE) {
                    Ok(Some(_before)) => {}
                    ended => return ended,
                }
            }
        });
        server.endpoint.run_for(SLEEP_BEGINS).unwrap();
        breaks.store(true, Ordering::Relaxed);
        let wc = waits_for_ever.join().unwrap().expect("what was posted is flushed");
        assert_eq!(wc.status, WcStatus::WrFlushErr);
        assert_eq!(waits_for_idle.join().unwrap(), Err(Error::Down));
        assert_eq!(waits_for_event.join().unwrap(), Err(Error::Down));
        assert_eq!(waits_for_end.join().unwrap(), Err(Error::Down));
    });
    let second = client.endpoint.wait(&client.cq, PATIENCE).unwrap().expect("flushed as well");
    assert_eq!(second.status, WcStatus::WrFlushErr);
    assert_eq!(client.endpoint.wait(&client.cq, PATIENCE), Err(Error::Down));
    assert_eq!(client.endpoint.turn(PATIENCE), Err(Error::Down));
    assert!(
        client.endpoint.listen("10.0.0.1:9".parse().unwrap(), ListenParams::default()).is_err()
    );
    assert!(monotonic_now() - started < PATIENCE / 2);
}

#[test]
fn panic_of_one_waiting_thread_ends_the_waits_of_the_others() {
    let (client, server, _connections, breaks) = breakable(false);
    client.post_receive(5);
    let idle = Cq::clone(&Host::kernel(true, 3).cq);
    let started = monotonic_now();
    thread::scope(|scope| {
        let waits: Vec<_> =
            (0..3).map(|_| scope.spawn(|| client.endpoint.wait(&idle, PATIENCE))).collect();
        server.endpoint.run_for(SLEEP_BEGINS).unwrap();
        breaks.store(true, Ordering::Relaxed);
        let ends: Vec<_> = waits.into_iter().map(thread::ScopedJoinHandle::join).collect();
        let down = ends.iter().filter(|end| matches!(end, Ok(Err(Error::Down)))).count();
        let panicked = ends.iter().filter(|end| end.is_err()).count();
        assert_eq!((panicked, down), (1, 2), "{ends:?}");
    });
    assert_eq!(client.cq.poll().expect("flushed").status, WcStatus::WrFlushErr);
    assert!(monotonic_now() - started < PATIENCE / 2);
}

#[expect(clippy::disallowed_methods, reason = "a program that sleeps is what is tested")]
fn sleep(time: Duration) {
    thread::sleep(time);
}

/// Waits for a completion without letting the endpoint work.
fn sleep_until_complete(host: &Host) -> u64 {
    let deadline = monotonic_now() + PATIENCE;
    loop {
        if let Some(wc) = host.cq.poll() {
            assert_eq!(wc.status, WcStatus::Success);
            return wc.wr_id.0;
        }
        assert!(monotonic_now() < deadline, "completes in time");
        sleep(Duration::from_millis(1));
    }
}

fn poll_until_complete(host: &Host) -> u64 {
    let deadline = monotonic_now() + PATIENCE;
    loop {
        if let Some(wc) = host.cq.poll() {
            assert_eq!(wc.status, WcStatus::Success);
            return wc.wr_id.0;
        }
        assert!(monotonic_now() < deadline, "completes in time");
        host.endpoint.poll_turn(true).unwrap();
    }
}

/// An application may poll, sleep, or alternate.
#[test]
fn a_polled_endpoint_works_whether_it_is_polled_or_not() {
    let config = EndpointConfig { polled: true, ..EndpointConfig::default() };
    let host = |seed| Host::new(seed, |rnic| Endpoint::kernel(rnic, &config).unwrap());
    let (client, server) = (host(1), host(2));
    let connections = connect(&client, &server, "127.0.0.1:0");
    for round in 0..200 {
        server.post_receive(round);
        client.post_send(round);
        match round % 4 {
            0 => {
                assert_eq!(poll_until_complete(&client), round);
                assert_eq!(sleep_until_complete(&server), round);
            }
            1 => {
                assert_eq!(poll_until_complete(&server), round);
                assert_eq!(sleep_until_complete(&client), round);
            }
            2 => {
                client.endpoint.hand_over();
                server.endpoint.hand_over();
                assert_eq!(sleep_until_complete(&server), round);
                assert_eq!(poll_until_complete(&client), round);
            }
            _ => {
                let wc = server.endpoint.wait(&server.cq, PATIENCE).unwrap().unwrap();
                assert_eq!((wc.wr_id.0, poll_until_complete(&client)), (round, round));
            }
        }
    }
    drop(connections);
    for host in [&client, &server] {
        host.endpoint.poll_turn(true).unwrap();
    }
    let begin = monotonic_now();
    drop((client, server));
    assert!(monotonic_now() - begin < PATIENCE / 2, "ends while it rests");
}
