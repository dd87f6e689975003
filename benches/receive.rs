//! The receive path: prepared frames, one after another, into a port that places RDMA Writes.
//! Covers TCP, MPA with its CRC, DDP and the copy into registered memory, and the acknowledgments.
//!
//! Only the receiving port is timed. Another port makes the frames and takes the acknowledgments.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU16, NonZeroUsize};
use std::time::Duration;

use criterion::measurement::{Measurement, WallTime};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ConnectParams, ListenParams, Port, PortConfig, PortEvent};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::Instant;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Cq, Mr, Pd, Qp, QpConfig, Rnic, RnicConfig, SendWr};
use urnic_netdev::{Capabilities, Medium, RxChecksum, RxFrame, TxChecksum};

const INITIATOR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const RESPONDER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const TCP_PORT: u16 = 7174;
const MESSAGE_LEN: usize = 64 << 10;
/// Messages that are made, and then received, at a time: few enough to stay in a cache.
const BATCH: usize = 4;
/// Frames that a device would pass at a time.
const BURST: usize = 64;

/// A frame in flight.
struct Frame {
    octets: Vec<u8>,
    checksum: RxChecksum,
    segment_size: Option<NonZeroU16>,
}

/// One port with the state of its application.
struct End {
    pd: Pd,
    cq: Cq,
    qp: Qp,
    port: Port,
}

impl End {
    fn new(seed: u64, address: Ipv4Addr, capabilities: Capabilities) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(2 * BATCH).expect("a depth within its limit");
        let config = QpConfig { send_depth: BATCH, recv_depth: BATCH, ..QpConfig::new(&cq) };
        let qp = pd.create_qp(config).expect("a legal queue pair");
        let port = Port::new(&rnic, PortConfig::for_ipv4(address), capabilities);
        Self { pd, cq, qp, port }
    }

    fn handle(&mut self, now: Instant, frames: &[Frame]) {
        self.port.handle_burst(now, |sink| {
            for Frame { octets, checksum, segment_size } in frames {
                let (checksum, segment_size) = (*checksum, *segment_size);
                sink(&RxFrame::whole(octets, checksum, segment_size));
            }
        });
    }

    /// Appends the frames that are due to `frames`; `spare` has used frames.
    fn transmit(&mut self, now: Instant, frames: &mut Vec<Frame>, spare: &mut Vec<Frame>) {
        let mut take = |frame: &urnic_netdev::TxFrame<'_>| {
            let mut octets = spare.pop().map_or_else(Vec::new, |frame| frame.octets);
            octets.resize(frame.len(), 0);
            frame.gather(&mut octets);
            let checksum = match frame.checksum {
                TxChecksum::Partial { .. } => RxChecksum::Valid,
                TxChecksum::Complete => RxChecksum::Unverified,
            };
            frames.push(Frame { octets, checksum, segment_size: frame.segment_size });
            Ok(())
        };
        while self.port.poll_transmit(now, usize::MAX, &mut take) > 0 {}
    }
}

/// Parameters of a case.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    mtu: usize,
    crc: bool,
    markers: bool,
    /// Neighbouring frames are swapped, so that every second segment arrives early.
    swapped: bool,
    software_checksums: bool,
    super_frame_len_max: Option<NonZeroUsize>,
}

const fn case(name: &'static str, mtu: usize) -> Case {
    Case {
        name,
        mtu,
        crc: true,
        markers: false,
        swapped: false,
        software_checksums: false,
        super_frame_len_max: None,
    }
}

const CASES: &[Case] = &[
    case("1500", 1500),
    Case { crc: false, ..case("1500, no CRC", 1500) },
    Case { markers: true, ..case("1500, markers", 1500) },
    Case { swapped: true, ..case("1500, neighbours swapped", 1500) },
    Case { software_checksums: true, ..case("1500, software checksums", 1500) },
    Case { super_frame_len_max: NonZeroUsize::new(65_000), ..case("1500, super-frames", 1500) },
    case("9000", 9000),
    Case { markers: true, ..case("9000, markers", 9000) },
];

/// Two connected ports, the memory that is written, and the frames between them.
struct Receive {
    case: Case,
    sender: End,
    receiver: End,
    source: Mr,
    sink: Mr,
    now: Instant,
    data: Vec<Frame>,
    acks: Vec<Frame>,
    spare: Vec<Frame>,
}

