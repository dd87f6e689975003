//! Address by DHCP (RFC 2131, RFC 4390), from a server at host 1 of a scene.

use super::*;
use crate::limits::DHCP_ATTEMPTS_MAX;
use crate::link::DownReason;
use crate::wire::dhcp::tests::answer;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const GIVEN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 77);
const LEASE_S: u32 = 600;

/// A message of the client.
#[derive(Debug)]
struct Said {
    kind: u8,
    transaction: u32,
    flags: u16,
    own: [u8; 4],
    to: [u8; 4],
    client: Vec<u8>,
}

fn scene() -> Scene {
    let client = LinkConfig { ipv4: None, dhcp: true, ..settings(0) };
    let keys = || vec![PKey(0xffff)];
    let mut scene =
        Scene::with(FabricConfig::default(), vec![(client, keys()), (settings(1), keys())]);
    scene.run(MS);
    assert!(scene.hosts.iter().all(Device::link_up));
    scene
}

/// Returns the client's messages since the last call.
fn said(scene: &mut Scene) -> Vec<Said> {
    let to_server = |datagram: &Vec<u8>| datagram[9] == 17 && datagram[20..24] == [0, 68, 0, 67];
    let datagrams: Vec<_> = scene.received[1].drain(..).filter(to_server).collect();
    let read = |datagram: &Vec<u8>| {
        let message = &datagram[28..];
        assert_eq!(message[..3], [1, 32, 0]);
        assert_eq!(message[28..44], [0; 16]);
        assert_eq!(message[240..242], [53, 1]);
        assert_eq!(message[243..245], [61, 17]);
        Said {
            kind: message[242],
            transaction: u32::from_be_bytes(message[4..8].try_into().unwrap()),
            flags: u16::from_be_bytes([message[10], message[11]]),
            own: message[12..16].try_into().unwrap(),
            to: datagram[16..20].try_into().unwrap(),
            client: message[245..262].to_vec(),
        }
    };
    datagrams.iter().map(read).collect()
}

/// Returns the client's next message.
fn next(scene: &mut Scene) -> Said {
    for _ in 0..2000 {
        if let Some(said) = said(scene).pop() {
            return said;
        }
        scene.run(SECOND / 2);
    }
    panic!("it says nothing more");
}

fn options(kind: u8) -> Vec<(u8, Vec<u8>)> {
    vec![
        (53, vec![kind]),
        (1, vec![255, 255, 255, 0]),
        (3, vec![10, 0, 0, 1]),
        (51, LEASE_S.to_be_bytes().to_vec()),
        (54, SERVER.octets().to_vec()),
    ]
}

fn tell(scene: &mut Scene, transaction: u32, options: &[(u8, Vec<u8>)]) {
    let options: Vec<_> = options.iter().map(|(code, value)| (*code, &value[..])).collect();
    let datagram = answer(transaction, GIVEN, SERVER, &options);
    scene.send(1, &datagram).unwrap();
    scene.run(MS);
}

/// Grants the client its address.
fn bind(scene: &mut Scene) {
    let discover = next(scene);
    assert_eq!((discover.kind, discover.flags, discover.own), (1, 0x8000, [0; 4]));
    tell(scene, discover.transaction, &options(2));
    let request = next(scene);
    assert_eq!((request.kind, request.flags, request.own), (3, 0x8000, [0; 4]));
    assert_eq!(request.client, discover.client);
    assert_eq!(request.client[..2], [255, 0], "RFC 4361");
    tell(scene, request.transaction, &options(5));
    assert_eq!(address(scene), Some(GIVEN));
}

fn address(scene: &Scene) -> Option<Ipv4Addr> {
    scene.hosts[0].link().lease().map(|lease| lease.address)
}

fn refused(scene: &Scene) -> u64 {
    scene.counters(0).dhcp_refused
}

