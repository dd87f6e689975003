//! A port alone, over frames without a link layer: its counters, its timers, and the shares of its
//! users.

use std::net::Ipv4Addr;

use smoltcp::wire::checksum;
use urnic_netdev::{Medium, RxChecksum, RxFrame, TransmitError};
use urnic_testkit::waker::counting;

use super::*;
use crate::limits::ADDRESS_PATIENCE_NS;
use crate::tcp::KeepAliveTimes;
use crate::types::WrId;
use crate::verbs::{Cq, DoorbellButton, Qp, QpConfig, RecvWr, RnicConfig, WcStatus};

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
const TCP_PORT: u16 = 7174;
const PROTOCOL_AT: usize = 9;
const NOW: Instant = Instant::from_nanos(1_000_000_000);

fn port_with(rnic: &Rnic, config: PortConfig) -> Port {
    let capabilities = Capabilities {
        medium: Medium::Ip,
        mtu: 1500,
        segmentation_len_max: None,
        tx_checksum: false,
        fragments_max: usize::MAX,
        gather_len_min: 0,
        tx_digest: false,
    };
    Port::new(rnic, config, capabilities)
}

fn port_of(config: PortConfig) -> Port {
    port_with(&Rnic::new(RnicConfig { seed: 1.into() }), config)
}

fn port(address: Ipv4Addr) -> Port {
    port_of(PortConfig::for_ipv4(address))
}

/// Takes at most `room` frames of a port.
fn taken(port: &mut Port, room: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    port.poll_transmit(NOW, room, &mut |frame| {
        let mut octets = vec![0; frame.len()];
        frame.gather(&mut octets);
        frames.push(octets);
        Ok(())
    });
    frames
}

fn give(port: &mut Port, frame: &[u8]) {
    port.handle_frame(NOW, &RxFrame::whole(frame, RxChecksum::Unverified, None));
}

/// Returns the SYN with which a host opens a connection to B.
fn syn_of(host: &mut Port) -> Vec<u8> {
    host.open(NOW, (B, TCP_PORT).into(), LowerLayer::Optimized).unwrap();
    let frames = taken(host, 64);
    assert_eq!(frames.len(), 1);
    frames.into_iter().next().unwrap()
}

/// Returns an IPv4 datagram between two hosts.
fn datagram(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let [high, low] = fragment.to_be_bytes();
    let mut octets = vec![0x45, 0, len[0], len[1], 0, 9, high, low, 64, protocol, 0, 0];
    octets.extend(from.octets().into_iter().chain(to.octets()));
    let sum = !checksum::data(&octets);
    octets[10..12].copy_from_slice(&sum.to_be_bytes());
    octets.extend(payload);
    octets
}

/// Returns an ICMP message with its checksum.
fn icmp(kind: u8, code: u8, rest: &[u8]) -> Vec<u8> {
    let mut octets = vec![kind, code, 0, 0];
    octets.extend(rest);
    let sum = !checksum::data(&octets);
    octets[2..4].copy_from_slice(&sum.to_be_bytes());
    octets
}

fn ping(number: u8) -> Vec<u8> {
    datagram(A, B, 1, 0, &icmp(8, 0, &[0, 1, 0, number, 7, 7, 7, 7]))
}

fn listening(port: &mut Port, params: ListenParams) {
    port.listen(TCP_PORT, params).unwrap();
}

/// Returns a port with a connection of a queue pair, whose SYN was sent.
fn connecting() -> (Port, Qp, Cq) {
    let rnic = Rnic::new(RnicConfig { seed: 1.into() });
    let mut port = port_with(&rnic, PortConfig::for_ipv4(A));
    let cq = rnic.create_cq(16).unwrap();
    let qp = rnic.alloc_pd().create_qp(QpConfig::new(&cq)).unwrap();
    port.connect(NOW, (B, TCP_PORT).into(), &qp, &ConnectParams::default()).unwrap();
    assert_eq!(taken(&mut port, 64).len(), 1);
    (port, qp, cq)
}

