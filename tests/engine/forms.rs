//! Each frame has one meaning: contiguous or in fragments of the device's memory, over IPv4 and
//! IPv6, whole or corrupted.
//!
//! Two worlds with equal seeds process the same frames, each in its own form. After every frame the
//! counters, the answers, and all other state of the receiving ports are equal.

use std::net::IpAddr;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ConnectParams, LowerLayer, PortConfig, VlanId};
use urnic_engine::time::Instant;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Mr, SendWr, WcStatus};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_netdev::{Device, RxChecksum, RxFrame, SharedSlice};
use urnic_testkit::pair::{A, B, End, Pair, all_access, config, content, fill, v6};

use crate::network::frames::ETHERNET_LEN;

const LEN: usize = 20_000;
const MESSAGES: u64 = 15;
const TCP: u8 = 6;

/// Sum of 16-bit words (RFC 1071), folded.
fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let all: u64 =
        words.map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0))).sum();
    let folded = (0..4).fold(all, |sum, _| (sum & 0xffff) + (sum >> 16));
    u16::try_from(folded).unwrap()
}

/// Position of the IP header: behind the Ethernet header and, maybe, a tag.
fn ip_at(frame: &[u8]) -> usize {
    if frame[12..14] == [0x81, 0x00] { ETHERNET_LEN + 4 } else { ETHERNET_LEN }
}

/// Completes the checksums of the IP and TCP headers, as far as the frame has such headers.
fn repair(frame: &mut [u8]) -> Option<()> {
    let ip = ip_at(frame);
    let is_v4 = frame.get(ip)? >> 4 == 4;
    let (tcp, end, addresses) = if is_v4 {
        let header_len = usize::from(frame[ip] & 15) * 4;
        frame.get_mut(ip + 10..ip + 12)?.fill(0);
        let header = !sum(&[frame.get(ip..ip + header_len)?]);
        frame[ip + 10..ip + 12].copy_from_slice(&header.to_be_bytes());
        let len = u16::from_be_bytes([frame[ip + 2], frame[ip + 3]]);
        (ip + header_len, ip + usize::from(len), ip + 12..ip + 20)
    } else {
        let mut at = ip + 40;
        let mut next = *frame.get(ip + 6)?;
        while next != TCP {
            next = *frame.get(at)?;
            at += 8 * (usize::from(*frame.get(at + 1)?) + 1);
        }
        let len = u16::from_be_bytes([frame[ip + 4], frame[ip + 5]]);
        (at, ip + 40 + usize::from(len), ip + 8..ip + 40)
    };
    frame.get_mut(tcp + 16..tcp + 18)?.fill(0);
    let segment = frame.get(tcp..end)?;
    let len = u16::try_from(segment.len()).ok()?.to_be_bytes();
    let tcp_sum = !sum(&[frame.get(addresses)?, &[0, TCP], &len, segment]);
    frame[tcp + 16..tcp + 18].copy_from_slice(&tcp_sum.to_be_bytes());
    Some(())
}

/// Inserts bytes between the fixed IP header and TCP: options of IPv4, or an extension header.
fn extend(frame: &mut Vec<u8>, dice: &mut ChaCha8Rng) {
    let ip = ip_at(frame);
    if frame[ip] >> 4 == 4 {
        let words = dice.random_range(1..=10_u8);
        frame[ip] += words;
        let len = u16::from_be_bytes([frame[ip + 2], frame[ip + 3]]) + 4 * u16::from(words);
        frame[ip + 2..ip + 4].copy_from_slice(&len.to_be_bytes());
        frame.splice(ip + 20..ip + 20, vec![1; 4 * usize::from(words)]);
    } else {
        // Hop-by-hop options, routing, fragment, destination options, authentication.
        let kind = [0, 43, 44, 60, 51][dice.random_range(0..5)];
        let len = u16::from_be_bytes([frame[ip + 4], frame[ip + 5]]) + 8;
        frame[ip + 4..ip + 6].copy_from_slice(&len.to_be_bytes());
        let next = std::mem::replace(&mut frame[ip + 6], kind);
        let last = u8::from(dice.random_bool(0.3));
        frame.splice(ip + 40..ip + 40, [next, 0, 0, last, 0, 0, 0, 0]);
    }
}

