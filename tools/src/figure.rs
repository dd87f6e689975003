//! Figures for people: one rule for all commands.
//!
//! Units are decimal and follow the number; the size of a figure chooses its unit, and three digits
//! are shown. Counts are exact, with separated thousands. An unknown figure is a dash. Sizes that
//! an option takes, such as that of a message, are shown in the form of the option (`crate::size`).

use std::fmt::Write;

use urnic_replay::figures::count;

pub(crate) const UNKNOWN: &str = "–";

pub(crate) fn bits_per_second(rate: f64) -> String {
    scaled(rate, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

/// A number of bytes: `999 B`, `65.5 kB`.
#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
pub(crate) fn bytes(number: u64) -> String {
    if number < 1000 {
        return format!("{number} B");
    }
    scaled(number as f64, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// A time in seconds: `20.5 µs`, `1.50 s`.
pub(crate) fn seconds(time: f64) -> String {
    if time >= 0.9995 {
        return format!("{} s", three_digits(time));
    }
    scaled(time * 1e9, &["ns", "µs", "ms", "s"])
}

/// A number of events in a second: `2.60`, `46 123`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounded, and never negative"
)]
pub(crate) fn frequency(per_second: f64) -> String {
    if !per_second.is_finite() {
        return UNKNOWN.into();
    }
    if per_second < 999.5 { three_digits(per_second) } else { count(per_second.round() as u64) }
}

/// A count and its noun: `1 FPDU`, `2 000 FPDUs`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(number))
}

/// An unknown figure is a dash.
pub(crate) fn known<T>(figure: Option<T>, show: impl FnOnce(T) -> String) -> String {
    figure.map_or_else(|| UNKNOWN.to_owned(), show)
}

/// The unit is the smallest in which the rounded number is below 1000.
fn scaled(number: f64, units: &[&str]) -> String {
    if !number.is_finite() {
        return UNKNOWN.into();
    }
    let (mut number, mut units) = (number, units.iter());
    let mut unit = units.next();
    while number >= 999.5 {
        let Some(larger) = units.next() else { break };
        (number, unit) = (number / 1000.0, Some(larger));
    }
    format!("{} {}", three_digits(number), unit.unwrap_or(&""))
}

/// Formats three digits: `1.23`, `12.3`, `123`; zero is `0`.
fn three_digits(number: f64) -> String {
    match number {
        0.0 => "0".into(),
        ..9.995 => format!("{number:.2}"),
        ..99.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(octets: &[u8]) -> String {
    octets.iter().fold(String::with_capacity(2 * octets.len()), |mut text, octet| {
        let _infallible = write!(text, "{octet:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_size_of_a_figure_chooses_its_unit() {
        let rates = [0.0, 12.0, 999.4, 999.5, 46_700_000.0, 1e9, 99.96e9, 3.4e12, 2e15];
        assert_eq!(
            rates.map(bits_per_second),
            [
                "0 bit/s",
                "12.0 bit/s",
                "999 bit/s",
                "1.00 kbit/s",
                "46.7 Mbit/s",
                "1.00 Gbit/s",
                "100 Gbit/s",
                "3.40 Tbit/s",
                "2000 Tbit/s",
            ]
        );
        assert_eq!([0, 999, 1000, 65_536].map(bytes), ["0 B", "999 B", "1.00 kB", "65.5 kB"]);
        assert_eq!(bytes(u64::MAX), "18.4 EB");
        assert_eq!(
            [0.0, 2e-9, 2.05e-5, 0.9994, 0.9996, 1.5, 12.34, 36_000.0].map(seconds),
            ["0 ns", "2.00 ns", "20.5 µs", "999 ms", "1.00 s", "1.50 s", "12.3 s", "36000 s"]
        );
        assert_eq!(
            [0.0, 2.6, 999.4, 999.6, 46_123.4].map(frequency)[1..4],
            ["2.60", "999", "1 000"]
        );
        assert_eq!(frequency(46_123.4), "46 123");
    }

    #[test]
    fn non_finite_and_unknown_figures_are_a_dash() {
        assert_eq!([f64::NAN, f64::INFINITY].map(bits_per_second), [UNKNOWN; 2]);
        assert_eq!([f64::NAN, f64::INFINITY].map(frequency), [UNKNOWN; 2]);
        assert_eq!(known(None::<u64>, bytes), UNKNOWN);
        assert_eq!(known(Some(7), bytes), "7 B");
    }

    #[test]
    fn figure_of_one_is_singular() {
        let shown = [0, 1, 2, 1000].map(|number| counted(number, "FPDU"));
        assert_eq!(shown, ["0 FPDUs", "1 FPDU", "2 FPDUs", "1 000 FPDUs"]);
    }

    proptest! {
        #[test]
        fn three_digits_are_within_half_a_percent(number in 1000_u64..u64::MAX) {
            let shown = bytes(number);
            let (digits, unit) = shown.split_once(' ').unwrap();
            let power = ["B", "kB", "MB", "GB", "TB", "PB", "EB"].iter().position(|one| *one == unit);
            let value = digits.parse::<f64>().unwrap() * 1000_f64.powi(i32::try_from(power.unwrap()).unwrap());
            prop_assert!((value / number as f64 - 1.0).abs() <= 0.0051, "{number}: {shown}");
            let digits = digits.chars().filter(char::is_ascii_digit).count();
            prop_assert_eq!(digits, 3, "{}", shown);
        }
    }
}