#[test]
fn a_port_has_something_ready_while_a_frame_of_any_source_waits() {
    let mut port = port(B);
    listening(&mut port, ListenParams { backlog: 1, ..ListenParams::default() });
    taken(&mut port, 64);
    assert!(!port.has_ready());
    // An answer of the host stack, for which there was no room.
    give(&mut port, &ping(1));
    assert!(taken(&mut port, 0).is_empty() && port.has_ready());
    assert_eq!(taken(&mut port, 64).len(), 1);
    assert!(!port.has_ready());
    // A frame that the device has refused.
    give(&mut port, &ping(2));
    port.poll_transmit(NOW, 64, &mut |_| Err(TransmitError::Full));
    assert!(!port.host.has_frames() && port.has_ready());
    assert_eq!(taken(&mut port, 64).len(), 1);
    assert!(!port.has_ready());
    // An answer to a SYN beyond the backlog, which belongs to no connection.
    for last in [7, 8] {
        give(&mut port, &syn_of(&mut self::port([10, 0, 0, last].into())));
        assert!(port.has_ready(), "{last}");
        assert_eq!(taken(&mut port, 64).len(), 1);
        assert!(!port.has_ready(), "{last}");
    }
    assert_eq!(port.counters.cookies_sent, 1);
}

#[test]
fn half_of_the_room_is_left_to_connections_by_the_host_stack() {
    let mut port = port(B);
    (0..40).for_each(|number| give(&mut port, &ping(number)));
    port.open(NOW, (A, TCP_PORT).into(), LowerLayer::Optimized).unwrap();
    let frames = taken(&mut port, 8);
    let is_segment = |frame: &&Vec<u8>| frame[PROTOCOL_AT] == 6;
    assert_eq!((frames.len(), frames.iter().filter(is_segment).count()), (5, 1));
}

#[test]
fn only_a_whole_datagram_counts_as_reassembled() {
    let mut port = port(B);
    let whole = icmp(8, 0, &[3; 20]);
    give(&mut port, &datagram(A, B, 1, 0x2000, &whole[..16]));
    assert_eq!(port.counters.reassembled, 0);
    give(&mut port, &datagram(A, B, 1, 2, &whole[16..]));
    assert_eq!((port.counters.reassembled, taken(&mut port, 64).len()), (1, 1));
}

/// RFC 5927 §4.1: an error counts if it is for this port and quotes a segment in flight.
#[test]
fn an_icmp_error_about_anything_but_a_segment_in_flight_changes_nothing() {
    let mut port = port(A);
    let id = port.open(NOW, (B, TCP_PORT).into(), LowerLayer::Optimized).unwrap();
    let segment = taken(&mut port, 64).remove(0);
    let about = |to, code, quoted: &[u8]| {
        datagram(B, to, 1, 0, &icmp(3, code, &[&[0; 4], &quoted[..28]].concat()))
    };
    // To another address; about another sequence number.
    give(&mut port, &about(Ipv4Addr::new(10, 0, 0, 77), 3, &segment));
    assert_eq!((port.counters.icmp_heeded, port.counters.drops.icmp), (0, 0));
    let mut other = segment.clone();
    other[27] ^= 1;
    give(&mut port, &about(A, 3, &other));
    assert_eq!((port.counters.icmp_heeded, port.counters.drops.icmp), (0, 1));
    // A limit above the present size is no news.
    let mut too_big = icmp(3, 4, &[&[0, 0, 0x23, 0x28], &segment[..28]].concat());
    give(&mut port, &datagram(B, A, 1, 0, &too_big));
    assert_eq!(port.counters.icmp_heeded, 0);
    too_big = icmp(3, 4, &[&[0, 0, 0x05, 0x78], &segment[..28]].concat());
    give(&mut port, &datagram(B, A, 1, 0, &too_big));
    assert_eq!((port.counters.icmp_heeded, port.path_mtu(id)), (1, Ok(1400)));
    give(&mut port, &about(A, 3, &segment));
    assert_eq!(port.counters.icmp_heeded, 2);
    while port.poll_event().is_some() {}
    assert_eq!(port.connection_count(), 0);
}

#[test]
fn a_connection_beyond_the_limit_keeps_no_slot_of_the_backlog() {
    let config = PortConfig { connections_max: 0, ..PortConfig::for_ipv4(B) };
    let mut port = port_of(config);
    listening(&mut port, ListenParams { backlog: 1, ..ListenParams::default() });
    for last in 5..9 {
        give(&mut port, &syn_of(&mut self::port([10, 0, 0, last].into())));
        assert_eq!((port.connection_count(), port.counters.cookies_sent), (0, 0), "{last}");
    }
}

