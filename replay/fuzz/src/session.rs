//! A capture made from a script: its frames have right checksums, CRCs and markers, which a random
//! change would break, so that the fuzzer reaches the code after those checks.

use urnic_engine::wire::crc32c::Crc32c;

/// Builds the capture that a script describes. Any bytes are a script.
#[must_use]
pub fn capture(script: &[u8]) -> Vec<u8> {
    let mut session = Session::new(Script(script));
    session.open();
    while let Some(step) = session.script.next() {
        session.step(step);
    }
    session.file
}

/// Bytes, read one after the other.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Next byte, or zero after the last.
    fn octet(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.octet(), self.octet()])
    }
}

/// State of one sender.
#[derive(Default)]
struct Side {
    /// Sequence number of the first byte of `stream`.
    base: u32,
    stream: Vec<u8>,
    /// Number of sent bytes.
    sent: usize,
    /// Start of full operation in it.
    origin: usize,
    markers: bool,
    window: u16,
}

struct Session<'a> {
    script: Script<'a>,
    file: Vec<u8>,
    sides: [Side; 2],
    port: u16,
    now_us: u64,
    crc: bool,
    link: u8,
    /// Offset of the last frame in the file.
    last: usize,
}

impl<'a> Session<'a> {
    fn new(mut script: Script<'a>) -> Self {
        let mut file = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
        file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        file.extend((1_u32 << 18).to_le_bytes());
        let link = script.octet();
        file.extend(if link & 1 == 0 { 101_u32 } else { 1 }.to_le_bytes());
        let last = file.len();
        let sides = [Side::default(), Side::default()];
        Self { script, file, sides, port: 1000, now_us: 1 << 40, crc: true, link, last }
    }

    /// Opens a connection: a handshake and a startup; the script may omit parts.
    fn open(&mut self) {
        let [terms, left_out, revision] =
            [self.script.octet(), self.script.octet(), self.script.octet()];
        self.crc = terms & 1 == 0;
        for (index, side) in self.sides.iter_mut().enumerate() {
            let markers = terms & (2 << index) != 0;
            *side = Side {
                base: [10, u32::MAX - 40][index],
                window: 0xffff,
                markers,
                ..Side::default()
            };
        }
        for side in [0, 1] {
            if left_out & (1 << side) == 0 {
                let flags = [SYN, SYN | ACK][side];
                self.frame(side, self.sides[side].base.wrapping_sub(1), flags, &[]);
            }
        }
        for side in [0, 1] {
            let key: &[u8; 16] = [b"MPA ID Req Frame", b"MPA ID Rep Frame"][side];
            // The other end's frame requests markers in this stream.
            let flags = u8::from(self.sides[1 - side].markers) << 7
                | u8::from(self.crc) << 6
                | revision & 0x10;
            let private: &[u8] = if flags & 0x10 != 0 { &[0, 1, 0x80, 2] } else { &[] };
            let len = u8::try_from(private.len()).unwrap_or(0);
            let frame = [&key[..], &[flags, revision & 0xf, 0, len], private].concat();
            self.sides[side].stream.extend(&frame);
            self.sides[side].origin = frame.len();
            if left_out & (4 << side) == 0 {
                self.segment(side, frame.len());
            } else {
                self.sides[side].sent += frame.len();
            }
        }
    }

    fn step(&mut self, step: u8) {
        let side = usize::from(step & 1);
        match step >> 1 & 0xf {
            0..=3 => {
                let len = self.fpdu(side);
                self.segment(side, len);
            }
            4 => drop(self.fpdu(side)),
            5 => {
                let len = usize::from(self.script.octet());
                self.segment(side, len * len / 8 + 1);
            }
            6 => {
                let len = self.sides[side].stream.len() - self.sides[side].sent;
                self.segment(side, len);
            }
            7 => {
                let len = self.sides[side].stream.len() - self.sides[side].sent;
                self.sides[side].sent += len.min(usize::from(self.script.octet()));
            }
            8 => {
                let (back, len) = (usize::from(self.script.short()), self.script.octet());
                let Side { base, ref stream, sent, .. } = self.sides[side];
                let start = sent.saturating_sub(back);
                let octets = stream[start..sent.min(start + 8 * usize::from(len))].to_vec();
                let seq = base.wrapping_add(u32::try_from(start).unwrap_or(0));
                self.frame(side, seq, ACK, &octets);
            }
            9 => {
                let again = self.file[self.last..].to_vec();
                if !again.is_empty() {
                    self.last = self.file.len();
                    self.file.extend(again);
                }
            }
            10 => {
                let (back, value) = (usize::from(self.script.short()), self.script.octet());
                let stream = &mut self.sides[side].stream;
                let at = stream.len().checked_sub(back + 1);
                if let Some(octet) = at.and_then(|at| stream.get_mut(at)) {
                    *octet = value;
                }
            }
            11 => {
                let us = u64::from(self.script.short()) << (self.script.octet() & 31);
                self.now_us =
                    if side == 0 { self.now_us + us } else { self.now_us.saturating_sub(us) };
            }
            12 => self.sides[side].window = self.script.short(),
            13 => {
                let flags = [FIN | ACK, RST, SYN, FIN, ACK][usize::from(self.script.octet() % 5)];
                self.frame(side, self.seq(side), flags, &[]);
            }
            14 => {
                self.port = 1000 + u16::from(self.script.octet() & 3);
                if side == 0 {
                    self.open();
                }
            }
            _ => {
                let (seq, len) =
                    (u32::from(self.script.short()) << 16, usize::from(self.script.octet()));
                let octets: Vec<u8> = (0..len).map(|_| self.script.octet()).collect();
                self.frame(side, self.seq(side).wrapping_add(seq), ACK, &octets);
            }
        }
    }

