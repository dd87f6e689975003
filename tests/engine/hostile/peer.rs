//! A TCP made for tests. It keeps no state about which a test could not lie, loses nothing (neither
//! does the link), and never retransmits unless requested.

use std::net::Ipv4Addr;

use urnic_engine::tcp::{Flags, HEADER_LEN_MAX, Header, Options, SeqNum};
use urnic_netdev::memory::MemoryDevice;
use urnic_netdev::{Device, TxFrame};

/// Bytes of payload in its segments.
const SEGMENT_LEN: usize = 1400;
const IPV4_LEN: usize = 20;

/// One end of a TCP connection.
#[derive(Debug)]
pub(crate) struct RawPeer {
    device: MemoryDevice,
    own: (Ipv4Addr, u16),
    other: (Ipv4Addr, u16),
    isn: u32,
    other_isn: Option<u32>,
    /// Bytes sent in order so far.
    pub(crate) sent: u64,
    /// Bytes received in order so far.
    pub(crate) received: Vec<u8>,
    /// Highest position of the peer's stream that was acknowledged.
    pub(crate) acknowledged: u64,
    /// Segments received without payload.
    pub(crate) pure_acks: usize,
    pub(crate) fin_received: bool,
    pub(crate) reset_received: bool,
    /// Ignore all received segments.
    pub(crate) deaf: bool,
    /// Answer a SYN with a RST.
    pub(crate) refuses: bool,
    fin_sent: bool,
    /// Window that it offers.
    pub(crate) window: u16,
    /// Its SYNs have the window scale option, with a shift of 0.
    pub(crate) scales: bool,
    /// Shift of the victim's windows.
    other_shift: u8,
    /// Window that the victim offered last, in bytes.
    pub(crate) offered: u64,
    /// MSS of its SYNs.
    pub(crate) mss: u16,
    /// Take only this many bytes of the next segment with payload: the path has cut it, and lost
    /// the rest.
    pub(crate) take_only: Option<usize>,
}

/// A connection that is left alone for a while.
#[derive(Debug)]
pub(crate) struct Parked {
    own: (Ipv4Addr, u16),
    other_isn: Option<u32>,
    sent: u64,
    received: Vec<u8>,
    acknowledged: u64,
}

impl RawPeer {
    pub(crate) fn new(device: MemoryDevice, own: (Ipv4Addr, u16), other: (Ipv4Addr, u16)) -> Self {
        Self {
            device,
            own,
            other,
            isn: 0xFFFF_F000,
            other_isn: None,
            sent: 0,
            received: Vec::new(),
            acknowledged: 0,
            pure_acks: 0,
            fin_received: false,
            reset_received: false,
            deaf: false,
            refuses: false,
            fin_sent: false,
            window: u16::MAX,
            scales: false,
            other_shift: 0,
            offered: 0,
            mss: 1460,
            take_only: None,
        }
    }

    pub(crate) const fn is_established(&self) -> bool {
        self.other_isn.is_some()
    }

    /// Sends to another TCP port of the victim from now on.
    pub(crate) fn aim_at(&mut self, port: u16) {
        self.other.1 = port;
    }

    /// Becomes another host, whose connection is not opened yet.
    pub(crate) fn pose_as(&mut self, own: (Ipv4Addr, u16)) {
        self.own = own;
        self.other_isn = None;
        self.reset_received = false;
        self.fin_received = false;
        self.fin_sent = false;
        self.sent = 0;
        self.received.clear();
        self.acknowledged = 0;
    }

    /// Leaves its connection alone, to become another host.
    pub(crate) fn park(&mut self) -> Parked {
        let received = std::mem::take(&mut self.received);
        let Self { own, other_isn, sent, acknowledged, .. } = *self;
        Parked { own, other_isn, sent, received, acknowledged }
    }

