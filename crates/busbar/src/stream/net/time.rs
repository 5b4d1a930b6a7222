//! Times in frames.

use std::time::{Duration, SystemTime};

/// Nanoseconds since 1970; the nearest value if the field cannot hold them.
pub(super) fn to_nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => {
            i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |before| -before)
        }
    }
}

pub(super) fn from_nanoseconds(time: i64) -> SystemTime {
    let distance = Duration::from_nanos(time.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let time = if time < 0 { epoch.checked_sub(distance) } else { epoch.checked_add(distance) };
    time.unwrap_or(epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_before_and_after_1970() {
        for time in [0, 1, -1, 1_795_000_000_123_456_789, i64::MAX, -i64::MAX] {
            assert_eq!(to_nanoseconds(from_nanoseconds(time)), time);
        }
    }
}
