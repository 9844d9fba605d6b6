//! The server's two kinds of time stamp, and how it refuses others.

use std::time::{SystemTime, UNIX_EPOCH};

const LAYOUT: &str = "2006-01-02T15:04:05.000000Z07:00";
const DAY: i64 = 86400;

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_micros()).unwrap()
}

/// `2026-11-29T16:55:31Z`, as in `creationTimestamp`.
pub fn seconds() -> String {
    seconds_after(0)
}

pub fn seconds_after(seconds: i64) -> String {
    let text = format(now() + seconds * 1_000_000);
    format!("{}Z", &text[..19])
}

/// `2026-11-29T16:55:31.101939Z`, as in `renewTime`.
pub fn micros() -> String {
    format(now())
}

/// Proleptic Gregorian days since 1970, as Howard Hinnant counts them: years begin in March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, month) = (year.div_euclid(400), (month + 9) % 12);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn format(micros: i64) -> String {
    let (seconds, fraction) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let (day, clock) = (seconds.div_euclid(DAY) + 719_468, seconds.rem_euclid(DAY));
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z")
}

/// The same time as the server would print it, or what it says about the text.
pub fn normalise(text: &str) -> Result<String, String> {
    let cannot = |rest: &str, part: &str| {
        format!("parsing time {text:?} as {LAYOUT:?}: cannot parse {rest:?} as {part:?}")
    };
    let range = |what: &str| format!("parsing time {text:?}: {what} out of range");
    let mut rest = text;
    let mut values = [0; 6];
    let parts = ["2006", "01", "02", "15", "04", "05"];
    for (index, part) in parts.into_iter().enumerate() {
        let whole = rest.get(..part.len()).filter(|text| all_digits(text));
        // The hour alone may have one digit.
        let short = rest
            .get(..1)
            .filter(|text| *part == *"15" && all_digits(text));
        let digits = whole.or(short).ok_or_else(|| cannot(rest, part))?;
        values[index] = digits.parse::<i64>().unwrap();
        rest = &rest[digits.len()..];
        if let Some(separator) = ["-", "-", "T", ":", ":", ""].get(index) {
            rest = rest
                .strip_prefix(separator)
                .ok_or_else(|| cannot(rest, separator))?;
        }
    }
    let fraction = rest.get(1..7).filter(|digits| all_digits(digits));
    let fraction = fraction.filter(|_| rest.starts_with(['.', ',']));
    let fraction = fraction.ok_or_else(|| cannot(rest, ".000000"))?;
    let fraction = fraction.parse::<i64>().unwrap();
    rest = &rest[7..];
    let offset = if let Some(end) = rest.strip_prefix('Z') {
        rest = end;
        0
    } else {
        let offset = offset(rest).ok_or_else(|| cannot(rest, "Z07:00"))?;
        rest = &rest[6..];
        offset
    };
    if !rest.is_empty() {
        return Err(format!("parsing time {text:?}: extra text: {rest:?}"));
    }
    let [year, month, day, hour, minute, second] = values;
    if !(1..=12).contains(&month) {
        return Err(range("month"));
    }
    let next = if month == 12 {
        days(year + 1, 1, 1)
    } else {
        days(year, month + 1, 1)
    };
    if day < 1 || day > next - days(year, month, 1) {
        return Err(range("day"));
    }
    for (value, limit, what) in [
        (hour, 24, "hour"),
        (minute, 60, "minute"),
        (second, 60, "second"),
    ] {
        if value >= limit {
            return Err(range(what));
        }
    }
    let clock = hour * 3600 + minute * 60 + second - offset;
    Ok(format(
        (days(year, month, day) * DAY + clock) * 1_000_000 + fraction,
    ))
}

fn offset(text: &str) -> Option<i64> {
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = text.get(1..6)?.split_once(':')?;
    if !all_digits(hours) || !all_digits(minutes) || hours.len() != 2 {
        return None;
    }
    let (hours, minutes) = (hours.parse::<i64>().ok()?, minutes.parse::<i64>().ok()?);
    Some(sign * (hours * 3600 + minutes * 60))
}

fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
