//! Pauses of a sender.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::{Deadline, wait};

/// The waits between the attempts of a sender that finds no free buffer.
///
/// The in-tree driver never reports `POLLOUT`, and a bus may report it too early. So a sender
/// waits for it once; otherwise it tries again after pauses that grow from [`SHORTEST`] to
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
    /// How long to wait this time, and for which events besides errors.
    pub(crate) fn step(&mut self) -> (Duration, PollFlags) {
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        let events = if self.was_told { PollFlags::empty() } else { PollFlags::OUT };
        (pause, events)
    }

    /// Notes what the wait after the last [`step`](Self::step) has reported.
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
