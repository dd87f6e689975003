//! Measures the frames per second of packet sockets and AF_XDP sockets over a veth pair without a
//! stack: the upper limit for a stack above them.
//!
//! ```text
//! raw_packet KIND FROM TO [--payload BYTES] [--segment BYTES] [--seconds S]
//! ```
//!
//! `KIND` is `packet` (plain frames), `packet-bypass` (bypassing the queueing discipline), `super`
//! (super-frames, cut every `--segment` bytes by the next stack that needs it), `xdp` (in the
//! driver) or `xdp-generic`. `FROM` and `TO` are the two ends of a veth pair. One thread alternates
//! between sending a burst of 64 frames and receiving the arrived ones.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that measures")]

use std::error::Error;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use urnic_netdev::packet::{PacketConfig, PacketSocket};
use urnic_netdev::xdp::{XdpConfig, XdpSocket};
use urnic_netdev::{Device, SharedSlice, TransmitError, TxChecksum, TxFrame};

struct Options {
    kind: String,
    from: String,
    to: String,
    payload_len: usize,
    segment_len: u16,
    duration: Duration,
}

const USAGE: &str = "usage: raw_packet packet|packet-bypass|super|xdp|xdp-generic FROM TO \
                     [--payload BYTES] [--segment BYTES] [--seconds S]";

fn main() -> Result<(), Box<dyn Error>> {
    let options = parse(std::env::args().skip(1))?;
    let mut from = open(&options.kind, &options.from, MACS[0])?;
    let mut to = open(&options.kind, &options.to, MACS[1])?;
    let counted = run(&mut *from, &mut *to, &options)?;
    report(&options, &counted);
    Ok(())
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
    let mut next = || arguments.next().ok_or(USAGE);
    let (kind, from, to) = (next()?, next()?, next()?);
    let payload_len = if kind == "super" { 60 * 1024 } else { 1460 };
    let duration = Duration::from_secs(3);
    let mut options = Options { kind, from, to, payload_len, segment_len: 1460, duration };
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match argument.as_str() {
            "--payload" => options.payload_len = value.parse()?,
            "--segment" => options.segment_len = value.parse()?,
            "--seconds" => options.duration = Duration::from_secs(value.parse()?),
            _ => return Err(USAGE.into()),
        }
    }
    Ok(options)
}

fn open(kind: &str, name: &str, mac: [u8; 6]) -> Result<Box<dyn Device>, Box<dyn Error>> {
    let name = name.parse()?;
    let packet = PacketConfig { mac: Some(mac), ..PacketConfig::new(name, &[]) };
    let xdp = XdpConfig { mac: Some(mac), ..XdpConfig::new(name, &[]) };
    Ok(match kind {
        "packet" => Box::new(PacketSocket::open(&PacketConfig { super_frames: false, ..packet })?),
        "packet-bypass" => {
            let config = PacketConfig { super_frames: false, qdisc_bypass: true, ..packet };
            Box::new(PacketSocket::open(&config)?)
        }
        "super" => Box::new(PacketSocket::open(&packet)?),
        "xdp" | "xdp-generic" => {
            let native = kind == "xdp";
            let socket = XdpSocket::open(&XdpConfig { native, ..xdp })?;
            println!("{name}: {:?}", socket.mode());
            Box::new(socket)
        }
        _ => return Err(USAGE.into()),
    })
}

/// Counters of a run.
#[derive(Default)]
struct Counted {
    sent: u64,
    received: u64,
    octets: u64,
    elapsed: Duration,
}

fn run(
    from: &mut dyn Device,
    to: &mut dyn Device,
    options: &Options,
) -> Result<Counted, TransmitError> {
    let memory = vec![0x5a; MEMORY_LEN.max(options.payload_len)];
    let head = head(options.payload_len);
    let super_frames = options.kind == "super";
    let mut at = 0;
    let mut counted = Counted::default();
    let start = Instant::now();
    while counted.elapsed < options.duration {
        for _ in 0..BURST {
            if at + options.payload_len > memory.len() {
                at = 0;
            }
            let payload = [SharedSlice::from_bytes(&memory[at..at + options.payload_len])];
            let frame = TxFrame {
                head: &head,
                payload: &payload,
                checksum: if super_frames {
                    TxChecksum::Partial { start: 34, offset: 16 }
                } else {
                    TxChecksum::Complete
                },
                segment_size: NonZeroU16::new(options.segment_len).filter(|_| super_frames),
                digests: None,
            };
            match from.transmit(0, &frame) {
                Ok(()) => counted.sent += 1,
                Err(TransmitError::Full) => break,
                Err(error) => return Err(error),
            }
            at += options.payload_len;
        }
        from.flush(0);
        loop {
            let Counted { received, octets, .. } = &mut counted;
            let taken = to.receive(0, BURST, &mut |frame| {
                *received += 1;
                *octets += u64::try_from(frame.head.len() - HEAD_LEN).unwrap_or(0);
            });
            if taken == 0 {
                break;
            }
        }
        counted.elapsed = start.elapsed();
    }
    Ok(counted)
}

/// Returns Ethernet, IPv4 and TCP headers. The TCP checksum is partial, or wrong.
fn head(payload_len: usize) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[..6].copy_from_slice(&MACS[1]);
    head[6..12].copy_from_slice(&MACS[0]);
    head[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
    let ip_len = u16::try_from(payload_len + 40).unwrap_or(u16::MAX);
    head[16..18].copy_from_slice(&ip_len.to_be_bytes());
    head[20..24].copy_from_slice(&[0x40, 0, 64, 6]);
    head[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = SharedSlice::from_bytes(&head[14..34]).ones_complement_sum();
    head[24..26].copy_from_slice(&(!sum).to_be_bytes());
    head[46] = 0x50;
    head[47] = 0x10;
    head
}

fn report(options: &Options, counted: &Counted) {
    let Counted { sent, received, octets, elapsed } = counted;
    let seconds = elapsed.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "printed with three digits")]
    let (rate, gbps) = (*received as f64 / seconds, *octets as f64 * 8e-9 / seconds);
    println!(
        "{} {} bytes of payload per frame: {rate:.0} frames/s, {gbps:.2} Gbit/s \
         ({sent} sent, {received} received)",
        options.kind, options.payload_len
    );
}

const MACS: [[u8; 6]; 2] = [[2, 0, 10, 0, 0, 1], [2, 0, 10, 0, 0, 2]];
/// Frames sent in a turn.
const BURST: usize = 64;
const HEAD_LEN: usize = 54;
/// Length of the sender's memory: larger than the caches near a core.
const MEMORY_LEN: usize = 4 << 20;
