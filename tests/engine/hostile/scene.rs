//! A victim with memory of every kind, and the hostile peer at the other end of the link.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use urnic_engine::mem::{Access, Region};
use urnic_engine::mpa::startup::{Fallback, Offer, StartupConfig};
use urnic_engine::poll::Poller;
use urnic_engine::port::{
    ConnectParams, ConnectionCounters, ConnectionId, ListenParams, Port, PortConfig, PortEvent,
};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::{Duration, Instant};
use urnic_engine::types::{TaggedOffset, WrId};
use urnic_engine::verbs::{
    Cq, Mr, MrPart, Pd, PostError, Qp, QpConfig, QpState, RecvWr, Rnic, RnicConfig, SendWr, Wc,
    WcStatus,
};
use urnic_engine::wire::terminate::{Terminate, TerminateCode};
use urnic_netdev::Medium;
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};

use crate::hostile::peer::RawPeer;
use urnic_testkit::octets::{self, CRC, REQUEST_KEY};

pub(crate) const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub(crate) const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const LISTEN_PORT: u16 = 7174;
const PEER_PORT: u16 = 40_000;

/// Outstanding Reads in each direction of the victim.
pub(crate) const DEPTH: u16 = 4;
/// Bytes of the one region whose parts all steering tags open.
const REGION_LEN: usize = 1 << 16;
/// First tagged offset of [`Tags::all`]; not 0, so that there are offsets below.
pub(crate) const BASE: u64 = 0x1_0000;
/// Bytes behind every steering tag.
pub(crate) const PART_LEN: usize = 4096;

/// Long enough for everything but timeouts.
pub(crate) const MOMENT: Duration = Duration::from_millis(20);

/// The victim's steering tags. Each opens [`PART_LEN`] bytes, between other bytes.
#[derive(Debug)]
pub(crate) struct Tags {
    /// Every right, offsets from [`BASE`].
    pub(crate) all: Mr,
    /// Remote read only, offsets from 0.
    pub(crate) readable: Mr,
    /// Remote write only, offsets from 0.
    pub(crate) writable: Mr,
    /// Every right, but of another domain.
    pub(crate) foreign: Mr,
    /// Every right, but for another stream of the same domain.
    pub(crate) private: Mr,
    /// Every right, for this stream.
    pub(crate) own: Mr,
    /// The last bytes of the offset space.
    pub(crate) high: Mr,
}

/// Part of the offending segment that a Terminate must carry (RFC 5040 §4.8 Figure 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// Nothing.
    Nothing,
    /// Length and DDP header.
    Segment,
    /// Length, DDP header, and the header of the Read Request.
    ReadRequest,
}

pub(crate) struct Scene {
    pub(crate) victim: Poller<MemoryDevice>,
    pub(crate) peer: RawPeer,
    pub(crate) now: Instant,
    pub(crate) qp: Qp,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    pub(crate) tags: Tags,
    pub(crate) pd: Pd,
    inbox_region: Arc<Region>,
    /// Destination of the victim's receives and Reads.
    pub(crate) inbox: Mr,
    /// The whole region, for inspection.
    memory: Mr,
    pub(crate) connection: Option<ConnectionId>,
    pub(crate) events: Vec<StreamEvent>,
    pub(crate) closed: Option<Box<ConnectionCounters>>,
    /// The peer inserts markers into its stream.
    pub(crate) markers: bool,
    /// Position at which the peer's full operation begins.
    pub(crate) origin: u64,
    /// Position at which the victim's full operation begins.
    replied: usize,
    posted_sends: usize,
    posted_receives: usize,
    rnic: Rnic,
    /// Request of the send queue that caused the error, with its status.
    pub(crate) blamed: Option<(WrId, WcStatus)>,
}

impl Scene {
    // ---- setting ----

    /// Returns a scene in which the victim listens and the peer has done nothing.
    pub(crate) fn new() -> Self {
        Self::with_startup(StartupConfig::default())
    }

    /// Does the same with these MPA settings of the victim.
    pub(crate) fn with_startup(startup: StartupConfig) -> Self {
        Self::with_port(startup, LinkConfig::default(), |_| ())
    }

    /// Does the same over another link.
    pub(crate) fn with_link(startup: StartupConfig, link: LinkConfig) -> Self {
        Self::with_port(startup, link, |_| ())
    }

