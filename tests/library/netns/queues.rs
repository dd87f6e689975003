//! Endpoints with several queues of one interface.

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use urnic::{ConnectOptions, Endpoint, EndpointConfig, ListenParams, Offer};
use urnic_engine::time::Duration;
use urnic_netdev::packet::PacketSocket;
use urnic_netdev::tap::{Tap, TapConfig};
use urnic_netdev::{Capabilities, Device, RxFrame, TransmitError, TxFrame};

use crate::netns::packet::with_config;
use crate::netns::scene::{Clock, Work};
use crate::netns::stations::{PATIENCE, Station, identity};
use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::{self, Namespace, bridge, command, veth};
use urnic_testkit::pair::{A, B, End};

/// Number of simultaneous connections, and their amount of data.
#[derive(Clone, Copy, Debug)]
struct Load {
    connections: usize,
    /// Bytes that each end of each connection writes, sends and reads.
    len: usize,
}

/// Few connections that move much data.
const FEW: Load = Load { connections: 8, len: 1 << 20 };
/// Many connections with the same total amount, so many that a hash assigns all of them to one of
/// two queues only once in eight million boots.
const MANY: Load = Load { connections: 24, len: (1 << 20) / 3 };

/// A queue that counts data frames: frames longer than any startup or acknowledgment.
#[derive(Debug)]
struct Counted<D> {
    queue: D,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
}

const DATA_LEN_MIN: usize = 1000;

impl<D: Device> Device for Counted<D> {
    fn capabilities(&self) -> Capabilities {
        self.queue.capabilities()
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        self.queue.receive(now_ns, burst, &mut |frame| {
            if frame.head.len() >= DATA_LEN_MIN {
                self.received.fetch_add(1, Ordering::Relaxed);
            }
            sink(frame);
        })
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        if !frame.payload.is_empty() {
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        self.queue.transmit(now_ns, frame)
    }

    fn transmit_room(&self) -> usize {
        self.queue.transmit_room()
    }

    fn flush(&mut self, now_ns: u64) {
        self.queue.flush(now_ns);
    }

    fn link_up(&self) -> bool {
        self.queue.link_up()
    }

    fn check_interval_ns(&self) -> Option<u64> {
        self.queue.check_interval_ns()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.queue.readiness()
    }
}

/// Counters of each queue.
#[derive(Debug)]
struct Counts(Vec<[Arc<AtomicU64>; 2]>);

impl Counts {
    fn sent(&self) -> Vec<u64> {
        self.0.iter().map(|[sent, _]| sent.load(Ordering::Relaxed)).collect()
    }

    fn received(&self) -> Vec<u64> {
        self.0.iter().map(|[_, received]| received.load(Ordering::Relaxed)).collect()
    }
}

/// Makes an endpoint of these queues.
fn station<D: Device + Send + 'static>(
    address: Ipv4Addr,
    queues: Vec<D>,
    own_thread: bool,
) -> (Station, Counts) {
    let end = End::new(u64::from(address.to_bits()));
    let mut counts = Vec::new();
    let queues = queues
        .into_iter()
        .map(|queue| {
            let (sent, received) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
            counts.push([Arc::clone(&sent), Arc::clone(&received)]);
            Counted { queue, sent, received }
        })
        .collect();
    let config = EndpointConfig { own_thread, ..EndpointConfig::default() };
    let port = identity(address, Duration::from_secs(100));
    let endpoint = Endpoint::on_queues(&end.rnic, queues, port, &config).unwrap();
    (Station { end, endpoint, address }, Counts(counts))
}

/// Makes the objects for one more connection of a station.
fn end_of(station: &Station) -> End {
    let rnic = station.end.rnic.clone();
    let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(4096).unwrap());
    let config = urnic_engine::verbs::QpConfig {
        send_depth: 256,
        recv_depth: 256,
        ..urnic_engine::verbs::QpConfig::new(&cq)
    };
    let qp = pd.create_qp(config).unwrap();
    End { rnic, pd, cq, qp, connection: None, events: Vec::new() }
}

