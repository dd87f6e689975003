//! Two hosts with one association in each direction: a packet is sealed, travels, and is opened.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::net::IpAddr;

use urnic_esp::association::{Association, BACK_MAX, FRONT_MAX, Mode};
use urnic_esp::crypto::Keying;
use urnic_esp::key::Key;
use urnic_esp::lifetime::Lifetime;
use urnic_esp::policy::{Action, Direction, Policy, Template};
use urnic_esp::processor::{Config, Esp, Inbound, Outbound};
use urnic_esp::selector::{Prefix, Selector};

const TCP: u8 = 6;
/// A SYN from 10.0.0.1 to 10.0.0.2.
const PACKET: [u8; 40] = [
    0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0x26, 0xce, 10, 0, 0, 1, 10, 0, 0, 2, 0x10, 0, 0x20, 0,
    0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0x4b, 0xd9, 0, 0,
];

fn main() {
    let [source, destination] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
    let template = Template { request: 1, mode: Mode::Transport, ends: None };
    let selector = Selector {
        protocol: Some(TCP),
        ..Selector::between(Prefix::host(source), Prefix::host(destination))
    };
    let action = Action::Protect(template);
    let policy = |direction| Policy { selector: selector.clone(), direction, action, priority: 0 };
    // A key exchange agrees on these.
    let association = Association {
        spi: 0x1001,
        source,
        destination,
        mode: Mode::Transport,
        request: template.request,
        keying: Keying::AesGcm(Key::new(vec![7; 36])),
        extended_numbers: true,
        window: 1024,
        lifetime: Lifetime::default(),
        udp: None,
        selector: None,
    };

    let mut sender = Esp::new(Config::default());
    sender.add_policy(policy(Direction::Out)).expect("there are few policies");
    sender.add_outbound(0, &association).expect("the key has the right length");
    let mut receiver = Esp::new(Config::default());
    receiver.add_policy(policy(Direction::In)).expect("there are few policies");
    receiver.add_inbound(0, &association).expect("the key has the right length");

    let now_ns = 1_000;
    let mut buffer = [&[0; FRONT_MAX], &PACKET[..], &[0; BACK_MAX]].concat();
    let Outbound::Sealed(range) = sender.outbound(now_ns, &mut buffer, FRONT_MAX) else {
        panic!("a policy protects the packet, and there is an association");
    };
    let mut room = Vec::new();
    assert_eq!(receiver.inbound(now_ns, &buffer[range.clone()], &mut room), Inbound::Opened(40));
    assert_eq!(room[..40], PACKET);
    // In clear, the same packet is dropped.
    assert!(matches!(receiver.inbound(now_ns, &PACKET, &mut room), Inbound::Dropped(_)));
    println!("{} bytes in clear, {} bytes sealed", PACKET.len(), range.len());
}
