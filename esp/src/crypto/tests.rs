use hex_literal::hex;

use super::*;

/// Builds an ESP packet of an IV, what is encrypted, and an ICV. `header` is the SPI and the
/// sequence number, of 32 or of 64 bits.
fn packet(header: &[u8], rest: [&[u8]; 3]) -> (Sequence, Vec<u8>) {
    let number = header[4..].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let is_extended = header.len() == 12;
    let low = &header[header.len() - 4..];
    let packet = [&header[..4], low, rest[0], rest[1], rest[2]].concat();
    (Sequence { number, is_extended }, packet)
}

/// Checks that a packet opens to `plain`, and that no other packet does.
fn check_open(keying: &Keying, sequence: Sequence, packet: &[u8], plain: &[u8]) {
    let mut transform = keying.transform().unwrap();
    let mut room = vec![0; plain.len()];
    assert_eq!(transform.open(sequence, packet, &mut room), Ok(()));
    assert_eq!(room, plain);
    for at in 0..packet.len() {
        // The lower half of the number is read from the packet by GCM only without the upper one.
        if !(4..8).contains(&at) || !sequence.is_extended {
            let mut bad = packet.to_vec();
            bad[at] ^= 0x10;
            let result = transform.open(sequence, &bad, &mut room);
            assert_eq!(result, Err(TransformError::BadIcv), "{at}");
        }
    }
    if sequence.is_extended {
        let other = Sequence { number: sequence.number ^ 1 << 40, ..sequence };
        assert_eq!(transform.open(other, packet, &mut room), Err(TransformError::BadIcv));
    }
}

/// Key, salt and IV, SPI and number, plaintext, ciphertext, ICV.
type GcmVector = (&'static [u8], [u8; 12], &'static [u8], &'static [u8], &'static [u8], [u8; 16]);

/// The cases of draft-mcgrew-gcm-test-01 ("Test Cases for the use of Galois/Counter Mode (GCM) and
/// Galois Message Authentication Code (GMAC) in IPsec ESP") with keys of 128 and 256 bits.
const GCM: [GcmVector; 6] = [
    (
        &hex!("4c80cdefbb5d10da906ac73c3613a634"),
        hex!("2e443b68 4956ed7e3b244cfe"),
        &hex!("00004321 8765432100000000"),
        &hex!(
            "45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000"
            "045f736970045f756470037369700963796265726369747902646b000021000101020201"
        ),
        &hex!(
            "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f"
            "14a3f3cf65925bf1f4a13c5d15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732"
        ),
        hex!("459018148f6cbe722fd04796562dfdb4"),
    ),
    (
        &hex!("feffe9928665731c6d6a8f9467308308"),
        hex!("cafebabe facedbaddecaf888"),
        &hex!("0000a5f8 0000000a"),
        &hex!(
            "4500003e698f000080114dccc0a80102c0a801010a980035002a2343b2d0010000010000"
            "00000000037369700963796265726369747902646b00000100010001"
        ),
        &hex!(
            "deb22cd9b07c72c16e3a65beeb8df304a5a5897d33ae530f1ba76d5d114d2a5c3de81827"
            "c10e9a4f51330d0eec416642cfbb85a5b47e48a4ec3b9ba95d918bd1"
        ),
        hex!("83b70d3aa8bc6ee4c309e9d85a41ad4a"),
    ),
    (
        &hex!("abbccddef00112233445566778899aababbccddef00112233445566778899aab"),
        hex!("11223344 0102030405060708"),
        &hex!("4a2cbfe3 00000002"),
        &hex!(
            "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee00000000070024000"
            "20bf0000020405b40101040201020201"
        ),
        &hex!(
            "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763748a6379"
            "85771d347f0545659f14e99def842d8e"
        ),
        hex!("b335f4eecfdbf831824b4c4915956c96"),
    ),
    (
        &hex!("abbccddef00112233445566778899aababbccddef00112233445566778899aab"),
        hex!("73616c74 616e640169766563"),
        &hex!("17405e67 156f3126dd0db99b"),
        &hex!(
            "45080028732c00004006e9f90a0106120a01038f06b88023dd6bafbecb71260250101f64"
            "6d540001"
        ),
        &hex!(
            "f2d69ecdbd5a0d5b8d5ef38bad4da58d1f278fde98ef67549d524a3018d9a57ff4d3a31c"
            "e673119e"
        ),
        hex!("451626c2415771e3b7eebca614c89b35"),
    ),
    (
        &hex!("7d773d00c144c525ac619d18c84a3f47"),
        hex!("d9664267 43457e9182443bc6"),
        &hex!("335467ae ffffffff"),
        &hex!("01020201"),
        &hex!("437f866b"),
        hex!("cb3f699fe9b0822bac961c4504bef270"),
    ),
    (
        &hex!("abbccddef00112233445566778899aab"),
        hex!("decaf888 cafedebaceface74"),
        &hex!("00000100 0000000000000001"),
        &hex!("746f016265016f72016e6f7401746f0162650001"),
        &hex!("29c9fc69a197d038ccdd14e2ddfcaa0543332164"),
        hex!("412503524303ed3c6c5f283843af8c3e"),
    ),
];

