//! A device with something between it and the link: a router, or an observer.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use urnic_netdev::memory::MemoryDevice;
use urnic_netdev::{Capabilities, Device, RxChecksum, RxFrame, TransmitError, TxChecksum, TxFrame};

/// Fate of a sent frame.
#[derive(Debug)]
pub(crate) enum Verdict {
    Pass,
    Lose,
    /// The frame is replaced by these.
    Become(Vec<Vec<u8>>),
    /// The frame is lost, and the sender receives this.
    Answer(Vec<u8>),
    /// The frame passes, and the sender receives this.
    PassAndAnswer(Vec<u8>),
}

/// Function between a device and the link.
pub(crate) type Middle = Rc<RefCell<dyn FnMut(&[u8]) -> Verdict>>;

/// The device of one end.
pub(crate) struct Wire {
    inner: MemoryDevice,
    /// Link address by which frames reach it.
    pub(crate) mac: [u8; 6],
    /// Link address of the port behind it.
    port_mac: [u8; 6],
    pub(crate) middle: Option<Middle>,
    /// Frames for this end from the function between.
    answers: VecDeque<Vec<u8>>,
    /// Merge received TCP segments, and leave their checksums wrong, as a kernel does.
    pub(crate) merges: bool,
    /// Pass up frames for other stations too.
    pub(crate) is_promiscuous: bool,
    /// Frames sent during a pause; `None` if there is none.
    held: Option<Vec<Vec<u8>>>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Wire {
    pub(crate) fn new(inner: MemoryDevice, mac: [u8; 6]) -> Self {
        Self {
            inner,
            mac,
            port_mac: mac,
            middle: None,
            answers: VecDeque::new(),
            merges: false,
            is_promiscuous: false,
            held: None,
        }
    }

    /// Holds frames that are sent from now on.
    pub(crate) fn pause(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Ends a pause: sends the held frames, in order.
    pub(crate) fn resume(&mut self, now_ns: u64) {
        for head in self.held.take().into_iter().flatten() {
            self.inner.transmit(now_ns, &TxFrame::whole(&head)).unwrap();
        }
    }
}

impl Device for Wire {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        let mut received = self.answers.len();
        for answer in self.answers.drain(..) {
            let checksum = RxChecksum::Unverified;
            sink(RxFrame::whole(&answer, checksum, None));
        }
        let mut frames = Vec::<Vec<u8>>::new();
        received += self.inner.receive(now_ns, burst, &mut |frame| {
            let (mark, mut frame) = (frame, frame.head.to_vec());
            // Frames for another address do not come this far.
            if frame[0] & 1 == 0 && frame[..6] != self.mac && !self.is_promiscuous {
                return;
            }
            if frame[..6] == self.mac {
                frame[..6].copy_from_slice(&self.port_mac);
            }
            if !self.merges {
                return sink(RxFrame { head: &frame, ..mark });
            }
            if !frames.last_mut().is_some_and(|last| merge(last, &frame)) {
                frames.push(frame);
            }
        });
        for frame in &mut frames {
            garble_checksum(frame);
            let checksum = RxChecksum::Valid;
            sink(RxFrame::whole(frame, checksum, None));
        }
        received
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        if let Some(held) = &mut self.held {
            let mut octets = vec![0; frame.len()];
            frame.gather(&mut octets);
            held.push(octets);
            return Ok(());
        }
        let Some(middle) = &self.middle else { return self.inner.transmit(now_ns, frame) };
        let mut octets = vec![0; frame.len()];
        frame.gather(&mut octets);
        let verdict = (middle.borrow_mut())(&octets);
        let parts = match verdict {
            Verdict::Pass => vec![octets],
            Verdict::Lose => Vec::new(),
            Verdict::Become(parts) => parts,
            Verdict::Answer(answer) => {
                self.answers.push_back(answer);
                Vec::new()
            }
            Verdict::PassAndAnswer(answer) => {
                self.answers.push_back(answer);
                vec![octets]
            }
        };
        for head in &parts {
            let (checksum, segment_size) = (TxChecksum::Complete, None);
            self.inner.transmit(
                now_ns,
                &TxFrame { head, payload: &[], checksum, segment_size, digests: None },
            )?;
        }
        Ok(())
    }

    fn flush(&mut self, now_ns: u64) {
        self.inner.flush(now_ns);
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        if self.answers.is_empty() { self.inner.next_arrival_ns() } else { Some(0) }
    }

    fn link_up(&self) -> bool {
        self.inner.link_up()
    }
}

const IP_AT: usize = 14;
const TCP_AT: usize = 34;

fn is_tcp(frame: &[u8]) -> bool {
    frame.len() >= TCP_AT + 20 && frame[12..15] == [0x08, 0x00, 0x45] && frame[23] == 6
}

fn word(frame: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]))
}

fn seq(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[TCP_AT + 4..TCP_AT + 8].try_into().unwrap())
}

/// Appends a segment to the previous one, if it continues that one.
fn merge(last: &mut Vec<u8>, next: &[u8]) -> bool {
    if !is_tcp(last) || !is_tcp(next) || last[26..38] != next[26..38] {
        return false;
    }
    let payload_at = |frame: &[u8]| TCP_AT + usize::from(frame[TCP_AT + 12] >> 4) * 4;
    let end = |frame: &[u8]| IP_AT + word(frame, IP_AT + 2);
    let (start, len) = (payload_at(next), end(next));
    let last_len = end(last) - payload_at(last);
    let continues = seq(next).wrapping_sub(seq(last)) as usize == last_len;
    let total = end(last) - IP_AT + len - start;
    if !continues || start == len || last_len == 0 || total > 65_535 {
        return false;
    }
    last.truncate(end(last));
    last.extend(&next[start..len]);
    last[IP_AT + 2..IP_AT + 4].copy_from_slice(&(total as u16).to_be_bytes());
    last[IP_AT + 10..IP_AT + 12].fill(0);
    let sum = super::frames::checksum(&last[IP_AT..TCP_AT]);
    last[IP_AT + 10..IP_AT + 12].copy_from_slice(&sum);
    true
}

/// Spoils the checksum, as a kernel does with a frame that it knows to be right.
fn garble_checksum(frame: &mut [u8]) {
    if is_tcp(frame) {
        frame[TCP_AT + 16] ^= 0x55;
    } else if frame.len() >= TCP_AT + 8 && frame[12..15] == [0x08, 0x00, 0x45] && frame[23] == 17 {
        frame[TCP_AT + 6] ^= 0x55;
    }
}