    /// Does the same with other settings of the victim's port, over another link.
    pub(crate) fn with_port(
        startup: StartupConfig,
        link: LinkConfig,
        change: impl FnOnce(&mut PortConfig),
    ) -> Self {
        let link = LinkConfig { medium: Medium::Ip, latency_ns: 1000, ..link };
        let (device, peer_device) = memory::pair(link);
        let rnic = Rnic::new(RnicConfig { seed: 7.into() });
        let pd = rnic.alloc_pd();
        let (send_cq, recv_cq) = (rnic.create_cq(64).unwrap(), rnic.create_cq(64).unwrap());
        let config = QpConfig {
            send_depth: 16,
            recv_depth: 16,
            ..QpConfig::with_cqs(send_cq.clone(), recv_cq.clone())
        };
        let qp = pd.create_qp(config.clone()).unwrap();
        let other = pd.create_qp(config).unwrap();
        let region = Region::anonymous(REGION_LEN).unwrap();
        let pattern: Vec<u8> = (0..REGION_LEN).map(|i| (i ^ (i >> 8)) as u8 | 1).collect();
        region.write(0, &pattern).unwrap();
        let memory = pd.reg_region(Arc::clone(&region), Access::empty()).unwrap();
        let tags = Tags::new(&pd, &rnic.alloc_pd(), &region, &qp, &other);
        let inbox_region = Region::anonymous(1 << 16).unwrap();
        let inbox = pd.reg_region(Arc::clone(&inbox_region), Access::LOCAL_WRITE).unwrap();
        let capabilities = urnic_netdev::Device::capabilities(&device);
        let mut port_config = PortConfig::for_ipv4(VICTIM);
        change(&mut port_config);
        let mut port = Port::new(&rnic, port_config, capabilities);
        port.listen(LISTEN_PORT, ListenParams { startup, ..ListenParams::default() }).unwrap();
        Self {
            victim: Poller::new(port, device),
            peer: RawPeer::new(peer_device, (PEER, PEER_PORT), (VICTIM, LISTEN_PORT)),
            now: Instant::ZERO,
            qp,
            send_cq,
            recv_cq,
            tags,
            pd,
            inbox_region,
            inbox,
            memory,
            connection: None,
            events: Vec::new(),
            closed: None,
            markers: startup.markers,
            origin: 0,
            replied: 0,
            posted_sends: 0,
            posted_receives: 0,
            rnic,
            blamed: None,
        }
    }

    /// Returns a scene in full operation, after the peer's first FPDU.
    pub(crate) fn ready() -> Self {
        let mut scene = Self::started(StartupConfig::default());
        scene.send(&octets::empty_write());
        scene
    }

    /// Returns a scene in full operation before any FPDU.
    pub(crate) fn started(startup: StartupConfig) -> Self {
        let mut scene = Self::with_startup(startup);
        scene.open();
        scene.request(&octets::startup(REQUEST_KEY, CRC, 1, b""));
        scene.accept();
        scene
    }

    /// Makes the peer open a TCP connection.
    pub(crate) fn open(&mut self) {
        self.peer.send_syn(self.now.as_nanos());
        self.run(MOMENT);
        assert!(self.peer.is_established());
    }

    /// Makes the peer become another host and open a connection, but nothing else.
    pub(crate) fn open_as(&mut self, host: (Ipv4Addr, u16)) {
        self.peer.pose_as(host);
        self.events.clear();
        self.connection = None;
        self.peer.send_syn(self.now.as_nanos());
        self.run(Duration::from_millis(1));
    }

    /// Makes the peer send its Request.
    pub(crate) fn request(&mut self, request: &[u8]) {
        self.peer.send(self.now.as_nanos(), request);
        self.run(MOMENT);
        self.origin = self.peer.sent;
    }

    /// Makes the victim's application accept.
    pub(crate) fn accept(&mut self) {
        self.accept_with(DEPTH);
    }

    /// Does the same with this ORD.
    pub(crate) fn accept_with(&mut self, ord: u16) {
        let asked = self.events.iter().any(|event| matches!(event, StreamEvent::Request(_)));
        assert!(asked, "{:?}", self.events);
        let qp = self.qp.clone();
        self.accept_on(&qp, ord);
    }

    /// Accepts one more peer, with a separate queue pair and no memory.
    pub(crate) fn accept_another(&mut self) -> Qp {
        let cq = self.rnic.create_cq(16).unwrap();
        let (send_cq, recv_cq) = (cq.clone(), cq);
        let config =
            QpConfig { send_depth: 4, recv_depth: 4, ..QpConfig::with_cqs(send_cq, recv_cq) };
        let qp = self.rnic.alloc_pd().create_qp(config).unwrap();
        self.accept_on(&qp, DEPTH);
        qp
    }

