//! The DHCP relay agent.

use super::*;

/// Builds a DHCP message without options: its kind, hops, flags, client and relay agent.
fn dhcp(
    (source, to): (&str, &str),
    kind: u8,
    hops: u8,
    flags: u8,
    [client, relay]: [[u8; 4]; 2],
) -> Vec<u8> {
    let mut message = vec![kind, 32, 0, hops];
    message.resize(240, 0);
    message[10] = flags;
    message[12..16].copy_from_slice(&client);
    message[24..28].copy_from_slice(&relay);
    let len = u16::try_from(message.len() + 8).unwrap().to_be_bytes();
    let segment = [&[0, 68, 0, 67, len[0], len[1], 0, 0][..], &message].concat();
    wrap(source.parse().unwrap(), to.parse().unwrap(), packet::UDP, &segment).unwrap()
}

/// RFC 2131 §4.1, RFC 1542 §4.1: broadcast requests go to the server, with the network of their
/// client; answers are broadcast, or go to a client that has its address.
#[test]
fn messages_of_dhcp_are_relayed() {
    let mut scene = Scene::new();
    let (none, own, held) = ([0; 4], [10, 9, 0, 9], [10, 9, 0, 50]);
    let all = ("0.0.0.0", "255.255.255.255");
    let question = dhcp(all, 1, 2, 0x80, [none, none]);
    let [told, back] = scene.send(Side::Link, &question);
    assert!(back.is_empty());
    let ip = Ipv4Packet::new_checked(&told[0][..]).unwrap();
    assert_eq!(
        (ip.src_addr().to_string(), ip.dst_addr().to_string()),
        (GATE[0].into(), DHCP_SERVER.into())
    );
    assert_eq!(urnic_ipoib::wire::dhcp::udp_checksum(&told[0], ip.payload()), 0);
    assert_eq!(ip.payload()[..4], [0, 67, 0, 67]);
    let message = &ip.payload()[8..];
    assert_eq!((message[3], &message[24..28]), (3, &own[..]), "one hop more, and this relay agent");
    // A request from another relay agent keeps that agent's address.
    let told = &scene.send(Side::Link, &dhcp(all, 1, 2, 0x80, [none, [10, 9, 0, 8]]))[0];
    assert_eq!(told[0][28 + 24..28 + 28], [10, 9, 0, 8]);
    let from_server = (DHCP_SERVER, GATE[0]);
    for (flags, client, to) in
        [(0x80, held, "255.255.255.255"), (0, none, "255.255.255.255"), (0, held, "10.9.0.50")]
    {
        let answer = dhcp(from_server, 2, 0, flags, [client, own]);
        let [_, told] = scene.send(Side::Kernel, &answer);
        let ip = Ipv4Packet::new_checked(&told[0][..]).unwrap();
        assert_eq!(
            (ip.dst_addr().to_string(), &ip.payload()[..4]),
            (to.into(), &[0, 67, 0, 68][..])
        );
        assert_eq!(ip.payload()[8..], answer[28..]);
    }
    assert_eq!(scene.gate.dhcp().relayed, 5);
    // A loop, a message of the wrong kind, and a message for another relay agent.
    for (side, wrong) in [
        (Side::Link, dhcp(all, 1, 16, 0x80, [none, none])),
        (Side::Link, dhcp(all, 2, 0, 0x80, [none, none])),
        (Side::Kernel, dhcp(from_server, 1, 0, 0x80, [none, own])),
        (Side::Kernel, dhcp(from_server, 2, 0, 0x80, [none, [10, 9, 0, 8]])),
    ] {
        assert_eq!(scene.send(side, &wrong), [Vec::<Vec<u8>>::new(), vec![]]);
    }
    assert_eq!(scene.gate.dhcp().dropped, 4);
    // A unicast request of a client to its server is forwarded like any datagram.
    let renewal = dhcp(("10.9.0.50", DHCP_SERVER), 1, 0, 0, [held, none]);
    assert_eq!(scene.send(Side::Link, &renewal)[0][0][28..], renewal[28..]);
    // A truncated or damaged message is no DHCP message.
    let mut damaged = question;
    damaged[26..28].copy_from_slice(&[1, 1]);
    assert!(scene.send(Side::Link, &damaged)[0].is_empty());
    assert_eq!((scene.gate.dhcp().relayed, scene.gate.dhcp().dropped), (5, 4));
}
