//! Random and changed packets: no panic, and nothing forged is accepted.

use proptest::prelude::*;

use super::*;
use crate::wire::udp::{PORT, Ports};

fn pairs() -> Vec<Pair> {
    let mut pairs = Vec::new();
    for keying in crate::crypto::tests::all() {
        for mode in [Mode::Transport, Mode::Tunnel] {
            for (is_ipv6, udp) in
                [(false, None), (true, Some(Ports { source: PORT, destination: PORT }))]
            {
                let [source, destination] = hosts(is_ipv6);
                let association = association(mode, keying.clone());
                let association = Association { source, destination, udp, ..association };
                let config = Config { udp_port: Some(PORT), unmatched: Action::Bypass };
                let mut pair = Pair::new(mode, is_ipv6, config);
                pair.add(0, &association);
                pairs.push(pair);
            }
        }
    }
    pairs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn random_packets_do_no_harm(
        first in prop_oneof![Just(0x45_u8), Just(0x60), any::<u8>()],
        mut packet in proptest::collection::vec(any::<u8>(), 1..300),
        protocol in prop_oneof![Just(50_u8), Just(17), Just(1), Just(58), Just(6), any::<u8>()],
        keep_len in any::<bool>(),
    ) {
        packet[0] = first;
        let len = u16::try_from(packet.len()).unwrap().to_be_bytes();
        for (at, byte) in [(2, len[0]), (3, len[1]), (6, protocol), (9, protocol)] {
            if at < packet.len() && (!keep_len || at > 3) {
                packet[at] = byte;
            }
        }
        let mut pair = Pair::with(&transport());
        let result = pair.receiver.inbound(0, &packet, &mut pair.room);
        prop_assert!(!matches!(result, Inbound::Opened(_)));
        let (mut buffer, at) = buffer(&packet);
        let _any = pair.sender.outbound(0, &mut buffer, at);
    }

    /// A sealed packet with any change opens only if the change is outside of what ESP protects.
    #[test]
    fn changed_packets_do_no_harm(
        which in 0..48_usize,
        len in 0..200_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop_oneof![3 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)],
    ) {
        let mut pairs = pairs();
        let at = which % pairs.len();
        let pair = &mut pairs[at];
        let is_ipv6 = pair.sender.status(Direction::Out)[0].purpose.source.is_ipv6();
        let sent = packet(is_ipv6, TCP, len);
        let mut sealed = pair.seal(0, &sent);
        for (index, byte) in changes {
            let at = index.index(sealed.len());
            sealed[at] ^= byte;
        }
        if let Some(cut) = cut {
            sealed.truncate(cut.index(sealed.len()));
        }
        if let Inbound::Opened(len) = pair.receiver.inbound(0, &sealed, &mut pair.room) {
            let header_len = sent.len().min(if is_ipv6 { 40 } else { 20 });
            prop_assert_eq!(&pair.room[header_len..len], &sent[header_len..]);
        }
    }
}
