//! Pictures of a connection, as SVG.
//!
//! Each picture is self-contained: it names its axes with their units, has a legend, and takes its
//! colours from [`style`], for light and for dark backgrounds. Important elements also differ in
//! shape.

mod chart;
mod colours;
mod delays;
mod memory;
mod messages;
mod rates;
mod sequence;
mod strip;

use crate::printable::printable;

pub(crate) use colours::style;
pub(crate) use delays::delays;
pub(crate) use memory::memory;
pub(crate) use messages::messages;
pub(crate) use rates::{rates, round_trips};
pub(crate) use sequence::sequence;
pub(crate) use strip::{detail, strip};

/// A picture.
#[derive(Debug)]
pub(crate) struct Picture {
    /// File name.
    pub(crate) name: String,
    pub(crate) title: String,
    /// Explanation of the picture: sentences in HTML.
    pub(crate) help: String,
    pub(crate) svg: String,
}

/// Formats bytes with a suitable unit.
pub(crate) fn octets(number: u64) -> String {
    scaled(number, &[(1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "kB")], "B")
}

/// Formats a time with a suitable unit.
pub(crate) fn time(ns: u64) -> String {
    scaled(ns, &[(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "µs")], "ns")
}

/// Formats bits per second.
pub(crate) fn rate(bits: u64) -> String {
    scaled(bits, &[(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1000, "kbit/s")], "bit/s")
}

/// Formats three significant digits, or all digits of a small number.
fn scaled(number: u64, units: &[(u64, &str)], least: &str) -> String {
    let Some((unit, name)) = units.iter().find(|(unit, _)| number >= *unit) else {
        return format!("{number} {least}");
    };
    let (whole, part) = (number / unit, u128::from(number % unit));
    let hundredths = part * 100 / u128::from(*unit);
    let text = match whole {
        0..=9 => format!("{whole}.{hundredths:02}"),
        10..=99 => format!("{whole}.{}", hundredths / 10),
        _ => return format!("{whole} {name}"),
    };
    format!("{} {name}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Escapes text for HTML or SVG, without characters that reverse adjacent text.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for octet in text.chars() {
        match octet {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            one => out.push(one),
        }
    }
    printable(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_units_and_digits_that_count() {
        assert_eq!([octets(0), octets(999), octets(1500)], ["0 B", "999 B", "1.5 kB"]);
        assert_eq!([octets(20_480), octets(123_456_789)], ["20.4 kB", "123 MB"]);
        assert_eq!([time(17), time(2_000_000), time(61_000_000_000)], ["17 ns", "2 ms", "61 s"]);
        assert_eq!(rate(9_410_000_000), "9.41 Gbit/s");
    }

    #[test]
    fn text_is_no_markup() {
        assert_eq!(escaped("<a href=\"x\">&\u{1b}"), "&lt;a href=&quot;x&quot;&gt;&amp;\u{fffd}");
        assert_eq!(escaped("a\u{202e}b – 'µ'"), "a\u{fffd}b – &#39;µ&#39;");
    }
}
