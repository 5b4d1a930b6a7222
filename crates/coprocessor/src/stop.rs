//! Ending a run from outside: another thread, or a signal.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use busbar::{Error, Result};
use signal_hook::SigId;

/// Requests for the end of a run.
///
/// After the first request the run withdraws its names and ends in order; after the second one, or
/// [`StopHandle::stop_at_once`], it ends at once, or once a start or stop of the remoteproc that is under way is done.
pub struct Stop {
    requests: UnixStream,
    handle: StopHandle,
    signals: Vec<SigId>,
    asked: AtomicU8,
    has_hung_up: Arc<AtomicBool>,
}

/// Asks for the end of a run, from any thread.
#[derive(Clone, Debug)]
pub struct StopHandle(Arc<UnixStream>);

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    InOrder,
    AtOnce,
}

/// The byte that asks for an end at once.
const AT_ONCE: u8 = b'!';
/// The byte of [`StopHandle::stop_in_order`]. Any other one, such as a signal's, asks for an end in order if it is the first.
const IN_ORDER: u8 = b'.';

/// What `asked` is: nobody has asked; only by [`IN_ORDER`], with which another request does not end the run at once; by
/// any other request.
const NOT: u8 = 0;
const IN_ORDER_ONLY: u8 = 1;
const YES: u8 = 2;

impl Stop {
    /// Without a request yet.
    pub fn new() -> Result<Self> {
        let (requests, writer) = pair().map_err(|error| Error::new("make", "a stop", error))?;
        let handle = StopHandle(Arc::new(writer));
        let (asked, has_hung_up) = Default::default();
        Ok(Self { requests, handle, signals: Vec::new(), asked, has_hung_up })
    }

    /// Takes a signal, such as `SIGINT` and `SIGTERM`, as a request until this is dropped.
    pub fn on_signal(mut self, signal: i32) -> Result<Self> {
        let register = || {
            let writer = OwnedFd::from(self.handle.0.try_clone()?);
            signal_hook::low_level::pipe::register(signal, writer)
        };
        let id = register().map_err(|error| Error::new("catch", format!("signal {signal}"), error));
        self.signals.push(id?);
        Ok(self)
    }

    /// Takes `SIGHUP`, which the end of a terminal sends, as a request in order until this is dropped. Often both the
    /// kernel and a shell send it: from the first one on, signals do not ask for an end at once any more. A process that
    /// ignores it, as one that `nohup` has started, goes on to do so.
    pub fn on_hangup(mut self) -> Result<Self> {
        if busbar_uapi::signal::is_ignored(libc::SIGHUP) {
            return Ok(self);
        }
        // Before the request, so that whoever reads the request knows.
        let flag = signal_hook::flag::register(libc::SIGHUP, Arc::clone(&self.has_hung_up));
        self.signals.push(flag.map_err(|error| Error::new("catch", "SIGHUP", error))?);
        self.on_signal(libc::SIGHUP)
    }

    /// The number of requests since the last call: the first one of all is in order, any more are at once.
    #[must_use]
    pub fn requests(&self) -> usize {
        let worth = |request| if request == Request::AtOnce { 2 } else { 1 };
        std::iter::from_fn(|| self.take()).map(worth).sum()
    }

    /// Another way to ask for the end.
    #[must_use]
    pub fn handle(&self) -> StopHandle {
        self.handle.clone()
    }

    /// The request since the last call.
    pub(crate) fn take(&self) -> Option<Request> {
        let (mut requests, mut byte) = (&self.requests, [0]);
        // One byte at a time: two simultaneous requests count as two.
        while let Ok(1) = requests.read(&mut byte) {
            if byte == [AT_ONCE] {
                return Some(Request::AtOnce);
            }
            let is_in_order = byte == [IN_ORDER];
            let now = if is_in_order { IN_ORDER_ONLY } else { YES };
            let before = self.asked.fetch_max(now, Ordering::Relaxed);
            let has_hung_up = self.has_hung_up.load(Ordering::Relaxed);
            if before == NOT || (before == YES && !is_in_order && !has_hung_up) {
                return Some(Request::InOrder);
            }
        }
        None
    }
}

impl StopHandle {
    /// Asks for the end. Never waits.
    pub fn stop(&self) {
        self.write(0);
    }

    /// Asks for an end in order, and for nothing more: neither this nor the request after it is the second one, which ends
    /// a run at once. It is for what may come together with a signal, such as the end of a reader in the same terminal.
    /// Never waits.
    pub fn stop_in_order(&self) {
        self.write(IN_ORDER);
    }

    /// Asks for the end without withdrawing anything: to Linux it is a crash. Never waits.
    pub fn stop_at_once(&self) {
        self.write(AT_ONCE);
    }

    fn write(&self, byte: u8) {
        // A full pipe holds enough requests.
        let _ = (&*self.0).write(&[byte]);
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.requests.as_fd()
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stop").finish_non_exhaustive()
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        for id in self.signals.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    writer.set_nonblocking(true)?;
    Ok((reader, writer))
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[test]
    fn requests_come_from_handles_and_signals_one_by_one() {
        let stop = Stop::new().unwrap().on_signal(Signal::USR1.as_raw()).unwrap();
        assert_eq!(stop.take(), None);
        stop.handle().stop();
        stop.handle().stop_at_once();
        assert_eq!(stop.take(), Some(Request::InOrder));
        assert_eq!(stop.take(), Some(Request::AtOnce));
        assert_eq!(stop.take(), None);
        kill_process(getpid(), Signal::USR1).unwrap();
        // The signal may interrupt another thread.
        let mut polled = [PollFd::new(&stop, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap();
        assert_eq!(stop.take(), Some(Request::InOrder));
        assert_eq!(stop.take(), None);
    }

    #[test]
    fn what_comes_together_with_a_signal_is_no_second_request() {
        for is_first in [true, false] {
            let stop = Stop::new().unwrap();
            let handle = stop.handle();
            for is_in_order in [is_first, !is_first, true] {
                if is_in_order { handle.stop_in_order() } else { handle.stop() }
            }
            assert_eq!(stop.requests(), 1);
            handle.stop();
            assert_eq!(stop.take(), Some(Request::InOrder));
            handle.stop_in_order();
            assert_eq!(stop.take(), None);
        }
    }

    #[test]
    fn a_terminal_that_has_gone_asks_once_however_often_it_says_so() {
        let stop = Stop::new().unwrap().on_hangup().unwrap();
        let hang_up = || {
            kill_process(getpid(), Signal::HUP).unwrap();
            let mut polled = [PollFd::new(&stop, PollFlags::IN)];
            poll(&mut polled, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap();
        };
        hang_up();
        assert_eq!(stop.take(), Some(Request::InOrder));
        hang_up();
        assert_eq!(stop.requests(), 0);
        // A program still can.
        stop.handle().stop_at_once();
        assert_eq!(stop.requests(), 2);
    }
}
