//! Captures of invented conversations.

use urnic_engine::mpa::marker::pad_len;
use urnic_engine::types::{MsgOffset, Msn, QueueNumber, Stag, TaggedOffset};
use urnic_engine::wire::ProtocolVersion;
use urnic_engine::wire::crc32c::Crc32c;
use urnic_engine::wire::ddp::{DdpHeader, TaggedHeader, UntaggedHeader};
use urnic_engine::wire::mpa::{StartupFrame, StartupHeader, StartupKind};
use urnic_engine::wire::rdmap::{Control, Opcode, ReadRequest};

pub(super) const INITIATOR: usize = 0;
pub(super) const RESPONDER: usize = 1;

const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 0x10;

/// A capture, raw IP, of one connection.
#[derive(Clone)]
pub(super) struct Talk {
    /// The pcap file so far.
    pub(super) file: Vec<u8>,
    /// Next sequence number of each side.
    pub(super) seq: [u32; 2],
    /// Acknowledgment number of each side, if not all was acknowledged.
    pub(super) ack: [Option<u32>; 2],
    /// Set if TCP checksums are filled in.
    pub(super) checksums: bool,
    /// Frames so far.
    pub(super) frames: u64,
    /// Window of all further segments.
    pub(super) window: u16,
    /// The MSS in SYNs.
    pub(super) mss: Option<u16>,
    /// Window Scale in the SYN of each side.
    pub(super) window_scale: [Option<u8>; 2],
    /// Time of the next frame.
    pub(super) now_us: u32,
}

