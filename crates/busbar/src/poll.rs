//! Waiting with a deadline.

#[cfg(feature = "endpoint")]
mod pause;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

#[cfg(feature = "endpoint")]
pub(crate) use self::pause::Pause;

/// A point in time, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Self = Self(None);

    pub(crate) fn now() -> Self {
        Self(Some(Instant::now()))
    }

    /// A timeout that the clock cannot hold is no timeout.
    pub(crate) fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    pub(crate) fn remaining(self) -> Option<Duration> {
        Some(self.0?.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn has_passed(self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }
}

/// Waits without a deadline for what an attempt with one brings.
pub(crate) fn forever<T>(
    mut attempt: impl FnMut(Deadline) -> crate::Result<Option<T>>,
) -> crate::Result<T> {
    loop {
        if let Some(found) = attempt(Deadline::NEVER)? {
            return Ok(found);
        }
    }
}

/// Waits until one of `events` has happened, the file has failed, or the time is over.
///
/// Returns what has happened: nothing after the time, or after a signal.
pub(crate) fn wait(
    fd: impl AsFd,
    events: PollFlags,
    timeout: Option<Duration>,
) -> Result<PollFlags, Errno> {
    let mut fds = [PollFd::new(&fd, events)];
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => Ok(fds[0].revents()),
        Err(Errno::INTR) => Ok(PollFlags::empty()),
        Err(errno) => Err(errno),
    }
}