/// Changes a frame at random; `repair` makes checksums right again.
fn corrupt(frame: &mut Vec<u8>, dice: &mut ChaCha8Rng) {
    let ip = ip_at(frame);
    let tcp = ip + if frame[ip] >> 4 == 4 { 20 } else { 40 };
    match dice.random_range(0..14) {
        0 | 1 => {
            let at = dice.random_range(0..frame.len().min(90));
            frame[at] ^= 1 << dice.random_range(0..8);
        }
        2 => frame.truncate(dice.random_range(ETHERNET_LEN..=frame.len())),
        3 => frame.resize(frame.len() + dice.random_range(1..20), dice.random()),
        // A tag without a VLAN, of this VLAN, and of another.
        4 | 5 => {
            let vlan = [0, 5, 6][dice.random_range(0..3)];
            frame.splice(12..12, [0x81, 0x00, 0xe0, vlan]);
        }
        6 | 7 => extend(frame, dice),
        8 => frame[0] ^= 1,
        9 => frame[5] ^= 1,
        // IPv4: a fragment.
        10 => frame[ip + 6] ^= 0x20,
        // The flags of TCP, and a port without a listener.
        11 => frame[tcp + 13] ^= 1 << dice.random_range(0..8),
        12 => frame[tcp + 2] ^= 1,
        // Lengths.
        _ => frame[ip + dice.random_range(2..6)] ^= 1 << dice.random_range(0..8),
    }
    if dice.random_bool(0.8) {
        let _as_far_as_it_has_them = repair(frame);
    }
}

/// A pair of ends whose responder gets its frames from the test.
struct World {
    pair: Pair<MemoryDevice>,
    source: Mr,
    sink: Mr,
    in_fragments: bool,
}

impl World {
    fn new(ipv6: bool, vlan: Option<VlanId>, in_fragments: bool, seed: u64) -> Self {
        let (a, b) = memory::pair(LinkConfig { latency_ns: 5000, ..LinkConfig::default() });
        let ends = [End::new(seed + 1), End::new(seed + 2)];
        let configs = [A, B].map(|address| PortConfig { vlan, ..config(address) });
        let mut pair = Pair::new(ends, configs, [a, b]);
        let offer = Offer { private_data: b"", ird: 8, ord: 8 };
        let startup = StartupConfig::default();
        let params = ConnectParams { startup, offer, lower_layer: LowerLayer::default() };
        let address = if ipv6 { IpAddr::V6(v6(B)) } else { B.into() };
        pair.establish(&params, address, &offer);
        let source = pair.a.pd.reg_mr(LEN, all_access()).unwrap();
        fill(&source, 7);
        let sink = pair.b.pd.reg_mr(LEN, all_access()).unwrap();
        Self { pair, source, sink, in_fragments }
    }

    /// Lets the initiator act, and returns the frames that have reached the responder.
    fn arrivals(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.pair.link.a.poll(now);
        let mut frames = Vec::new();
        let device = &mut self.pair.link.b.device;
        while device.receive(now.as_nanos(), 64, &mut |frame| frames.push(frame.head.to_vec())) > 0
        {
        }
        frames
    }

    /// Gives a frame to the responder in the form of this world.
    fn give(&mut self, now: Instant, octets: &[u8], checksum: RxChecksum, head_len: usize) {
        let whole = RxFrame::whole(octets, checksum, None);
        let port = &mut self.pair.link.b.port;
        match octets.split_at_checked(head_len) {
            Some((head, rest)) if self.in_fragments => {
                let payload: Vec<_> = rest.chunks(301).map(SharedSlice::from_bytes).collect();
                port.handle_frame(now, &RxFrame { head, payload: &payload, ..whole });
            }
            _ => port.handle_frame(now, &whole),
        }
    }