impl Talk {
    /// Creates an empty capture.
    pub(super) fn empty() -> Self {
        let mut file = 0xa1b2_c3d4_u32.to_be_bytes().to_vec();
        file.extend([0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
        file.extend(0xffff_u32.to_be_bytes());
        file.extend(101_u32.to_be_bytes());
        Self {
            file,
            seq: [1000, u32::MAX - 50],
            ack: [None; 2],
            checksums: true,
            frames: 0,
            window: u16::MAX,
            mss: None,
            window_scale: [None; 2],
            now_us: 0,
        }
    }

    /// Creates an open connection.
    pub(super) fn open() -> Self {
        Self::empty().opened()
    }

    /// Opens the connection.
    pub(super) fn opened(self) -> Self {
        let mut talk = self;
        talk.frame(INITIATOR, talk.seq[INITIATOR], SYN, &[]);
        talk.seq[INITIATOR] += 1;
        talk.frame(RESPONDER, talk.seq[RESPONDER], SYN | ACK, &[]);
        talk.seq[RESPONDER] = talk.seq[RESPONDER].wrapping_add(1);
        talk
    }

    /// Creates a connection in full operation.
    pub(super) fn started() -> Self {
        Self::open().in_full_operation()
    }

    /// Starts full operation.
    pub(super) fn in_full_operation(self) -> Self {
        let mut talk = self;
        talk.send(INITIATOR, &startup(StartupKind::Request, false, b""));
        talk.send(RESPONDER, &startup(StartupKind::Reply, false, b""));
        talk
    }

    /// Adds a segment with the next bytes.
    pub(super) fn send(&mut self, side: usize, payload: &[u8]) -> &mut Self {
        let seq = self.seq[side];
        self.frame(side, seq, ACK, payload);
        self.seq[side] = seq.wrapping_add(u32::try_from(payload.len()).unwrap());
        self
    }

    /// Adds an FPDU in a segment of its own.
    pub(super) fn fpdu(&mut self, side: usize, ulpdu: &[u8]) -> &mut Self {
        self.send(side, &fpdu(ulpdu))
    }

    /// Leaves bytes out of the capture.
    pub(super) fn skip(&mut self, side: usize, len: u32) -> &mut Self {
        self.seq[side] = self.seq[side].wrapping_add(len);
        self
    }

    /// Advances the time.
    pub(super) fn wait(&mut self, us: u32) -> &mut Self {
        self.now_us += us;
        self
    }

    pub(super) fn close(&mut self, side: usize) -> &mut Self {
        self.frame(side, self.seq[side], FIN | ACK, &[]);
        self
    }

    /// Adds a segment at any sequence number.
    pub(super) fn frame(&mut self, side: usize, seq: u32, flags: u8, payload: &[u8]) {
        let ports = [40000_u16, 7174];
        let ack = self.ack[side].unwrap_or(self.seq[1 - side]);
        let mut tcp = Vec::new();
        tcp.extend(ports[side].to_be_bytes());
        tcp.extend(ports[1 - side].to_be_bytes());
        tcp.extend(seq.to_be_bytes());
        tcp.extend(ack.to_be_bytes());
        let mut options = Vec::new();
        if flags & SYN != 0 {
            if let Some([high, low]) = self.mss.map(u16::to_be_bytes) {
                options.extend([2, 4, high, low]);
            }
            if let Some(shift) = self.window_scale[side] {
                options.extend([1, 3, 3, shift]);
            }
        }
        let words = 5 + u8::try_from(options.len() / 4).unwrap();
        tcp.extend([words << 4, flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.extend(payload);
        let addresses = [[10, 0, 0, 1], [10, 0, 0, 2]];
        let len = u16::try_from(tcp.len()).unwrap();
        if self.checksums {
            let pseudo = [&addresses[side][..], &addresses[1 - side], &[0, 6], &len.to_be_bytes()];
            let sum = checksum(&[&pseudo.concat()[..], &tcp].concat());
            tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        }
        let mut ip = vec![0x45, 0];
        ip.extend((len + 20).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        ip.extend(addresses[side]);
        ip.extend(addresses[1 - side]);
        ip.extend(tcp);
        let len = u32::try_from(ip.len()).unwrap();
        self.file.extend((self.now_us / 1_000_000).to_be_bytes());
        self.file.extend((self.now_us % 1_000_000).to_be_bytes());
        self.file.extend(len.to_be_bytes());
        self.file.extend(len.to_be_bytes());
        self.file.extend(ip);
        self.frames += 1;
    }
}

pub(super) fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !u16::try_from(sum).unwrap()
}

/// Builds a startup frame of revision 1 with CRCs.
pub(super) fn startup(kind: StartupKind, markers: bool, private_data: &[u8]) -> Vec<u8> {
    let header = StartupHeader {
        kind,
        markers,
        crc: true,
        reject: false,
        enhanced: false,
        immediates: false,
        revision: 1,
    };
    let mut out = Vec::new();
    StartupFrame { header, private_data }.emit(&mut out);
    out
}

/// Builds an FPDU without markers.
pub(super) fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
    out.extend(ulpdu);
    out.resize(out.len() + pad_len(ulpdu.len()), 0);
    let mut crc = Crc32c::new();
    crc.update(&out);
    out.extend(crc.finish().to_le_bytes());
    out
}

pub(super) const fn control(opcode: Opcode) -> u8 {
    Control { version: ProtocolVersion::IETF, opcode }.to_byte()
}

fn with_header(header: &DdpHeader, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; header.len()];
    header.emit(&mut out);
    out.extend(payload);
    out
}

pub(super) fn tagged(opcode: Opcode, stag: u32, to: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    let header = TaggedHeader {
        last,
        version: ProtocolVersion::IETF,
        rsvd_ulp: control(opcode),
        stag: Stag(stag),
        to: TaggedOffset(to),
    };
    with_header(&DdpHeader::Tagged(header), payload)
}

pub(super) fn untagged(
    opcode: Opcode,
    qn: u32,
    (msn, mo): (u32, u32),
    last: bool,
    payload: &[u8],
) -> Vec<u8> {
    let header = UntaggedHeader {
        last,
        version: ProtocolVersion::IETF,
        rsvd_ulp: control(opcode),
        invalidate_stag: Stag(0),
        qn: QueueNumber(qn),
        msn: Msn(msn),
        mo: MsgOffset(mo),
    };
    with_header(&DdpHeader::Untagged(header), payload)
}

/// Builds a complete RDMA Write.
pub(super) fn write(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    tagged(Opcode::RdmaWrite, stag, to, true, payload)
}

/// Builds a complete Read Response.
pub(super) fn read_response(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    tagged(Opcode::ReadResponse, stag, to, true, payload)
}

/// Builds a complete Send.
pub(super) fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged(Opcode::Send, 0, (msn, 0), true, payload)
}

/// Builds a Read Request of `size` bytes into (`stag`, `to`).
pub(super) fn read_request(msn: u32, stag: u32, to: u64, size: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: Stag(stag),
        sink_to: TaggedOffset(to),
        size,
        source_stag: Stag(0x99),
        source_to: TaggedOffset(0),
    };
    untagged(Opcode::ReadRequest, 1, (msn, 0), true, &request.to_bytes())
}

/// Builds a Terminate with only its control word.
pub(super) fn terminate(control: [u8; 4]) -> Vec<u8> {
    untagged(Opcode::Terminate, 2, (1, 0), true, &control)
}
