//! A device that takes some frames and then, in the middle of a burst, reports that it is full.

use std::net::SocketAddr;

use urnic_engine::mpa::startup::Offer;
use urnic_engine::poll::{Lockstep, Poller};
use urnic_engine::port::{ConnectParams, ListenParams, LowerLayer, Port, PortConfig, PortEvent};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::{Duration, Instant};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{SendWr, WcStatus};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_netdev::{Capabilities, Device, RxFrame, TransmitError, TxFrame};

use crate::network::scene::LINK;
use urnic_testkit::pair::{A, B, End, TCP_PORT, all_access, content, fill};

/// Takes `each` frames in every [`PAUSE_NS`], and does not announce the number.
#[derive(Debug)]
struct Choking {
    inner: MemoryDevice,
    each: usize,
    left: usize,
    full_until_ns: Option<u64>,
    times_full: usize,
}

const PAUSE_NS: u64 = 20_000;

impl Device for Choking {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        self.inner.receive(now_ns, burst, sink)
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        if self.full_until_ns.is_some_and(|until| until <= now_ns) {
            self.full_until_ns = None;
            self.left = self.each;
        }
        if self.left == 0 {
            self.full_until_ns.get_or_insert(now_ns + PAUSE_NS);
            self.times_full += 1;
            return Err(TransmitError::Full);
        }
        self.left -= 1;
        self.inner.transmit(now_ns, frame)
    }

    fn flush(&mut self, now_ns: u64) {
        self.inner.flush(now_ns);
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        [self.inner.next_arrival_ns(), self.full_until_ns].into_iter().flatten().min()
    }
}

type Link = Lockstep<Choking, Choking>;

fn link(config: LinkConfig, ends: &[End; 2], each: usize) -> Link {
    let (a, b) = memory::pair(config);
    let poller = |end: &End, address, inner: MemoryDevice| {
        let port = Port::new(&end.rnic, PortConfig::for_ipv4(address), inner.capabilities());
        Poller::new(port, Choking { inner, each, left: each, full_until_ns: None, times_full: 0 })
    };
    Lockstep::new(poller(&ends[0], A, a), poller(&ends[1], B, b))
}

fn within(link: &mut Link, seconds: u64, done: impl FnMut(&mut Link) -> bool) -> bool {
    let deadline = link.now() + Duration::from_secs(seconds);
    link.run_until(deadline, done)
}

#[test]
fn full_device_loses_no_segment() {
    let super_frames = LinkConfig {
        super_frame_len_max: std::num::NonZeroUsize::new(60_000),
        tx_checksum: true,
        ..LINK
    };
    for (config, each) in [(LINK, 1), (LINK, 3), (super_frames, 1)] {
        let ends = [End::new(1), End::new(2)];
        let mut link = link(config, &ends, each);
        link.b.port.listen(TCP_PORT, ListenParams::default()).unwrap();
        let offer = Offer { private_data: b"", ird: 8, ord: 8 };
        let params = ConnectParams { offer, ..ConnectParams::default() };
        let remote = SocketAddr::from((B, TCP_PORT));
        let id = link.a.port.connect(Instant::ZERO, remote, &ends[0].qp, &params).unwrap();
        const LEN: usize = 400_000;
        let source = ends[0].pd.reg_mr(LEN, all_access()).unwrap();
        let target = ends[1].pd.reg_mr(LEN, all_access()).unwrap();
        let octets = fill(&source, 3);
        let (mut posted, mut completed) = (false, None);
        assert!(within(&mut link, 60, |link| {
            while let Some(event) = link.b.port.poll_event() {
                if let PortEvent::Stream { connection, event: StreamEvent::Request(_) } = event {
                    link.b.port.accept(connection, &ends[1].qp, &offer).unwrap();
                }
            }
            while let Some(event) = link.a.port.poll_event() {
                let established =
                    matches!(event, PortEvent::Stream { event: StreamEvent::Established(_), .. });
                if established && !std::mem::replace(&mut posted, true) {
                    let sge = source.sge(0..LEN);
                    let wr = SendWr::write(WrId(1), target.remote(0), [sge]);
                    ends[0].qp.post_send(wr).unwrap();
                }
            }
            completed = completed.or_else(|| ends[0].cq.poll());
            completed.is_some()
        }));
        assert_eq!(completed.unwrap().status, WcStatus::Success);
        assert_eq!(content(&target), octets);
        let full = link.a.device.times_full;
        assert!(full > 5, "{full}");
        let tcp = link.a.port.counters(id).unwrap().tcp;
        assert_eq!((tcp.rtos, tcp.retransmissions), (0, 0), "each {each}, full {full} times");
    }
}