    /// Continues a parked connection.
    pub(crate) fn resume(&mut self, parked: Parked) {
        let Parked { own, other_isn, sent, received, acknowledged } = parked;
        self.pose_as(own);
        (self.other_isn, self.sent, self.acknowledged) = (other_isn, sent, acknowledged);
        self.received = received;
    }

    /// Returns the position in the victim's stream of a sequence number.
    fn position_of(&self, seq: SeqNum) -> i64 {
        let first = self.other_isn.expect("data comes after the SYN").wrapping_add(1);
        let expected = first.wrapping_add(self.received.len() as u32);
        self.position() + i64::from(seq.distance_from(SeqNum(expected)))
    }

    fn position(&self) -> i64 {
        i64::try_from(self.received.len()).unwrap()
    }

    fn ack_number(&self) -> SeqNum {
        let first = self.other_isn.unwrap_or(0).wrapping_add(1);
        SeqNum(first.wrapping_add(self.received.len() as u32 + u32::from(self.fin_received)))
    }

    /// Returns the sequence number of a byte of the peer's stream.
    pub(crate) fn seq_of(&self, offset: u64) -> SeqNum {
        SeqNum(self.isn.wrapping_add(1).wrapping_add(offset as u32))
    }

    // ---- out ----

    pub(crate) fn send_syn(&mut self, now_ns: u64) {
        let window_scale = self.scales.then_some(0);
        let options = Options { mss: Some(self.mss), window_scale, ..Options::default() };
        let flags = Flags::SYN;
        let seq = SeqNum(self.isn);
        self.transmit(now_ns, Header { seq, flags, options, ..self.header() }, &[]);
    }

    /// Sends bytes in order.
    pub(crate) fn send(&mut self, now_ns: u64, octets: &[u8]) {
        self.send_cut(now_ns, octets, SEGMENT_LEN);
    }

    /// Sends bytes in order, in segments of `segment_len`.
    pub(crate) fn send_cut(&mut self, now_ns: u64, octets: &[u8], segment_len: usize) {
        for segment in octets.chunks(segment_len) {
            self.send_at(now_ns, self.sent, segment);
            self.sent += segment.len() as u64;
        }
    }

    /// Sends bytes at any position of the stream, as one segment.
    pub(crate) fn send_at(&mut self, now_ns: u64, offset: u64, octets: &[u8]) {
        let seq = self.seq_of(offset);
        let flags = Flags::ACK | Flags::PSH;
        self.transmit(now_ns, Header { seq, flags, ..self.header() }, octets);
    }

    /// Closes its half.
    pub(crate) fn send_fin(&mut self, now_ns: u64) {
        self.send_flags(now_ns, self.seq_of(self.sent), Flags::FIN | Flags::ACK);
        self.fin_sent = true;
    }

    /// Sends a segment without payload.
    pub(crate) fn send_flags(&mut self, now_ns: u64, seq: SeqNum, flags: Flags) {
        self.transmit(now_ns, Header { seq, flags, ..self.header() }, &[]);
    }

    fn header(&self) -> Header {
        Header {
            src_port: self.own.1,
            dst_port: self.other.1,
            ack: self.ack_number(),
            window: self.window,
            ..Header::default()
        }
    }

    fn acknowledge(&mut self, now_ns: u64) {
        let at = self.sent + u64::from(self.fin_sent);
        self.send_flags(now_ns, self.seq_of(at), Flags::ACK);
    }

