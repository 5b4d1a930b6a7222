//! A descriptor that becomes readable after a time.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::{Error, Result};

/// A timerfd, readable once it has expired. A new one is not set.
#[derive(Debug)]
pub(crate) struct Timer(OwnedFd);

impl Timer {
    /// A timer of the monotonic clock.
    pub(crate) fn new() -> Result<Self> {
        Self::with_clock(TimerfdClockId::Monotonic)
            .map_err(|errno| Error::new("make", "a timer", errno))
    }

    pub(crate) fn with_clock(clock: TimerfdClockId) -> Result<Self, Errno> {
        timerfd_create(clock, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK).map(Self)
    }

    /// Makes it readable from `at` on, or never if that is `None`.
    pub(crate) fn set(&self, at: Option<Instant>) -> Result<()> {
        let wait = at.map(|at| at.saturating_duration_since(Instant::now()));
        // Zero would disarm the timer.
        let value = wait.map(|wait| timespec(wait.max(Duration::from_nanos(1))));
        self.set_time(TimerfdTimerFlags::empty(), value.unwrap_or_default())
            .map_err(|errno| Error::new("set", "a timer", errno))
    }

    /// As `timerfd_settime` without an interval. The timer is not readable until it expires again.
    pub(crate) fn set_time(
        &self,
        flags: TimerfdTimerFlags,
        it_value: Timespec,
    ) -> Result<(), Errno> {
        let it_interval = Timespec::default();
        timerfd_settime(&self.0, flags, &Itimerspec { it_interval, it_value }).map(drop)
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A duration as the kernel has it. A longer one becomes the longest that it can count.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