/// The slot of a connection that the same burst has established is free for the next SYN.
#[test]
fn a_burst_that_establishes_a_connection_makes_room_for_the_next_syn() {
    let mut listener = port(B);
    listening(&mut listener, ListenParams { backlog: 1, ..ListenParams::default() });
    let mut first = port(A);
    give(&mut listener, &syn_of(&mut first));
    taken(&mut listener, 64).iter().for_each(|frame| give(&mut first, frame));
    let acknowledgment = taken(&mut first, 64).remove(0);
    let syn = syn_of(&mut port([10, 0, 0, 3].into()));
    listener.handle_burst(NOW, |sink| {
        for frame in [&acknowledgment, &syn] {
            sink(&RxFrame::whole(frame, RxChecksum::Unverified, None));
        }
    });
    assert_eq!((listener.connection_count(), listener.counters.cookies_sent), (2, 0));
}

#[test]
fn accepted_connections_get_the_keepalive_of_their_listener() {
    let times = KeepAliveTimes::giving_up_after(Duration::from_secs(100));
    for keepalive in [None, Some(times)] {
        let mut port = port(B);
        listening(&mut port, ListenParams { keepalive, ..ListenParams::default() });
        let of_port = port.config.tcp.keepalive;
        give(&mut port, &syn_of(&mut self::port(A)));
        let slot = port.connections.slots()[0];
        let own = port.connections[slot].carrier.tcp.keepalive();
        assert_eq!(own, keepalive.or(of_port));
    }
}

#[test]
fn a_connect_that_is_refused_leaves_no_connection() {
    let (mut port, qp, _cq) = connecting();
    let again = port.connect(NOW, (B, TCP_PORT).into(), &qp, &ConnectParams::default());
    assert!(matches!(again, Err(PortError::Phase(_))), "{again:?}");
    taken(&mut port, 64);
    while port.poll_event().is_some() {}
    assert_eq!(port.connection_count(), 1);
}

#[test]
fn an_address_that_dhcp_owes_is_awaited_and_any_other_is_missing() {
    let mut port = port_of(PortConfig::for_dhcp([2, 0, 0, 0, 0, 1]));
    for (remote, expected) in
        [(IpAddr::V4(B), PortError::AddressPending(B.into())), (V6, PortError::NoAddress(V6))]
    {
        let opened = port.open(NOW, (remote, TCP_PORT).into(), LowerLayer::Optimized);
        assert_eq!(opened, Err(expected));
    }
}

/// No other timer runs: the port asks for no address without a link layer.
#[test]
fn a_missing_lease_is_reported_once_at_its_time() {
    let mut port = port_of(PortConfig::for_dhcp([2, 0, 0, 0, 0, 1]));
    taken(&mut port, 64);
    let due = NOW.plus_nanos(ADDRESS_PATIENCE_NS);
    assert_eq!(port.poll_timeout(), Some(due));
    let early = Instant::from_nanos(due.as_nanos() - 1);
    for (now, expected) in [(early, None), (due, Some(PortEvent::AddressOverdue)), (due, None)] {
        port.poll_transmit(now, 64, &mut |_| Ok(()));
        assert_eq!(port.poll_event(), expected);
    }
    assert_eq!(port.poll_timeout(), None);
}

#[test]
fn a_waker_that_came_too_late_is_not_kept() {
    let mut port = port(A);
    let (calls, waker) = counting();
    let press = |port: &Port| DoorbellButton::new(Arc::clone(&port.doorbell), 0).press();
    press(&port);
    for (is_armed, expected) in [(false, 0), (true, 1)] {
        assert_eq!(port.arm_doorbell(&waker), is_armed);
        taken(&mut port, 64);
        press(&port);
        taken(&mut port, 64);
        assert_eq!(calls.count(), expected);
    }
}

#[test]
fn work_of_a_dropped_port_is_flushed() {
    let (port, qp, cq) = connecting();
    qp.post_recv(RecvWr::new(WrId(5), [])).unwrap();
    drop(port);
    assert_eq!(cq.poll().map(|wc| (wc.wr_id, wc.status)), Some((WrId(5), WcStatus::WrFlushErr)));
}

#[test]
fn frames_to_the_host_stack_end_at_its_room() {
    let mut port = port(B);
    for _ in 0..2 * crate::limits::HOST_FRAMES_MAX {
        give(&mut port, &ping(1));
    }
    assert_eq!(taken(&mut port, usize::MAX).len(), crate::limits::HOST_FRAMES_MAX);
    assert!(taken(&mut port, usize::MAX).is_empty() && !port.has_ready());
}

#[test]
fn the_larger_of_two_acknowledgment_holds_counts() {
    let mut port = port(A);
    for micros in [50, 20] {
        port.hold_acks(Duration::from_micros(micros));
        assert_eq!(port.config.tcp.ack_hold, Duration::from_micros(50));
    }
}