    fn transmit(&mut self, now_ns: u64, header: Header, payload: &[u8]) {
        let mut tcp = [0; HEADER_LEN_MAX];
        let tcp_len = header.len();
        header.emit(&mut tcp[..tcp_len]);
        let mut segment = tcp[..tcp_len].to_vec();
        segment.extend(payload);
        let mut pseudo: Vec<u8> = self.own.0.octets().into();
        pseudo.extend(self.other.0.octets());
        pseudo.extend([0, 6]);
        pseudo.extend((segment.len() as u16).to_be_bytes());
        pseudo.extend(&segment);
        segment[16..18].copy_from_slice(&internet_checksum(&pseudo));

        let total = (IPV4_LEN + segment.len()) as u16;
        let mut frame = vec![0x45, 0];
        frame.extend(total.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend(self.own.0.octets());
        frame.extend(self.other.0.octets());
        let sum = internet_checksum(&frame);
        frame[10..12].copy_from_slice(&sum);
        frame.extend(segment);
        let frame = TxFrame::whole(&frame);
        self.device.transmit(now_ns, &frame).unwrap();
        self.device.flush(now_ns);
    }

    // ---- in ----

    /// Takes received frames and acknowledges them. Returns their number.
    pub(crate) fn poll(&mut self, now_ns: u64) -> usize {
        let mut frames = Vec::new();
        self.device.receive(now_ns, usize::MAX, &mut |frame| frames.push(frame.head.to_vec()));
        for frame in &frames {
            // Other messages of the victim's host stack are not for this peer, nor are frames for
            // the hosts that it was before.
            let mut to = [0; 4];
            to.copy_from_slice(&frame[16..20]);
            let port = u16::from_be_bytes([frame[IPV4_LEN + 2], frame[IPV4_LEN + 3]]);
            if frame[9] == 6 && (Ipv4Addr::from(to), port) == self.own && !self.deaf {
                self.handle_segment(now_ns, &frame[IPV4_LEN..]);
            }
        }
        frames.len()
    }

    pub(crate) fn next_arrival_ns(&self) -> Option<u64> {
        self.device.next_arrival_ns()
    }

    fn handle_segment(&mut self, now_ns: u64, segment: &[u8]) {
        let (header, payload_at) = Header::parse(segment).unwrap();
        let payload = &segment[payload_at..];
        if header.flags.contains(Flags::RST) {
            self.reset_received = true;
            return;
        }
        if header.flags.contains(Flags::SYN) {
            return self.handle_syn(now_ns, &header);
        }
        self.offered = u64::from(header.window) << self.other_shift;
        let acknowledged = i64::from(header.ack.distance_from(self.seq_of(self.acknowledged)));
        self.acknowledged = self.acknowledged.saturating_add_signed(acknowledged.max(0));
        // The FIN takes one sequence number.
        let start = self.position_of(header.seq) - i64::from(self.fin_received);
        let Ok(skip) = usize::try_from(self.position() - start) else {
            panic!("the link keeps order, so nothing can be missing");
        };
        let new = payload.get(skip..).unwrap_or_default();
        let taken = if new.is_empty() { None } else { self.take_only.take() };
        self.received.extend(&new[..taken.map_or(new.len(), |taken| taken.min(new.len()))]);
        let fin = header.flags.contains(Flags::FIN);
        self.fin_received |= fin;
        if !payload.is_empty() || fin {
            self.acknowledge(now_ns);
        } else if skip > 0 {
            // RFC 9293 §3.10.7.4: a segment before the window, such as a probe, is answered.
            self.acknowledge(now_ns);
        } else {
            self.pure_acks += 1;
        }
    }

    fn handle_syn(&mut self, now_ns: u64, header: &Header) {
        if self.is_established() {
            return self.acknowledge(now_ns);
        }
        self.other_isn = Some(header.seq.0);
        self.offered = u64::from(header.window);
        self.other_shift = header.options.window_scale.filter(|_| self.scales).unwrap_or(0);
        if header.flags.contains(Flags::ACK) {
            return self.acknowledge(now_ns);
        }
        self.other.1 = header.src_port;
        let seq = SeqNum(self.isn);
        if self.refuses {
            self.send_flags(now_ns, seq, Flags::RST | Flags::ACK);
        } else {
            self.send_flags(now_ns, seq, Flags::SYN | Flags::ACK);
        }
    }
}

fn internet_checksum(octets: &[u8]) -> [u8; 2] {
    let mut sum: u32 = octets
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}
