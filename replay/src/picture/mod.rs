//! Pictures of a connection, as SVG.
//!
//! Each is whole by itself: it names its axes with their units, has a legend, and takes its colours
//! from [`style`], which has them for light and for dark backgrounds. They are of the palette of
//! Okabe and Ito, which colour-blind readers tell apart; what matters differs in shape, too.

mod chart;
mod delays;
mod memory;
mod messages;
mod rates;
mod sequence;
mod strip;

pub(crate) use delays::delays;
pub(crate) use memory::memory;
pub(crate) use messages::messages;
pub(crate) use rates::{rates, round_trips};
pub(crate) use sequence::sequence;
pub(crate) use strip::{detail, strip};

/// A picture.
#[derive(Debug)]
pub(crate) struct Picture {
    /// What it is called as a file.
    pub(crate) name: String,
    pub(crate) title: String,
    /// How it is to be read: sentences in HTML.
    pub(crate) help: String,
    pub(crate) svg: String,
}

/// Colours and strokes of all pictures, for light and for dark backgrounds. The colours stand in the
/// rules themselves: programs other than browsers know no variables of CSS.
pub(crate) fn style() -> String {
    let of = |colours: &[(&str, &str)]| {
        let rules = RULES.to_owned();
        colours.iter().fold(rules, |rules, (name, value)| rules.replace(name, value))
    };
    format!("{}@media(prefers-color-scheme:dark){{{}}}", of(LIGHT), of(DARK))
}

const LIGHT: &[(&str, &str)] = &[
    ("$fg", "#222"),
    ("$dim", "#666"),
    ("$grid", "#e2e2e2"),
    ("$bg", "#fff"),
    ("$data", "#0072b2"),
    ("$late", "#7a5195"),
    ("$again", "#d55e00"),
    ("$ahead", "#009e73"),
    ("$wait", "#b87f00"),
    ("$ack", "#444"),
    ("$win", "#8a8a8a"),
    ("$sack", "#a8508a"),
    ("$fill", "#cfe3f1"),
];

const DARK: &[(&str, &str)] = &[
    ("$fg", "#ddd"),
    ("$dim", "#a0a0a0"),
    ("$grid", "#343434"),
    ("$bg", "#161616"),
    ("$data", "#56b4e9"),
    ("$late", "#b39ddb"),
    ("$again", "#ff8a3d"),
    ("$ahead", "#2fd3a0"),
    ("$wait", "#f0c541"),
    ("$ack", "#d0d0d0"),
    ("$win", "#8a8a8a"),
    ("$sack", "#e79fc6"),
    ("$fill", "#17384d"),
];

const RULES: &str = "\
svg.p{background:$bg;max-width:100%;height:auto;font:12px system-ui,sans-serif}
svg.p text{fill:$fg}svg.p .dim{fill:$dim}svg.p .grid{stroke:$grid}
svg.p path,svg.p .grid,svg.p .axis{fill:none;stroke-linecap:square}svg.p .axis{stroke:$dim}
svg.p .data{stroke:$data;stroke-width:1.6}svg.p .late{stroke:$late;stroke-width:2.4}
svg.p .again{stroke:$again;stroke-width:3}svg.p .ahead{stroke:$ahead;stroke-width:3}
svg.p .wait{stroke:$wait;stroke-width:2}svg.p .ack{stroke:$ack;stroke-width:1.2}
svg.p .win{stroke:$win;stroke-dasharray:5 3}svg.p .sack{stroke:$sack;stroke-width:2}
svg.p .start{stroke:$fg;stroke-width:.8}svg.p .wrong{stroke:$again;stroke-width:2.5}
svg.p .end{stroke:$fg;stroke-width:2.5}svg.p .marker{stroke:$dim;stroke-width:.8}svg.p .band{fill:$fill;stroke:none}
svg.p .pause{fill:$grid;fill-opacity:.6}svg.p rect.data{fill:$data;stroke:none}svg.p rect.again{fill:$again;stroke:none}
svg.p rect.wait{fill:$wait;stroke:none}svg.p rect.ahead{fill:$ahead;stroke:none}
svg.p .f-data{fill:$data}svg.p .f-again{fill:$again}svg.p .f-wait{fill:$wait}svg.p .f-ahead{fill:$ahead}svg.p .f-fill{fill:$fill}
svg.p .bar{stroke:$data;stroke-width:3}svg.p .pale{fill-opacity:.7}
";

/// Octets, with a unit that suits them.
pub(crate) fn octets(number: u64) -> String {
    scaled(number, &[(1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "kB")], "B")
}

/// A time, with a unit that suits it.
pub(crate) fn time(ns: u64) -> String {
    scaled(ns, &[(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "µs")], "ns")
}

/// Bits for each second.
pub(crate) fn rate(bits: u64) -> String {
    scaled(bits, &[(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1000, "kbit/s")], "bit/s")
}

/// Three digits that count, or all of a small number.
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

/// Text in HTML or SVG.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for octet in text.chars() {
        match octet {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            one if one.is_control() => out.push('\u{fffd}'),
            one => out.push(one),
        }
    }
    out
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
    }
}
