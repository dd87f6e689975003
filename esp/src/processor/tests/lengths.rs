//! Each length, under each algorithm, mode, and version of IP.

use super::*;

fn check(association: &Association, lengths: impl Iterator<Item = usize>) {
    let is_ipv6 = association.source.is_ipv6();
    let mut pair = Pair::with(association);
    let overhead = association.overhead();
    let mut largest = 0;
    for payload_len in lengths {
        let packet = packet(is_ipv6, TCP, payload_len);
        let header_len = packet.len() - payload_len;
        let sealed = pair.seal(0, &packet);
        assert_eq!(sealed.len(), overhead.sealed_len(packet.len(), header_len));
        assert_eq!(pair.open(0, &sealed).as_ref(), Ok(&packet), "{payload_len} bytes");
        let header = Header::parse(&sealed).unwrap();
        assert_eq!((header.len, header.next_header), (sealed.len(), 50));
        largest = largest.max(sealed.len());
    }
    assert!(largest > 9000);
}

fn associations(keying: &Keying) -> impl Iterator<Item = Association> {
    let of = |mode, is_ipv6, extended_numbers| {
        let [source, destination] = hosts(is_ipv6);
        let association = association(mode, keying.clone());
        Association { source, destination, extended_numbers, ..association }
    };
    [
        of(Mode::Transport, false, true),
        of(Mode::Transport, true, false),
        of(Mode::Tunnel, false, false),
        of(Mode::Tunnel, true, true),
    ]
    .into_iter()
}

// spec: SEC-I-4
#[test]
fn each_length_passes_under_aes_gcm_in_each_form() {
    for association in associations(&gcm()) {
        check(&association, 0..=9000);
    }
}

// spec: SEC-I-15
#[test]
fn each_length_passes_under_each_algorithm() {
    for keying in crate::crypto::tests::all() {
        check(&associations(&keying).next().unwrap(), 0..=9000);
    }
}

#[test]
fn other_lengths_pass_under_each_algorithm_in_each_form() {
    for keying in crate::crypto::tests::all() {
        for association in associations(&keying) {
            check(&association, (0..70).chain(8990..=9000));
        }
    }
}

#[test]
fn a_packet_that_would_be_too_long_is_dropped() {
    let association = transport();
    let mut pair = Pair::with(&association);
    let longest = association.overhead().largest_packet(65535, 20).unwrap() - 20;
    assert_eq!(pair.seal(0, &tcp(longest)).len(), 65532, "a multiple of four, and the IP header");
    let (mut buffer, at) = buffer(&tcp(longest + 1));
    let result = pair.sender.outbound(0, &mut buffer, at);
    assert_eq!(result, Outbound::Dropped(DropReason::TooLong));
}

#[test]
fn a_buffer_without_room_is_refused() {
    let mut pair = Pair::with(&transport());
    let packet = tcp(100);
    for (front, back) in [(15, 100), (100, 17)] {
        let mut buffer = [vec![0; front], packet.clone(), vec![0; back]].concat();
        let result = pair.sender.outbound(0, &mut buffer, front);
        assert_eq!(result, Outbound::Dropped(DropReason::NoRoom), "{front} {back}");
    }
    let mut buffer = [vec![0; 16], packet.clone(), vec![0; 20]].concat();
    assert!(matches!(pair.sender.outbound(0, &mut buffer, 16), Outbound::Sealed(_)));
    assert_eq!(pair.sender.outbound(0, &mut buffer, 999), Outbound::Dropped(DropReason::Malformed));
}

/// The lengths that a connection may use on a path of an MTU.
#[test]
fn the_overhead_of_a_flow_is_that_of_its_association() {
    let mut pair = Pair::with(&transport());
    let flow = Header::parse(&tcp(4)).unwrap().flow;
    let overhead = pair.sender.overhead(0, &flow).unwrap();
    let largest = overhead.largest_packet(1500, 20).unwrap();
    assert_eq!(largest, 1466);
    assert!(pair.seal(0, &tcp(largest - 20)).len() <= 1500);
    assert!(pair.seal(0, &tcp(largest - 19)).len() > 1500);
    let udp = Header::parse(&packet(false, 17, 4)).unwrap().flow;
    assert_eq!(pair.sender.overhead(0, &udp), None);
    pair.sender.remove_outbound(SPI, hosts(false)[1]);
    assert_eq!(pair.sender.overhead(0, &flow), None);
}
