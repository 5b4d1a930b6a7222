//! How long to wait, and by which clock.

use std::ops::Add;
use std::time::{Duration, SystemTime};

use rustix::event::Timespec;
use rustix::time::{ClockId, TimerfdClockId, clock_gettime};

/// A clock to wait by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Clock {
    /// It cannot be set, and stands still in suspend (`CLOCK_MONOTONIC`).
    Monotonic,
    /// The time of day since 1970, which can be set (`CLOCK_REALTIME`).
    Realtime,
    /// As [`Monotonic`](Self::Monotonic), but it advances in suspend (`CLOCK_BOOTTIME`).
    Boottime,
}

impl Clock {
    /// The current time.
    #[must_use]
    pub fn now(self) -> Instant {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(self.id());
        // A time of day before 1970 becomes 1970.
        let since_zero = match (u64::try_from(tv_sec), u32::try_from(tv_nsec)) {
            (Ok(seconds), Ok(nanoseconds)) => Duration::new(seconds, nanoseconds),
            _ => Duration::ZERO,
        };
        Instant { clock: self, since_zero }
    }

    pub(super) fn id(self) -> ClockId {
        match self {
            Self::Monotonic => ClockId::Monotonic,
            Self::Realtime => ClockId::Realtime,
            Self::Boottime => ClockId::Boottime,
        }
    }

    pub(super) fn timer_id(self) -> TimerfdClockId {
        match self {
            Self::Monotonic => TimerfdClockId::Monotonic,
            Self::Realtime => TimerfdClockId::Realtime,
            Self::Boottime => TimerfdClockId::Boottime,
        }
    }
}

/// A point in time of a clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instant {
    clock: Clock,
    since_zero: Duration,
}

impl Instant {
    /// The point in time at which `clock` shows `since_zero`.
    #[must_use]
    pub const fn new(clock: Clock, since_zero: Duration) -> Self {
        Self { clock, since_zero }
    }

    /// The clock.
    #[must_use]
    pub const fn clock(self) -> Clock {
        self.clock
    }

    /// What the clock shows then.
    #[must_use]
    pub const fn since_zero(self) -> Duration {
        self.since_zero
    }

    /// The time until then; zero if it has passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.since_zero.saturating_sub(self.clock.now().since_zero)
    }
}

/// The sum saturates at the end of time.
impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self { since_zero: self.since_zero.saturating_add(duration), ..self }
    }
}

/// The time of day; a time before 1970 becomes 1970.
impl From<SystemTime> for Instant {
    fn from(time: SystemTime) -> Self {
        let since_zero = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::new(Clock::Realtime, since_zero)
    }
}

/// The same point of the monotonic clock, or later by the time that it takes to read it.
impl From<std::time::Instant> for Instant {
    fn from(instant: std::time::Instant) -> Self {
        let remaining = instant.saturating_duration_since(std::time::Instant::now());
        Clock::Monotonic.now() + remaining
    }
}

/// When a wait ends if nothing happens.
///
/// Made from a [`Duration`], which is [`After`](Self::After), from an [`Instant`], or from an
/// `Option` of one of them, of which `None` is [`Never`](Self::Never).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Timeout {
    /// The wait does not end.
    Never,
    /// After this time; at once if it is zero. Setting a clock has no effect on it.
    After(Duration),
    /// After this time, which includes time in suspend.
    AfterWithSuspend(Duration),
    /// When the clock of the instant reaches it, also by being set; at once if it has passed.
    At(Instant),
}

impl From<Duration> for Timeout {
    fn from(duration: Duration) -> Self {
        Self::After(duration)
    }
}

impl From<Instant> for Timeout {
    fn from(instant: Instant) -> Self {
        Self::At(instant)
    }
}

impl<T: Into<Self>> From<Option<T>> for Timeout {
    fn from(timeout: Option<T>) -> Self {
        timeout.map_or(Self::Never, Into::into)
    }
}

/// Milliseconds, rounded up, or the maximum.
pub(super) fn millis(duration: Duration) -> i32 {
    let part = u128::from(!duration.subsec_nanos().is_multiple_of(1_000_000));
    i32::try_from(duration.as_millis() + part).unwrap_or(i32::MAX)
}

/// Milliseconds, if that is exact.
pub(super) fn whole_millis(duration: Duration) -> Option<i32> {
    let whole = duration.subsec_nanos().is_multiple_of(1_000_000);
    i32::try_from(duration.as_millis()).ok().filter(|_| whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_rounded_up() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(1)), 1);
        assert_eq!(millis(Duration::from_nanos(1_000_001)), 2);
        assert_eq!(millis(Duration::from_nanos(2_999_999_999)), 3000);
        assert_eq!(millis(Duration::MAX), i32::MAX);
    }

    #[test]
    fn only_whole_milliseconds_are() {
        assert_eq!(whole_millis(Duration::from_millis(1500)), Some(1500));
        assert_eq!(whole_millis(Duration::from_nanos(1_000_001)), None);
        assert_eq!(whole_millis(Duration::from_millis(1 << 31)), None);
        assert_eq!(whole_millis(Duration::ZERO), Some(0));
    }

    #[test]
    fn times_beyond_what_the_clock_counts_are_the_last() {
        let late = Clock::Monotonic.now() + Duration::MAX;
        assert_eq!(late.since_zero(), Duration::MAX);
    }

    #[test]
    fn instants_of_the_standard_library_are_not_early() {
        let target = std::time::Instant::now() + Duration::from_secs(1000);
        let instant = Instant::from(target);
        let (ours, theirs) =
            (instant.remaining(), target.saturating_duration_since(std::time::Instant::now()));
        assert!(ours >= theirs && ours <= theirs + Duration::from_secs(100), "{ours:?} {theirs:?}");
        let early = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Instant::from(early), Instant::new(Clock::Realtime, Duration::ZERO));
    }

    #[test]
    fn each_clock_goes_on() {
        for clock in [Clock::Monotonic, Clock::Realtime, Clock::Boottime] {
            let now = clock.now();
            assert_eq!(now.clock(), clock);
            assert!(now.since_zero() > Duration::ZERO);
            assert!((now + Duration::from_secs(3600)).remaining() > Duration::from_secs(1));
            assert_eq!(Instant::new(clock, Duration::ZERO).remaining(), Duration::ZERO);
        }
    }
}