/// Connects `a` to `b` several times, moves data on all connections at once, and checks every byte.
fn many_exchanges(a: &Station, b: &Station, Load { connections, len }: Load) {
    let listener = b.endpoint.listen(b.at(false), ListenParams::default()).unwrap();
    let ends: Vec<_> = (0..connections).map(|_| [end_of(a), end_of(b)]).collect();
    let connecting: Vec<_> = ends
        .iter()
        .map(|[end, _]| {
            a.endpoint.connect(b.at(false), &end.qp, &ConnectOptions::default()).unwrap()
        })
        .collect();
    let mut accepted = Vec::new();
    let clock = Clock::start();
    while accepted.len() < connections {
        assert!(clock.now().as_nanos() < 30_000_000_000, "{} came", accepted.len());
        // The first station may have no thread of its own.
        a.endpoint.run_for(Duration::from_micros(50)).unwrap();
        let Some(request) = listener.next_request(Duration::from_micros(1)).unwrap() else {
            continue;
        };
        // The connection of the request is not known: any end serves.
        let [_, end] = &ends[accepted.len()];
        let offer = Offer { private_data: &[accepted.len() as u8], ird: 8, ord: 8 };
        accepted.push(request.accept(&end.qp, &offer).unwrap());
    }
    let open: Vec<_> = connecting.into_iter().map(|c| c.wait(PATIENCE).unwrap()).collect();
    let peers: Vec<_> = accepted.into_iter().map(|c| c.wait(PATIENCE).unwrap()).collect();
    // Pairs of connected ends.
    let pairs: Vec<[&End; 2]> = open
        .iter()
        .zip(&ends)
        .map(|(connection, [own, _])| {
            let peer = usize::from(connection.terms().private_data[0]);
            [own, &ends[peer][1]]
        })
        .collect();
    let mut works: Vec<_> =
        pairs.iter().map(|pair| pair.map(|end| Work::new(end, len, 7))).collect();
    while !works.iter().flatten().all(Work::is_done) {
        for (pair, works) in pairs.iter().zip(&mut works) {
            let remote = [works[1].buffers(), works[0].buffers()];
            works[0].go_on(pair[0], remote[0]);
            works[1].go_on(pair[1], remote[1]);
        }
        a.endpoint.run_for(Duration::from_micros(50)).unwrap();
        assert!(clock.now().as_nanos() < 60_000_000_000, "{works:?} after a minute");
    }
    let expected = urnic_testkit::pair::pattern(7, len);
    for work in works.iter().flatten() {
        for region in [&work.written, &work.received, &work.read] {
            assert!(urnic_testkit::pair::content(region) == expected, "every octet");
        }
    }
    drop((open, peers));
}

fn tap_queues(name: &str) -> Vec<Tap> {
    let config = TapConfig { vnet_header: true, ..TapConfig::new(name.parse().unwrap()) };
    Tap::open_queues(&config, 2).unwrap()
}

/// A TAP gives a flow to the queue that last sent a frame of it.
fn over_taps(own_thread: bool) {
    let (queues_a, queues_b) = (tap_queues("tap-a"), tap_queues("tap-b"));
    bridge("bridge0", &["tap-a", "tap-b"]);
    let (a, counts_a) = station(A, queues_a, own_thread);
    let (b, counts_b) = station(B, queues_b, true);
    many_exchanges(&a, &b, FEW);
    // The initiator's connections alternate between the queues.
    assert!(counts_a.sent().iter().all(|sent| *sent > 50), "{counts_a:?}");
    assert!(counts_a.received().iter().all(|received| *received > 50), "{counts_a:?}");
    let used: u64 = counts_b.sent().iter().sum();
    assert!(used > 50, "{counts_b:?}");
}

fn fanout(name: &str) -> Vec<PacketSocket> {
    with_config(name, |config| PacketSocket::open_queues(&config, 2).unwrap())
}

netns_tests! {
    with ["/dev/net/tun"];

    fn connections_take_turns_among_the_queues_of_a_tap() {
        over_taps(true);
    }

    fn queues_without_threads_are_turned_by_waiting_callers() {
        over_taps(false);
    }

    /// The kernel distributes by a hash that is independent of the queue that opened a connection:
    /// half of the frames arrive at the other port.
    fn connections_over_a_packet_fanout_work_at_whichever_queue_frames_arrive() {
        let far = Namespace::new();
        veth(1500, &far);
        let (a, counts_a) = station(A, fanout("veth-a"), true);
        let (b, counts_b) = far.run(|| station(B, fanout("veth-b"), true));
        many_exchanges(&a, &b, MANY);
        assert!(counts_a.sent().iter().all(|sent| *sent > 50), "{counts_a:?}");
        // A queue may get few connections by the hash. A single one brings it 1 MiB in frames of at
        // most 64 KiB.
        assert!(counts_b.received().iter().all(|received| *received > 10), "{counts_b:?}");
    }

    fn ping_is_answered_once_at_any_queue() {
        let queues = tap_queues("tap-a");
        network::ip("addr add 10.0.0.1/24 dev tap-a");
        let (_station, _counts) = station(B, queues, true);
        for _ in 0..4 {
            // Without `-w`, ping gives up two round trips after its last echo, which is too early
            // on a busy machine. With `-w` it continues until five echoes are answered.
            let told = command("ping", "-c 5 -i 0.1 -w 20 10.0.0.2");
            for sequence in 1..=5 {
                assert!(told.contains(&format!("icmp_seq={sequence} ")), "{told}");
            }
            assert!(!told.contains("DUP"), "{told}");
            // The kernel queries the address again.
            network::ip("neigh flush dev tap-a");
        }
    }

    /// All queues listen, or none does.
    fn a_port_that_is_taken_is_refused_by_all_queues() {
        let (station, _counts) = station(B, tap_queues("tap-a"), true);
        let first = station.endpoint.listen(station.at(false), ListenParams::default()).unwrap();
        station.endpoint.listen(station.at(false), ListenParams::default()).unwrap_err();
        drop(first);
        let again = station.endpoint.listen(station.at(false), ListenParams::default());
        assert_eq!(again.unwrap().local(), station.at(false));
    }
}