// spec: SEC-I-15
#[test]
fn published_packets_under_aes_gcm_open() {
    for (key, nonce, header, plain, text, icv) in GCM {
        let key = Key::new([key, &nonce[..4]].concat());
        let (sequence, sealed) = packet(header, [&nonce[4..], text, &icv]);
        check_open(&Keying::AesGcm(key.clone()), sequence, &sealed, plain);
        // The sender would choose another IV.
        let mut room = plain.to_vec();
        let made = Gcm::new(&key).unwrap().tag(&sealed, header, &mut room);
        assert_eq!((made, &room[..]), (Ok(icv), text));
    }
}

/// Cases 3 and 16 of the submission of GCM to NIST (McGrew and Viega, Appendix B): with the longer
/// authenticated data of the second.
#[test]
fn gcm_vectors_of_its_submission() {
    let plain = hex!(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    );
    let key = hex!("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308");
    let gcm = Gcm::new(&Key::new([&key[..], &hex!("cafebabe")].concat())).unwrap();
    let (_, packet) = packet(&[0; 8], [&hex!("facedbaddecaf888"), &[], &[]]);
    let mut room = plain.to_vec();
    let icv = gcm.tag(&packet, &hex!("feedfacedeadbeeffeedfacedeadbeefabaddad2"), &mut room);
    assert_eq!(icv, Ok(hex!("76fc6ece0f4e1768cddf8853bb2d551b")));
    let text = hex!(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
    );
    assert_eq!(room, text);
}

/// The case of draft-mcgrew-gcm-test-01 for `ENCR_NULL_AUTH_AES_GMAC`.
#[test]
fn published_packet_under_aes_gmac_opens() {
    let key = Key::from(&hex!("4c80cdefbb5d10da906ac73c3613a63422433c64")[..]);
    let plain = hex!(
        "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364"
        "65666768696a6b6c6d6e6f707172737401020201"
    );
    let icv = hex!("f2a9a836e155106aa8dcd618e4099aaa");
    let (sequence, sealed) = packet(&hex!("00004321 00000007"), [&[0; 8], &plain, &icv]);
    check_open(&Keying::AesGmac(key), sequence, &sealed, &plain);
}

/// Key, IV, plaintext, ciphertext.
type CbcVector = ([u8; 16], [u8; 16], &'static [u8], &'static [u8]);