    /// All that differs if a frame was processed in another way: the counters, and with `all` the
    /// rest of the port's state.
    fn state(&self, all: bool) -> String {
        let port = &self.pair.link.b.port;
        let connection = self.pair.b.connection.map(|id| port.counters(id));
        let counters = format!("{:?} {connection:?}", port.port_counters());
        let state = if all { format!("{counters} {port:?}") } else { counters };
        // Only fragments are copied together.
        let mut parts = state.split("gathered: ");
        let first = parts.next().unwrap().to_owned();
        parts.fold(first, |kept, part| {
            kept + part.trim_start_matches(|c| "[]0123456789, ".contains(c))
        })
    }
}

fn compare(seed: u64, ipv6: bool, vlan: Option<VlanId>) -> [u64; 2] {
    let mut dice = ChaCha8Rng::seed_from_u64(seed);
    let mut worlds = [false, true].map(|form| World::new(ipv6, vlan, form, 10 * seed));
    let mut now = worlds[0].pair.link.now();
    assert_eq!(now, worlds[1].pair.link.now());
    let (mut sent, mut completed) = (0, 0);
    let (mut frames_given, mut frames_corrupted) = (0, 0);
    while completed < MESSAGES {
        assert!(frames_given < 10_000, "the connection ends or goes on");
        for world in &mut worlds {
            if sent < MESSAGES && sent - completed < 3 {
                let to = world.sink.remote(0);
                let write = SendWr::write(WrId(sent), to, [world.source.sge(0..LEN)]);
                world.pair.a.qp.post_send(write).unwrap();
            }
        }
        sent += u64::from(sent < MESSAGES && sent - completed < 3);
        let [whole, pieces] = &mut worlds;
        let frames = whole.arrivals(now);
        assert_eq!(frames, pieces.arrivals(now), "what the initiator sent");
        for mut frame in frames {
            let mut checksum = RxChecksum::Unverified;
            let is_corrupted = frame.len() > 60 && dice.random_bool(0.1);
            if is_corrupted {
                corrupt(&mut frame, &mut dice);
                frames_corrupted += 1;
            }
            if dice.random_bool(0.7) && repair(&mut frame.clone()).is_some() {
                let mut right = frame.clone();
                let _has_checksums = repair(&mut right);
                if right == frame {
                    checksum = RxChecksum::Valid;
                }
            }
            let head_len = RxFrame::HEAD_LEN_MIN + dice.random_range(0..100);
            frames_given += 1;
            let all = frames_given % 200 == 0;
            let [one, other] = worlds.each_mut().map(|world| {
                world.give(now, &frame, checksum, head_len);
                world.state(all)
            });
            assert!(
                one == other,
                "seed {seed}, frame {frames_given}: {}",
                difference(&one, &other)
            );
        }
        let done = worlds.each_mut().map(|world| {
            world.pair.link.b.poll(now);
            std::iter::from_fn(|| world.pair.a.cq.poll()).map(|wc| wc.status).collect::<Vec<_>>()
        });
        assert_eq!(done[0], done[1]);
        completed += done[0].len() as u64;
        // A corrupted frame with right checksums may end the connection.
        if done[0].iter().any(|status| *status != WcStatus::Success) {
            return [frames_given, frames_corrupted];
        }
        let next = worlds.each_mut().map(|world| {
            let link = &mut world.pair.link;
            [link.a.next_wakeup(), link.b.next_wakeup()].into_iter().flatten().min()
        });
        assert_eq!(next[0], next[1]);
        now = next[0].unwrap_or(now).max(now.plus_nanos(1));
    }
    for world in &worlds {
        assert!(content(&world.sink) == content(&world.source));
    }
    [frames_given, frames_corrupted]
}

/// The parts that differ.
fn difference(one: &str, other: &str) -> String {
    let pairs = one.split(',').zip(other.split(','));
    let differing = pairs.filter(|(one, other)| one != other).take(5);
    differing.map(|(one, other)| format!("\n{one} | {other}")).collect()
}

#[test]
fn a_frame_means_the_same_in_one_piece_and_in_fragments() {
    let mut all = [0; 2];
    for seed in 0..40 {
        let vlan = if seed % 3 == 2 { VlanId::new(5) } else { None };
        let counts = compare(seed, seed % 2 == 1, vlan);
        all = [all[0] + counts[0], all[1] + counts[1]];
    }
    assert!(all[0] > 2000 && all[1] > 200, "{all:?}");
}
