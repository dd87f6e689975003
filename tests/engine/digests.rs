//! A device that computes CRCs while it copies gets frames without them. The frames on the wire
//! must equal the frames of a device without this feature.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::rc::Rc;

use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ConnectParams, LowerLayer, PortConfig};
use urnic_engine::stream::SendPath;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{SendWr, WcStatus};
use urnic_netdev::impair::{Impair, ImpairConfig};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_netdev::{Capabilities, Device, RxFrame, TransmitError, TxFrame};
use urnic_testkit::pair::{A, B, End, Pair, all_access, config};

/// Bytes of the memory of either end.
const LEN: usize = 300 * 1024;

/// Frames that were sent, and the number of digests that the engine left to the device.
#[derive(Debug, Default)]
struct Sent {
    frames: Vec<Vec<u8>>,
    digests: usize,
}

/// A device that keeps the frames it is given, and computes digests or not.
#[derive(Debug)]
struct Kept {
    device: Impair<MemoryDevice>,
    computes: bool,
    sent: Rc<RefCell<Sent>>,
}

impl Device for Kept {
    fn capabilities(&self) -> Capabilities {
        Capabilities { tx_digest: self.computes, ..self.device.capabilities() }
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        self.device.receive(now_ns, burst, sink)
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        assert!(self.computes || frame.digests.is_none(), "not asked for");
        self.device.transmit(now_ns, frame)?;
        let mut sent = self.sent.borrow_mut();
        let mut octets = vec![0; frame.len()];
        frame.gather(&mut octets);
        sent.frames.push(octets);
        sent.digests += frame.digests.map_or(0, |digests| digests.digests.len());
        Ok(())
    }

    fn transmit_room(&self) -> usize {
        self.device.transmit_room()
    }

    fn flush(&mut self, now_ns: u64) {
        self.device.flush(now_ns);
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.device.next_arrival_ns()
    }
}

/// Options of a transfer.
#[derive(Clone, Copy, Debug)]
struct Case {
    super_frames: bool,
    tx_checksum: bool,
    markers: bool,
    crc: bool,
    path: SendPath,
    lose: f64,
}

/// Transfers requests of all kinds and many lengths over a link with losses. Returns the frames of
/// both ends.
fn transfer(case: Case, computes: bool) -> [Sent; 2] {
    let Case { super_frames, tx_checksum, markers, crc, path, lose } = case;
    let link = LinkConfig {
        latency_ns: 10_000,
        tx_checksum,
        super_frame_len_max: super_frames.then(|| NonZeroUsize::new(65_000)).flatten(),
        ..LinkConfig::default()
    };
    let sent: [Rc<RefCell<Sent>>; 2] = Default::default();
    let (device_a, device_b) = memory::pair(link);
    let impair = ImpairConfig { loss: lose, ..ImpairConfig::default() };
    let kept = |device, which: usize| Kept {
        device: Impair::new(device, impair, which as u64 + 3),
        computes,
        sent: Rc::clone(&sent[which]),
    };
    let mut pair = Pair::new(
        [End::new(1), End::new(2)],
        [A, B].map(|address| PortConfig { send_path: path, ..config(address) }),
        [kept(device_a, 0), kept(device_b, 1)],
    );
    let offer = Offer { private_data: b"", ird: 8, ord: 8 };
    let startup = StartupConfig { markers, crc, ..StartupConfig::default() };
    let lower_layer = LowerLayer::default();
    pair.establish(&ConnectParams { startup, offer, lower_layer }, B.into(), &offer);
    let [a, b] = [&pair.a, &pair.b].map(|end| end.pd.reg_mr(LEN, all_access()).unwrap());
    let octets: Vec<u8> = (0..LEN).map(|i| (i * 7 + i / 251).to_le_bytes()[0]).collect();
    a.copy_in(0, &octets);
    let (qp, cq) = (pair.a.qp.clone(), pair.a.cq.clone());
    // Short messages share a frame, and lists of runs are cut at other positions than FPDUs.
    let lists: [&[usize]; 8] = [
        &[1],
        &[200],
        &[1461],
        &[7, 9, 4000],
        &[3, 1, 1, 1, 1, 60_000],
        &[65_536],
        &[0],
        &[200_001],
    ];
    for list in lists {
        let mut at = 0;
        let runs = list.iter().map(|len| {
            let run = a.sge(at..at + len);
            at += len + 1;
            run
        });
        qp.post_send(SendWr::write(WrId(1), b.remote(0), runs)).unwrap();
    }
    for _ in lists {
        assert_eq!(pair.wait(&cq).status, WcStatus::Success, "{case:?}");
    }
    qp.post_send(SendWr::read(WrId(2), b.remote(0), a.sge(0..100_000))).unwrap();
    assert_eq!(pair.wait(&cq).status, WcStatus::Success, "{case:?}");
    let mut back = vec![0; 100_000];
    a.copy_out(0, &mut back);
    assert!(back == octets[..100_000], "{case:?}");
    drop(pair);
    sent.map(|sent| Rc::into_inner(sent).unwrap().into_inner())
}

#[test]
fn frames_are_equal_with_device_and_engine_digests() {
    let plain = Case {
        super_frames: false,
        tx_checksum: true,
        markers: false,
        crc: true,
        path: SendPath::Auto,
        lose: 0.0,
    };
    let cases = [
        (plain, true),
        (Case { super_frames: true, ..plain }, true),
        (Case { lose: 0.03, ..plain }, true),
        (Case { lose: 0.05, super_frames: true, ..plain }, true),
        (Case { path: SendPath::Gather, ..plain }, true),
        (Case { markers: true, path: SendPath::Gather, ..plain }, true),
        (
            Case { markers: true, path: SendPath::Gather, super_frames: true, lose: 0.03, ..plain },
            true,
        ),
        // The engine leaves no digest of these to the device.
        (Case { path: SendPath::Stage, super_frames: true, ..plain }, false),
        (Case { crc: false, ..plain }, false),
        // The checksum covers the digest.
        (Case { tx_checksum: false, ..plain }, false),
    ];
    for (case, leaves) in cases {
        let [there, other] = [transfer(case, true), transfer(case, false)];
        for (computed, given) in there.iter().zip(&other) {
            assert_eq!(computed.frames.len(), given.frames.len(), "{case:?}");
            for (index, (computed, given)) in computed.frames.iter().zip(&given.frames).enumerate()
            {
                assert!(computed == given, "{case:?}: frame {index} of {} octets", given.len());
            }
        }
        assert_eq!(there[0].digests > 100, leaves, "{case:?}: {}", there[0].digests);
        assert_eq!(other[0].digests, 0);
    }
}