/// RFC 3602 §4, cases 1, 2, 4, 5 and 6; the last two are the contents of ESP packets.
const CBC: [CbcVector; 5] = [
    (
        hex!("06a9214036b8a15b512e03d534120006"),
        hex!("3dafba429d9eb430b422da802c9fac41"),
        b"Single block msg",
        &hex!("e353779c1079aeb82708942dbe77181a"),
    ),
    (
        hex!("c286696d887c9aa0611bbb3e2025a45a"),
        hex!("562e17996d093d28ddb3ba695a2e6f58"),
        &hex!("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"),
        &hex!("d296cd94c2cccf8a3a863028b5e1dc0a7586602d253cfff91b8266bea6d61ab1"),
    ),
    (
        hex!("56e47a38c5598974bc46903dba290349"),
        hex!("8ce82eefbea0da3c44699ed7db51b7d9"),
        &hex!(
            "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf"
            "c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf"
        ),
        &hex!(
            "c30e32ffedc0774e6aff6af0869f71aa0f3af07a9a31a9c684db207eb0ef8e4e"
            "35907aa632c3ffdf868bb7b29d3d46ad83ce9f9a102ee99d49a53e87f4c3da55"
        ),
    ),
    (
        hex!("90d382b410eeba7ad938c46cec1a82bf"),
        hex!("e96e8c08ab465763fd098d45dd3ff893"),
        &hex!(
            "08000ebda70a00008e9c083db95b070008090a0b0c0d0e0f1011121314151617"
            "18191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031323334353637"
            "0102030405060708090a0b0c0d0e0e01"
        ),
        &hex!(
            "f663c25d325c18c6a9453e194e120849a4870b66cc6b9965330013b4898dc856"
            "a4699e523a55db080b59ec3a8e4b7e52775b07d1db34ed9c538ab50c551b874a"
            "a269add047ad2d5913ac19b7cfbad4a6"
        ),
    ),
    (
        hex!("90d382b410eeba7ad938c46cec1a82bf"),
        hex!("69d08df7d203329db093fc4924e5bd80"),
        &hex!("0800b5e8a80a0500a69c083d0b660e0077777777777777777777777701020201"),
        &hex!("f51995881ec4e0c4488987ce742e8109689bb379d2d750c0d915dca346a89f75"),
    ),
];

// spec: SEC-I-15
#[test]
fn published_texts_under_aes_cbc_decrypt() {
    for (key, iv, plain, text) in CBC {
        let encryption = Key::from(&key[..]);
        let (integrity, authentication) = (Integrity::HmacSha256, Key::new(vec![7; 32]));
        let composed = Composed::new(Some(&encryption), integrity, &authentication).unwrap();
        let mut room = plain.to_vec();
        composed.encrypt(iv, &mut room).unwrap();
        assert_eq!(room, text);
        let (sequence, unsigned) = packet(&[0, 0, 0x43, 0x21, 0, 0, 0, 1], [&iv, text, &[]]);
        let icv = composed.hmac(sequence, &unsigned);
        let sealed = [&unsigned, &icv.as_ref()[..integrity.icv_len()]].concat();
        let keying = Keying::AesCbc { encryption, integrity, authentication };
        check_open(&keying, sequence, &sealed, plain);
    }
}

/// RFC 2202 §3 and RFC 4868 §2.7.2, case 1 of each: "Hi There", cut as §2.1 says.
#[test]
fn hmacs_are_those_of_their_rfcs() {
    for (integrity, icv) in [
        (Integrity::HmacSha1, &hex!("b617318655057264e28bc0b6")[..]),
        (Integrity::HmacSha256, &hex!("198a607eb44bfbc69903a0f1cf2bbdc5")),
        (Integrity::HmacSha384, &hex!("b6a8d5636f5c6a7224f9977dcf7ee6c7fb6d0c48cbdee973")),
        (
            Integrity::HmacSha512,
            &hex!("637edc6e01dce7e6742a99451aae82df23da3e92439e590e43e761b33e910fb8"),
        ),
    ] {
        let authentication = Key::new(vec![0x0b; integrity.key_len()]);
        let composed = Composed::new(None, integrity, &authentication).unwrap();
        let sequence = Sequence { number: 0, is_extended: false };
        let tag = composed.hmac(sequence, b"Hi There");
        assert_eq!(&tag.as_ref()[..integrity.icv_len()], icv);
    }
}

