//! Sealing and opening of packets beside the cryptographic library alone, over the same bytes.

use std::net::IpAddr;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use urnic_esp::association::{Association, BACK_MAX, FRONT_MAX, Mode};
use urnic_esp::crypto::Keying;
use urnic_esp::key::Key;
use urnic_esp::lifetime::Lifetime;
use urnic_esp::policy::{Action, Direction, Policy, Template};
use urnic_esp::processor::{Config, Esp, Inbound, Outbound};
use urnic_esp::selector::{Prefix, Selector};

/// Lengths of IP packets.
const LENGTHS: [u16; 3] = [64, 1500, 9000];

fn packet(len: u16) -> Vec<u8> {
    let mut packet = vec![0x5a; len.into()];
    let [high, low] = len.to_be_bytes();
    packet[..12].copy_from_slice(&[0x45, 0, high, low, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    packet
}

fn hosts() -> (Esp, Esp) {
    let [source, destination] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
    let template = Template { request: 1, mode: Mode::Transport, ends: None };
    let selector = Selector::between(Prefix::host(source), Prefix::host(destination));
    let action = Action::Protect(template);
    let policy = |direction| Policy { selector: selector.clone(), direction, action, priority: 0 };
    let association = Association {
        spi: 0x1001,
        source,
        destination,
        mode: Mode::Transport,
        request: template.request,
        keying: Keying::AesGcm(Key::new(vec![7; 20])),
        extended_numbers: true,
        window: 1024,
        lifetime: Lifetime::default(),
        udp: None,
        selector: None,
    };
    let (mut sender, mut receiver) = (Esp::new(Config::default()), Esp::new(Config::default()));
    sender.add_policy(policy(Direction::Out)).expect("there are few policies");
    receiver.add_policy(policy(Direction::In)).expect("there are few policies");
    sender.add_outbound(0, &association).expect("the key has the right length");
    receiver.add_inbound(0, &association).expect("the key has the right length");
    (sender, receiver)
}

fn alone(c: &mut Criterion) {
    let mut group = c.benchmark_group("alone");
    for len in LENGTHS {
        // The payload with its trailer, as ESP encrypts it.
        let mut text = vec![0x5a; (usize::from(len) - 20 + 2).next_multiple_of(4)];
        let mut plain = text.clone();
        let key = UnboundKey::new(&AES_128_GCM, &[7; 16]).expect("the key has the right length");
        let key = LessSafeKey::new(key);
        let nonce = || Nonce::assume_unique_for_key([7; 12]);
        group.throughput(Throughput::Bytes(len.into()));
        group.bench_function(BenchmarkId::new("seal and open", len), |b| {
            b.iter(|| {
                let aad = || Aad::from([1; 12]);
                let tag = key.seal_in_place_separate_tag(nonce(), aad(), &mut text);
                let tag = tag.expect("the text is short");
                key.open_separate_gather(nonce(), aad(), &text, tag.as_ref(), &mut plain)
                    .expect("the tag is right");
            });
        });
    }
    group.finish();
}

fn esp(c: &mut Criterion) {
    let mut group = c.benchmark_group("esp");
    for len in LENGTHS {
        let packet = packet(len);
        let mut buffer = [&[0; FRONT_MAX], &packet[..], &[0; BACK_MAX]].concat();
        let mut room = Vec::new();
        let (mut sender, mut receiver) = hosts();
        group.throughput(Throughput::Bytes(len.into()));
        group.bench_function(BenchmarkId::new("seal and open", len), |b| {
            b.iter(|| {
                // Sealing has moved the IP header; the payload is of no importance.
                buffer[FRONT_MAX..FRONT_MAX + 20].copy_from_slice(&packet[..20]);
                let Outbound::Sealed(range) = sender.outbound(0, &mut buffer, FRONT_MAX) else {
                    panic!("the packet is not sealed");
                };
                let opened = receiver.inbound(0, &buffer[range], &mut room);
                assert_eq!(opened, Inbound::Opened(len.into()));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, alone, esp);
criterion_main!(benches);
