//! The system calls of changes and waits.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use busbar_uapi::epoll::{
    self, BATCH_CONTINUE, EpollCtlCmd, EpollEvent, PWAIT1_ABSTIME, SignalSet, Syscalls,
};
use rustix::event::Timespec;
use rustix::io::{Errno, Result};
use rustix::time::TimerfdTimerFlags;

use super::time::{Clock, Instant, Timeout, millis, whole_millis};
use crate::poll::{Timer, timespec};

/// The system calls that a [`Poller`](super::Poller) uses. All of them have the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// `epoll_ctl_batch` and `epoll_pwait1`, which Busbar's kernel patches add: one call for a
    /// batch, one for any wait.
    Batch,
    /// `epoll_ctl` for each change; `epoll_pwait2` (Linux 5.11) for time without suspend, or
    /// `epoll_wait` if it is whole milliseconds; [`Timerfd`](Self::Timerfd) for other clocks.
    Pwait2,
    /// `epoll_ctl` for each change. A wait with a timeout needs up to four calls: it looks at the
    /// events, sets a timer, calls `ppoll` on both, and looks again.
    Timerfd,
    /// `epoll_ctl` for each change and `epoll_pwait` in milliseconds, rounded up. Notices within
    /// 100 ms that a clock was set, or that the system was suspended.
    Millis,
}

impl Backend {
    /// All of them, best first.
    pub const ALL: [Self; 4] = [Self::Batch, Self::Pwait2, Self::Timerfd, Self::Millis];
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Batch => "batch",
            Self::Pwait2 => "pwait2",
            Self::Timerfd => "timerfd",
            Self::Millis => "millis",
        })
    }
}

/// Longest wait in one call by a clock that can be set or that advances in suspend.
const SLICE: Duration = Duration::from_millis(100);

/// Longest wait in one call.
const ONE_CALL: Duration = Duration::from_millis(i32::MAX as u64);

/// The arguments of a wait.
#[derive(Clone, Copy)]
pub(super) struct Wait<'a> {
    pub epfd: BorrowedFd<'a>,
    pub timeout: Timeout,
    pub mask: Option<&'a SignalSet>,
}

/// The calls of a poller. A call that the kernel or a filter denies is not tried again.
#[derive(Debug)]
pub(super) struct Calls {
    /// Index into [`Backend::ALL`].
    backend: AtomicU8,
    syscalls: Syscalls,
    timers: Timers,
}

impl Calls {
    /// `syscalls` are only used by [`Backend::Batch`].
    pub(super) fn new(backend: Backend, syscalls: Option<Syscalls>) -> Self {
        Self {
            backend: AtomicU8::new(backend as u8),
            syscalls: syscalls.unwrap_or(Syscalls::DENIED),
            timers: Timers::default(),
        }
    }

    pub(super) fn backend(&self) -> Backend {
        Backend::ALL[usize::from(self.backend.load(Ordering::Relaxed)).min(3)]
    }