impl Receive {
    fn connect(case: Case) -> Self {
        let capabilities = Capabilities {
            medium: Medium::Ethernet,
            mtu: case.mtu,
            segmentation_len_max: case.super_frame_len_max,
            tx_checksum: !case.software_checksums,
            fragments_max: usize::MAX,
            gather_len_min: 0,
            tx_digest: false,
        };
        let sender = End::new(1, INITIATOR, capabilities);
        let receiver = End::new(2, RESPONDER, capabilities);
        let source = sender.pd.reg_mr(MESSAGE_LEN, Access::LOCAL_WRITE).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let sink = receiver.pd.reg_mr(BATCH * MESSAGE_LEN, access).expect("memory");
        let mut receive = Self {
            case,
            sender,
            receiver,
            source,
            sink,
            now: Instant::ZERO,
            data: Vec::new(),
            acks: Vec::new(),
            spare: Vec::new(),
        };
        receive.start();
        for _ in 0..32 {
            receive.batch();
        }
        receive
    }

    fn start(&mut self) {
        let Case { crc, markers, .. } = self.case;
        let startup = StartupConfig { crc, markers, ..StartupConfig::default() };
        let listen = ListenParams { startup, ..ListenParams::default() };
        self.receiver.port.listen(TCP_PORT, listen).expect("a free TCP port");
        let offer = Offer::default();
        let params = ConnectParams { startup, offer, ..ConnectParams::default() };
        let remote = SocketAddr::from((RESPONDER, TCP_PORT));
        let qp = &self.sender.qp;
        self.sender.port.connect(self.now, remote, qp, &params).expect("a route");
        let mut established = false;
        while !established {
            self.exchange();
            while let Some(event) = self.receiver.port.poll_event() {
                if let PortEvent::Stream { connection, event: StreamEvent::Request(_) } = event {
                    let qp = &self.receiver.qp;
                    self.receiver.port.accept(connection, qp, &offer).expect("a request");
                }
            }
            while let Some(event) = self.sender.port.poll_event() {
                let event_is_start =
                    matches!(event, PortEvent::Stream { event: StreamEvent::Established(_), .. });
                established |= event_is_start;
            }
        }
    }

    /// Moves a batch of messages. Returns the time that the receiver was busy.
    fn batch(&mut self) -> Duration {
        for message in 0..BATCH {
            let to = (message * MESSAGE_LEN) as u64;
            let local = self.source.sge(0..MESSAGE_LEN);
            let write = SendWr::write(WrId(to), self.sink.remote(to), [local]);
            self.sender.qp.post_send(write).expect("the batch fits the queue");
        }
        let mut busy = Duration::ZERO;
        let mut completed = 0;
        while completed < BATCH {
            busy += self.exchange();
            while self.sender.cq.poll().is_some() {
                completed += 1;
            }
        }
        busy
    }

    /// Lets both ends work once; advances the clock if neither has sent anything.
    fn exchange(&mut self) -> Duration {
        self.sender.transmit(self.now, &mut self.data, &mut self.spare);
        if self.case.swapped {
            for pair in self.data.chunks_exact_mut(2) {
                pair.swap(0, 1);
            }
        }
        let clock = WallTime;
        let start = clock.start();
        for burst in self.data.chunks(BURST) {
            self.receiver.handle(self.now, burst);
            self.receiver.transmit(self.now, &mut self.acks, &mut self.spare);
        }
        let busy = clock.end(start);
        if self.data.is_empty() && self.acks.is_empty() {
            self.now = self.now.plus_nanos(1_000_000);
            for end in [&mut self.sender, &mut self.receiver] {
                end.port.handle_timeout(self.now);
            }
            self.receiver.transmit(self.now, &mut self.acks, &mut self.spare);
        }
        self.sender.handle(self.now, &self.acks);
        self.spare.append(&mut self.data);
        self.spare.append(&mut self.acks);
        busy
    }
}

fn receive(c: &mut Criterion) {
    let mut group = c.benchmark_group("receive");
    group.throughput(Throughput::Bytes((BATCH * MESSAGE_LEN) as u64));
    for case in CASES {
        let mut receive = None;
        group.bench_function(case.name, |b| {
            let receive = receive.get_or_insert_with(|| Receive::connect(*case));
            b.iter_custom(|batches| (0..batches).map(|_| receive.batch()).sum());
        });
    }
    group.finish();
}

criterion_group!(benches, receive);
criterion_main!(benches);
