//! Measures the bytes per second of TAP interfaces without a stack: the upper limit for a stack
//! above them.
//!
//! ```text
//! raw_tap FROM TO [--super] [--payload BYTES] [--segment BYTES] [--fragment BYTES]
//!         [--seconds S] [--window BYTES] [--one-thread] [--json]
//! ```
//!
//! `FROM` and `TO` are TAP interfaces on one bridge. One thread sends frames of TCP over IPv4, a
//! second one receives them (or one thread does both in turns). At most `--window` bytes are in
//! flight, as with TCP: without this limit the receiver's queue overflows, and sent frames are
//! lost. With `--super` a frame is a super-frame with a partial checksum, which the next stack cuts
//! every `--segment` bytes if it must.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that measures")]

use std::error::Error;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use urnic_netdev::tap::{Tap, TapConfig};
use urnic_netdev::{Device, SharedSlice, TransmitError, TxChecksum, TxFrame};

struct Options {
    from: String,
    to: String,
    super_frames: bool,
    payload_len: usize,
    segment_len: u16,
    fragment_len: usize,
    duration: Duration,
    window: u64,
    one_thread: bool,
    json: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = parse(std::env::args().skip(1))?;
    let open = |name: &str| -> Result<Tap, Box<dyn Error>> {
        let vnet_header = options.super_frames;
        Ok(Tap::open(&TapConfig { vnet_header, ..TapConfig::new(name.parse()?) })?)
    };
    let (from, to) = (open(&options.from)?, open(&options.to)?);
    let shared = Shared::default();
    let start = Instant::now();
    if options.one_thread {
        take_turns(from, to, &options, &shared)?;
    } else {
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(to, &shared));
            let sent = send(from, &options, &shared);
            shared.done.store(true, Ordering::Relaxed);
            receiver.join().map_err(|_| "the receiving thread has panicked")?;
            sent
        })?;
    }
    report(&options, &shared, start.elapsed());
    Ok(())
}

/// State shared by both threads.
#[derive(Default)]
struct Shared {
    sent: AtomicU64,
    received: AtomicU64,
    /// Bytes sent that count as lost.
    lost: AtomicU64,
    frames: AtomicU64,
    done: AtomicBool,
}

/// Frames between two reads of the clock.
const BURST: usize = 64;
const HEAD_LEN: usize = 54;
/// Length of the sender's memory: larger than the caches near a core.
const MEMORY_LEN: usize = 4 << 20;

/// A source of frames.
struct Sender<'a> {
    tap: Tap,
    options: &'a Options,
    shared: &'a Shared,
    memory: Vec<u8>,
    at: usize,
    head: [u8; HEAD_LEN],
    /// Time since which the window has been full.
    idle_since: Option<Instant>,
}

impl<'a> Sender<'a> {
    fn new(tap: Tap, options: &'a Options, shared: &'a Shared) -> Self {
        let head = head(options.payload_len);
        Self { tap, options, shared, memory: vec![0x5a; MEMORY_LEN], at: 0, head, idle_since: None }
    }

