//! A recorded session between two ends on a memory link.

use std::cell::RefCell;
use std::io::{self, Write};
use std::net::IpAddr;
use std::rc::Rc;

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ConnectParams, LowerLayer};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Mr, RecvWr, RemoteBuffer, SendOp, SendWr, WcStatus};
use urnic_netdev::capture::CaptureReader;
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_netdev::record::{CaptureWriter, Directions, Recorder};

use urnic_testkit::pair::{A, B, End, Pair, TCP_PORT, config, v6};

/// Configuration of a session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) link: LinkConfig,
    pub(crate) startup: StartupConfig,
    pub(crate) lower_layer: LowerLayer,
    pub(crate) ipv6: bool,
    pub(crate) seed: u64,
}

/// The bytes that one end sent, from its startup frame on.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) octets: Vec<u8>,
    pub(crate) markers: bool,
    /// Sequence number of its SYN.
    first: u32,
    /// Bytes of each segment.
    segments: Vec<Vec<u8>>,
}

type Device = Recorder<MemoryDevice, Sink>;

/// Two connected ends, and the file of the frames that they send.
pub(crate) struct Session {
    pair: Pair<Device>,
    file: Sink,
    markers: bool,
    kept: Vec<Mr>,
}

impl Session {
    pub(crate) fn connect(settings: Settings) -> Self {
        let Settings { link, startup, lower_layer, ipv6, seed } = settings;
        let file = Sink::default();
        let capture = CaptureWriter::new(file.clone()).unwrap();
        let (a, b) = memory::pair(link);
        let device_a = Recorder::new(a, &capture, "a", Directions::Sent);
        let device_b = Recorder::new(b, &capture, "b", Directions::Sent);
        let mut pair = Pair::new(
            [End::new(2 * seed + 1), End::new(2 * seed + 2)],
            [config(A), config(B)],
            [device_a, device_b],
        );
        let offer = Offer { private_data: b"private", ird: 8, ord: 8 };
        let answer = Offer { private_data: b"accepted", ..offer };
        let address = if ipv6 { IpAddr::V6(v6(B)) } else { IpAddr::V4(B) };
        pair.establish(&ConnectParams { startup, offer, lower_layer }, address, &answer);
        let mut session = Self { pair, file, markers: startup.markers, kept: Vec::new() };
        session.run();
        session
    }

    /// Lets both ends work until nothing happens.
    fn run(&mut self) {
        self.pair.run_for(Duration::from_millis(500), |_| false);
    }

    fn region(&mut self, at_a: bool, len: usize) -> usize {
        let end = if at_a { &self.pair.a } else { &self.pair.b };
        let access = Access::FOR_ATOMIC | Access::LOCAL_WRITE | Access::REMOTE_INVALIDATE;
        let mr = end.pd.reg_mr(len, access).unwrap();
        let octets: Vec<u8> = (0..len).map(|i| (i / 7) as u8 ^ (i as u8)).collect();
        mr.copy_in(0, &octets);
        self.kept.push(mr);
        self.kept.len() - 1
    }

    fn completes(&mut self, count: usize) {
        self.run();
        for _ in 0..count {
            let wc = self.pair.a.cq.poll().expect("all work is done");
            assert_eq!(wc.status, WcStatus::Success);
        }
        while self.pair.b.cq.poll().is_some() {}
    }

    /// Sends messages of these lengths from one end, posted at once.
    pub(crate) fn sends(&mut self, lens: &[usize]) {
        let whole = lens.iter().copied().max().unwrap_or(0).max(1);
        let (from, to) = (self.region(true, whole), self.region(false, whole));
        for len in lens {
            let inbox = self.kept[to].sge(0..*len);
            self.pair.b.qp.post_recv(RecvWr::new(WrId(9), [inbox])).unwrap();
            let source = self.kept[from].sge(0..*len);
            self.pair.a.qp.post_send(SendWr::send(WrId(1), [source])).unwrap();
        }
        self.completes(lens.len());
    }

    /// Performs a Write of `len` bytes.
    pub(crate) fn write(&mut self, len: usize) {
        let (from, to) = (self.region(true, len), self.region(false, len));
        let remote = self.kept[to].remote(0);
        let source = self.kept[from].sge(0..len);
        self.pair.a.qp.post_send(SendWr::write(WrId(2), remote, [source])).unwrap();
        self.completes(1);
    }

