use std::num::{NonZeroU16, NonZeroUsize};

use proptest::prelude::*;

use super::*;
use crate::capture::{CaptureReader, CapturedFrame, LinkType};
use crate::memory::{LinkConfig, MemoryDevice, pair};
use crate::{Medium, SharedSlice};

type Recorded = Recorder<MemoryDevice, Vec<u8>>;

fn recorded_pair(
    config: LinkConfig,
    directions: Directions,
) -> (CaptureWriter<Vec<u8>>, Recorded, Recorded) {
    let writer = CaptureWriter::new(Vec::new()).unwrap();
    let (a, b) = pair(config);
    let a = Recorder::new(a, &writer, "a", directions);
    let b = Recorder::new(b, &writer, "b", directions);
    (writer, a, b)
}

/// Returns the frames of the file, after the recorders are dropped.
fn frames(writer: CaptureWriter<Vec<u8>>) -> Vec<CapturedFrame> {
    let file = writer.into_inner().expect("no recorder is left");
    CaptureReader::open(&file[..]).unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn both_ends_are_recorded_into_one_file() {
    let (writer, mut a, mut b) = recorded_pair(LinkConfig::default(), Directions::Sent);
    for (now_ns, octet) in [(1, 10), (1_700_000_000_000_000_123, 30)] {
        a.transmit(now_ns, &TxFrame::whole(&[octet; 60])).unwrap();
        b.transmit(now_ns + 1, &TxFrame::whole(&[octet + 1; 61])).unwrap();
    }
    a.finish().unwrap();
    drop((a, b));
    let seen: Vec<_> = frames(writer)
        .iter()
        .map(|frame| (frame.number, frame.timestamp_ns, frame.bytes[0], frame.original_len))
        .collect();
    let late_ns = 1_700_000_000_000_000_123;
    let want = [(1, 1, 10, 60), (2, 2, 11, 61), (3, late_ns, 30, 60), (4, late_ns + 1, 31, 61)];
    assert_eq!(seen, want);
}

#[test]
fn received_frames_are_recorded_when_they_are_received() {
    let config = LinkConfig { latency_ns: 500, medium: Medium::Ip, ..LinkConfig::default() };
    let (writer, mut a, mut b) = recorded_pair(config, Directions::Both);
    a.transmit(100, &TxFrame::whole(&[0x45; 40])).unwrap();
    a.flush(100);
    assert_eq!(b.next_arrival_ns(), Some(600));
    assert_eq!(b.receive(600, 9, &mut |frame| assert_eq!(frame.head, [0x45; 40])), 1);
    drop((a, b));
    let frames = frames(writer);
    let times: Vec<_> = frames.iter().map(|frame| frame.timestamp_ns).collect();
    assert_eq!(times, [100, 600]);
    assert!(frames.iter().all(|frame| frame.link == LinkType::RawIp));
}

#[test]
fn an_independent_reader_sees_interfaces_and_directions() {
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
    use pcap_file::pcapng::{Block, PcapNgReader};

    let (writer, mut a, mut b) = recorded_pair(LinkConfig::default(), Directions::Both);
    a.transmit(7, &TxFrame::whole(&[1; 61])).unwrap();
    a.flush(7);
    b.receive(8, 1, &mut |_| {});
    drop((a, b));
    let file = writer.into_inner().unwrap();
    let mut reader = PcapNgReader::new(&file[..]).unwrap();
    let mut seen = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            assert_eq!(packet.data[..], [1; 61]);
            let [EnhancedPacketOption::Flags(flags)] = packet.options[..] else { panic!() };
            seen.push((packet.interface_id, packet.timestamp.as_nanos(), flags));
        }
    }
    assert_eq!(seen, [(0, 7, 0b10), (1, 8, 0b01)]);
    assert_eq!(reader.interfaces().len(), 2);
}