    fn accept_on(&mut self, qp: &Qp, ord: u16) {
        let offer = Offer { private_data: b"", ird: DEPTH, ord };
        let connection = self.connection.unwrap();
        self.victim.port.accept(connection, qp, &offer).unwrap();
        self.run(MOMENT);
        let pd_len = u16::from_be_bytes([self.peer.received[18], self.peer.received[19]]);
        self.replied = 20 + usize::from(pd_len);
        assert_eq!(self.peer.received.len(), self.replied, "the Reply and nothing else");
    }

    /// Returns a scene in which the victim connects to the peer and sends its Request.
    pub(crate) fn connecting(startup: StartupConfig) -> Self {
        let mut scene = Self::with_startup(startup);
        // One attempt, because these tests check how it ends.
        let startup = StartupConfig { fallback: Fallback::empty(), ..startup };
        let offer = Offer { private_data: b"", ird: DEPTH, ord: DEPTH };
        let params = ConnectParams { startup, offer, ..ConnectParams::default() };
        let remote = SocketAddr::from((PEER, PEER_PORT));
        let id = scene.victim.port.connect(scene.now, remote, &scene.qp, &params).unwrap();
        scene.connection = Some(id);
        scene.run(MOMENT);
        scene
    }

    /// Makes the peer answer the victim's Request.
    pub(crate) fn reply(&mut self, reply: &[u8]) {
        self.replied = self.peer.received.len();
        self.request(reply);
    }

    // ---- time ----

    /// Lets both ends work for some virtual time.
    pub(crate) fn run(&mut self, duration: Duration) {
        let deadline = self.now + duration;
        loop {
            let now_ns = self.now.as_nanos();
            let moved = self.victim.poll(self.now) + self.peer.poll(now_ns);
            self.collect_events();
            if moved > 0 {
                continue;
            }
            let arrival = self.peer.next_arrival_ns().map(Instant::from_nanos);
            let next = [self.victim.next_wakeup(), arrival].into_iter().flatten().min();
            match next {
                Some(next) if next <= deadline => self.now = next.max(self.now.plus_nanos(1)),
                _ => break,
            }
        }
        self.now = deadline;
    }

