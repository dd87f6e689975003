//! Pictures of a connection, as SVG.
//!
//! Each picture is self-contained: it names its axes with their units, has a legend, and takes its
//! colours from [`style`], for light and for dark backgrounds. Important elements also differ in
//! shape. `chart` says why `plotters` does not draw them.

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

#[derive(Debug)]
pub(crate) struct Picture {
    pub(crate) name: String,
    pub(crate) title: String,
    /// Explanation of the picture: sentences in HTML.
    pub(crate) help: String,
    pub(crate) svg: String,
}

pub(crate) fn octets(number: u64) -> String {
    scaled(number, &[(1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "kB")], "B")
}

pub(crate) fn time(ns: u64) -> String {
    scaled(ns, &[(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "µs")], "ns")
}

pub(crate) fn rate(bits: u64) -> String {
    scaled(bits, &[(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1000, "kbit/s")], "bit/s")
}

/// Three digits without zeros at the end, or all below 1000. `units` begins with the largest.
fn scaled(number: u64, units: &[(u64, &str)], least: &str) -> String {
    let mut shown = format!("{number} {least}");
    if number < 1000 {
        return shown;
    }
    for (unit, name) in units.iter().rev() {
        for (scale, decimals) in [(100, 2), (10, 1), (1, 0)] {
            let unit = u128::from(*unit);
            let rounded = (u128::from(number) * scale + unit / 2) / unit;
            let (whole, part) = (rounded / scale, rounded % scale);
            shown = if part == 0 {
                format!("{whole} {name}")
            } else {
                let part = format!("{part:0decimals$}");
                format!("{whole}.{} {name}", part.trim_end_matches('0'))
            };
            if rounded < 1000 {
                return shown;
            }
        }
    }
    shown
}

/// Removes characters that reverse adjacent text, too.
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
        assert_eq!([octets(20_480), octets(123_456_789)], ["20.5 kB", "123 MB"]);
        assert_eq!([octets(999_499), octets(999_500)], ["999 kB", "1 MB"]);
        assert_eq!([octets(9_994), octets(9_995), octets(99_950)], ["9.99 kB", "10 kB", "100 kB"]);
        assert_eq!([octets(1_004), octets(1_050)], ["1 kB", "1.05 kB"]);
        assert_eq!([time(56_492_000), time(999_500_000_000)], ["56.5 ms", "1000 s"]);
        assert_eq!([rate(2_226_720), rate(u64::MAX)], ["2.23 Mbit/s", "18446744074 Gbit/s"]);
        assert_eq!([time(17), time(2_000_000), time(61_000_000_000)], ["17 ns", "2 ms", "61 s"]);
        assert_eq!(rate(9_410_000_000), "9.41 Gbit/s");
    }

    #[test]
    fn text_is_escaped_as_markup() {
        assert_eq!(escaped("<a href=\"x\">&\u{1b}"), "&lt;a href=&quot;x&quot;&gt;&amp;\u{fffd}");
        assert_eq!(escaped("a\u{202e}b – 'µ'"), "a\u{fffd}b – &#39;µ&#39;");
    }
}
