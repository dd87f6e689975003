use hex_literal::hex;
use proptest::prelude::*;

use super::*;

fn emitted(header: &Header) -> Vec<u8> {
    let mut out = vec![0xa5; header.len()];
    header.emit(&mut out);
    out
}

#[test]
fn written_syn_parses_back() {
    let header = Header {
        ecn: Ecn::NotCapable,
        src_port: 7174,
        dst_port: 40_000,
        seq: SeqNum(0xffff_fffe),
        ack: SeqNum(0),
        flags: Flags::SYN,
        window: 65_535,
        options: Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1, echo: 0 }),
            sack: ArrayVec::new(),
        },
    };
    let octets = emitted(&header);
    let expected = hex!(
        "1c06 9c40 fffffffe 00000000 b002 ffff 0000 0000"
        "020405b4 01030307 01010402 0101080a 00000001 00000000"
    );
    assert_eq!(octets, expected);
    assert_eq!(Header::parse(&octets), Ok((header, 44)));
}

#[test]
fn the_options_of_a_linux_syn_are_understood() {
    // MSS, SACK permitted, timestamps, NOP, window scale: the order Linux uses.
    let octets = hex!(
        "8000 0016 00000001 00000000 a002 faf0 0000 0000"
        "020405b4 0402 080a 11223344 00000000 01 030307"
    );
    let (header, payload_at) = Header::parse(&octets).unwrap();
    assert_eq!(payload_at, 40);
    assert_eq!(header.options.mss, Some(1460));
    assert_eq!(header.options.window_scale, Some(7));
    assert!(header.options.sack_permitted);
    assert_eq!(header.options.timestamps, Some(Timestamps { value: 0x1122_3344, echo: 0 }));
}

// spec: TCP-9293-2
#[test]
fn illegal_option_lengths_are_an_error_and_never_a_loop() {
    let base = hex!("0001 0002 00000000 00000000 6010 0000 0000 0000");
    for tail in [[2, 0, 0, 0], [2, 1, 0, 0], [2, 5, 0, 0], [1, 1, 1, 9], [200, 0, 1, 1]] {
        let octets = [base.as_slice(), &tail].concat();
        assert_eq!(Header::parse(&octets), Err(HeaderError::OptionLength), "{tail:?}");
    }
}

// spec: TCP-9293-2
#[test]
fn unknown_options_and_wrong_lengths_of_known_ones_are_skipped() {
    let base = hex!("0001 0002 00000000 00000000 8010 0000 0000 0000");
    // Unknown kind 254; an MSS option of length 3; timestamps would not fit.
    let octets = [base.as_slice(), &[254, 4, 1, 2, 2, 3, 9, 1, 0, 77, 77, 77]].concat();
    let (header, payload_at) = Header::parse(&octets).unwrap();
    assert_eq!((header.options, payload_at), (Options::default(), 32));
}

#[test]
fn truncated_headers_are_refused() {
    let octets = hex!("0001 0002 00000000 00000000 5010 0000 0000 0000");
    assert_eq!(Header::parse(&octets[..19]), Err(HeaderError::TooShort));
    assert!(Header::parse(&octets).is_ok());
    let mut short_offset = octets;
    short_offset[12] = 0x40;
    assert_eq!(Header::parse(&short_offset), Err(HeaderError::DataOffset));
    let mut long_offset = octets;
    long_offset[12] = 0x60;
    assert_eq!(Header::parse(&long_offset), Err(HeaderError::TooShort));
}

// spec: TCP-9293-2
#[test]
fn options_are_accepted_at_any_alignment() {
    let base = hex!("0001 0002 00000000 00000000 8010 0000 0000 0000");
    let octets = [base.as_slice(), &[1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6, 0]].concat();
    let (header, _) = Header::parse(&octets).unwrap();
    assert_eq!(header.options.timestamps, Some(Timestamps { value: 5, echo: 6 }));
}

fn options() -> impl Strategy<Value = Options> {
    let syn = (any::<Option<u16>>(), any::<Option<u8>>(), any::<bool>());
    (syn, any::<Option<(u32, u32)>>(), proptest::collection::vec(any::<(u32, u32)>(), 0..=4))
        .prop_filter_map("options must fit", |((mss, window_scale, permitted), stamps, sack)| {
            let options = Options {
                mss,
                window_scale,
                sack_permitted: permitted,
                timestamps: stamps.map(|(value, echo)| Timestamps { value, echo }),
                sack: sack.into_iter().map(|(l, r)| (SeqNum(l), SeqNum(r))).collect(),
            };
            (options.len() <= 40).then_some(options)
        })
}

proptest! {
    #[test]
    fn written_headers_parse_back(
        ports: (u16, u16), seq: u32, ack: u32, flags: u8, window: u16, options in options(),
    ) {
        let header = Header {
            ecn: Ecn::NotCapable,
            src_port: ports.0,
            dst_port: ports.1,
            seq: SeqNum(seq),
            ack: SeqNum(ack),
            flags: Flags::from_bits_retain(flags),
            window,
            options,
        };
        let octets = emitted(&header);
        prop_assert_eq!(Header::parse(&octets), Ok((header, octets.len())));
    }

    #[test]
    fn any_octets_are_parsed_or_refused_without_panic(
        octets in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        if let Ok((header, payload_at)) = Header::parse(&octets) {
            prop_assert!(payload_at <= octets.len());
            prop_assert!(header.options.sack.len() <= SACK_BLOCKS_MAX);
        }
    }
}