    fn collect_events(&mut self) {
        while let Some(event) = self.victim.port.poll_event() {
            match event {
                PortEvent::Incoming { connection, .. } => self.connection = Some(connection),
                PortEvent::Stream { event, .. } => self.events.push(event),
                PortEvent::Closed { counters, .. } => self.closed = Some(counters),
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    // ---- the peer's messages ----

    /// Returns the FPDU of `ulpdu` at the present position of the peer's stream.
    pub(crate) fn fpdu(&self, ulpdu: &[u8]) -> Vec<u8> {
        octets::fpdu(ulpdu, self.peer.sent - self.origin, self.markers)
    }

    /// Sends bytes in order and lets the victim work.
    pub(crate) fn send_octets(&mut self, octets: &[u8]) {
        self.peer.send(self.now.as_nanos(), octets);
        self.run(MOMENT);
    }

    /// Sends a ULPDU in a good FPDU.
    pub(crate) fn send(&mut self, ulpdu: &[u8]) {
        self.send_octets(&self.fpdu(ulpdu));
    }

    /// Sends ULPDUs in good FPDUs, all at once.
    pub(crate) fn send_all(&mut self, ulpdus: &[Vec<u8>]) {
        let mut stream = Vec::new();
        for ulpdu in ulpdus {
            let at = self.peer.sent - self.origin + stream.len() as u64;
            stream.extend(octets::fpdu(ulpdu, at, self.markers));
        }
        self.send_octets(&stream);
    }

    /// Makes the peer announce another window.
    pub(crate) fn offer_window(&mut self, window: u16) {
        self.peer.window = window;
        let at = self.peer.seq_of(self.peer.sent);
        self.peer.send_flags(self.now.as_nanos(), at, urnic_engine::tcp::Flags::ACK);
        self.run(Duration::from_secs(1));
    }

    /// Returns the victim's ULPDUs in full operation.
    pub(crate) fn answers(&self) -> Vec<Vec<u8>> {
        octets::ulpdus(&self.peer.received[self.replied..])
    }

    // ---- the victim's work and memory ----

    /// Makes the victim post a receive of `len` bytes at the front of its inbox.
    pub(crate) fn post_receive(&mut self, len: usize) {
        let wr = RecvWr::new(WrId(self.posted_receives as u64), [self.inbox.sge(0..len)]);
        self.qp.post_recv(wr).unwrap();
        self.posted_receives += 1;
    }

    /// Makes the victim post a Send of 100 bytes.
    pub(crate) fn post_send(&mut self) {
        let wr = SendWr::send(WrId(self.posted_sends as u64), [self.inbox.sge(0..100)]);
        self.post(wr);
    }

    /// Makes the victim post a Read of `len` bytes into its inbox.
    pub(crate) fn post_read(&mut self, len: usize) {
        let remote = urnic_engine::verbs::RemoteBuffer {
            stag: urnic_engine::types::Stag(0xABCD),
            to: TaggedOffset(0x77),
        };
        let sink = self.inbox.sge(1000..1000 + len);
        self.post(SendWr::read(WrId(self.posted_sends as u64), remote, sink));
    }

    pub(crate) fn post(&mut self, wr: SendWr) {
        self.qp.post_send(wr).unwrap();
        self.posted_sends += 1;
    }

    /// Returns a receive completion, which must be there.
    pub(crate) fn received(&mut self) -> Wc {
        self.posted_receives -= 1;
        self.recv_cq.poll().expect("a message was delivered")
    }

    /// Returns a send completion, which must be there.
    pub(crate) fn completed(&mut self) -> Wc {
        self.posted_sends -= 1;
        self.send_cq.poll().expect("a request completed")
    }

    /// Returns a function that reads the victim's inbox without its registration.
    pub(crate) fn inbox_twin(&self) -> impl Fn() -> Vec<u8> + use<> {
        let region = Arc::clone(&self.inbox_region);
        move || {
            let mut octets = vec![0; region.len()];
            region.read(0, &mut octets).unwrap();
            octets
        }
    }

    /// Registers other memory of the victim.
    pub(crate) fn inbox_part(&self, access: Access) -> Mr {
        self.pd.reg_mr(PART_LEN, access).unwrap()
    }

    /// Returns all of the victim's memory that peers could reach.
    pub(crate) fn memory(&self) -> Vec<u8> {
        let mut octets = vec![0; REGION_LEN];
        self.memory.copy_out(0, &mut octets);
        octets
    }

    // ---- what has to follow ----

    /// Sends a ULPDU in a good FPDU, which must end the stream.
    pub(crate) fn dies_of(self, ulpdu: &[u8], code: (u8, u8, u8), about: About) {
        let fpdu = self.fpdu(ulpdu);
        self.dies_of_octets(&fpdu, ulpdu, code, about, WcStatus::WrFlushErr);
    }

    /// Does the same; the oldest receive ends with `status`.
    pub(crate) fn dies_with(
        self,
        ulpdu: &[u8],
        code: (u8, u8, u8),
        about: About,
        status: WcStatus,
    ) {
        let fpdu = self.fpdu(ulpdu);
        self.dies_of_octets(&fpdu, ulpdu, code, about, status);
    }

    /// Sends bytes with the fault in `ulpdu`. The stream must end as the RFCs require: nothing
    /// placed, this Terminate and then FIN, everything flushed, and nothing afterwards.
    pub(crate) fn dies_of_octets(
        mut self,
        stream: &[u8],
        ulpdu: &[u8],
        code: (u8, u8, u8),
        about: About,
        status: WcStatus,
    ) {
        let memory = self.memory();
        self.send_octets(stream);
        self.is_dead(ulpdu, code, about, status);
        assert!(self.memory() == memory, "memory was touched by {ulpdu:02x?}");
    }

    /// Asserts that the stream has ended with this Terminate.
    pub(crate) fn is_dead(
        &mut self,
        ulpdu: &[u8],
        code: (u8, u8, u8),
        about: About,
        status: WcStatus,
    ) {
        let answers = self.answers();
        let last = answers.last().unwrap_or_else(|| panic!("no Terminate: {:?}", self.events));
        check_terminate(last, ulpdu, code, about);
        assert!(self.peer.fin_received, "a Terminate is followed by a FIN");
        self.work_is_flushed(status);
        self.nothing_more_happens(answers.len());
    }

    fn work_is_flushed(&self, status: WcStatus) {
        assert_eq!(self.qp.state(), QpState::Error);
        let refused = self.qp.post_send(SendWr::send(WrId(9), []));
        assert_eq!(refused, Err(PostError::State(QpState::Error)));
        let failures = self.events.iter().filter(|e| matches!(e, StreamEvent::Failed(_))).count();
        assert_eq!(failures, 1, "one error is reported: {:?}", self.events);
        let flushed: Vec<_> = std::iter::from_fn(|| self.recv_cq.poll()).collect();
        assert_eq!(flushed.len(), self.posted_receives, "{flushed:?}");
        for (index, wc) in flushed.iter().enumerate() {
            let expected = if index == 0 { status } else { WcStatus::WrFlushErr };
            assert_eq!(wc.status, expected);
        }
        let flushed: Vec<_> = std::iter::from_fn(|| self.send_cq.poll()).collect();
        assert_eq!(flushed.len(), self.posted_sends, "{flushed:?}");
        for wc in flushed {
            let blamed = self.blamed.filter(|(id, _)| *id == wc.wr_id);
            let expected = blamed.map_or(WcStatus::WrFlushErr, |(_, status)| status);
            assert_eq!(wc.status, expected, "{wc:?}");
        }
    }

    /// Asserts that later segments are dropped silently (RFC 5041 §7.1), and that the close is
    /// graceful even though the peer goes on sending (RFC 5040 §6.2.1).
    fn nothing_more_happens(&mut self, answers: usize) {
        let memory = self.memory();
        let place = (self.tags.all.stag().0, BASE);
        for ulpdu in [
            octets::tagged(octets::WRITE, place.0, place.1, b"too late"),
            octets::tagged(octets::WRITE, !place.0, 0, b"a second error"),
            octets::send(1, b"too late"),
            octets::read_request(1, (1, 0), 8, place),
        ] {
            self.send(&ulpdu);
        }
        assert!(self.memory() == memory, "nothing is placed after an error");
        assert_eq!(self.answers().len(), answers, "nothing is sent after a Terminate");
        assert!(self.send_cq.is_empty() && self.recv_cq.is_empty());
        // An acknowledgment may be delayed.
        self.run(Duration::from_millis(200));
        assert_eq!(self.peer.acknowledged, self.peer.sent, "what comes late is taken and dropped");
        self.ends_in_order();
    }

    /// Makes the peer close too: the connection ends without a RST.
    pub(crate) fn ends_in_order(&mut self) {
        self.peer.send_fin(self.now.as_nanos());
        self.run(Duration::from_secs(100));
        assert!(!self.peer.reset_received, "closed in order");
        assert!(self.closed.is_some(), "the connection is gone");
    }
}

impl Tags {
    fn new(pd: &Pd, other_pd: &Pd, region: &Arc<Region>, qp: &Qp, other: &Qp) -> Self {
        let rights = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND;
        let mut at = 0;
        let mut part = |pd: &Pd, access, base, only| {
            // Unused bytes between the parts.
            at += PART_LEN / 2;
            let range = at..at + PART_LEN;
            at = range.end;
            let base = TaggedOffset(base);
            pd.reg_part(Arc::clone(region), MrPart { range, base, access, only }).unwrap()
        };
        Self {
            all: part(pd, rights, BASE, None),
            readable: part(pd, Access::REMOTE_READ, 0, None),
            writable: part(pd, Access::REMOTE_WRITE, 0, None),
            foreign: part(other_pd, rights, 0, None),
            private: part(pd, rights, 0, Some(other.number())),
            own: part(pd, rights, 0, Some(qp.number())),
            high: part(pd, rights, u64::MAX - PART_LEN as u64, None),
        }
    }
}

/// Checks a Terminate message byte by byte against RFC 5040 §4.8.
pub(crate) fn check_terminate(
    message: &[u8],
    ulpdu: &[u8],
    (layer, etype, code): (u8, u8, u8),
    about: About,
) {
    let context = format!("{message:02x?} about {:02x?}", &ulpdu[..ulpdu.len().min(50)]);
    let header = octets::untagged(octets::TERMINATE, 2, 1, 0, &[]);
    assert_eq!(message[..18], header, "{context}");
    let (terminate, _) = Terminate::parse(&message[18..]).unwrap();
    assert_eq!(terminate.code, TerminateCode { layer, etype, code }, "{context}");
    let ddp_len = if ulpdu.first().is_some_and(|control| control & 0x80 != 0) { 14 } else { 18 };
    let mut expected = vec![layer << 4 | etype, code];
    match about {
        About::Nothing => expected.extend([0, 0]),
        About::Segment | About::ReadRequest => {
            let flags = if about == About::Segment { 0xC0 } else { 0xE0 };
            expected.extend([flags, 0]);
            expected.extend((ulpdu.len() as u16).to_be_bytes());
            let header_len = if about == About::Segment { ddp_len } else { ddp_len + 28 };
            expected.extend(&ulpdu[..header_len]);
        }
    }
    assert_eq!(message[18..], expected, "{context}");
}