    /// Performs every operation of RFC 5040 and RFC 7306 that can succeed.
    pub(crate) fn every_operation(&mut self) {
        const LEN: usize = 20_000;
        self.sends(&[0, 1, 2, 3, 4, 1000, 5000]);
        self.write(LEN);
        self.write(1);
        let (local, remote) = (self.region(true, LEN), self.region(false, LEN));
        let target = self.kept[remote].remote(0);
        let mut posted = Vec::new();
        for len in [LEN, 1, 0] {
            let sink = self.kept[local].sge(0..len);
            posted.push(SendWr::read(WrId(3), target, sink));
        }
        let add = SendOp::FetchAdd { remote: target, add: 77, mask: 0 };
        posted.push(SendWr::new(WrId(4), add, []));
        let swap = SendOp::CmpSwap {
            remote: target,
            compare: 1,
            compare_mask: u64::MAX,
            swap: 2,
            swap_mask: 0xffff,
        };
        posted.push(SendWr::new(WrId(5), swap, []));
        for solicited in [false, true] {
            posted.push(SendWr::new(
                WrId(6),
                SendOp::Immediate { value: 0x0102_0304_0506_0708, solicited },
                [],
            ));
            let send = SendOp::Send { invalidate: None, solicited };
            posted.push(SendWr::new(WrId(7), send, [self.kept[local].sge(0..3000)]));
        }
        for solicited in [false, true] {
            let doomed = self.region(false, 64);
            let invalidate = Some(self.kept[doomed].stag());
            let send = SendOp::Send { invalidate, solicited };
            posted.push(SendWr::new(WrId(8), send, [self.kept[local].sge(0..30)]));
        }
        let inbox = self.region(false, 3000);
        let count = posted.len();
        for wr in posted {
            let buffer = self.kept[inbox].sge(0..3000);
            self.pair.b.qp.post_recv(RecvWr::new(WrId(9), [buffer])).unwrap();
            self.pair.a.qp.post_send(wr).unwrap();
        }
        self.completes(count);
    }

    /// Writes beyond the peer's memory, which ends the session with a Terminate.
    pub(crate) fn terminate(&mut self) {
        let (from, to) = (self.region(true, 100), self.region(false, 100));
        let RemoteBuffer { stag, to } = self.kept[to].remote(50);
        let source = self.kept[from].sge(0..100);
        let write = SendWr::write(WrId(2), RemoteBuffer { stag, to }, [source]);
        self.pair.a.qp.post_send(write).unwrap();
        self.run();
        let told =
            self.pair.a.events.iter().any(|event| matches!(event, StreamEvent::Terminated(_)));
        assert!(told, "{:?}", self.pair.a.events);
    }

    // ---- what was recorded ----

    /// Returns the recorded pcapng file.
    pub(crate) fn capture(&self) -> Vec<u8> {
        self.file.0.borrow().clone()
    }

    /// Returns both directions, reassembled from the frames. Nothing is lost or reordered on the
    /// link.
    pub(crate) fn streams(&self) -> [Stream; 2] {
        let mut streams = [Stream::default(), Stream::default()];
        let file = self.capture();
        for frame in CaptureReader::open(&file[..]).unwrap() {
            let frame = frame.unwrap();
            let Ok(Some(packet)) = frame.ip_packet() else { continue };
            let Some(segment) = tcp_segment(packet) else { continue };
            let to_responder = u16::from_be_bytes([segment[2], segment[3]]) == TCP_PORT;
            let stream = &mut streams[usize::from(!to_responder)];
            let sequence = u32::from_be_bytes(segment[4..8].try_into().unwrap());
            stream.markers = self.markers;
            if segment[13] & 0x02 != 0 {
                stream.first = sequence;
                continue;
            }
            let payload = &segment[usize::from(segment[12] >> 4) * 4..];
            let at = sequence.wrapping_sub(stream.first).wrapping_sub(1) as usize;
            if !payload.is_empty() && at == stream.octets.len() {
                stream.octets.extend_from_slice(payload);
                stream.segments.push(payload.to_vec());
            }
        }
        streams
    }

    /// Returns the sequence number of the initiator's SYN.
    pub(crate) fn first_sequence_number(&self) -> u32 {
        self.streams()[0].first
    }

    /// Returns true if the initiator's sequence numbers wrapped.
    pub(crate) fn wraps(&self) -> bool {
        let [stream, _] = self.streams();
        u32::try_from(stream.octets.len()).is_ok_and(|len| stream.first.checked_add(len).is_none())
    }

    /// Returns the number of whole FPDUs in the fullest segment of the initiator.
    pub(crate) fn fpdus_per_segment_max(&self) -> usize {
        let [stream, _] = self.streams();
        let count = |mut rest: &[u8]| {
            let mut fpdus = 0;
            while let [hi, lo, ..] = *rest {
                let len = 2 + usize::from(u16::from_be_bytes([hi, lo]));
                rest = rest.get(len.next_multiple_of(4) + 4..).unwrap_or_default();
                fpdus += 1;
            }
            fpdus
        };
        stream.segments.iter().skip(1).map(|segment| count(segment)).max().unwrap_or(0)
    }
}

fn tcp_segment(packet: &[u8]) -> Option<&[u8]> {
    match packet[0] >> 4 {
        4 if packet[9] == 6 => {
            let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
            packet.get(20..total)
        }
        6 if packet[6] == 6 => {
            let total = 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]]));
            packet.get(40..total)
        }
        _ => None,
    }
}

/// A file in memory, shared by its writer and its reader.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sink(Rc<RefCell<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(octets);
        Ok(octets.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
