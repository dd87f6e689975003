//! Captures that cost as much as possible, written frame by frame.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Flags of TCP segments.
pub(crate) const SYN: u8 = 0x02;
pub(crate) const ACK: u8 = 0x10;

/// An end of a connection.
pub(crate) type End = ([u8; 4], u16);

pub(crate) const CLIENT: End = ([10, 0, 0, 1], 1000);
pub(crate) const SERVER: End = ([10, 0, 0, 2], 7174);

/// A pcap file of raw IP.
pub(crate) struct Capture {
    pub(crate) path: PathBuf,
    file: BufWriter<File>,
    frames: u32,
}

impl Capture {
    pub(crate) fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut file = BufWriter::new(File::create(&path).unwrap());
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 1 << 18, 101] {
            file.write_all(&word.to_le_bytes()).unwrap();
        }
        Self { path, file, frames: 0 }
    }

    /// Writes a segment with a right checksum.
    pub(crate) fn segment(&mut self, [from, to]: [End; 2], seq: u32, flags: u8, payload: &[u8]) {
        let mut tcp = Vec::with_capacity(20 + payload.len());
        tcp.extend(from.1.to_be_bytes());
        tcp.extend(to.1.to_be_bytes());
        tcp.extend(seq.to_be_bytes());
        tcp.extend(1_u32.to_be_bytes());
        tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(payload);
        let len = u16::try_from(tcp.len()).unwrap();
        let pseudo = [&from.0[..], &to.0, &[0, 6], &len.to_be_bytes()].concat();
        let checksum = !fold(sum(&pseudo) + sum(&tcp));
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        let total = 20 + len;
        let mut packet = vec![0x45, 0];
        packet.extend(total.to_be_bytes());
        // Its own checksum is left to the device.
        packet.extend([0, 0, 0, 0, 64, 6, 0, 0]);
        packet.extend(from.0);
        packet.extend(to.0);
        packet.extend(tcp);
        let len = u32::try_from(packet.len()).unwrap();
        for word in [self.frames / 1000, self.frames % 1000, len, len] {
            self.file.write_all(&word.to_le_bytes()).unwrap();
        }
        self.file.write_all(&packet).unwrap();
        self.frames += 1;
    }

    /// Opens a connection and starts MPA, without markers and CRCs; returns the client's next
    /// sequence number.
    pub(crate) fn start(&mut self, client: End) -> u32 {
        let (there, back) = ([client, SERVER], [SERVER, client]);
        self.segment(there, 0, SYN, &[]);
        self.segment(back, 0, SYN | ACK, &[]);
        self.segment(there, 1, ACK, &[b"MPA ID Req Frame", &[0, 1, 0, 0][..]].concat());
        self.segment(back, 1, ACK, &[b"MPA ID Rep Frame", &[0, 1, 0, 0][..]].concat());
        21
    }

    pub(crate) fn finish(mut self) -> PathBuf {
        self.file.flush().unwrap();
        self.path
    }
}

fn sum(octets: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    octets.chunks(2).map(word).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

/// Returns an FPDU without a CRC: one whole RDMA Write.
pub(crate) fn write(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let ulpdu = [&[0xc1, 0x40], &stag.to_be_bytes()[..], &to.to_be_bytes(), payload].concat();
    let len = u16::try_from(ulpdu.len()).unwrap();
    let mut fpdu = [&len.to_be_bytes()[..], &ulpdu].concat();
    fpdu.resize(fpdu.len().next_multiple_of(4) + 4, 0);
    fpdu
}
