//! One descriptor for all descriptors of a connection.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;

use crate::Result;
use crate::poll::{Set, Timer};

/// Identifies a watched descriptor.
pub(super) type Token = u64;

const TIMER: Token = u64::MAX;
/// How often the owner checks its deadlines, which are all much longer.
const TICK: Duration = Duration::from_millis(50);

/// An edge-triggered set of descriptors: after an event, read or write until that would wait.
#[derive(Debug)]
pub(super) struct Watch {
    set: Set,
    timer: Timer,
}

impl Watch {
    pub(super) fn new() -> Result<Self> {
        let watch = Self { set: Set::new()?, timer: Timer::new()? };
        watch.add(&watch.timer, TIMER)?;
        watch.tick()?;
        Ok(watch)
    }

    /// Watches `fd` until it is closed.
    pub(super) fn add(&self, fd: impl AsFd, token: Token) -> Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        self.set.add(fd, token, flags)
    }

    /// The descriptors that had an event since the last call.
    pub(super) fn take(&self) -> Result<Vec<Token>> {
        let mut tokens: Vec<_> = self.set.ready()?.collect();
        if let Some(index) = tokens.iter().position(|token| *token == TIMER) {
            tokens.swap_remove(index);
            self.tick()?;
        }
        Ok(tokens)
    }

    fn tick(&self) -> Result<()> {
        self.timer.set(Some(Instant::now() + TICK))
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
