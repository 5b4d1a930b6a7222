//! How long a peer may be silent, as an option of a name.

use std::time::Duration;

use crate::{Error, Result};

/// Units of a time, in microseconds.
const UNITS: [(&str, u64); 4] = [("us", 1), ("ms", 1_000), ("min", 60_000_000), ("s", 1_000_000)];
/// The times that are allowed, for errors.
pub(crate) const TIMES: &str = "a time such as \"500us\", \"20ms\", \"5s\" or \"2min\"";

/// A whole number above 0 with the unit of a time.
pub(crate) fn time(text: &str) -> Option<Duration> {
    let has_unit = !text.ends_with(|last: char| last.is_ascii_digit());
    scaled(text, &UNITS).filter(|time| has_unit && *time > 0).map(Duration::from_micros)
}

/// A whole number with one of these units, or without a unit. A unit that ends like another one comes first.
pub(crate) fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let unit = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let (number, scale) = unit.unwrap_or((text, 1));
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(scale)
}

/// Splits `ADDRESS[?silence=TIME]`. A time without a unit is in seconds.
///
/// # Errors
///
/// Bad input for another option or an invalid time.
pub(crate) fn split(name: &str) -> Result<(&str, Option<Duration>)> {
    let Some((address, options)) = name.split_once('?') else { return Ok((name, None)) };
    let limit = |text: &str| time(text).or_else(|| time(&format!("{text}s")));
    let silence = options.strip_prefix("silence=").and_then(limit);
    let allowed = "silence=TIME with a time such as 10, 10s, 3500ms or 2min";
    let silence = silence.ok_or_else(|| {
        Error::invalid(format!("the option of {address}"), options.escape_debug(), allowed)
    })?;
    Ok((address, Some(silence)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_have_a_limit_of_silence() {
        assert_eq!(split("host:1").unwrap(), ("host:1", None));
        for (text, millis) in [("10s", 10_000), ("10", 10_000), ("500ms", 500), ("2min", 120_000)] {
            let name = format!("host:1?silence={text}");
            assert_eq!(split(&name).unwrap(), ("host:1", Some(Duration::from_millis(millis))));
        }
        for options in
            ["", "silence", "silence=", "silence=0", "silence=10h", "silence=-1s", "x=1s"]
        {
            let error = split(&format!("host:1?{options}")).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{options}");
        }
    }
}