#[test]
fn leased_address_is_used_and_reachable() {
    let mut scene = scene();
    assert!(!scene.hosts[0].link().owns(GIVEN.into()));
    bind(&mut scene);
    assert!(scene.hosts[0].link().owns(GIVEN.into()));
    assert!(scene.arrives(1, GIVEN.into(), 100, 0), "ARP answers for it");
    assert!(scene.arrives(1, Ipv4Addr::new(224, 0, 0, 1).into(), 100, 0), "all hosts is joined");
    let lease = scene.hosts[0].link().lease().unwrap();
    assert_eq!((lease.prefix_len, lease.router), (24, Some(Ipv4Addr::new(10, 0, 0, 1))));
    assert_eq!(refused(&scene), 0);
}

/// RFC 2131 §4.4.1: a lease counts from its request, not from the search for a server.
#[test]
fn a_lease_does_not_count_from_the_search_for_a_server() {
    let mut scene = scene();
    scene.run(1000 * SECOND);
    bind(&mut scene);
    scene.run(10 * SECOND);
    assert_eq!(address(&scene), Some(GIVEN));
    let lease = *scene.hosts[0].link().lease().unwrap();
    let left_s = (lease.end_ns - scene.now_ns) / SECOND;
    assert!((u64::from(LEASE_S) - 12..u64::from(LEASE_S) - 8).contains(&left_s), "{left_s}");
    // RFC 2131 §4.4.5: a renewal counts from its own request.
    let renewal = next(&mut scene);
    tell(&mut scene, renewal.transaction, &options(5));
    let renewed = scene.hosts[0].link().lease().unwrap().end_ns;
    assert!((299..303).contains(&((renewed - lease.end_ns) / SECOND)));
}

/// RFC 2131 §4.4.5: at half of its time the lease is renewed by unicast (without the broadcast
/// flag, RFC 4390 §2.2), at seven eighths by broadcast; at its end the address is removed.
#[test]
fn a_lease_is_renewed_rebound_and_lost() {
    let mut scene = scene();
    bind(&mut scene);
    for _ in 0..3 {
        let before_ns = scene.now_ns;
        let renewal = next(&mut scene);
        let after_s = (scene.now_ns - before_ns) / SECOND;
        assert!((299..302).contains(&after_s), "{after_s}");
        assert_eq!((renewal.kind, renewal.flags), (3, 0));
        assert_eq!((renewal.own, renewal.to), (GIVEN.octets(), SERVER.octets()));
        tell(&mut scene, renewal.transaction, &options(5));
        assert_eq!(address(&scene), Some(GIVEN));
    }
    let bound_ns = scene.now_ns;
    let (mut renewals, mut rebindings) = (0, 0);
    while address(&scene).is_some() {
        scene.run(SECOND);
        for said in said(&mut scene).iter().filter(|said| said.own == GIVEN.octets()) {
            assert_eq!((said.kind, said.flags), (3, 0));
            if said.to == [255; 4] { rebindings += 1 } else { renewals += 1 }
        }
    }
    let after_s = (scene.now_ns - bound_ns) / SECOND;
    assert!((599..603).contains(&after_s), "{after_s}");
    assert!((2..5).contains(&renewals) && (1..3).contains(&rebindings), "{renewals} {rebindings}");
    assert!(!scene.hosts[0].link().owns(GIVEN.into()));
    // By then the other host's entry for it is old.
    scene.run(60 * SECOND);
    for _ in 0..4 {
        scene.send(1, &datagram(1, GIVEN.into(), 100)).unwrap();
        scene.run(2 * SECOND);
    }
    assert!(!scene.arrives(1, GIVEN.into(), 100, 0), "it is not answered for any more");
    said(&mut scene);
    bind(&mut scene);
}

#[test]
fn nak_removes_the_address_and_restarts_dhcp() {
    let mut scene = scene();
    bind(&mut scene);
    let renewal = next(&mut scene);
    tell(&mut scene, renewal.transaction, &[(53, vec![6]), (54, SERVER.octets().to_vec())]);
    assert_eq!(address(&scene), None);
    bind(&mut scene);
    // Also of an offered address.
    let mut scene = self::scene();
    let discover = next(&mut scene);
    tell(&mut scene, discover.transaction, &options(2));
    let request = next(&mut scene);
    tell(&mut scene, request.transaction, &[(53, vec![6]), (54, SERVER.octets().to_vec())]);
    bind(&mut scene);
}

