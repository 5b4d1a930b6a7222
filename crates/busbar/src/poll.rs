//! Waiting with a deadline, and descriptors to wait for.

mod bell;
mod oldest;
mod pause;
mod quit;
mod set;
mod task;
#[cfg(test)]
mod tests;
mod thread;
mod timer;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

pub(crate) use self::bell::Bell;
pub(crate) use self::oldest::Oldest;
pub(crate) use self::pause::Pause;
pub use self::quit::quit_when;
pub(crate) use self::set::{Keys, Set};
pub(crate) use self::task::Task;
pub(crate) use self::thread::spawn;
pub(crate) use self::timer::{Timer, timespec};

use self::quit::{SLICE, quits};

/// A point in time, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Self = Self(None);

    pub(crate) fn now() -> Self {
        Self(Some(Instant::now()))
    }

    /// A timeout that the clock cannot represent means no timeout.
    pub(crate) fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    pub(crate) fn remaining(self) -> Option<Duration> {
        if quits() == Some(true) {
            return Some(Duration::ZERO);
        }
        Some(self.0?.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn has_passed(self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }
}

/// A century.
const FAR: Duration = Duration::from_secs(36_525 * 24 * 3600);

/// The time `wait` after `at`. Where the clock cannot represent that, it is a century after `at`, or `at` itself if that
/// cannot be represented either; `at + wait` panics there.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// let now = Instant::now();
/// assert_eq!(busbar::later(now, Duration::from_secs(1)), now + Duration::from_secs(1));
/// assert!(busbar::later(now, Duration::MAX) > now + Duration::from_secs(1_000_000_000));
/// ```
#[must_use]
pub fn later(at: Instant, wait: Duration) -> Instant {
    at.checked_add(wait).or_else(|| at.checked_add(FAR)).unwrap_or(at)
}

/// Repeats `attempt`, without a deadline, until it returns something.
pub(crate) fn forever<T>(
    mut attempt: impl FnMut(Deadline) -> crate::Result<Option<T>>,
) -> crate::Result<T> {
    loop {
        if let Some(found) = attempt(Deadline::NEVER)? {
            return Ok(found);
        }
    }
}

/// Waits until one of `events` or an error is reported for the file, or until `timeout`.
///
/// Returns the events. There are none after the timeout or a signal, and every 100 ms in a thread that can be
/// told to quit.
pub(crate) fn wait(
    fd: impl AsFd,
    events: PollFlags,
    timeout: Option<Duration>,
) -> Result<PollFlags, Errno> {
    let mut fds = [PollFd::new(&fd, events)];
    let slice = quits().map(|_| SLICE);
    let timeout = timeout.into_iter().chain(slice).min();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => Ok(fds[0].revents()),
        Err(Errno::INTR) => Ok(PollFlags::empty()),
        Err(errno) => Err(errno),
    }
}
