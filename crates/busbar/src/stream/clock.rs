//! Times of fences, which are those of the monotonic clock, as times of the wall clock.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Converts times of the monotonic clock into times of the wall clock.
///
/// Both clocks are read once, and again only after the wall clock was set, which is noticed within [`CHECK`](Self::CHECK).
/// Each reading has an error of its own,
/// so that times of blocks converted by different readings might go backwards.
#[derive(Debug)]
pub(super) struct WallClock {
    wall: SystemTime,
    monotonic: Duration,
    /// When that was last checked.
    checked: Duration,
}

impl WallClock {
    /// How far the clocks may drift apart before they are read again.
    const TOLERANCE: Duration = Duration::from_millis(1);
    /// How long it is taken for granted that the wall clock was not set, so that short blocks do not read both clocks each.
    const CHECK: Duration = Duration::from_millis(1);

    /// The wall clock, between two readings of the monotonic one.
    fn look() -> (Duration, SystemTime, Duration) {
        (monotonic(), SystemTime::now(), monotonic())
    }

    /// The most precise of five readings.
    pub(super) fn now() -> Self {
        let (first, others) = (Self::look(), (0..4).map(|_| Self::look()));
        let width = |look: &(Duration, SystemTime, Duration)| look.2.saturating_sub(look.0);
        let closest = others.fold(first, |a, b| if width(&b) < width(&a) { b } else { a });
        // Rather too early than too late: a block was complete before it was handed out.
        Self { wall: closest.1, monotonic: closest.2, checked: closest.0 }
    }

    pub(super) fn time_of(&mut self, at: Duration) -> SystemTime {
        if at < self.checked.saturating_add(Self::CHECK) {
            return self.at(at);
        }
        let (before, wall, after) = Self::look();
        let (earliest, latest) = (self.at(before), self.at(after));
        let is_set = earliest.duration_since(wall).is_ok_and(|ahead| ahead > Self::TOLERANCE)
            || wall.duration_since(latest).is_ok_and(|behind| behind > Self::TOLERANCE);
        if is_set {
            *self = Self::now();
        }
        self.checked = before;
        self.at(at)
    }

    fn at(&self, monotonic: Duration) -> SystemTime {
        let time = match monotonic.checked_sub(self.monotonic) {
            Some(later) => self.wall.checked_add(later),
            None => self.wall.checked_sub(self.monotonic.saturating_sub(monotonic)),
        };
        time.unwrap_or(self.wall)
    }
}

pub(super) fn monotonic() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_on_the_wall_keep_their_distance_until_the_clock_is_set() {
        let mut clock = WallClock::now();
        let now = monotonic();
        let times = [now, now + Duration::from_nanos(1), now + Duration::from_secs(1)];
        let walls = times.map(|at| clock.time_of(at));
        assert_eq!(walls[1].duration_since(walls[0]).unwrap(), Duration::from_nanos(1));
        assert_eq!(walls[2].duration_since(walls[0]).unwrap(), Duration::from_secs(1));
        let hour = Duration::from_secs(3600);
        let mut set = WallClock { wall: clock.wall + hour, checked: Duration::ZERO, ..clock };
        let wall = set.time_of(monotonic());
        assert!(SystemTime::now().duration_since(wall).unwrap() < hour / 2);
    }
}
