use hex_literal::hex;
use proptest::prelude::*;

use super::super::address::{Gid, Guid, Lid, PKey, QKey, Qpn};
use super::*;

fn member() -> McMemberRecord {
    McMemberRecord {
        mgid: Gid(hex!("ff12401bffff000000000000ffffffff")),
        port_gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(0x10_0004)),
        q_key: QKey(0x8001_0b1b),
        mlid: Lid(0xc000),
        mtu: 0x84,
        traffic_class: 1,
        p_key: PKey(0xffff),
        rate: 0x83,
        packet_life_time: 0x92,
        service_level: 3,
        flow_label: 0x4_5678,
        hop_limit: 9,
        scope: 2,
        join_state: JoinState::FULL_MEMBER,
    }
}

#[test]
fn membership_record_has_the_specified_octets() {
    let octets = hex!(
        "ff12401bffff000000000000ffffffff fe800000000000000000000000100004"
        "80010b1b c000 84 01 ffff 83 92 34567809 21 000000"
    );
    assert_eq!(member().to_bytes()[..octets.len()], octets);
    assert!(member().to_bytes()[octets.len()..].iter().all(|octet| *octet == 0));
    assert_eq!(McMemberRecord::parse(&octets), Ok(member()));
    for len in 0..octets.len() {
        assert!(McMemberRecord::parse(&octets[..len]).is_err(), "{len}");
    }
}

#[test]
fn join_and_create_give_the_components_they_must() {
    assert_eq!(MemberMask::JOIN, 0x1_0083);
    let create = [0, 1, 2, 4, 5, 6, 7, 8, 9, 12, 13, 14, 16];
    assert_eq!(MemberMask::CREATE, create.into_iter().map(|bit| 1_u64 << bit).sum::<u64>());
    assert_eq!(PathMask::QUERY, 0x380c);
}

// spec: IPOIB-ARCH-7
#[test]
fn mtu_codes_convert_to_sizes_and_back() {
    for (code, octets) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
        assert_eq!(McMemberRecord { mtu: code, ..member() }.mtu_octets(), Some(octets));
        assert_eq!(McMemberRecord { mtu: 0x80 | code, ..member() }.mtu_octets(), Some(octets));
        assert_eq!(McMemberRecord::mtu_code(octets), Some(0x80 | code));
    }
    assert_eq!(McMemberRecord { mtu: 0x80, ..member() }.mtu_octets(), None);
    assert_eq!(McMemberRecord { mtu: 6, ..member() }.mtu_octets(), None);
    assert_eq!(McMemberRecord::mtu_code(2044), None);
}

#[test]
fn path_record_has_the_specified_octets() {
    let (a, b) = (member().port_gid, Gid::new(Gid::DEFAULT_PREFIX, Guid(0x10_000a)));
    let octets = hex!(
        "0000000000000000 fe80000000000000000000000010000a fe800000000000000000000000100004"
        "0000 0000 00000000 00 81 ffff 0000 00 00 00"
    );
    let query = PathRecord::query(a, b, PKey(0xffff));
    assert_eq!(query.to_bytes()[..octets.len()], octets);
    let answer = PathRecord {
        dlid: Lid(6),
        slid: Lid(4),
        service_level: 5,
        mtu: 0x84,
        rate: 0x83,
        packet_life_time: 0x92,
        ..query
    };
    assert_eq!(PathRecord::parse(&answer.to_bytes()), Ok(answer));
}

#[test]
fn subscription_has_the_specified_octets() {
    let info = InformInfo { trap: Trap::GroupCreated, subscribe: true, qpn: Qpn::GSI };
    let octets =
        hex!("00000000000000000000000000000000 ffff 0000 0000 01 01 ffff 0042 000001 12 00 000004");
    assert_eq!(info.to_bytes()[..octets.len()], octets);
    assert_eq!(InformInfo::parse(&octets), Ok(info));
}

#[test]
fn a_notice_of_the_subnet_manager() {
    let notice = Notice { trap: Trap::GroupDeleted, gid: member().mgid };
    let octets = hex!("84 000004 0043 0000 0000 000000000000 ff12401bffff000000000000ffffffff");
    assert_eq!(notice.to_bytes()[..octets.len()], octets);
    assert_eq!(Notice::parse(&octets), Ok(Some(notice)));
    let mut of_a_vendor = octets;
    of_a_vendor[0] = 4;
    assert_eq!(Notice::parse(&of_a_vendor), Ok(None));
    let mut of_a_switch = octets;
    of_a_switch[3] = 2;
    assert_eq!(Notice::parse(&of_a_switch), Ok(None));
}

#[test]
fn management_datagram_has_the_specified_octets() {
    let mad = SaMad::new(Method::Set, Attribute::McMemberRecord, 0x0102_0304_0506_0708, &[7, 8, 9])
        .masked(MemberMask::JOIN);
    let octets = mad.to_bytes();
    let head = hex!(
        "01 03 02 02 0000 0000 0102030405060708 0038 0000 00000000"
        "000000000000000000000000 0000000000000000 0000 0000 0000000000010083 070809"
    );
    assert_eq!(octets[..head.len()], head);
    assert_eq!(SaMad::parse(&octets), Ok(mad.clone()));
    assert_eq!(SaMad::parse(&octets[..255]), Err(TooShort { need: 256, have: 255 }.into()));
    for at in 0..3 {
        let mut other = octets;
        other[at] ^= 4;
        assert_eq!(SaMad::parse(&other), Err(MadError::Class), "octet {at}");
    }
    assert_eq!(mad.report_taken().to_bytes()[3], 0x86);
}

// spec: IPOIB-ARCH-10
#[test]
fn numbers_of_methods_attributes_and_traps_are_kept() {
    for number in 0..=255 {
        assert_eq!(Method::from_number(number).number(), number);
    }
    for number in 0..=u16::MAX {
        assert_eq!(Attribute::from_number(number).number(), number);
        assert_eq!(Trap::from_number(number).number(), number);
    }
    assert_eq!((Trap::GroupCreated.number(), Trap::GroupDeleted.number()), (66, 67));
}

proptest! {
    #[test]
    fn any_datagram_is_read_as_it_was_written(
        octets in prop::collection::vec(any::<u8>(), MAD_LEN),
    ) {
        let mut octets = octets;
        octets[..3].copy_from_slice(&[1, 3, 2]);
        let mad = SaMad::parse(&octets).unwrap();
        let again = mad.to_bytes();
        prop_assert_eq!(SaMad::parse(&again), Ok(mad.clone()));
        prop_assert_eq!(&again[DATA_AT..], &octets[DATA_AT..]);
        prop_assert!(McMemberRecord::parse(&mad.data).is_ok());
        prop_assert!(PathRecord::parse(&mad.data).is_ok());
        prop_assert!(InformInfo::parse(&mad.data).is_ok());
        prop_assert!(Notice::parse(&mad.data).is_ok());
    }
}
