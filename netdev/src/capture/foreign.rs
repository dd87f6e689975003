//! Names of unsupported formats and link types: formats by their first bytes, link types by their
//! number. Only for messages: an error that names the format also names the command that converts
//! it.

/// Unsupported format, recognised by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignFormat {
    /// Name of the format.
    pub name: &'static str,
    /// Command that converts it to pcap or pcapng.
    pub remedy: &'static str,
}

/// Returns the format of a file that begins with `magic`, then `rest`.
pub(super) fn format(magic: u32, rest: &[u8]) -> Option<ForeignFormat> {
    let rest = &rest[..rest.len().min(HEAD_LEN - 4)];
    let head = [&magic.to_be_bytes()[..], rest].concat();
    let of =
        |(_, name, remedy): &(&[u8], &'static str, &'static str)| ForeignFormat { name, remedy };
    if let Some(found) = FORMATS.iter().find(|(begin, ..)| head.starts_with(begin)) {
        return Some(of(found));
    }
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~');
    match () {
        () if is_record(&head) => Some(ForeignFormat { name: "ERF", remedy: EDITCAP }),
        () if head.iter().all(is_text) => {
            Some(ForeignFormat { name: "text", remedy: "text2pcap, if it is a hex dump" })
        }
        () => None,
    }
}

/// Returns true for an ERF record: seconds since 1970 in the upper half of eight little-endian
/// bytes, a type, flags, and the record's length.
fn is_record(head: &[u8]) -> bool {
    let Some([_, _, _, _, s0, s1, s2, s3, kind, flags, high, low]) = head.first_chunk::<12>()
    else {
        return false;
    };
    let seconds = u32::from_le_bytes([*s0, *s1, *s2, *s3]);
    let len = u16::from_be_bytes([*high, *low]);
    // From 1995, when there was no such card, to 2038. Two flags are reserved.
    (800_000_000..=0x7fff_ffff).contains(&seconds)
        && (1..=48).contains(&(kind & 0x7f))
        && flags & 0xc0 == 0
        && (16..=RECORD_LEN_MAX).contains(&len)
}

/// Describes the beginning of a file of unknown format.
pub(super) fn begins(magic: u32, known: Option<ForeignFormat>) -> String {
    match known {
        Some(ForeignFormat { name, remedy }) => {
            format!("the file begins like {name}; convert it first: {remedy}")
        }
        None => format!("the file begins with {magic:08x}"),
    }
}

/// Returns the number of a link type, and its name if it has one here.
#[must_use]
pub fn link_name(number: u32) -> String {
    match LINKS.iter().find(|(known, _)| *known == number) {
        Some((_, name)) => format!("{number} ({name})"),
        None => number.to_string(),
    }
}

/// Approximate length of the longest ERF record of a jumbo frame.
const RECORD_LEN_MAX: u16 = 10_240;
/// Bytes inspected.
const HEAD_LEN: usize = 16;
const EDITCAP: &str = "editcap -F pcapng FILE OUT";

/// First bytes of a format, its name, and the command that converts it.
const FORMATS: [(&[u8], &str, &str); 23] = [
    (b"snoop\0\0\0", "snoop", EDITCAP),
    (b"btsnoop\0", "btsnoop (Bluetooth, which carries no iWARP)", EDITCAP),
    (b"XCP\0", "NetXRay", EDITCAP),
    (b"VL\0\0", "NetXRay", EDITCAP),
    (b"TRSNIFF data", "Sniffer", EDITCAP),
    (b"RTSS", "Network Monitor", EDITCAP),
    (b"GMBU", "Network Monitor", EDITCAP),
    (b"ObserverPktBuff", "Observer", EDITCAP),
    (b"\x7fver", "OmniPeek", EDITCAP),
    (b"\x05VNF", "Visual Networks", EDITCAP),
    (b"iptrace ", "AIX iptrace", EDITCAP),
    (b"\x1c\0\x01\xac", "Ixia lcap", EDITCAP),
    (b"\x1c\0\x01\xab", "Ixia lcap", EDITCAP),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d FILE OUT"),
    (b"BZh", "bzip2", "bzip2 -dk FILE"),
    (b"\xfd7zXZ\0", "xz", "xz -dk FILE"),
    (b"\x5d\0\0", "lzma", "xz -dk --format=lzma FILE"),
    (b"LZIP", "lzip", "lzip -dk FILE"),
    (b"\x89LZO\0", "lzop", "lzop -d FILE"),
    (b"\x1f\x9d", "compress", "gzip -dk FILE"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z e FILE"),
    (b"PK\x03\x04", "ZIP", "unzip FILE"),
    (b"Rar!", "RAR", "unrar e FILE"),
];

/// Link types of captures that carry no IP, or carry it in an unsupported way.
const LINKS: [(u32, &str); 22] = [
    (6, "Token Ring"),
    (7, "ARCNET"),
    (10, "FDDI"),
    (100, "ATM"),
    (105, "IEEE 802.11"),
    (107, "Frame Relay"),
    (109, "OpenBSD enc"),
    (117, "PF log"),
    (119, "IEEE 802.11 with Prism header"),
    (127, "IEEE 802.11 with radiotap"),
    (147, "user 0"),
    (148, "user 1"),
    (187, "Bluetooth HCI"),
    (189, "Linux USB"),
    (195, "IEEE 802.15.4"),
    (201, "Bluetooth HCI with direction"),
    (220, "Linux USB with padding"),
    (225, "Fibre Channel with delimiters"),
    (227, "CAN"),
    (239, "NFLOG"),
    (249, "USBPcap"),
    (258, "PKTAP"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn name(head: &[u8]) -> Option<&'static str> {
        let (magic, rest) = head.split_first_chunk().unwrap();
        format(u32::from_be_bytes(*magic), rest).map(|found| found.name)
    }

    #[test]
    fn formats_are_known_by_their_first_bytes() {
        for (begin, expected, _) in FORMATS {
            let head = [begin, &[0xee; 12]].concat();
            assert_eq!(name(&head), Some(expected));
        }
        assert_eq!(name(b"snoopy.."), Some("text"));
        assert_eq!(name(b"0000  45 00\r\n"), Some("text"));
        assert_eq!(name(b"\x7fELF\x02\x01\x01\0"), None);
        let record = [0, 0, 0, 0x80, 0, 0, 0, 0x60, 2, 4, 0, 0x50, 0, 0, 0, 0x3c];
        assert_eq!(name(&record), Some("ERF"));
        for (at, value) in [(7, 0), (7, 0x90), (8, 0), (8, 49), (9, 0x84), (10, 0x30), (11, 15)] {
            let mut other = record;
            other[at] = value;
            assert_eq!(name(&other), None, "byte {at}");
        }
    }

    #[test]
    fn a_message_names_the_format_and_what_converts_it() {
        let lz4 = format(0x0422_4d18, &[]);
        assert_eq!(
            begins(0x0422_4d18, lz4),
            "the file begins like lz4; convert it first: lz4 -d FILE OUT"
        );
        assert_eq!(begins(0x7f45_4c46, None), "the file begins with 7f454c46");
        assert_eq!([link_name(220), link_name(4711)], ["220 (Linux USB with padding)", "4711"]);
    }
}
