//! One descriptor that is readable when one of several has something new.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::{Error, Result};

/// What has something new.
pub(super) type Token = u64;

const TIMER: Token = u64::MAX;
/// How often the owner looks at its deadlines, which are all much longer.
const TICK: Duration = Duration::from_millis(50);

/// Descriptors, watched for changes: who has heard of one goes on until nothing is left.
#[derive(Debug)]
pub(super) struct Watch {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Watch {
    pub(super) fn new() -> Result<Self> {
        let failed = |errno| Error::new("watch", "a connection", errno);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        let tick = Timespec::try_from(TICK).map_err(|_| failed(Errno::INVAL))?;
        let ticks = Itimerspec { it_interval: tick, it_value: tick };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &ticks).map_err(failed)?;
        let watch = Self { epoll, timer };
        watch.add(&watch.timer, TIMER)?;
        Ok(watch)
    }

    /// Watches `fd` until it is closed.
    pub(super) fn add(&self, fd: impl AsFd, token: Token) -> Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, fd, EventData::new_u64(token), flags)
            .map_err(|errno| Error::new("watch", "a connection", errno))
    }

    /// What has something new since the last call.
    pub(super) fn take(&self) -> Result<Vec<Token>> {
        let mut events = Vec::with_capacity(16);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&Timespec::default())) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::new("wait for", "a connection", errno)),
        }
        let tokens = events.iter().map(|event: &epoll::Event| event.data.u64());
        Ok(tokens.filter(|token| *token != TIMER || !self.drain_timer()).collect())
    }

    /// Always true; nothing is told of a tick.
    fn drain_timer(&self) -> bool {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        true
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