pub(crate) fn all() -> Vec<Keying> {
    let key = |len: u8| Key::new((0..len).collect());
    let mut all: Vec<_> = [20, 36].map(|len| Keying::AesGcm(key(len))).into();
    all.extend([20, 36].map(|len| Keying::AesGmac(key(len))));
    for integrity in
        [Integrity::HmacSha1, Integrity::HmacSha256, Integrity::HmacSha384, Integrity::HmacSha512]
    {
        let authentication = Key::new(vec![0xaa; integrity.key_len()]);
        all.push(Keying::Null { integrity, authentication: authentication.clone() });
        let encryption = key(if integrity.key_len() < 40 { 16 } else { 32 });
        all.push(Keying::AesCbc { encryption, integrity, authentication });
    }
    all
}

#[test]
fn sealed_packets_open_under_each_algorithm_only_as_they_are() {
    for keying in all() {
        let Lengths { iv, block, icv } = keying.lengths();
        for is_extended in [false, true] {
            let number = if is_extended { 0x1234_0000_0007 } else { 7 };
            let sequence = Sequence { number, is_extended };
            let plain: Vec<u8> = (0..).take(block * 3).collect();
            let mut sealed = vec![0; 8 + iv];
            crate::wire::esp::write_header(&mut sealed, 0x1001, number);
            sealed.extend(&plain);
            sealed.resize(sealed.len() + icv, 0);
            let mut transform = keying.transform().unwrap();
            transform.seal(sequence, &mut sealed).unwrap();
            let is_open = matches!(keying, Keying::Null { .. } | Keying::AesGmac(_));
            assert_eq!(sealed[8 + iv..8 + iv + plain.len()] == plain, is_open, "{keying:?}");
            check_open(&keying, sequence, &sealed, &plain);
        }
    }
}

/// An IV of CBC cannot be predicted, one of GCM never repeats.
#[test]
fn ivs_differ_from_packet_to_packet() {
    for keying in all().into_iter().filter(|keying| keying.lengths().iv > 0) {
        let mut transform = keying.transform().unwrap();
        let Lengths { iv, block, icv } = keying.lengths();
        let ivs: std::collections::BTreeSet<Vec<u8>> = (1..=1000)
            .map(|number| {
                let mut packet = vec![0; 8 + iv + block + icv];
                transform.seal(Sequence { number, is_extended: false }, &mut packet).unwrap();
                packet[8..8 + iv].to_vec()
            })
            .collect();
        assert_eq!(ivs.len(), 1000, "{keying:?}");
    }
}

#[test]
fn keys_of_wrong_lengths_are_refused() {
    let key = |len: usize| Key::new(vec![1; len]);
    for len in 0..80 {
        let is_aead = matches!(len, 20 | 36);
        assert_eq!(Keying::AesGcm(key(len)).transform().is_ok(), is_aead);
        assert_eq!(Keying::AesGmac(key(len)).transform().is_ok(), is_aead);
        let integrity = Integrity::HmacSha384;
        let null = Keying::Null { integrity, authentication: key(len) };
        assert_eq!(null.transform().is_ok(), len == 48);
        let authentication = key(48);
        let cbc = Keying::AesCbc { encryption: key(len), integrity, authentication };
        assert_eq!(cbc.transform().is_ok(), matches!(len, 16 | 32));
    }
}

#[test]
fn printed_algorithms_show_no_key() {
    for keying in all() {
        let text = format!("{keying:?} {:?}", keying.transform().unwrap());
        for shown in ["170", "0, 1, 2", "aa, aa", "aaaa", "AA"] {
            assert!(!text.contains(shown), "{text}");
        }
    }
}
