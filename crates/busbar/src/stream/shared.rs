//! What a source or a sink shares with the blocks that it has handed out.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::driver::{LOOK, Pending};
use crate::poll::{self, Bell, Deadline, Set};
use crate::{Error, Result};

/// The state of a stream, which its threads share, and what they wait for.
#[derive(Debug)]
pub(super) struct Shared<T> {
    label: String,
    state: Mutex<T>,
    /// Notified when a block was given back or the stream has ended.
    changed: Condvar,
    /// Threads that wait for that; changed only under the lock. To notify nobody would be a system call.
    waiting: AtomicUsize,
    set: Arc<Set>,
    /// Keeps the set readable while it rings. Made at once, so that it exists whatever the process runs out of.
    bell: Bell,
    is_watched: AtomicBool,
}

impl<T> Shared<T> {
    pub(super) fn new(label: String, state: T) -> Result<Arc<Self>> {
        let (set, bell) = (Set::new()?, Bell::new()?);
        set.add(&bell, 0, EventFlags::IN)?;
        Ok(Arc::new(Self {
            label,
            state: Mutex::new(state),
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
            set: Arc::new(set),
            bell,
            is_watched: AtomicBool::new(false),
        }))
    }

    /// The name of the stream in errors.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    pub(super) fn set(&self) -> &Arc<Set> {
        &self.set
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all threads that wait, after a change under the lock.
    pub(super) fn notify(&self, _: &mut T) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until the state may have changed.
    pub(super) fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, T>,
        pending: Pending,
        deadline: Deadline,
    ) -> Result<MutexGuard<'a, T>> {
        let remaining = deadline.remaining();
        let until = match pending {
            Pending::File(file, events) => {
                drop(state);
                let timeout = remaining.map_or(LOOK, |remaining| remaining.min(LOOK));
                poll::wait(&*file, events, Some(timeout))
                    .map_err(|errno| Error::new("wait for", &self.label, errno))?;
                return Ok(self.lock());
            }
            Pending::Until(at) => Some(at.saturating_duration_since(Instant::now())),
            Pending::Block => None,
        };
        let timeout = until.into_iter().chain(remaining).min();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let state = match timeout {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = self.changed.wait_timeout(state, timeout);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Ok(state)
    }

    /// The descriptor of the stream. The first call has `watch` add the files of the driver to it.
    pub(super) fn watched(&self, watch: impl FnOnce(&Self, &mut T)) -> BorrowedFd<'_> {
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            watch(self, &mut self.lock());
        }
        self.set.as_fd()
    }

    /// The error of a call on a stream that has ended.
    pub(super) fn ended(&self, tried: &'static str) -> Error {
        Error::new(tried, &self.label, Errno::PIPE).help("the stream has ended")
    }
}