#[test]
fn only_the_chosen_direction_is_recorded() {
    for (directions, times) in [(Directions::Sent, [1]), (Directions::Received, [2])] {
        let (writer, mut a, mut b) = recorded_pair(LinkConfig::default(), directions);
        a.transmit(1, &TxFrame::whole(&[0; 60])).unwrap();
        a.flush(1);
        assert_eq!(b.receive(2, 9, &mut |_| {}), 1);
        drop((a, b));
        let seen: Vec<_> = frames(writer).iter().map(|frame| frame.timestamp_ns).collect();
        assert_eq!(seen, times);
    }
}

#[test]
fn refused_frames_are_not_recorded() {
    let config = LinkConfig { queue_frames: 1, ..LinkConfig::default() };
    let (writer, mut a, b) = recorded_pair(config, Directions::Both);
    a.transmit(0, &TxFrame::whole(&[0; 60])).unwrap();
    assert_eq!(a.transmit(0, &TxFrame::whole(&[0; 60])), Err(TransmitError::Full));
    assert_eq!(a.transmit(0, &TxFrame::whole(&[0; 2000])), Err(TransmitError::TooLong));
    drop((a, b));
    assert_eq!(frames(writer).len(), 1);
}

#[test]
fn super_frames_are_recorded_whole_with_a_complete_checksum() {
    let super_frame_len_max = NonZeroUsize::new(65_000);
    let config = LinkConfig { super_frame_len_max, tx_checksum: true, ..LinkConfig::default() };
    let (writer, mut a, b) = recorded_pair(config, Directions::Sent);
    let payload = [SharedSlice::from_bytes(&[3; 65_000])];
    let checksum = TxChecksum::Partial { start: 34, offset: 16 };
    let segment_size = NonZeroU16::new(1400);
    a.transmit(
        0,
        &TxFrame { head: &[0; 54], payload: &payload, checksum, segment_size, digests: None },
    )
    .unwrap();
    drop((a, b));
    let frames = frames(writer);
    assert_eq!(frames[0].bytes.len(), 65_054);
    assert_eq!(checksum::Sum::default().octets(&frames[0].bytes[34..]).checksum(), 0);
}

/// A sink that takes some bytes, then fails.
#[derive(Debug)]
struct FullDisk(usize);

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_error_of_the_file_is_kept_and_the_frames_go_on() {
    let writer = CaptureWriter::new(FullDisk(500)).unwrap();
    let (a, mut b) = pair(LinkConfig::default());
    let mut a = Recorder::new(a, &writer, "a", Directions::Both);
    for now_ns in 0..20 {
        a.transmit(now_ns, &TxFrame::whole(&[0; 60])).unwrap();
    }
    a.flush(20);
    assert_eq!(b.receive(20, 99, &mut |_| {}), 20);
    assert_eq!(a.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(writer.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert!(CaptureWriter::new(FullDisk(5)).is_err());
}

#[test]
fn a_long_name_is_shortened() {
    let writer = CaptureWriter::new(Vec::new()).unwrap();
    let interface = writer.interface(&"\u{e4}".repeat(40_000), Medium::Ethernet);
    writer.write(interface, 0, Direction::Inbound, &[1; 60]);
    assert_eq!(frames(writer).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn recorded_frames_are_read_back(
        sent in prop::collection::vec(
            (any::<u64>(), prop::collection::vec(any::<u8>(), 0..300)),
            0..20,
        ),
    ) {
        let (writer, mut a, b) = recorded_pair(LinkConfig::default(), Directions::Sent);
        for (now_ns, bytes) in &sent {
            let split = bytes.len() / 2;
            let payload = [SharedSlice::from_bytes(&bytes[split..])];
            let frame = TxFrame { payload: &payload, ..TxFrame::whole(&bytes[..split]) };
            a.transmit(*now_ns, &frame).unwrap();
        }
        drop((a, b));
        let read: Vec<_> =
            frames(writer).into_iter().map(|frame| (frame.timestamp_ns, frame.bytes)).collect();
        prop_assert_eq!(read, sent);
    }
}