#[test]
fn unsolicited_or_malformed_answers_are_counted_and_ignored() {
    let mut scene = scene();
    let discover = next(&mut scene);
    let without = |code: u8, kind: u8| {
        let mut some = options(kind);
        some.retain(|(other, _)| *other != code);
        some
    };
    let with = |code: u8, value: &[u8]| {
        let mut all = without(code, 2);
        all.push((code, value.to_vec()));
        all
    };
    let bad = [
        (discover.transaction ^ 1, options(2)),
        (discover.transaction, options(5)),
        (discover.transaction, without(54, 2)),
        (discover.transaction, without(51, 2)),
        (discover.transaction, without(1, 2)),
        (discover.transaction, with(51, &[0; 4])),
        (discover.transaction, with(51, &[0; 3])),
        (discover.transaction, with(1, &[255, 0, 255, 0])),
        (discover.transaction, with(61, &[255; 17])),
    ];
    for (at, (transaction, options)) in bad.iter().enumerate() {
        tell(&mut scene, *transaction, options);
        assert_eq!(refused(&scene), at as u64 + 1, "{options:?}");
    }
    bind(&mut scene);
    let before = refused(&scene);
    // Forged refusals and grants without a request.
    tell(&mut scene, discover.transaction, &[(53, vec![6]), (54, SERVER.octets().to_vec())]);
    tell(&mut scene, discover.transaction, &options(5));
    assert_eq!((address(&scene), refused(&scene)), (Some(GIVEN), before + 2));
    // An answer of another server while renewing.
    let renewal = next(&mut scene);
    tell(&mut scene, renewal.transaction, &[(53, vec![6]), (54, vec![10, 0, 0, 9])]);
    assert_eq!((address(&scene), refused(&scene)), (Some(GIVEN), before + 3));
}

#[test]
fn requests_to_a_silent_server_back_off() {
    let mut scene = scene();
    scene.run(600 * SECOND);
    let asked = said(&mut scene);
    assert!(asked.iter().all(|said| said.kind == 1));
    assert!((10..16).contains(&asked.len()), "{}", asked.len());
    // A server that offers an address and then stops.
    let discover = next(&mut scene);
    tell(&mut scene, discover.transaction, &options(2));
    scene.run(400 * SECOND);
    let asked = said(&mut scene);
    let requests = asked.iter().filter(|said| said.kind == 3).count();
    assert_eq!(requests, DHCP_ATTEMPTS_MAX as usize - 1);
    assert_eq!(asked.last().unwrap().kind, 1);
}

#[test]
fn zero_renewal_times_cause_no_endless_requests() {
    let mut scene = scene();
    bind(&mut scene);
    let at_once = [options(5), vec![(58, vec![0; 4]), (59, vec![0; 4])]].concat();
    let mut asked = 0;
    let renewal = next(&mut scene);
    tell(&mut scene, renewal.transaction, &at_once);
    for _ in 0..1000 {
        scene.run(10 * MS);
        for said in said(&mut scene) {
            asked += 1;
            tell(&mut scene, said.transaction, &at_once);
        }
    }
    assert!((1..20).contains(&asked), "{asked}");
}

