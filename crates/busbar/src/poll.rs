//! Waiting with a deadline.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// A point in time, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Self = Self(None);

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

/// The waits between the attempts of a sender that finds no free buffer.
///
/// The in-tree driver never reports `POLLOUT`, and a bus may report it too early. So a sender
/// believes it once, and otherwise tries again after pauses that grow from [`SHORTEST`] to
/// [`LONGEST`].
#[derive(Debug)]
pub(crate) struct Pause {
    next: Duration,
    was_told: bool,
}

const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(5);

impl Default for Pause {
    fn default() -> Self {
        Self { next: SHORTEST, was_told: false }
    }
}

impl Pause {
    /// How long to wait this time, and for what besides failure.
    pub(crate) fn step(&mut self) -> (Duration, PollFlags) {
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        let events = if self.was_told { PollFlags::empty() } else { PollFlags::OUT };
        (pause, events)
    }

    /// Takes note of what the wait of the last [`step`](Self::step) has reported.
    pub(crate) fn note(&mut self, reported: PollFlags) {
        self.was_told = reported.contains(PollFlags::OUT);
    }

    /// Waits before the next attempt, at most until `deadline`.
    pub(crate) fn until_writable(
        &mut self,
        fd: impl AsFd,
        deadline: Deadline,
    ) -> Result<(), Errno> {
        let (pause, events) = self.step();
        let timeout = deadline.remaining().map_or(pause, |remaining| remaining.min(pause));
        self.note(wait(fd, events, Some(timeout))?);
        Ok(())
    }
}
