//! A packet costs no allocation, sealed or opened, once the caller's buffers have their length.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::net::IpAddr;

use urnic_esp::association::{Association, BACK_MAX, FRONT_MAX, Mode};
use urnic_esp::crypto::Keying;
use urnic_esp::key::Key;
use urnic_esp::lifetime::Lifetime;
use urnic_esp::policy::{Action, Direction, Policy, Template};
use urnic_esp::processor::{Config, Esp, Inbound, Outbound};
use urnic_esp::selector::{Prefix, Selector};
use urnic_testkit::counting::{Census, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn packets_cost_no_allocation() {
    for (mode, keying) in [
        (Mode::Transport, Keying::AesGcm(Key::new(vec![7; 36]))),
        (Mode::Tunnel, Keying::AesGcm(Key::new(vec![7; 20]))),
        (Mode::Transport, Keying::AesGmac(Key::new(vec![7; 20]))),
    ] {
        let [source, destination] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let ends = (mode == Mode::Tunnel).then_some((source, destination));
        let template = Template { request: 1, mode, ends };
        let selector = Selector::between(Prefix::host(source), Prefix::host(destination));
        let action = Action::Protect(template);
        let policy =
            |direction| Policy { selector: selector.clone(), direction, action, priority: 0 };
        let (mut sender, mut receiver) = (Esp::new(Config::default()), Esp::new(Config::default()));
        sender.add_policy(policy(Direction::Out)).unwrap();
        receiver.add_policy(policy(Direction::In)).unwrap();
        let association = Association {
            spi: 0x1001,
            source,
            destination,
            mode,
            request: 1,
            keying,
            extended_numbers: true,
            window: 1024,
            lifetime: Lifetime::default(),
            udp: None,
            selector: None,
        };
        sender.add_outbound(0, &association).unwrap();
        receiver.add_inbound(0, &association).unwrap();
        let mut packet = [7; 1400];
        packet[..12].copy_from_slice(&[0x45, 0, 5, 120, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let (mut buffer, mut room) = ([0; FRONT_MAX + 1400 + BACK_MAX], Vec::new());
        let mut pass = |count| {
            for _ in 0..count {
                buffer[FRONT_MAX..FRONT_MAX + 1400].copy_from_slice(&packet);
                let Outbound::Sealed(range) = sender.outbound(0, &mut buffer, FRONT_MAX) else {
                    panic!("the packet is not sealed");
                };
                let opened = receiver.inbound(0, &buffer[range], &mut room);
                assert_eq!(opened, Inbound::Opened(1400));
            }
        };
        pass(1);
        let census = Census::begin();
        pass(1000);
        assert_eq!(census.end(), 0, "{mode:?}");
    }
}