    fn seq(&self, side: usize) -> u32 {
        let Side { base, sent, .. } = self.sides[side];
        base.wrapping_add(u32::try_from(sent).unwrap_or(0))
    }

    /// Appends an FPDU to the stream of a side; returns its length there.
    fn fpdu(&mut self, side: usize) -> usize {
        let [kind, tag, number, len] = std::array::from_fn(|_| self.script.octet());
        let opcode = kind & 0xf;
        let last = u8::from(kind & 0x10 == 0) << 6;
        let mut ulpdu = Vec::new();
        if kind & 0x20 != 0 {
            ulpdu.extend([0x81 | last, 0x40 | opcode, 0, 0, 0, tag]);
            ulpdu.extend((u64::from(number) << (tag & 0x3f)).to_be_bytes());
        } else {
            ulpdu.extend([
                1 | last,
                0x40 | opcode,
                0,
                0,
                0,
                tag,
                0,
                0,
                0,
                tag & 3,
                0,
                0,
                0,
                number,
                0,
                0,
                0,
            ]);
            ulpdu.push(self.script.octet());
        }
        let fill = self.script.octet();
        ulpdu.extend(std::iter::repeat_n(
            fill,
            usize::from(len) * if kind & 0x40 == 0 { 1 } else { 6 },
        ));
        let mut fpdu = u16::try_from(ulpdu.len()).unwrap_or(0).to_be_bytes().to_vec();
        fpdu.extend(ulpdu);
        fpdu.resize(fpdu.len().next_multiple_of(4), 0);
        let Side { stream, origin, markers, .. } = &mut self.sides[side];
        let before = stream.len();
        // RFC 5044 §4.3: a marker at each multiple of 512 bytes of full operation; it contains the
        // distance back to the FPDU's beginning, and 0 directly before it.
        let mut header = before;
        let mut marker = |stream: &mut Vec<u8>, is_first: bool| {
            if *markers && (stream.len() - *origin).is_multiple_of(512) {
                let pointer = u16::try_from(stream.len() - header).unwrap_or(0).to_be_bytes();
                stream.extend([0, 0, pointer[0], pointer[1]]);
                header += if is_first { 4 } else { 0 };
            }
        };
        for (index, octet) in fpdu.into_iter().enumerate() {
            marker(stream, index == 0);
            stream.push(octet);
        }
        marker(stream, false);
        // RFC 5044 §4.4: the CRC also covers markers.
        let mut crc = Crc32c::new();
        crc.update(&stream[before..]);
        stream.extend(if self.crc { crc.finish().to_le_bytes() } else { [0; 4] });
        stream.len() - before
    }

    /// Sends the next bytes of a side.
    fn segment(&mut self, side: usize, len: usize) {
        let seq = self.seq(side);
        let Side { stream, sent, .. } = &mut self.sides[side];
        let octets = stream[*sent..stream.len().min(*sent + len.min(9000))].to_vec();
        *sent += octets.len();
        self.frame(side, seq, ACK, &octets);
    }

    fn frame(&mut self, side: usize, seq: u32, flags: u8, payload: &[u8]) {
        let ports = [self.port, 7174];
        let mut tcp = [ports[side].to_be_bytes(), ports[1 - side].to_be_bytes()].concat();
        tcp.extend(seq.to_be_bytes());
        tcp.extend(self.seq(1 - side).to_be_bytes());
        tcp.extend([0x50, flags]);
        tcp.extend(self.sides[side].window.to_be_bytes());
        // No checksum, as if left to the device.
        tcp.extend([0; 4]);
        tcp.extend(payload);
        let mut packet = match self.link & 7 {
            1 => [&[2; 12][..], &[8, 0]].concat(),
            3 => [&[2; 12][..], &[0x81, 0, 0, 5, 8, 0]].concat(),
            5 => [&[2; 12][..], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0]].concat(),
            7 => [&[2; 12][..], &[0x88, 0x47, 0, 1, 1, 9]].concat(),
            _ => Vec::new(),
        };
        packet.extend([0x45, 0]);
        packet.extend(u16::try_from(20 + tcp.len()).unwrap_or(0).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 6, 0, 0]);
        let last = |side: usize| u8::try_from(side + 1).unwrap_or(0);
        packet.extend([10, 0, 0, last(side), 10, 0, 0, last(1 - side)]);
        packet.extend(tcp);
        self.last = self.file.len();
        self.now_us += 3;
        let len = u32::try_from(packet.len()).unwrap_or(0).to_le_bytes();
        let seconds = u32::try_from(self.now_us / 1_000_000).unwrap_or(u32::MAX).to_le_bytes();
        let micros = u32::try_from(self.now_us % 1_000_000).unwrap_or(0).to_le_bytes();
        self.file.extend([seconds, micros, len, len].concat());
        self.file.extend(packet);
    }
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 0x10;
