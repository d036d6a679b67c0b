//! Values with units: `"33ms"`, `"12KiB"`.
//!
//! Values are read exactly, digit by digit: `"16.7ms"` is 16,700,000 ns, without float rounding. Exponents are not
//! supported. A value finer than the unit allows (half a byte, a tenth of a nanosecond) is an error, and is never
//! rounded.

use coorp_core::Duration;

/// Unit names and their length in nanoseconds.
const TIME_UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000), // the micro sign
    ("μs", 1_000), // the Greek letter
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
];

/// Unit names and their size in bytes.
const SIZE_UNITS: [(&str, u64); 8] = [
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
];

/// Maximum number of digits before and after the decimal point.
const DIGITS_MAX: usize = 18;

/// Parses a non-negative time. The error says what is wrong and can be shown to the user.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let nanos = scaled(text, &TIME_UNITS, "ns, us, ms, s or min", "33ms", "a nanosecond")?;
    Ok(Duration::from_nanos(nanos))
}

/// Parses a size in bytes. The error says what is wrong and can be shown to the user.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    scaled(text, &SIZE_UNITS, "B, kB, KiB, MB, MiB, GB or GiB", "12KiB", "a byte")
}

/// Parses `digits[.digits] unit`.
fn scaled(text: &str, units: &[(&str, u64)], names: &str, sample: &str, least: &str) -> Result<u64, String> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err(format!("`{}` is negative", clip(text)));
    }
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
        return Err(format!(
            "`{}` is not a number with a unit, such as \"{sample}\"",
            clip(text)
        ));
    }
    if unit.is_empty() {
        return Err(format!(
            "`{}` has no unit; use {names}, such as \"{sample}\"",
            clip(text)
        ));
    }
    let Some(&(_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(format!(
            "unknown unit `{}`; use {names}, such as \"{sample}\"",
            clip(unit)
        ));
    };
    let too_large = || format!("`{}` is too large", clip(text));
    let fraction = fraction.trim_end_matches('0');
    if whole.trim_start_matches('0').len() > DIGITS_MAX {
        return Err(too_large());
    }
    let too_fine = || format!("`{}` is finer than {least}", clip(text));
    if fraction.len() > DIGITS_MAX {
        return Err(too_fine());
    }
    let whole = digits(whole).checked_mul(u128::from(factor)).ok_or_else(too_large)?;
    let scale = 10_u128.pow(fraction.len() as u32);
    let part = digits(fraction).checked_mul(u128::from(factor)).ok_or_else(too_large)?;
    if part % scale != 0 {
        return Err(too_fine());
    }
    u64::try_from(whole.saturating_add(part / scale)).map_err(|_| too_large())
}

/// Returns the value of ASCII digits; the caller limits their number.
fn digits(text: &str) -> u128 {
    text.bytes()
        .fold(0, |value, digit| value * 10 + u128::from(digit - b'0'))
}

/// Returns a text as quoted in an error, short enough for a line.
pub(crate) fn clip(text: &str) -> String {
    const SHOWN_MAX: usize = 40;
    let mut shown: String = text
        .chars()
        .take(SHOWN_MAX)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        assert_eq!(duration("16.7ms"), Ok(Duration::from_micros(16_700)));
        assert_eq!(duration("0.1 s"), Ok(Duration::from_millis(100)));
        assert_eq!(duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("150us"), duration("150µs"));
        assert_eq!(duration("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(
            duration("00000000000000000000001.50ms"),
            Ok(Duration::from_micros(1_500))
        );
    }

    #[test]
    fn sizes_are_exact() {
        assert_eq!(size("12KiB"), Ok(12_288));
        assert_eq!(size("1.5kB"), Ok(1_500));
        assert_eq!(size("40MB"), Ok(40_000_000));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let error = |text: &str| duration(text).unwrap_err();
        assert!(error("33").contains("no unit"));
        assert!(error("33 parsecs").contains("unknown unit `parsecs`; use ns, us, ms"));
        assert!(error("-1ms").contains("negative"));
        assert!(error("0.1ns").contains("finer than a nanosecond"));
        assert!(error("99999999999s").contains("too large"));
        assert!(error("999999999999999999999999s").contains("too large"));
        for text in ["", "ms", ".5ms", "1.ms", "1.2.3ms", "1e3ms", "NaN", "infs"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(size("0.3B").unwrap_err().contains("finer than a byte"));
        assert!(size("1Kb").unwrap_err().contains("unknown unit `Kb`"));
    }
}