/// A device opened with a lease is down after the lease has ended, and up with a new lease of the
/// address.
#[test]
fn a_device_holds_to_the_address_that_it_was_opened_with() {
    let client = LinkConfig { ipv4: None, dhcp: true, ..settings(0) };
    let keys = || vec![PKey(0xffff)];
    let hosts = vec![(client, keys()), (settings(1), keys())];
    let mut scene = Scene::with(FabricConfig::default(), hosts);
    let mut client = scene.hosts.remove(0);
    scene.received.remove(0);
    let mut now_ns = 1;
    assert_eq!(
        client.acquire(10 * SECOND, || {
            now_ns += SECOND;
            now_ns
        }),
        None,
        "no server"
    );
    let (clock, world) = (std::cell::Cell::new(now_ns), std::cell::RefCell::new(scene));
    let mut answered = 0;
    let lease = client.acquire(100 * SECOND, || {
        clock.set(clock.get() + SECOND / 10);
        let mut scene = world.borrow_mut();
        scene.now_ns = clock.get();
        scene.run(1);
        let datagrams = std::mem::take(&mut scene.received[0]);
        for datagram in datagrams.iter().filter(|datagram| datagram[20..24] == [0, 68, 0, 67]) {
            let transaction = u32::from_be_bytes(datagram[32..36].try_into().unwrap());
            let kind = if datagram[270] == 1 { 2 } else { 5 };
            let options = options(kind);
            let options: Vec<_> = options.iter().map(|(code, value)| (*code, &value[..])).collect();
            scene.send(0, &answer(transaction, GIVEN, SERVER, &options)).unwrap();
            scene.run(1);
            answered += 1;
        }
        clock.get()
    });
    assert_eq!((lease.unwrap().address, answered), (GIVEN, 2));
    assert!(client.link_up());
    let end_ns = lease.unwrap().end_ns;
    client.receive(end_ns - 1, 64, &mut |_| ());
    assert!(client.link_up());
    client.receive(end_ns, 64, &mut |_| ());
    assert!(!client.link_up(), "the address is not to be used any more");
    assert!(matches!(client.link().state(), LinkState::Up { .. }), "the fabric is there");
}

/// A lease that ends while the link is down is not announced later.
#[test]
fn an_address_that_has_ended_is_not_announced() {
    let client = LinkConfig { ipv4: None, dhcp: true, ..settings(0) };
    let other = LinkConfig { ipv4: Some((GIVEN, 24)), ..settings(2) };
    let hosts = [client, settings(1), other].map(|link| (link, vec![PKey(0xffff)]));
    let mut scene = Scene::with(FabricConfig::default(), hosts.into());
    scene.run(MS);
    bind(&mut scene);
    // ARP from another host with an own address is counted.
    let announced = scene.counters(2).bad_datagrams;
    assert!(announced > 0);
    scene.fabric.set_link(scene.now_ns, guid(0), false);
    scene.run(u64::from(LEASE_S) * SECOND + SECOND);
    scene.fabric.set_link(scene.now_ns, guid(0), true);
    scene.run(SECOND);
    assert!(matches!(scene.state(0), LinkState::Up { .. }));
    assert_eq!(address(&scene), None);
    assert_eq!(scene.counters(2).bad_datagrams, announced);
}

/// RFC 2131 §4.4.6: the release is optional; it is not sent while the server's link-layer address
/// is unknown.
#[test]
fn a_host_that_leaves_before_it_knows_the_server_does_not_wait() {
    let mut scene = scene();
    bind(&mut scene);
    said(&mut scene);
    let now_ns = scene.now_ns;
    scene.hosts[0].leave(now_ns);
    scene.run(SECOND);
    assert_eq!(said(&mut scene).len(), 0);
    assert!(scene.hosts[0].link().is_idle());
    assert_eq!((address(&scene), scene.state(0)), (None, LinkState::Down(DownReason::Left)));
}

/// RFC 2131 §4.4.6.
#[test]
fn a_host_that_leaves_gives_its_address_back() {
    let mut scene = scene();
    bind(&mut scene);
    assert!(scene.arrives(1, GIVEN.into(), 100, 0));
    let renewal = next(&mut scene);
    tell(&mut scene, renewal.transaction, &options(5));
    said(&mut scene);
    let now_ns = scene.now_ns;
    scene.hosts[0].leave(now_ns);
    scene.run(MS);
    let released = said(&mut scene);
    assert_eq!((released[0].kind, released[0].own), (7, GIVEN.octets()));
}
