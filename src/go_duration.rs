//! Durations as Go writes them, `1m30s`: a Leader Election API tells its leases so.
//!
//! The grammar is that of Go's `time.ParseDuration`, with the bounds of its 64 bits: what a Go server can
//! send is read, and nothing else.

use std::fmt;
use std::time::Duration;

/// What a duration must look like, for errors.
pub const EXAMPLE: &str = "a duration like \"5s\", \"1m30s\" or \"500ms\"";

/// In nanoseconds; may be negative. `None`: it is none, or too long for Go.
pub fn parse(text: &str) -> Option<i64> {
    let (negative, text) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if text == "0" {
        return Some(0);
    }
    if text.is_empty() {
        return None;
    }
    let (mut rest, mut sum) = (text, 0_i128);
    while !rest.is_empty() {
        let (whole, behind) = digits(rest);
        let (fraction, behind) = match behind.strip_prefix('.') {
            Some(behind) => digits(behind),
            None => ("", behind),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = behind.find(|c: char| c == '.' || c.is_ascii_digit());
        let (unit, behind) = behind.split_at(end.unwrap_or(behind.len()));
        let unit = nanos_of(unit)?;
        let whole: i128 = if whole.is_empty() {
            0
        } else {
            // No number of so many digits fits, whatever its unit.
            whole.parse::<u64>().ok()?.into()
        };
        // Go ignores digits beyond what 64 bits hold, and so do we.
        let kept = &fraction[..fraction.len().min(18)];
        let scale = 10_i128.pow(u32::try_from(kept.len()).ok()?);
        let part: i128 = if kept.is_empty() {
            0
        } else {
            kept.parse().ok()?
        };
        sum += whole * unit + part * unit / scale;
        if sum > i128::from(i64::MAX) + i128::from(negative) {
            return None;
        }
        rest = behind;
    }
    i64::try_from(if negative { -sum } else { sum }).ok()
}

/// One that is longer than nothing.
pub fn positive(text: &str) -> Option<Duration> {
    let nanos = u64::try_from(parse(text)?).ok()?;
    (nanos > 0).then(|| Duration::from_nanos(nanos))
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

fn nanos_of(unit: &str) -> Option<i128> {
    Some(match unit {
        "ns" => 1,
        // The micro sign, and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// In milliseconds, as Go could have written it: `5s`, `1.5s`, `500ms`.
#[derive(Debug)]
pub struct Shown(pub Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        match (millis / 1_000, millis % 1_000) {
            (0, 0) => f.write_str("0s"),
            (0, millis) => write!(f, "{millis}ms"),
            (seconds, 0) => write!(f, "{seconds}s"),
            (seconds, millis) => {
                let fraction = format!("{millis:03}");
                write!(f, "{seconds}.{}s", fraction.trim_end_matches('0'))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_can_write_is_read() {
        for (text, nanos) in [
            ("0", 0),
            ("-0", 0),
            ("5s", 5_000_000_000),
            ("+5s", 5_000_000_000),
            ("-5s", -5_000_000_000),
            ("1m30s", 90_000_000_000),
            ("500ms", 500_000_000),
            ("1.5h", 5_400_000_000_000),
            ("1h0m0.5s", 3_600_500_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("3us", 3_000),
            ("3\u{b5}s", 3_000),
            ("3\u{3bc}s", 3_000),
            ("7ns", 7),
            ("0.9999999999999999999999s", 999_999_999),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("2562047h47m16.854775807s", i64::MAX),
        ] {
            assert_eq!(parse(text), Some(nanos), "{text}");
        }
    }

    #[test]
    fn nothing_else_is_a_duration() {
        for text in [
            "",
            "+",
            "-",
            "5",
            "s",
            ".s",
            "5 s",
            " 5s",
            "5s ",
            "5S",
            "5d",
            "1e3s",
            "--5s",
            "5s-1s",
            "0x5s",
            "\u{ff15}s",
            "NaN",
            "infinity",
            "9223372036854775808ns",
            "2562048h",
            "99999999999999999999999999h",
            "2629800h2629800h",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
            assert_eq!(positive(text), None, "{text:?}");
        }
        assert_eq!(positive("0"), None);
        assert_eq!(positive("-5s"), None);
        assert_eq!(positive("1ns"), Some(Duration::from_nanos(1)));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (millis, text) in [
            (0, "0s"),
            (500, "500ms"),
            (5_000, "5s"),
            (1_050, "1.05s"),
            (90_000, "90s"),
        ] {
            let duration = Duration::from_millis(millis);
            assert_eq!(Shown(duration).to_string(), text);
            let nanos = parse(text).unwrap();
            assert_eq!(
                i128::from(nanos),
                i128::try_from(duration.as_nanos()).unwrap()
            );
        }
    }
}
