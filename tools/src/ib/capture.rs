//! InfiniBand packets in a pcap file, as records of the Extensible Record Format: only in this form
//! tshark and Wireshark read InfiniBand from the local header on.
//!
//! ```text
//! pcap record header (16) | time (8, little-endian, 32.32) | type 21 | flags 4 | length (2)
//! | losses (2) | length on the wire (2) | packet, local header to variant CRC
//! ```

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use urnic_netdev::capture::PcapWriter;

#[derive(Debug)]
pub(crate) struct ErfCapture<W: Write> {
    file: PcapWriter<W>,
    /// Nothing is written after it.
    error: Option<io::Error>,
    flush_ns: u64,
}

const FLUSH_EVERY_NS: u64 = 1_000_000_000;
const NETWORK_ERF: u32 = 197;
const TYPE_INFINIBAND: u8 = 21;
/// Records have the lengths of their packets.
const FLAGS_VARYING_LENGTH: u8 = 4;
const HEADER_LEN: usize = 16;

impl<W: Write> ErfCapture<W> {
    pub(crate) fn new(sink: W) -> io::Result<Self> {
        let mut file = PcapWriter::new(sink, NETWORK_ERF, 1 << 16)?;
        file.flush()?;
        Ok(Self { file, error: None, flush_ns: 0 })
    }

    /// An error is kept for [`finish`](Self::finish).
    #[expect(clippy::disallowed_methods, reason = "a capture tells the time of day")]
    pub(crate) fn write(&mut self, packet: &[u8]) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let Ok(len) = u16::try_from(packet.len()) else { return };
        if self.error.is_none() {
            self.error = self.file.frame(since, &record(since, len, packet)).err();
        }
    }

    /// Flushes a second after the last flush, so that the file can be read meanwhile. An error is
    /// kept for [`finish`](Self::finish).
    pub(crate) fn flush_now_and_then(&mut self, now_ns: u64) {
        if now_ns >= self.flush_ns {
            self.flush_ns = now_ns.saturating_add(FLUSH_EVERY_NS);
            if self.error.is_none() {
                self.error = self.file.flush().err();
            }
        }
    }

    /// Returns the first error.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        match self.error.take() {
            Some(error) => Err(error),
            None => self.file.flush(),
        }
    }
}

fn record(at: Duration, len: u16, packet: &[u8]) -> Vec<u8> {
    let fraction = (u64::from(at.subsec_nanos()) << 32) / 1_000_000_000;
    let whole = HEADER_LEN + packet.len();
    let record_len = u16::try_from(whole).unwrap_or(u16::MAX).to_be_bytes();
    let mut record = Vec::with_capacity(whole);
    record.extend((at.as_secs() << 32 | fraction).to_le_bytes());
    record.extend([TYPE_INFINIBAND, FLAGS_VARYING_LENGTH]);
    record.extend(record_len);
    record.extend([0; 2]);
    record.extend(len.to_be_bytes());
    record.extend_from_slice(packet);
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_can_be_read_within_a_second() {
        use std::cell::RefCell;
        use std::io::BufWriter;
        use std::rc::Rc;

        #[derive(Clone, Default)]
        struct File(Rc<RefCell<Vec<u8>>>);
        impl Write for File {
            fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
                self.0.borrow_mut().write(octets)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let file = File::default();
        let len = || file.0.borrow().len();
        let mut capture = ErfCapture::new(BufWriter::new(file.clone())).unwrap();
        capture.flush_now_and_then(7);
        assert_eq!(len(), 24);
        capture.write(&[1; 4]);
        capture.flush_now_and_then(7 + FLUSH_EVERY_NS - 1);
        assert_eq!(len(), 24);
        capture.flush_now_and_then(7 + FLUSH_EVERY_NS);
        assert_eq!(len(), 24 + 16 + HEADER_LEN + 4);
    }

    #[test]
    fn a_record_octet_by_octet() {
        let mut octets = Vec::new();
        let at = Duration::new(3, 500_000_000);
        let mut file = PcapWriter::new(&mut octets, NETWORK_ERF, 1 << 16).unwrap();
        file.frame(at, &record(at, 5, &[1, 2, 3, 4, 5])).unwrap();
        let magic = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
        assert_eq!(octets[..8], magic);
        assert_eq!(octets[8..24], [0, 0, 1 << 16, 197].map(u32::to_le_bytes).concat());
        let octets = &octets[24..];
        assert_eq!(octets[..16], [3, 500_000, 21, 21].map(u32::to_le_bytes).concat());
        assert_eq!(octets[16..24], [0, 0, 0, 0x80, 3, 0, 0, 0], "half of the fourth second");
        assert_eq!(octets[24..], [21, 4, 0, 21, 0, 0, 0, 5, 1, 2, 3, 4, 5]);
    }
}
