//! Waiting for many descriptors, with a deadline in nanoseconds.
//!
//! A [`Poller`] holds descriptors, each with a `u64` key and an [`Interest`]. [`Poller::wait`] fills
//! [`Events`] with what has happened on them; [`Poller::wait_timeout`] ends at a [`Timeout`]: a length
//! of time, or an [`Instant`] of a [`Clock`]. A [`Waker`] ends a wait from another thread.
//!
//! ```
//! use std::io::{Read, Write, pipe};
//! use std::time::Duration;
//!
//! use busbar::wait::{Clock, Events, Interest, Poller};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mut reader, mut writer) = pipe()?;
//! let poller = Poller::new()?;
//! poller.add(&reader, 7, Interest::READABLE)?;
//!
//! let mut events = Events::new(64)?;
//! let deadline = Clock::Monotonic.now() + Duration::from_micros(250);
//! assert_eq!(poller.wait_timeout(&mut events, deadline)?, 0);
//!
//! writer.write_all(b"hello")?;
//! poller.wait(&mut events)?;
//! for event in events.iter() {
//!     assert!(event.key() == 7 && event.is_readable());
//!     assert_eq!(reader.read(&mut [0; 8])?, 5);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Many changes, one call
//!
//! [`Changes`] are made in one call where the kernel can do that. [`Poller::apply`] stops at the first change
//! that fails, [`Poller::apply_all`] makes all of them. A signal does not interrupt them.
//!
//! The methods `queue_…` postpone changes until the next wait of any thread, or
//! [`Poller::flush`], which makes all of them in one call. One that fails does not stop the others; the
//! wait then returns an error at once, and [`Events::failures`] has all failures with their keys. Before a
//! change that is made at once, the queued ones are made.
//!
//! A queued change shares the descriptor, in an [`Arc`]: it stays open until the change is made, even if
//! all other owners drop it. So the number that the kernel gets always belongs to this file. After
//! [`Poller::queue_remove`], a descriptor without other owners is closed as soon as it is removed. A
//! descriptor whose other owners drop it while its addition is queued is closed right after the addition,
//! which removes it from the poller. An addition never becomes a change.
//!
//! # Precision
//!
//! A wait never ends early. How late it ends depends on the *timer slack* of the thread, by which
//! the kernel may delay it: 50 us by default, 0 for threads with a real-time policy. A thread that
//! needs less sets it once, with `prctl(PR_SET_TIMERSLACK, 1)`
//! (`rustix::thread::set_current_timer_slack`).
//!
//! [`Backend::Batch`] uses the slack unchanged, so with 1 it is as precise as a timer descriptor.
//! [`Backend::Pwait2`] waits longer by 0.1 % of the timeout, at most 100 ms, if that is more than
//! the slack. [`Backend::Timerfd`] has no slack, but needs more calls. [`Backend::Millis`] ends up to a
//! millisecond later than `Pwait2`.
//!
//! # Back ends
//!
//! [`Poller::new`] chooses the best [`Backend`] that the kernel has. If a call turns out to be
//! missing, or denied by a filter of system calls, the poller changes to the next one.

mod backend;
mod changes;
mod event;
mod interest;
mod queue;
mod time;
mod waker;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use busbar_uapi::epoll::{self, EpollCtlCmd, Syscalls};
use rustix::event::epoll::{CreateFlags, create};
use rustix::io::Errno;

pub use self::backend::Backend;
pub use self::changes::{Applied, Changes, Failure, Operation};
pub use self::event::{Event, Events};
pub use self::interest::Interest;
pub use self::time::{Clock, Instant, Timeout};
pub use self::waker::Waker;
pub use busbar_uapi::epoll::SignalSet;

use self::backend::{Calls, Wait};
use self::changes::{number, removal, set};
use self::queue::{Queue, Shared};
use crate::{Error, Result};

/// Descriptors to wait for.
///
/// All methods take `&self` and may be used from many threads. Each event goes to one wait, unless
/// it is level-triggered and still present. Closing the last duplicate of a descriptor removes it from the
/// poller.
///
/// It is itself a descriptor, readable while there are events, so pollers may nest up to five deep.
/// Another poller that waits for this one does not make its queued changes: call
/// [`flush`](Self::flush).
#[derive(Debug)]
pub struct Poller {
    epfd: OwnedFd,
    calls: Calls,
    queue: Mutex<Queue>,
    /// Whether the queue may have changes; avoids the lock if it is not used.
    queued: AtomicBool,
}

