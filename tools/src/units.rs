//! Values of options that are not sizes: times, rates, percentages, switches.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::size;

/// Parses `10us`, `1.5ms`, `250ns`, `2s`, `15min`, `36h` or `7d`; a number alone is in seconds, for
/// every option.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = size::split(text);
    let nanos = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return Err(format!("unknown unit '{unit}': use ns, us, ms, s, min, h or d")),
    };
    size::scaled(number, nanos).map(Duration::from_nanos)
}

/// Parses a [`duration`] of at least a millisecond.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time < Duration::from_millis(1) {
        return Err("a millisecond is the least".into());
    }
    Ok(time)
}

/// Parses bits per second, such as `10G`, `1.5Mbit`, `10Gbit/s` or `100Gbps`, not 0; K, M, G and T
/// are powers of 1000.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    let (number, unit) = size::split(text);
    let unit = unit.to_ascii_lowercase();
    let prefix = match unit.strip_suffix("bps") {
        Some(prefix) => prefix,
        None => {
            let bits = unit.strip_suffix("/s").unwrap_or(&unit);
            bits.strip_suffix("bit").unwrap_or(bits)
        }
    };
    let scale = match prefix {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        _ => return Err(format!("unknown unit '{unit}': use K, M, G or T (bits per second)")),
    };
    match size::scaled(number, scale)? {
        0 => Err("nothing ever arrives at rate 0".into()),
        rate => Ok(rate),
    }
}

/// Parses a number from 0 to 100, with or without a sign.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim();
    let number = number.strip_suffix('%').unwrap_or(number).trim_end();
    match number.parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(value),
        Ok(_) => Err("a percentage is from 0 to 100".into()),
        Err(_) => Err("not a number".into()),
    }
}

pub(crate) fn on_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|text| text == "on")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_or_are_in_seconds() {
        assert_eq!(duration("10us"), Ok(Duration::from_micros(10)));
        assert_eq!(duration("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("2 s"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("1.5min"), Ok(Duration::from_secs(90)));
        assert_eq!((duration("1m"), duration("10")), (duration("60s"), duration("10s")));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(604_800)));
        for text in ["us", "", "1M", "1 week", "-1s", "20000000000000d"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_of_work_is_a_millisecond_at_least() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!((seconds("5"), seconds("1ms")), (duration("5s"), duration("1ms")));
        assert!(seconds("0").is_err() && seconds("999us").is_err() && seconds("x").is_err());
    }

    #[test]
    fn rates_are_decimal() {
        assert_eq!(rate("10G"), Ok(10_000_000_000));
        assert_eq!(rate("1.5Mbit"), Ok(1_500_000));
        assert_eq!(rate("100 kbit/s"), Ok(100_000));
        assert_eq!((rate("100Gbps"), rate("9bps")), (Ok(100_000_000_000), Ok(9)));
        for text in ["0", "G", "10KiB", "1b", "1Gb", "1bitbps", "1Gbps/s"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn percentages_stay_inside_their_range() {
        assert_eq!(percent("0.1"), Ok(0.1));
        assert_eq!(percent("100%"), Ok(100.0));
        for text in ["-1", "100.1", "NaN", "inf", "", "x"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }
}
