//! One descriptor for all descriptors of a connection.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;

use crate::Result;
use crate::poll::{Keys, Set, Timer, later};

/// Identifies a watched descriptor.
pub(in crate::stream) type Token = u64;

const TIMER: Token = u64::MAX;
/// How often the owner checks its deadlines, which are all much longer.
const TICK: Duration = Duration::from_millis(50);

/// An edge-triggered set of descriptors: after an event, read or write until that would wait.
#[derive(Debug)]
pub(in crate::stream) struct Watch {
    set: Set,
    timer: Timer,
}

impl Watch {
    pub(in crate::stream) fn new() -> Result<Self> {
        let watch = Self { set: Set::new()?, timer: Timer::new()? };
        watch.add(&watch.timer, TIMER)?;
        watch.tick()?;
        Ok(watch)
    }

    /// Watches `fd` until it is closed.
    pub(in crate::stream) fn add(&self, fd: impl AsFd, token: Token) -> Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        self.set.add(fd, token, flags)
    }

    /// The descriptors that had an event since the last call.
    pub(in crate::stream) fn take(&self) -> Result<News> {
        let keys = self.set.ready()?;
        if keys.as_slice().contains(&TIMER) {
            self.tick()?;
        }
        Ok(News(keys))
    }

    fn tick(&self) -> Result<()> {
        self.timer.set(Some(later(Instant::now(), TICK)))
    }
}

/// Descriptors that had an event.
#[derive(Clone, Copy, Debug)]
pub(in crate::stream) struct News(Keys);

impl News {
    pub(in crate::stream) fn has(&self, token: Token) -> bool {
        self.0.as_slice().contains(&token)
    }

    /// Whether it is time to check what has no event.
    pub(in crate::stream) fn has_tick(&self) -> bool {
        self.has(TIMER)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