impl Poller {
    /// Makes a poller with the best back end that the kernel has.
    pub fn new() -> Result<Self> {
        let epfd = make()?;
        // A filter that denies the probe denies the calls.
        let syscalls = Syscalls::probe(&epfd).ok().flatten();
        let backend = if syscalls.is_some() { Backend::Batch } else { Backend::Pwait2 };
        Ok(Self::from_parts(epfd, Calls::new(backend, syscalls)))
    }

    /// Makes a poller with this back end.
    ///
    /// # Errors
    ///
    /// `ENOSYS` for [`Backend::Batch`] on a kernel without the calls. Calls that another back end lacks are
    /// noticed, and replaced, when they are used.
    pub fn with_backend(backend: Backend) -> Result<Self> {
        let epfd = make()?;
        let syscalls = match backend {
            Backend::Batch => Some(probe(&epfd)?),
            _ => None,
        };
        Ok(Self::from_parts(epfd, Calls::new(backend, syscalls)))
    }

    fn from_parts(epfd: OwnedFd, calls: Calls) -> Self {
        Self { epfd, calls, queue: Mutex::default(), queued: AtomicBool::new(false) }
    }

    /// The back end that the next call uses.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.calls.backend()
    }

    /// Starts to wait for `fd`, under `key`.
    ///
    /// # Errors
    ///
    /// `EEXIST` if it is in the poller already, `EPERM` if the file cannot be polled, as regular
    /// files, `ELOOP` if pollers would wait for each other or nest too deep, `EINVAL` for the
    /// poller itself or an [exclusive](Interest::exclusive) interest that the kernel does not accept,
    /// `ENOSPC` beyond `/proc/sys/fs/epoll/max_user_watches`, `ENOMEM`.
    pub fn add(&self, fd: &impl AsFd, key: u64, interest: Interest) -> Result<()> {
        self.now(set(Operation::Add, number(fd), key, interest))
    }

    /// Replaces the key and the interest of `fd`. Arms a one-shot again.
    ///
    /// # Errors
    ///
    /// `ENOENT` if it is not in the poller, `EINVAL` if it is or would be
    /// [exclusive](Interest::exclusive).
    pub fn change(&self, fd: &impl AsFd, key: u64, interest: Interest) -> Result<()> {
        self.now(set(Operation::Change, number(fd), key, interest))
    }

    /// Stops waiting for `fd`.
    ///
    /// # Errors
    ///
    /// `ENOENT` if it is not in the poller, and nothing was queued for it.
    pub fn remove(&self, fd: &impl AsFd) -> Result<()> {
        self.now(removal(number(fd)))
    }

    #[inline]
    fn now(&self, command: EpollCtlCmd) -> Result<()> {
        let done = if self.queued.load(Ordering::Acquire) {
            self.behind_queue(command)
        } else {
            let EpollCtlCmd { op, fd, events, data, .. } = command;
            epoll::ctl(&self.epfd, op, fd, events, data)
        };
        done.map_err(|errno| failed(&command, errno))
    }

    fn behind_queue(&self, command: EpollCtlCmd) -> Result<(), Errno> {
        let mut queue = self.lock();
        let had = queue.push(command);
        let done = self.run(&mut queue, true);
        drop(self.unlock(queue));
        match done {
            // Its addition was still queued, and is voided.
            Err(Errno::NOENT) if had && command.op == epoll::CTL_DEL => Ok(()),
            done => done,
        }
    }

    /// Makes changes in order up to the first that fails, in one call where the kernel can.
    ///
    /// At most 67 108 863 go to the kernel in one call.
    pub fn apply(&self, changes: &mut Changes<'_>) -> Applied {
        self.run_queue();
        let (done, errno) = self.calls.control(self.epfd.as_fd(), &mut changes.commands);
        let failed = changes.commands.get(done);
        let failure = failed.zip(errno).map(|(command, errno)| Failure::new(command, errno));
        Applied { done, failure }
    }

    /// Makes all changes in order, in one call where the kernel can; returns those that failed.
    ///
    /// This is for callers that accept some failures, for example of a descriptor that is there already.
    #[must_use = "changes may have failed"]
    pub fn apply_all(&self, changes: &mut Changes<'_>) -> Vec<Failure> {
        self.run_queue();
        self.calls.control_all(self.epfd.as_fd(), &mut changes.commands);
        let failure = |command: &EpollCtlCmd| {
            command.outcome().err().map(|errno| Failure::new(command, errno))
        };
        changes.commands.iter().filter_map(failure).collect()
    }

    /// Makes the queued changes before one that is made at once; their failures are kept.
    fn run_queue(&self) {
        if self.queued.load(Ordering::Acquire) {
            let mut queue = self.lock();
            let _ = self.run(&mut queue, false);
            drop(self.unlock(queue));
        }
    }

    /// Adds `fd` at the next wait, under `key`. It stays open until then.
    pub fn queue_add<F>(&self, fd: &Arc<F>, key: u64, interest: Interest)
    where
        F: AsFd + Send + Sync + 'static,
    {
        self.enqueue(set(Operation::Add, number(fd), key, interest), Arc::clone(fd) as Shared);
    }

    /// Replaces the key and the interest of `fd` at the next wait. It stays open until then.
    pub fn queue_change<F>(&self, fd: &Arc<F>, key: u64, interest: Interest)
    where
        F: AsFd + Send + Sync + 'static,
    {
        self.enqueue(set(Operation::Change, number(fd), key, interest), Arc::clone(fd) as Shared);
    }

    /// Removes `fd` at the next wait. It stays open until then. Removing a descriptor that is not there is not
    /// a failure.
    pub fn queue_remove<F>(&self, fd: &Arc<F>)
    where
        F: AsFd + Send + Sync + 'static,
    {
        self.enqueue(removal(number(fd)), Arc::clone(fd) as Shared);
    }

    fn enqueue(&self, command: EpollCtlCmd, fd: Shared) {
        let mut queue = self.lock();
        queue.push(command);
        queue.hold(fd);
        self.queued.store(true, Ordering::Release);
    }

    /// Makes the queued changes now. Returns those that failed since the last call or wait that reported some.
    #[must_use = "changes may have failed"]
    pub fn flush(&self) -> Vec<Failure> {
        if !self.queued.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut queue = self.lock();
        let _ = self.run(&mut queue, false);
        let failures = std::mem::take(&mut queue.failures);
        drop(self.unlock(queue));
        failures
    }

    /// The lock is held until the kernel has all changes: one that a thread makes at once must not
    /// overtake those that it has queued.
    fn run(&self, queue: &mut Queue, own_last: bool) -> Result<(), Errno> {
        queue.run(own_last, |commands| self.calls.control_all(self.epfd.as_fd(), commands))
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the descriptors that were kept open. They are dropped without the lock: closing may take time.
    fn unlock(&self, mut queue: MutexGuard<'_, Queue>) -> Vec<Shared> {
        let held = queue.take_held();
        self.queued.store(!queue.is_empty(), Ordering::Release);
        held
    }

    /// Makes a handle that ends waits of this poller with an event that has `key`.
    pub fn waker(&self, key: u64) -> Result<Waker> {
        Waker::new(self, key)
    }

    /// Makes the queued changes and waits until there are events, without a time limit. Returns the
    /// number of events.
    ///
    /// # Errors
    ///
    /// `EINTR` after a signal with a handler. If queued changes fail, the error of the first one, without
    /// waiting; [`Events::failures`] has all of them.
    pub fn wait(&self, events: &mut Events) -> Result<usize> {
        self.wait_until(events, Timeout::Never, None)
    }

    /// As [`wait`](Self::wait), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn try_wait(&self, events: &mut Events) -> Result<usize> {
        self.wait_until(events, Timeout::After(Duration::ZERO), None)
    }

    /// As [`wait`](Self::wait), at most until `timeout`.
    ///
    /// `timeout` is a [`Duration`], an [`Instant`], an `Option` of one of them,
    /// or a [`Timeout`], in nanoseconds. The wait never ends early; for it to end
    /// within a few microseconds, lower the thread's slack with `prctl(PR_SET_TIMERSLACK)`, see
    /// [the module](self#precision).
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(&self, events: &mut Events, timeout: impl Into<Timeout>) -> Result<usize> {
        self.wait_until(events, timeout.into(), None)
    }

    /// As [`wait_timeout`](Self::wait_timeout), while the thread blocks the signals of `mask` and no others.
    ///
    /// A signal that the thread blocks and `mask` does not ends a wait with `EINTR`. It cannot be delivered
    /// between a check and the wait.
    pub fn wait_with_mask(
        &self,
        events: &mut Events,
        timeout: impl Into<Timeout>,
        mask: &SignalSet,
    ) -> Result<usize> {
        self.wait_until(events, timeout.into(), Some(mask))
    }

    #[inline]
    fn wait_until(
        &self,
        events: &mut Events,
        timeout: Timeout,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        events.clear();
        if self.queued.load(Ordering::Acquire) {
            events.failures = self.flush();
            if let Some(failure) = events.failures.first() {
                return Err((*failure).into());
            }
        }
        let wait = Wait { epfd: self.epfd.as_fd(), timeout, mask };
        let waited = self.calls.wait(wait, &mut events.room);
        events.count = waited.map_err(|errno| Error::new("wait for", "a poller", errno))?;
        Ok(events.count)
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epfd.as_fd()
    }
}