    /// Changes to the next back end, unless another thread has done so.
    fn leave(&self, backend: Backend) {
        let (this, next) = (backend as u8, backend as u8 + 1);
        let _ = self.backend.compare_exchange(this, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Does `commands` in order up to the first that fails; returns how many succeeded and why the
    /// next one failed.
    pub(super) fn control(
        &self,
        epfd: BorrowedFd<'_>,
        commands: &mut [EpollCtlCmd],
    ) -> (usize, Option<Errno>) {
        let (mut done, failure) = self.batch(epfd, 0, commands);
        if failure.is_some() {
            return (done, failure);
        }
        for command in &commands[done..] {
            if let Err(errno) = single(epfd, command) {
                return (done, Some(errno));
            }
            done += 1;
        }
        (done, None)
    }

    /// Does all `commands` in order, and sets the result of each.
    pub(super) fn control_all(&self, epfd: BorrowedFd<'_>, commands: &mut [EpollCtlCmd]) {
        let (done, failure) = self.batch(epfd, BATCH_CONTINUE, commands);
        for command in &mut commands[done..] {
            let outcome = failure.map_or_else(|| single(epfd, command), Err);
            command.result = outcome.map_or_else(|errno| -errno.raw_os_error(), |()| 0);
        }
    }

    /// Does `commands` by `epoll_ctl_batch` if the kernel has it. Returns how many are done and why it
    /// stopped, unless the rest is to be done one by one.
    fn batch(
        &self,
        epfd: BorrowedFd<'_>,
        flags: u32,
        commands: &mut [EpollCtlCmd],
    ) -> (usize, Option<Errno>) {
        let (mut done, end) = (0, commands.len());
        // A single command costs less by `epoll_ctl`.
        if self.backend() != Backend::Batch || end < 2 {
            return (0, None);
        }
        // An old result must not be mistaken for the kernel's.
        for command in &mut *commands {
            command.result = 0;
        }
        while done < end {
            let most = end.min(done.saturating_add(epoll::BATCH_MAX));
            match self.syscalls.ctl_batch(epfd, flags, &mut commands[done..most]) {
                Ok(count) => done += count,
                Err(errno) if is_denied(errno) => {
                    self.leave(Backend::Batch);
                    return (done, None);
                }
                Err(errno) => return (done, Some(errno)),
            }
            if done < most {
                match failure(&commands[done]) {
                    // The signal handler has run; the rest is still to be done.
                    Errno::INTR => {}
                    errno => return (done, Some(errno)),
                }
            }
        }
        (done, None)
    }

    /// Waits; returns how many events there are.
    #[inline]
    pub(super) fn wait(&self, wait: Wait<'_>, room: &mut [EpollEvent]) -> Result<usize> {
        loop {
            let backend = self.backend();
            let waited = match backend {
                Backend::Batch => self.pwait1(wait, room),
                Backend::Pwait2 => self.pwait2(wait, room),
                Backend::Timerfd => self.timerfd(wait, room),
                Backend::Millis => return in_millis(wait, room),
            };
            match waited {
                Err(errno) if is_denied(errno) => self.leave(backend),
                waited => return waited,
            }
        }
    }

    #[inline]
    fn pwait1(&self, wait: Wait<'_>, room: &mut [EpollEvent]) -> Result<usize> {
        let (flags, clock, timeout) = match wait.timeout {
            Timeout::Never => (0, Clock::Monotonic, None),
            Timeout::After(duration) => (0, Clock::Monotonic, Some(duration)),
            Timeout::AfterWithSuspend(duration) => (0, Clock::Boottime, Some(duration)),
            Timeout::At(end) => (PWAIT1_ABSTIME, end.clock(), Some(end.since_zero())),
        };
        let timeout = timeout.map(timespec);
        self.syscalls.pwait1(wait.epfd, flags, room, clock.id(), timeout.as_ref(), wait.mask)
    }

    #[inline]
    fn pwait2(&self, wait: Wait<'_>, room: &mut [EpollEvent]) -> Result<usize> {
        let duration = match wait.timeout {
            Timeout::After(duration) => duration,
            Timeout::At(end) if end.clock() == Clock::Monotonic => end.remaining(),
            // A lack of timers is no reason to stop using `epoll_pwait2`.
            _ => {
                return self.timerfd(wait, room).or_else(|errno| {
                    if is_denied(errno) { in_millis(wait, room) } else { Err(errno) }
                });
            }
        };
        // The older call is cheaper.
        if let Some(millis) = whole_millis(duration) {
            return epoll::pwait(wait.epfd, room, millis, wait.mask);
        }
        epoll::pwait2(wait.epfd, room, Some(&timespec(duration)), wait.mask)
    }

    fn timerfd(&self, wait: Wait<'_>, room: &mut [EpollEvent]) -> Result<usize> {
        let (clock, flags, duration) = match wait.timeout {
            Timeout::Never => return epoll::pwait(wait.epfd, room, -1, wait.mask),
            Timeout::After(duration) => (Clock::Monotonic, TimerfdTimerFlags::empty(), duration),
            Timeout::AfterWithSuspend(duration) => {
                (Clock::Boottime, TimerfdTimerFlags::empty(), duration)
            }
            Timeout::At(end) => (end.clock(), TimerfdTimerFlags::ABSTIME, end.since_zero()),
        };
        let count = epoll::pwait(wait.epfd, room, 0, None)?;
        // Setting a timer to zero would disarm it.
        if count > 0 || duration.is_zero() {
            return Ok(count);
        }
        let timer = match self.timers.take(clock) {
            // A wait does not fail because the program has too many files open.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => return in_millis(wait, room),
            timer => timer?,
        };
        let waited = until(&timer, flags, timespec(duration), wait, room);
        self.timers.put(clock, timer);
        waited
    }
}

/// Waits until there are events or the timer fires.
fn until(
    timer: &Timer,
    flags: TimerfdTimerFlags,
    value: Timespec,
    wait: Wait<'_>,
    room: &mut [EpollEvent],
) -> Result<usize> {
    timer.set_time(flags, value)?;
    loop {
        let [_, over] = epoll::wait_readable([wait.epfd, timer.as_fd()], wait.mask)?;
        let count = epoll::pwait(wait.epfd, room, 0, None)?;
        // Another thread may have taken the event.
        if count > 0 || over {
            return Ok(count);
        }
    }
}

fn in_millis(wait: Wait<'_>, room: &mut [EpollEvent]) -> Result<usize> {
    let end: Instant = match wait.timeout {
        Timeout::Never => return epoll::pwait(wait.epfd, room, -1, wait.mask),
        Timeout::After(duration) if duration <= ONE_CALL => {
            return epoll::pwait(wait.epfd, room, millis(duration), wait.mask);
        }
        Timeout::After(duration) => Clock::Monotonic.now() + duration,
        Timeout::AfterWithSuspend(duration) => Clock::Boottime.now() + duration,
        Timeout::At(end) => end,
    };
    loop {
        let longest = if end.clock() == Clock::Monotonic { Duration::MAX } else { SLICE };
        let timeout = millis(end.remaining().min(longest));
        let count = epoll::pwait(wait.epfd, room, timeout, wait.mask)?;
        if count > 0 || end.remaining().is_zero() {
            return Ok(count);
        }
    }
}

/// Whether the kernel does not have a call, or a filter denies it. Some filters return `EPERM`, which
/// none of these calls returns itself.
fn is_denied(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::PERM)
}

fn single(epfd: BorrowedFd<'_>, command: &EpollCtlCmd) -> Result<()> {
    let EpollCtlCmd { op, fd, events, data, .. } = *command;
    epoll::ctl(epfd, op, fd, events, data)
}

/// Why a batch ended at a command. The kernel writes no result only if the memory is not writable.
fn failure(command: &EpollCtlCmd) -> Errno {
    command.outcome().err().unwrap_or(Errno::FAULT)
}

/// Timers that no thread waits for, kept for the next wait.
///
/// A timer that is still set when its wait ends expires once without effect.
#[derive(Debug, Default)]
struct Timers(Mutex<Vec<(Clock, Timer)>>);

impl Timers {
    fn take(&self, clock: Clock) -> Result<Timer> {
        let mut timers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match timers.iter().position(|(of, _)| *of == clock) {
            Some(index) => Ok(timers.swap_remove(index).1),
            None => Timer::with_clock(clock.timer_id()),
        }
    }

    fn put(&self, clock: Clock, timer: Timer) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((clock, timer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_a_batch_is_what_the_kernel_says_and_else_that_it_could_not() {
        let ended = |result| failure(&EpollCtlCmd { result, ..EpollCtlCmd::default() });
        assert_eq!(ended(-libc::EEXIST), Errno::EXIST);
        assert_eq!(ended(-libc::EINTR), Errno::INTR);
        assert_eq!(ended(0), Errno::FAULT);
    }
}
