//! An external check: Wireshark decrypts sealed packets, with the keys, and finds each ICV right.
//!
//! It knows no extended sequence numbers, so these packets have none. Without `tshark` the test is
//! skipped; with `URNIC_REQUIRE` set that is a failure.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;

use urnic_esp::association::{Association, BACK_MAX, FRONT_MAX, Mode};
use urnic_esp::crypto::{Integrity, Keying};
use urnic_esp::key::Key;
use urnic_esp::lifetime::Lifetime;
use urnic_esp::policy::{Action, Direction, Policy, Template};
use urnic_esp::processor::{Config, Esp, Outbound};
use urnic_esp::selector::{Prefix, Selector};
use urnic_testkit::programs::{missing, program};
use urnic_testkit::skip;

/// Packets under each association.
const PACKETS: u16 = 100;
/// Link type of a capture whose packets begin with the IP header.
const LINKTYPE_RAW: u32 = 101;

/// Wireshark's name of an encryption and of an integrity algorithm, their keys, and ours.
struct Suite {
    names: [&'static str; 2],
    keys: [Vec<u8>; 2],
    keying: Keying,
}

fn suites() -> Vec<Suite> {
    let bytes = |len: u8| (1..=len).collect::<Vec<u8>>();
    let gcm = |len| Suite {
        names: ["AES-GCM with 16 octet ICV [RFC4106]", "NULL"],
        keys: [bytes(len), Vec::new()],
        keying: Keying::AesGcm(Key::new(bytes(len))),
    };
    let mut suites = vec![gcm(20), gcm(36)];
    for (integrity, name, encryption_len) in [
        (Integrity::HmacSha1, "HMAC-SHA-1-96 [RFC2404]", 16),
        (Integrity::HmacSha256, "HMAC-SHA-256-128 [RFC4868]", 16),
        (Integrity::HmacSha384, "HMAC-SHA-384-192 [RFC4868]", 32),
        (Integrity::HmacSha512, "HMAC-SHA-512-256 [RFC4868]", 32),
    ] {
        let key = bytes(u8::try_from(integrity.key_len()).unwrap());
        let authentication = Key::new(key.clone());
        let (encryption, cipher) = (Key::new(bytes(encryption_len)), bytes(encryption_len));
        suites.push(Suite {
            names: ["AES-CBC [RFC3602]", name],
            keys: [cipher, key.clone()],
            keying: Keying::AesCbc {
                encryption,
                integrity,
                authentication: authentication.clone(),
            },
        });
        suites.push(Suite {
            names: ["NULL", name],
            keys: [Vec::new(), key],
            keying: Keying::Null { integrity, authentication },
        });
    }
    suites
}

/// A datagram from 10.0.0.1 to 10.0.0.2 over UDP, with its length as the source port.
fn datagram(len: u16) -> Vec<u8> {
    let mut packet = vec![0; 28 + usize::from(len)];
    let [high, low] = (28 + len).to_be_bytes();
    packet[..12].copy_from_slice(&[0x45, 0, high, low, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    packet[20..22].copy_from_slice(&(40_000 + len).to_be_bytes());
    packet[22..24].copy_from_slice(&40_000_u16.to_be_bytes());
    packet[24..26].copy_from_slice(&(8 + len).to_be_bytes());
    packet
}

/// Appends the sealed packets of an association to a capture.
fn seal(capture: &mut Vec<u8>, spi: u32, mode: Mode, keying: Keying) {
    let [source, destination] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
    let ends = (mode == Mode::Tunnel).then_some((source, destination));
    let template = Template { request: 1, mode, ends };
    let selector = Selector::between(Prefix::host(source), Prefix::host(destination));
    let action = Action::Protect(template);
    let mut esp = Esp::new(Config::default());
    esp.add_policy(Policy { selector, direction: Direction::Out, action, priority: 0 }).unwrap();
    let association = Association {
        spi,
        source,
        destination,
        mode,
        request: 1,
        keying,
        extended_numbers: false,
        window: 1024,
        lifetime: Lifetime::default(),
        udp: None,
        selector: None,
    };
    esp.add_outbound(0, &association).unwrap();
    for len in 0..PACKETS {
        let mut buffer = [&[0; FRONT_MAX], &datagram(len)[..], &[0; BACK_MAX]].concat();
        let Outbound::Sealed(range) = esp.outbound(0, &mut buffer, FRONT_MAX) else {
            panic!("the packet is not sealed");
        };
        let len = u32::try_from(range.len()).unwrap();
        for word in [0, 0, len, len] {
            capture.extend(word.to_le_bytes());
        }
        capture.extend(&buffer[range]);
    }
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return String::new();
    }
    bytes.iter().fold(String::from("0x"), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// A capture file that is removed when it is dropped.
struct Capture(PathBuf);

impl Drop for Capture {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

// spec: SEC-I-3, SEC-I-4, SEC-I-15
#[test]
fn wireshark_decrypts_each_packet_and_finds_its_icv_right() {
    if let Some(reason) = missing(["tshark", "timeout"]) {
        return skip("wireshark_decrypts_each_packet_and_finds_its_icv_right", &reason);
    }
    let mut capture = Vec::new();
    for word in [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 1 << 18, LINKTYPE_RAW] {
        capture.extend(u32::to_le_bytes(word));
    }
    let mut arguments = Vec::new();
    let mut spi = 0x1000;
    for suite in suites() {
        for mode in [Mode::Transport, Mode::Tunnel] {
            seal(&mut capture, spi, mode, suite.keying.clone());
            let ([cipher, integrity], [key, authentication]) = (suite.names, &suite.keys);
            let (key, authentication) = (hex(key), hex(authentication));
            arguments.push(format!(
                "uat:esp_sa:\"IPv4\",\"*\",\"*\",\"{spi:#x}\",\"{cipher}\",\"{key}\",\
                 \"{integrity}\",\"{authentication}\""
            ));
            spi += 1;
        }
    }
    let file = Capture(std::env::temp_dir().join(format!("urnic-esp-{}.pcap", std::process::id())));
    std::fs::write(&file.0, &capture).unwrap();
    let mut tshark = program("timeout");
    tshark.args(["60", "tshark", "-n", "-r"]).arg(&file.0);
    for argument in arguments {
        tshark.args(["-o", &argument]);
    }
    for preference in
        ["enable_encryption_decode", "enable_authentication_check", "do_esp_sequence_analysis"]
    {
        tshark.args(["-o", &format!("esp.{preference}:TRUE")]);
    }
    tshark.args(["-T", "fields", "-e", "esp.spi", "-e", "esp.icv_good", "-e", "esp.sequence"]);
    tshark.args(["-e", "udp.srcport", "-e", "udp.length"]);
    let output = tshark.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark: {errors}");
    let table = String::from_utf8(output.stdout).unwrap();
    let mut lines = table.lines();
    for spi in 0x1000..spi {
        for len in 0..PACKETS {
            let (number, port, len) = (len + 1, 40_000 + len, 8 + len);
            // Some versions print 1 for true.
            let of = |good| format!("{spi:#010x}\t{good}\t{number}\t{port}\t{len}");
            let line = lines.next().unwrap_or_default();
            assert!([of("True"), of("1")].contains(&line.to_owned()), "{spi:#x} {len}: {line}");
        }
    }
    assert_eq!(lines.next(), None);
}
