//! Times in `SigMF` metadata.

use std::time::{Duration, SystemTime};

const DAY: u64 = 86_400;

/// ISO 8601, UTC, to the nanosecond. A time before 1970 becomes 1970.
pub(super) fn format(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = date(since.as_secs() / DAY);
    let second = since.as_secs() % DAY;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let nanosecond = since.subsec_nanos();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanosecond:09}Z")
}

/// Parses what [`format`] writes, also with fewer or no decimals.
pub(super) fn parse(text: &str) -> Option<SystemTime> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(str::parse::<u64>);
    let mut next = || date.next()?.ok();
    let (year, month, day) = (next()?, next()?, next()?);
    let (whole, decimals) = time.split_once('.').unwrap_or((time, "0"));
    let mut whole = whole.splitn(3, ':').map(str::parse::<u64>);
    let mut next = || whole.next()?.ok();
    let (hour, minute, second) = (next()?, next()?, next()?);
    let in_range = (1970..=9999).contains(&year) && (1..=12).contains(&month);
    if !in_range || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let digits = decimals.get(..decimals.len().min(9))?;
    let scale = 10u32.checked_pow(9 - u32::try_from(digits.len()).ok()?)?;
    let nanoseconds = digits.parse::<u32>().ok()?.checked_mul(scale)?;
    let seconds = days(year, month, day) * DAY + hour * 3600 + minute * 60 + second;
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
}

/// Days since 1970-01-01, for years from 1970 on (H. Hinnant, `chrono`-compatible date algorithms).
fn days(year: u64, month: u64, day: u64) -> u64 {
    // Years begin in March, so that the leap day is the last one.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        // As printed by `date -u --iso-8601=ns`.
        let cases = [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000000Z"),
            (1_795_330_199, "2026-11-22T06:49:59.000000000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000000Z"),
        ];
        for (seconds, text) in cases {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!((format(time).as_str(), parse(text)), (text, Some(time)));
        }
        let half = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
        assert_eq!(parse("1970-01-01T00:00:01.5Z"), Some(half));
        assert_eq!(parse("1970-01-01T00:00:01.5000000009Z"), Some(half));
        for bad in [
            "",
            "1970-01-01",
            "1970-13-01T00:00:00Z",
            "1969-01-01T00:00:00Z",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00.é23456789Z",
            "1970-01-01T00:00:00.-1Z",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_time_comes_back(seconds in 0u64..250_000_000_000, nanoseconds in 0u32..1_000_000_000) {
            let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
            prop_assert_eq!(parse(&format(time)), Some(time));
        }

        #[test]
        fn any_text_is_a_time_or_not(text in "\\PC{0,40}", numbers in "[0-9]{1,6}-[0-9]{1,20}-[0-9]{2}T[0-9:.é]{1,30}Z") {
            let _ = (parse(&text), parse(&numbers));
        }
    }
}