#[cold]
fn failed(command: &EpollCtlCmd, errno: Errno) -> Error {
    Failure::new(command, errno).into()
}

fn make() -> Result<OwnedFd> {
    create(CreateFlags::CLOEXEC).map_err(|errno| Error::new("make", "a poller", errno))
}

fn probe(epfd: &OwnedFd) -> Result<Syscalls> {
    let failed = |errno| Error::new("use", format!("back end `{}`", Backend::Batch), errno);
    Syscalls::probe(epfd).map_err(failed)?.ok_or_else(|| {
        failed(Errno::NOSYS).help("this kernel has no epoll_ctl_batch: it needs Busbar's patches")
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::poll::Bell;

    fn denied() -> Poller {
        Poller::from_parts(make().unwrap(), Calls::new(Backend::Batch, Some(Syscalls::DENIED)))
    }

    #[test]
    fn a_batch_that_is_denied_is_made_one_by_one() {
        let (poller, event) = (denied(), Bell::new().unwrap());
        event.ring().unwrap();
        let mut changes = Changes::new();
        changes.add(&event, 1, Interest::READABLE).change(&event, 2, Interest::READABLE);
        changes.add(&event, 3, Interest::READABLE).remove(&event);
        let applied = poller.apply(&mut changes);
        assert_eq!(applied.done(), 2);
        assert_eq!(applied.failure().map(Failure::errno), Some(Errno::EXIST));
        assert_eq!(poller.backend(), Backend::Pwait2);
        let mut events = Events::new(4).unwrap();
        assert_eq!(poller.try_wait(&mut events).unwrap(), 1);
        assert_eq!(events.iter().next().map(Event::key), Some(2));
        let poller = denied();
        let failures = poller.apply_all(&mut changes);
        let failures: Vec<_> = failures.into_iter().map(|it| (it.key(), it.errno())).collect();
        assert_eq!(failures, [(Some(3), Errno::EXIST)]);
        assert_eq!(poller.backend(), Backend::Pwait2);
    }

    #[test]
    fn a_wait_that_is_denied_is_made_otherwise() {
        let (poller, event) = (denied(), Arc::new(Bell::new().unwrap()));
        poller.queue_add(&event, 1, Interest::WRITABLE);
        assert_eq!(poller.wait_timeout(&mut Events::new(4).unwrap(), Duration::MAX).unwrap(), 1);
        assert_eq!(poller.backend(), Backend::Pwait2);
        let poller = denied();
        let end = Clock::Realtime.now() + Duration::from_millis(2);
        assert_eq!(poller.wait_timeout(&mut Events::new(4).unwrap(), end).unwrap(), 0);
        assert_eq!((poller.backend(), end.remaining()), (Backend::Pwait2, Duration::ZERO));
    }
}
