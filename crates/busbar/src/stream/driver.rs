//! What a [`Source`](super::Source) needs of each interface.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{EventfdFlags, PollFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::Lost;
use crate::block::Block;
use crate::poll::{self, Deadline};
use crate::{Error, Result};

/// How long to wait at most until another look at a device that may have gone without a word.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// Fills blocks, in the order in which it gets them.
pub(super) trait Receiver: fmt::Debug + Send {
    /// Takes a block to fill.
    fn queue(&mut self, block: Block) -> Result<()>;

    /// Gives the oldest block back if it is done. Fails when no block will ever be done.
    fn take(&mut self) -> Result<Taken>;

    /// What to wait for until [`take`](Self::take) may have a block.
    fn pending(&self) -> Pending;

    /// From now on, `poller` is kept readable while there is something to take.
    fn watch(&mut self, poller: &Arc<OwnedFd>) -> Result<()>;

    /// Bytes copied so far.
    fn copied(&self) -> u64 {
        0
    }

    /// Ends it. Blocks that it has are dropped.
    fn stop(&mut self) -> Result<()>;
}

/// What has become of the oldest block.
#[derive(Debug)]
pub(super) enum Taken {
    /// It is not done.
    Nothing,
    Filled(Filled),
    /// The driver has failed with this block.
    Failed(Block, Error),
}

/// A block as the driver gives it back.
#[derive(Debug)]
pub(super) struct Filled {
    pub block: Block,
    pub time: SystemTime,
    /// Samples in it, as far as the driver tells; the rest may be found out from the samples.
    pub samples: usize,
    /// What the driver tells; `None` where the samples have to be asked.
    pub lost: Option<Lost>,
}

/// What to wait for.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    /// One of these events. The file may fail to tell that its device has gone: look after a while.
    File(Arc<OwnedFd>, PollFlags),
    /// This moment.
    Until(Instant),
    /// That a block is given back.
    Block,
}

/// What threads share of a stream, and wait for together.
#[derive(Debug)]
pub(super) struct Monitor<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T> Monitor<T> {
    pub(super) fn new(state: T) -> Self {
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes who waits.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits until something may have changed.
    pub(super) fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, T>,
        pending: Pending,
        deadline: Deadline,
        label: &str,
    ) -> Result<MutexGuard<'a, T>> {
        let remaining = deadline.remaining();
        let until = match pending {
            Pending::File(file, events) => {
                drop(state);
                let timeout = remaining.map_or(LOOK, |remaining| remaining.min(LOOK));
                poll::wait(&*file, events, Some(timeout))
                    .map_err(|errno| Error::new("wait for", label, errno))?;
                return Ok(self.lock());
            }
            Pending::Until(at) => Some(at.saturating_duration_since(Instant::now())),
            Pending::Block => None,
        };
        let timeout = until.into_iter().chain(remaining).min();
        Ok(match timeout {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = self.changed.wait_timeout(state, timeout);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        })
    }
}

/// A timer as a file.
#[derive(Debug)]
pub(super) struct Timer(OwnedFd);

impl Timer {
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Readable from then on; never if there is no such moment.
    pub(super) fn set(&self, at: Option<Instant>) -> Result<(), Errno> {
        let wait = at.map(|at| at.saturating_duration_since(Instant::now()));
        self.set_spec(wait.map(|wait| {
            // 0 is never.
            let wait = wait.max(Duration::from_nanos(1));
            Timespec::try_from(wait).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
        }))
    }

    fn set_spec(&self, value: Option<Timespec>) -> Result<(), Errno> {
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: never, it_value: value.unwrap_or(never) };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec).map(drop)
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes a poller.
pub(super) fn poller() -> Result<Arc<OwnedFd>> {
    let made = epoll::create(epoll::CreateFlags::CLOEXEC);
    made.map(Arc::new).map_err(|errno| Error::new("make", "a poller", errno))
}

/// Makes a poller readable when the file is.
pub(super) fn add(poller: &OwnedFd, file: impl AsFd, flags: epoll::EventFlags) -> Result<()> {
    epoll::add(poller, file, epoll::EventData::new_u64(0), flags)
        .map_err(|errno| Error::new("watch", "a file of a stream", errno))
}

/// Makes a poller readable for good, so that who waits for it hears of the end.
pub(super) fn end(poller: &OwnedFd) -> Option<OwnedFd> {
    let ended = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
    add(poller, &ended, epoll::EventFlags::IN).ok()?;
    Some(ended)
}
