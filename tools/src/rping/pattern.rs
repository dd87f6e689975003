//! Contents of a ping.

use urnic_replay::printable::printable;

/// `rdma-ping-N: `, then the characters from `A` to `z`, repeated, beginning one further in every
/// ping, then a zero.
pub(crate) fn ping(number: u64, size: usize) -> Vec<u8> {
    let mut octets = format!("rdma-ping-{number}: ").into_bytes();
    octets.truncate(size.saturating_sub(1));
    let start = number % u64::from(LETTERS);
    let start = u8::try_from(start).expect("a remainder by a byte is a byte");
    let letters = (0..LETTERS).cycle().skip(usize::from(start)).map(|letter| FIRST + letter);
    let missing = size.saturating_sub(1).saturating_sub(octets.len());
    octets.extend(letters.take(missing));
    octets.resize(size, 0);
    octets
}

/// Returns the text up to the first zero. The peer may have sent anything.
pub(crate) fn text(octets: &[u8]) -> String {
    let end = octets.iter().position(|octet| *octet == 0).unwrap_or(octets.len());
    printable(&String::from_utf8_lossy(&octets[..end]))
}

const FIRST: u8 = b'A';
const LETTERS: u8 = b'z' - FIRST + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_look_like_those_of_rdma_core() {
        // Output of rdma-core's program with -v.
        let expected = "rdma-ping-18: STUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyzABCDEFGHI";
        assert_eq!(text(&ping(18, 64)), expected);
        assert_eq!(ping(18, 64).len(), 64);
        assert_eq!(ping(0, 24), b"rdma-ping-0: ABCDEFGHIJ\0");
        assert_eq!(ping(58, 24), b"rdma-ping-58: ABCDEFGHI\0");
        assert_eq!(ping(57, 24), b"rdma-ping-57: zABCDEFGH\0");
    }

    #[test]
    fn a_ping_cannot_steer_the_terminal() {
        assert_eq!(
            text(b"\x1b]0;owned\x07\x1b[2J\xff\0rest"),
            "\u{fffd}]0;owned\u{fffd}\u{fffd}[2J\u{fffd}"
        );
        assert_eq!(text("abc\u{202e}fdp".as_bytes()), "abc\u{fffd}fdp");
    }

    #[test]
    fn a_ping_too_short_for_its_number_is_cut() {
        assert_eq!(ping(1_000_000, 5), b"rdma\0");
        assert_eq!(ping(1, 0), b"");
    }
}
