//! Numbers for people: durations on the command line, figures in tables.

use coorp_core::Duration;

/// A longer run is probably a typing error; its series would also exceed the memory.
pub const DURATION_MAX: Duration = Duration::from_secs(24 * 3600);

/// Parses `600s`, `1.5h`, `10min`, `500ms`, `2500us`, and every time that Coorp prints in a message.
///
/// # Errors
/// The text has no unit or no number, or the duration is not positive or is longer than a day; the message says how to
/// fix it.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_s = match trimmed.get(digits.len()..) {
        Some("ns") => 1e-9,
        Some("us") => 1e-6,
        Some("ms") => 1e-3,
        Some("s") => 1.0,
        Some("m" | "min") => 60.0,
        Some("h") => 3600.0,
        Some("") => return Err(format!("a duration needs its unit, as in {trimmed}s")),
        _ => return Err("a duration is a number with ns, us, ms, s, min or h, as in 600s".to_owned()),
    };
    let number: f64 = digits
        .trim()
        .parse()
        .map_err(|_| format!("'{digits}' is not a number; write one as in 600s"))?;
    checked_duration(number * unit_s)
}

/// Returns the virtual duration of a run.
///
/// # Errors
/// The duration is not positive, not a number, or longer than a day; the message says how to fix it.
pub fn checked_duration(seconds: f64) -> Result<Duration, String> {
    if seconds.is_nan() || seconds < 1e-3 {
        return Err("a duration is at least 1ms".to_owned());
    }
    if seconds > DURATION_MAX.as_secs_f64() {
        return Err("a duration is at most 24h".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Returns a share between 0 and 1 as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Formats a value with a useful number of digits: 0.42, 4.2, 198.3, 1,234.
pub fn figure(value: f64) -> String {
    match value.abs() {
        small if small < 1.0 => format!("{value:.2}"),
        medium if medium < 1000.0 => format!("{value:.1}"),
        _ => grouped(value.round() as i64),
    }
}

/// Returns a count with thousands separators.
pub fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3 + 1);
    if value < 0 {
        out.push('-');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_their_units() {
        assert_eq!(parse_duration("600s"), Ok(Duration::from_secs(600)));
        assert_eq!(parse_duration(" 1.5h "), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("10 min"), Ok(Duration::from_secs(600)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2500us"), Ok(Duration::from_micros(2500)));
        assert_eq!(parse_duration("1000001 ns"), Ok(Duration::from_nanos(1_000_001)));
    }

    #[test]
    fn bad_durations_say_what_would_do() {
        assert!(parse_duration("600").unwrap_err().contains("600s"));
        for bad in [
            "",
            "s",
            "-5s",
            "0s",
            "999us",
            "5n",
            "nans",
            "infs",
            "1e99h",
            "5 parsecs",
            "25h",
            "6 0s",
            "\u{fc}s",
        ] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn figures_keep_the_digits_that_help() {
        assert_eq!(figure(0.4239), "0.42");
        assert_eq!(figure(198.33), "198.3");
        assert_eq!(figure(1234.4), "1,234");
        assert_eq!(grouped(-1_234_567), "-1,234,567");
        assert_eq!(grouped(0), "0");
    }
}
