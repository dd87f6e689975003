//! Sizes in bytes as people write them: `0`, `1500`, `64K`, `1.5M`, `2GiB`.
//!
//! K, M, G and T are powers of 1024, with or without `i`, `iB`; case does not matter.

pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let scale = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "t" | "ti" | "tib" => 1 << 40,
        _ => return Err(format!("unknown unit '{unit}': use K, M, G or T (powers of 1024)")),
    };
    scaled(number, scale)
}

/// Writes at most two decimals, in the form that [`parse`] reads.
pub(crate) fn format(bytes: u64) -> String {
    let unit = [(1_u64 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")]
        .into_iter()
        .find(|(scale, _)| bytes >= *scale);
    let Some((scale, name)) = unit else { return bytes.to_string() };
    let hundredths = u128::from(bytes) * 100 / u128::from(scale);
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    let decimals = match rest {
        0 => String::new(),
        tenths if tenths % 10 == 0 => format!(".{}", tenths / 10),
        rest => format!(".{rest:02}"),
    };
    format!("{whole}{decimals}{name}")
}

pub(crate) fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

/// Rounds down. Fails if the product is 2⁶⁴ or more.
pub(crate) fn scaled(number: &str, scale: u64) -> Result<u64, String> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let is_number = !(whole.is_empty() && decimals.is_empty())
        && whole.bytes().chain(decimals.bytes()).all(|c| c.is_ascii_digit())
        && decimals.len() <= DECIMALS_MAX;
    if !is_number {
        return Err("not a number".into());
    }
    let too_large = || "too large".to_owned();
    let digits = format!("0{whole}{decimals}").parse::<u128>().map_err(|_| too_large())?;
    let product = digits.checked_mul(u128::from(scale)).ok_or_else(too_large)?;
    let shift = u32::try_from(decimals.len()).map_err(|_| too_large())?;
    u64::try_from(product / 10_u128.pow(shift)).map_err(|_| too_large())
}

/// Digits after the point; more would be a typing error.
const DECIMALS_MAX: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024_in_any_spelling() {
        for text in ["64K", "64k", "64Ki", "64KiB", "64 KiB", "65536", "65536B"] {
            assert_eq!(parse(text), Ok(65_536), "{text}");
        }
        assert_eq!(parse("1.5M"), Ok(3 << 19));
        assert_eq!(parse(".5K"), Ok(512));
        assert_eq!(parse("2G"), Ok(2 << 30));
        assert_eq!(parse("1T"), Ok(1 << 40));
        assert_eq!(parse("0"), Ok(0));
    }

    #[test]
    fn invalid_sizes_are_refused() {
        assert_eq!(parse("0.999999999G"), Ok(1_073_741_822), "nine digits behind the point");
        for text in
            ["0.9999999999G", "", "K", "-1", "1.2.3", "1e3", "64KB", "1 fathom", ".", "20000000T"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_printed_size_reads_back() {
        for bytes in [0, 1, 1023, 1024, 1536, 3 << 19, 1 << 28, 5 << 30, 1 << 40] {
            assert_eq!(parse(&format(bytes)), Ok(bytes), "{}", format(bytes));
        }
        assert_eq!(format(1 << 28), "256M");
        assert_eq!(format(1100), "1.07K");
    }
}