    /// Sends a burst, or counts a stalled window as lost.
    fn turn(&mut self) -> Result<(), TransmitError> {
        if self.burst()? > 0 {
            self.idle_since = None;
        } else if self.idle_since.get_or_insert_with(Instant::now).elapsed() > STALL {
            let Shared { sent, received, lost, .. } = self.shared;
            let (sent, received) = (sent.load(Ordering::Relaxed), received.load(Ordering::Relaxed));
            lost.store(sent.saturating_sub(received), Ordering::Relaxed);
        } else {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Sends at most a burst, as far as the window allows. Returns the number of frames.
    fn burst(&mut self) -> Result<usize, TransmitError> {
        let payload_len = self.options.payload_len;
        let mut count = 0;
        while count < BURST {
            let Shared { sent, received, lost, .. } = self.shared;
            let sent = sent.load(Ordering::Relaxed);
            let over = received.load(Ordering::Relaxed) + lost.load(Ordering::Relaxed);
            let room = self.options.window + over;
            if sent + payload_len as u64 > room.max(payload_len as u64) {
                break;
            }
            if self.at + payload_len > self.memory.len() {
                self.at = 0;
            }
            let octets = &self.memory[self.at..self.at + payload_len];
            let payload: Vec<_> =
                octets.chunks(self.options.fragment_len).map(SharedSlice::from_bytes).collect();
            let super_frames = self.options.super_frames;
            let frame = TxFrame {
                head: &self.head,
                payload: &payload,
                checksum: if super_frames {
                    TxChecksum::Partial { start: 34, offset: 16 }
                } else {
                    TxChecksum::Complete
                },
                segment_size: NonZeroU16::new(self.options.segment_len).filter(|_| super_frames),
                digests: None,
            };
            match self.tap.transmit(0, &frame) {
                Ok(()) => (),
                Err(TransmitError::Full) => break,
                Err(error) => return Err(error),
            }
            self.at += payload_len;
            self.shared.sent.fetch_add(payload_len as u64, Ordering::Relaxed);
            count += 1;
        }
        Ok(count)
    }
}

fn send(tap: Tap, options: &Options, shared: &Shared) -> Result<(), Box<dyn Error>> {
    let mut sender = Sender::new(tap, options, shared);
    let end = Instant::now() + options.duration;
    while Instant::now() < end {
        sender.turn()?;
    }
    Ok(())
}

/// Duration of a full window after which its frames count as lost.
const STALL: Duration = Duration::from_millis(50);

/// Receives at most a burst. Returns the number of frames.
fn take(tap: &mut Tap, shared: &Shared) -> usize {
    let mut octets = 0;
    let count = tap.receive(0, BURST, &mut |frame| {
        octets += frame.head.len().saturating_sub(HEAD_LEN) as u64;
    });
    shared.received.fetch_add(octets, Ordering::Relaxed);
    shared.frames.fetch_add(count as u64, Ordering::Relaxed);
    count
}

fn receive(mut tap: Tap, shared: &Shared) {
    while !shared.done.load(Ordering::Relaxed) {
        if take(&mut tap, shared) == 0 {
            // With more threads than cores, the sender may be waiting for this one.
            std::thread::yield_now();
        }
    }
}

fn take_turns(
    from: Tap,
    mut to: Tap,
    options: &Options,
    shared: &Shared,
) -> Result<(), Box<dyn Error>> {
    let mut sender = Sender::new(from, options, shared);
    let end = Instant::now() + options.duration;
    while Instant::now() < end {
        sender.turn()?;
        while take(&mut to, shared) == BURST {}
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "rates are printed with three digits")]
fn report(options: &Options, shared: &Shared, elapsed: Duration) {
    let octets = shared.received.load(Ordering::Relaxed);
    let frames = shared.frames.load(Ordering::Relaxed);
    let seconds = elapsed.as_secs_f64();
    let gbps = octets as f64 * 8.0 / seconds / 1e9;
    let rate = frames as f64 / seconds;
    if options.json {
        println!(
            "{{\"super_frames\":{},\"payload\":{},\"one_thread\":{},\"seconds\":{seconds:.3},\
             \"bytes\":{octets},\"frames\":{frames},\"gbps\":{gbps:.3}}}",
            options.super_frames, options.payload_len, options.one_thread
        );
    } else {
        println!("{gbps:.2} Gbit/s of payload, {rate:.0} frames/s of {}", options.payload_len);
    }
}

/// Ethernet, IPv4 and TCP headers in front of `payload_len` bytes, from 10.0.0.1 to 10.0.0.2.
fn head(payload_len: usize) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[..12].copy_from_slice(&[2, 0, 10, 0, 0, 2, 2, 0, 10, 0, 0, 1]);
    head[12..14].copy_from_slice(&[0x08, 0x00]);
    let total_len = u16::try_from(payload_len + 40).unwrap_or(u16::MAX);
    head[14..34]
        .copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    head[16..18].copy_from_slice(&total_len.to_be_bytes());
    let words = head[14..34].chunks_exact(2);
    let mut sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    let [_, _, high, low] = (!sum).to_be_bytes();
    head[24..26].copy_from_slice(&[high, low]);
    head[34..38].copy_from_slice(&[0x1c, 0x06, 0x1c, 0x07]);
    head[46..50].copy_from_slice(&[0x50, 0x10, 0xff, 0xff]);
    head
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
    const USAGE: &str = "usage: raw_tap FROM TO [--super] [--payload BYTES] [--segment BYTES] \
                         [--fragment BYTES] [--seconds S] [--window BYTES] [--one-thread] [--json]";
    let (from, to) = arguments.next().zip(arguments.next()).ok_or(USAGE)?;
    let mut options = Options {
        from,
        to,
        super_frames: false,
        payload_len: 0,
        segment_len: 1460,
        fragment_len: usize::MAX,
        duration: Duration::from_secs(2),
        window: 4 << 20,
        one_thread: false,
        json: false,
    };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(USAGE);
        match argument.as_str() {
            "--super" => options.super_frames = true,
            "--one-thread" => options.one_thread = true,
            "--json" => options.json = true,
            "--payload" => options.payload_len = value()?.parse()?,
            "--segment" => options.segment_len = value()?.parse()?,
            "--fragment" => options.fragment_len = value()?.parse::<usize>()?.max(1),
            "--seconds" => options.duration = Duration::from_secs_f64(value()?.parse()?),
            "--window" => options.window = value()?.parse()?,
            _ => return Err(USAGE.into()),
        }
    }
    if options.payload_len == 0 {
        let segment_len = usize::from(options.segment_len.max(1));
        options.payload_len =
            if options.super_frames { 64_000 / segment_len * segment_len } else { segment_len };
    }
    Ok(options)
}