#[test]
fn datagrams_of_ordinary_sockets_wait_too() {
    let ends = [End::new(1), End::new(2)];
    let mut link = link(LINK, &ends, 1);
    let there = link.b.port.host_mut().udp_bind(53, 8000).unwrap();
    let here = link.a.port.host_mut().udp_bind(54, 8000).unwrap();
    for number in 0..20 {
        link.a.port.host_mut().udp(here).send_slice(&[number; 9], (B, 53)).unwrap();
    }
    let mut received = Vec::new();
    within(&mut link, 5, |link| {
        while let Ok((octets, _)) = link.b.port.host_mut().udp(there).recv() {
            received.push(octets[0]);
        }
        received.len() == 20
    });
    assert!(received.into_iter().eq(0..20));
    assert!(link.a.device.times_full > 5);
}

#[test]
fn answers_with_cookies_wait_too() {
    let ends = [End::new(1), End::new(2)];
    let mut link = link(LINK, &ends, 1);
    link.a.device.each = usize::MAX;
    link.a.device.left = usize::MAX;
    let listen = ListenParams { backlog: 1, delayed: true, ..ListenParams::default() };
    link.b.port.listen(TCP_PORT, listen).unwrap();
    let remote = SocketAddr::from((B, TCP_PORT));
    let mut open = || link.a.port.open(Instant::ZERO, remote, LowerLayer::Optimized).unwrap();
    let ids: Vec<_> = (0..20).map(|_| open()).collect();
    within(&mut link, 20, |_| false);
    assert_eq!(link.b.port.port_counters().cookies_sent, 19, "no SYN had to come again");
    assert!(link.b.device.times_full > 5);
    // The listener keeps two silent connections, and resets earlier ones.
    let mut answered = 0;
    for id in ids {
        answered += link.a.port.counters(id).map_or(0, |counters| counters.tcp.segments_received);
    }
    while let Some(event) = link.a.port.poll_event() {
        if let PortEvent::Closed { counters, .. } = event {
            answered += counters.tcp.segments_received.min(1);
        }
    }
    assert_eq!(answered, 20);
}

/// A frame that is refused for good is lost, as on a link, and the rest goes on.
#[test]
fn a_frame_that_waits_is_dropped_when_the_link_goes_down() {
    let ends = [End::new(1), End::new(2)];
    let mut link = link(LINK, &ends, 1);
    let socket = link.a.port.host_mut().udp_bind(54, 8000).unwrap();
    link.a.port.host_mut().udp(socket).send_slice(&[1], (B, 53)).unwrap();
    let port = &mut link.a.port;
    let mut answer = Err(TransmitError::Full);
    let mut offered = 0;
    for (now, expected) in [(Err(TransmitError::Full), 1), (Err(TransmitError::LinkDown), 1)] {
        answer = now;
        offered = 0;
        let taken = port.poll_transmit(Instant::ZERO, 64, &mut |_| {
            offered += 1;
            answer
        });
        assert_eq!((taken, offered), (0, expected), "{answer:?}");
        assert_eq!(port.has_ready(), answer == Err(TransmitError::Full));
    }
    assert!(!port.has_ready());
    assert_eq!((answer, offered), (Err(TransmitError::LinkDown), 1));
}
